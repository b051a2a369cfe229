"""Chat templates: a conversation as a sequence of tokens, and which of them are in the loss.

A template writes special tokens such as `<|im_end|>` around what people wrote. Messages are always plain text, also
where they spell a special token. In the loss is what the model has to write itself: everything from the end of the
generation prompt to the token that ends the assistant's turn. Text is cut for encoding only at special tokens and where
an answer begins, as in generation, where the prompt is encoded on its own.

Models without a template of their own use ChatML:

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

from trainer_core.data.columns import TOOLS_ROLE, Turn, is_trained_on, turn_fields
from trainer_core.messages import TraindeckError

END_OF_TEXT: Final = "<|endoftext|>"
IM_START: Final = "<|im_start|>"
IM_END: Final = "<|im_end|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, IM_START, IM_END)
MAX_CONVERSATION_CHARS: Final = 4 * 1024 * 1024  # a conversation is encoded at once, with up to 300 bytes per character
ROLES: Final = ("system", "user", "assistant", "tool")

# As Jinja, for tokenizer_config.json; renders the same as `ChatMl`.
CHATML_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

PrecededBy = Literal["start", "mark", "text"]


class SpecialToken(NamedTuple):
    """A token that only a template writes, and whether it absorbs white space on either side."""

    id: int
    lstrip: bool = False
    rstrip: bool = False


class Segment(NamedTuple):
    """A special token, or text that is encoded on its own."""

    text: str = ""
    token_id: int = -1  # -1: this is text
    in_loss: bool = False
    preceded_by: PrecededBy = "mark"  # "start": nothing; "mark": a special token; "text": text that is cut here


class ChatTemplate(Protocol):
    """Converts conversations to segments."""

    end_of_turn: int  # the token that ends the last answer
    end_of_turn_ids: frozenset[int]  # all tokens that end an answer
    control_tokens: frozenset[str]  # further tokens that only the template writes, though they are not marked special
    uses_eos: bool  # whether the Jinja source uses `eos_token`

    def drop_unsupported_calls(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """The conversation without tools and calls that the template cannot write, see `drop_unsupported_calls`."""
        ...

    def render(self, turns: Sequence[Turn]) -> list[Segment]:
        """A whole conversation. Raises `data.chat_refused`."""
        ...

    def render_prompt(self, turns: Sequence[Turn]) -> list[Segment]:
        """A conversation up to the place where the model begins to write. Raises `data.chat_refused`."""
        ...


class ChatMl:
    """ChatML without Jinja."""

    uses_eos = False
    control_tokens: frozenset[str] = frozenset()

    def __init__(self, start_of_turn: int, end_of_turn: int, prefix_ids: Sequence[int] = ()) -> None:
        self.start_of_turn, self.end_of_turn = start_of_turn, end_of_turn
        self.end_of_turn_ids = frozenset((end_of_turn,))
        self.prefix_ids = tuple(prefix_ids)  # ids before a conversation, such as `<bos>`

    def drop_unsupported_calls(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        return drop_unsupported_calls(turns, False, lambda turn: False)

    def render(self, turns: Sequence[Turn]) -> list[Segment]:
        validate_turns(turns)
        found = [Segment(token_id=token_id) for token_id in self.prefix_ids]
        for turn in turns:
            role, content = turn[:2]
            in_loss = role == "assistant" and is_trained_on(turn)
            found.append(Segment(token_id=self.start_of_turn))
            if role != "assistant":
                found.append(Segment(f"{role}\n{content}"))
            else:
                found.append(Segment("assistant\n"))
                found += [Segment(content, in_loss=in_loss, preceded_by="text")] if content else []
            found += [Segment(token_id=self.end_of_turn, in_loss=in_loss), Segment("\n")]
        return found

    def render_prompt(self, turns: Sequence[Turn]) -> list[Segment]:
        given = [segment._replace(in_loss=False) for segment in self.render(turns)]
        return [*given, Segment(token_id=self.start_of_turn), Segment("assistant\n")]


def validate_turns(turns: Sequence[Turn]) -> None:
    """Raises `data.chat_refused` for no turns, an unknown role or too long a text."""
    if not turns:
        raise chat_refused_error("it has no messages")
    length = 0
    for place, turn in enumerate(turns):
        role = turn[0]
        length += len(turn[1]) if len(turn) < 3 else len(turn[1]) + len(turn[2])
        if role not in ROLES and (place or role != TOOLS_ROLE):  # a role could spell a special token
            raise chat_refused_error(f"a message's role is “{role[:40]}”")
    if length > MAX_CONVERSATION_CHARS:
        raise chat_refused_error("it is longer than 4 million characters; divide it into several conversations")


def to_message(turn: Turn) -> dict[str, Any]:
    """A turn as a template's message."""
    fields = turn_fields(turn)
    fields.pop("weight", None)
    if "tool_calls" in fields and not turn[1].strip():  # then the fields have the content, if there is one
        return {"role": turn[0], **fields}
    return {"role": turn[0], "content": turn[1], **fields}


def has_tools(turns: Sequence[Turn]) -> bool:
    """Whether a conversation may have tools, tool calls or tool results."""
    return bool(turns) and (turns[0][0] == TOOLS_ROLE or max(map(len, turns)) > 2)


def drop_unsupported_calls(
    turns: Sequence[Turn], supports_tools: bool, is_call_supported: Callable[[Turn], bool]
) -> Sequence[Turn]:
    """A conversation without the turns whose tool calls are not supported, and the tool results that follow them.

    Without the tools themselves if not `supports_tools`.
    """
    if not has_tools(turns):
        return turns
    kept: list[Turn] = []
    leaving_out = False
    for turn in turns:
        if turn[0] == "assistant":
            leaving_out = "tool_calls" in turn_fields(turn) and not is_call_supported(turn)
        elif turn[0] != "tool":
            leaving_out = turn[0] == TOOLS_ROLE and not supports_tools
        if not leaving_out:
            kept.append(turn)
    return kept


def shorten_tool_call_ids(turns: Sequence[Turn]) -> list[Turn]:
    """A conversation with tool call ids of nine letters and digits, which Mistral's templates require."""
    known: dict[str, str] = {}
    unanswered: list[str] = []  # ids of calls, for results without an id
    found: list[Turn] = []
    for turn in turns:
        fields = turn_fields(turn)
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
    return hashlib.blake2b(given.encode("utf-8")).hexdigest()[:9]


def count_turns(turns: Sequence[Turn]) -> int:
    return len(turns) - bool(turns and turns[0][0] == TOOLS_ROLE)


def chat_refused_error(reason: str) -> TraindeckError:
    return TraindeckError("data.chat_refused", reason=reason)
