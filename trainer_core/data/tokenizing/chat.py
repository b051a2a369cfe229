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

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol

from trainer_core.data.columns import Turn
from trainer_core.messages import TraindeckError

END_OF_TEXT: Final = "<|endoftext|>"
IM_START: Final = "<|im_start|>"
IM_END: Final = "<|im_end|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, IM_START, IM_END)
LONGEST: Final = 4 * 1024 * 1024  # characters of a conversation, which is encoded at once: at most 300 bytes each
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

    def segments(self, turns: Sequence[Turn]) -> list[Segment]:
        check(turns)
        found = [Segment(mark=mark) for mark in self.prefix]
        for role, content in turns:
            if role == "assistant":
                found += self._answer
                if content:
                    found.append(Segment(content, learned=True, place="text"))
                found += self._answered
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
    for role, content in turns:
        length += len(content)
        if role not in ROLES:  # templates write roles out: one could spell a mark
            raise refused(f"a message's role is {role[:40]!r}")
    if length > LONGEST:
        raise refused("it is longer than 4 million characters; divide it into several conversations")


def refused(reason: str) -> TraindeckError:
    return TraindeckError("data.chat_refused", reason=reason)
