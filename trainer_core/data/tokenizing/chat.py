"""How a conversation becomes one sequence of tokens, and which of them are learned: chat templates.

A template writes its own marks (special tokens such as `<|im_end|>`) around what people wrote. The marks
become tokens; what people wrote is always plain text, also where it spells a mark. Learned is what a
model has to write itself: everything from the end of the generation prompt to the mark that ends the
assistant's turn. So text is cut for encoding only at marks and where an answer begins, just as it is cut
when the model is used: the prompt is encoded on its own, and the model goes on from there.

ChatML is the template of models that have none of their own:

    <|im_start|>user
    PROMPT<|im_end|>
    <|im_start|>assistant
    RESPONSE<|im_end|>

chat_jinja.py has the other kind, a model's own template.

No torch, no Qt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from trainer_core.data.columns import TOOLS, Turn, fields_of, is_learned
from trainer_core.messages import TraindeckError

END_OF_TEXT: Final = "<|endoftext|>"
IM_START: Final = "<|im_start|>"
IM_END: Final = "<|im_end|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, IM_START, IM_END)
LONGEST: Final = 4 * 1024 * 1024  # characters of a conversation, which is encoded at once: at most 300 bytes each
_ID_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyz012345"
ROLES: Final = ("system", "user", "assistant", "tool")

# As Jinja, for tokenizer_config.json; renders what `ChatMl` makes.
CHATML: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

Place = Literal["start", "mark", "text"]


class Mark(NamedTuple):
    """A token that only a template writes, and whether it takes the white space beside it."""

    id: int
    takes_left: bool = False
    takes_right: bool = False


class Segment(NamedTuple):
    """A mark, or text that is encoded on its own."""

    text: str = ""
    mark: int = -1  # -1: this is text
    learned: bool = False
    place: Place = "mark"  # what stands before it: nothing, a mark, or text that was cut here


class ChatTemplate(Protocol):
    """Writes conversations."""

    end: int  # the token that ends an answer
    ends: frozenset[int]  # all that end one somewhere
    promoted: frozenset[str]  # tokens that are not called special and are marks all the same
    uses_eos: bool  # whether the Jinja text asks for `eos_token`

    def supported(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """The conversation without tools and tool calls that the template cannot write, see `without_calls`."""
        ...

    def segments(self, turns: Sequence[Turn]) -> list[Segment]:
        """A whole conversation. Raises `data.chat_refused`."""
        ...

    def prompt(self, turns: Sequence[Turn]) -> list[Segment]:
        """A conversation up to the place where the model begins to write. Raises `data.chat_refused`."""
        ...


class ChatMl:
    """ChatML, written directly: its Jinja text need not be rendered."""

    uses_eos = False
    promoted: frozenset[str] = frozenset()

    def __init__(self, start: int, end: int, prefix: Sequence[int] = ()) -> None:
        self.start, self.end, self.ends = start, end, frozenset((end,))
        self.prefix = tuple(prefix)  # ids before a conversation, such as `<bos>`
        # Made once: millions of conversations have them.
        self._answer = (Segment(mark=start), Segment("assistant\n"))
        self._answered = (Segment(mark=end, learned=True), Segment("\n"))
        self._said = (Segment(mark=end), Segment("\n"))

    def supported(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        return without_calls(turns, False, lambda turn: False)

    def segments(self, turns: Sequence[Turn]) -> list[Segment]:
        check(turns)
        found = [Segment(mark=mark) for mark in self.prefix]
        for turn in turns:
            role, content = turn[:2]
            if role == "assistant":
                learned = is_learned(turn)
                found += self._answer
                if content:
                    found.append(Segment(content, learned=learned, place="text"))
                found += self._answered if learned else self._said
            else:
                found += (self._answer[0], Segment(f"{role}\n{content}"), *self._said)
        return found

    def prompt(self, turns: Sequence[Turn]) -> list[Segment]:
        given = [segment._replace(learned=False) for segment in self.segments(turns)]
        return [*given, *self._answer]


def check(turns: Sequence[Turn]) -> None:
    """Refuse what no template takes: no turns, a role that is none, too long a text. Raises `data.chat_refused`."""
    if not turns:
        raise refused("it has no messages")
    length = 0
    for place, turn in enumerate(turns):
        role = turn[0]
        length += len(turn[1]) if len(turn) < 3 else len(turn[1]) + len(turn[2])
        if role not in ROLES and (place or role != TOOLS):  # templates write roles out: one could spell a mark
            raise refused(f"a message's role is {role[:40]!r}")
    if length > LONGEST:
        raise refused("it is longer than 4 million characters; divide it into several conversations")


def message_of(turn: Turn) -> dict[str, Any]:
    """A turn as templates take it."""
    fields = fields_of(turn)
    fields.pop("weight", None)
    if "tool_calls" in fields and not turn[1].strip():  # then the fields say whether there is a content
        return {"role": turn[0], **fields}
    return {"role": turn[0], "content": turn[1], **fields}


def has_tools(turns: Sequence[Turn]) -> bool:
    """Whether a conversation may have tools, tool calls or their results."""
    return bool(turns) and (turns[0][0] == TOOLS or max(map(len, turns)) > 2)


def without_calls(turns: Sequence[Turn], takes_tools: bool, is_supported: Callable[[Turn], bool]) -> Sequence[Turn]:
    """A conversation without the turns whose tool calls are not supported, and the tool results that follow them.

    Without the tools themselves if not `takes_tools`.
    """
    if not has_tools(turns):
        return turns
    kept: list[Turn] = []
    leaving_out = False
    for turn in turns:
        if turn[0] == "assistant":
            leaving_out = "tool_calls" in fields_of(turn) and not is_supported(turn)
        elif turn[0] != "tool":
            leaving_out = turn[0] == TOOLS and not takes_tools
        if not leaving_out:
            kept.append(turn)
    return kept


def with_short_ids(turns: Sequence[Turn]) -> list[Turn]:
    """A conversation with tool call ids of nine letters and digits, which the templates of Mistral require."""
    known: dict[str, str] = {}
    unanswered: list[str] = []  # ids of calls whose results name none
    found: list[Turn] = []
    for turn in turns:
        fields = fields_of(turn)
        for call in fields.get("tool_calls", ()):
            given = str(call.get("id", f"call {len(known)}"))
            call["id"] = known.setdefault(given, _short_id(given))
            unanswered.append(call["id"])
        if turn[0] == "tool":
            named = str(fields.get("tool_call_id"))
            fields["tool_call_id"] = known.get(named) or (unanswered[0] if unanswered else _short_id(named))
            unanswered = [one for one in unanswered if one != fields["tool_call_id"]]
        found.append((*turn[:2], json.dumps(fields, ensure_ascii=False)) if fields else turn)
    return found


def _short_id(given: str) -> str:
    number = int.from_bytes(hashlib.blake2b(given.encode("utf-8"), digest_size=8).digest(), "big")
    return "".join(_ID_CHARACTERS[number >> 5 * place & 31] for place in range(9))


def count_turns(turns: Sequence[Turn]) -> int:
    return len(turns) - bool(turns and turns[0][0] == TOOLS)


def refused(reason: str) -> TraindeckError:
    return TraindeckError("data.chat_refused", reason=reason)
