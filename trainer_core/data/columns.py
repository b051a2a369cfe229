"""Which columns of a table hold what is to be learned, and rows as documents.

No torch, no Qt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from trainer_core.config import Config, knobs

Task = Literal["pretrain", "sft"]
Kind = Literal["text", "pair", "messages"]
Turn = tuple[str, str]  # (role, content); role: system, user, assistant or tool

# Names that data sets use in place of ours; looked for only where the knob is left as it is.
_TEXTS: Final = ("text", "content", "document", "raw_content", "code", "文本", "内容")
_PAIRS: Final = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("query", "response"),
    ("问题", "回答"),
    ("问题", "答案"),
    ("指令", "输出"),
)
_MESSAGES: Final = ("messages", "conversations")
_ROLES: Final = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatbot": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "ipython": "tool", "function_response": "tool",
}  # fmt: skip


class Document(msgspec.Struct, frozen=True, gc=False):
    """One row, or a part of one long text: parts of one text have the same number.

    Quick to make: there are many of them. Nothing in it can refer to it, so Python need not look whether that is so.
    """

    number: int
    text: str = ""
    turns: tuple[Turn, ...] = ()  # a conversation; then there is no text
    unit: int = 0  # what goes whole into one split: a row, or a part of a plain text
    file: int = 0  # number of its file in the data
    row: int = 0  # number of its row, or part, in that file, from 0; bad ones count
    characters: int = 0  # of the text or of all turns


class BadRow(Exception):  # noqa: N818 - it is counted, not raised to the user
    """A row that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What is read from a table. Names that are not used are empty."""

    kind: Kind
    text: str = ""
    prompt: str = ""
    response: str = ""
    input: str = ""
    system: str = ""
    messages: str = ""

    @property
    def task(self) -> Task:
        return "pretrain" if self.kind == "text" else "sft"

    @property
    def used(self) -> tuple[str, ...]:
        """The columns that are read, in the order in which a document is made of them."""
        names = (self.text, self.system, self.prompt, self.input, self.response, self.messages)
        return tuple(name for name in names if name)


PLAIN: Final = Layout("text")  # a text without columns


class Missing(Exception):  # noqa: N818 - the caller knows the path and words it
    """No way to read these columns; `wanted` is the first one that lacks."""

    def __init__(self, wanted: str) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def find_layout(found: Sequence[str], config: Config) -> Layout:
    """How to read a table with these columns; raises `Missing`.

    `auto`: a column named as the knob says text, else messages, else prompt and response, else another text.
    """
    text, messages, pair = _text(found, config), _messages(found, config), _pair(found, config)
    if config.task != "sft" and text and (config.task == "pretrain" or text.lower() == config.text_column.lower()):
        return Layout("text", text=text)
    if config.task != "pretrain":
        if messages:
            return Layout("messages", messages=messages)
        if pair:
            extra = {
                "input": config.input_column if config.input_column in found else "",
                "system": config.system_column if config.system_column in found else "",
            }
            extra = {name: column if column not in pair else "" for name, column in extra.items()}
            return Layout("pair", prompt=pair[0], response=pair[1], **extra)
    if config.task == "auto" and text:
        return Layout("text", text=text)
    raise Missing(_lacking(found, config))


def _lacking(found: Sequence[str], config: Config) -> str:
    pair = (config.prompt_column, config.response_column)
    half = pair[0] in found or pair[1] in found
    if config.task == "sft" or (config.task == "auto" and half):
        return next(name for name in pair if name not in found)
    return config.text_column


def _is_default(*names: str) -> bool:
    return all(value == knobs()[name].default for name, value in zip(names[::2], names[1::2], strict=True))


def _text(found: Sequence[str], config: Config) -> str:
    if config.text_column in found:
        return config.text_column
    if not _is_default("text_column", config.text_column):
        return ""
    return next((own for own in (_named(name, found) for name in _TEXTS) if own), "")


def _messages(found: Sequence[str], config: Config) -> str:
    if config.messages_column in found:
        return config.messages_column
    if not _is_default("messages_column", config.messages_column):
        return ""
    return next((own for own in (_named(name, found) for name in _MESSAGES) if own), "")


def _pair(found: Sequence[str], config: Config) -> tuple[str, str] | None:
    own = (config.prompt_column, config.response_column)
    if set(own) <= set(found):
        return own
    if not _is_default("prompt_column", own[0], "response_column", own[1]):
        return None
    pairs = ((_named(prompt, found), _named(response, found)) for prompt, response in _PAIRS)
    return next((pair for pair in pairs if all(pair)), None)


def _named(name: str, found: Sequence[str]) -> str:
    """The column of this name, however it is capitalised; empty where there is none."""
    return next((own for own in found if own.strip().lower() == name), "")


# --- rows ------------------------------------------------------------------------------------------


def text_of(row: Mapping[str, Any], layout: Layout) -> str:
    """The text of a row; empty for a row without any. Raises `BadRow`."""
    if layout.text not in row:
        raise BadRow(f"“{layout.text}” is missing")
    return _as_text(row, layout.text)


def turns_of(row: Mapping[str, Any], layout: Layout) -> tuple[Turn, ...]:
    """The conversation of a row, which ends with an assistant's turn. Raises `BadRow`."""
    return _chat(row, layout.messages) if layout.kind == "messages" else _exchange(row, layout)


def _exchange(row: Mapping[str, Any], layout: Layout) -> tuple[Turn, ...]:
    prompt, response = _as_text(row, layout.prompt), _as_text(row, layout.response)
    added = _as_text(row, layout.input) if layout.input in row else ""
    system = _as_text(row, layout.system) if layout.system in row else ""
    if added:
        prompt = f"{prompt}\n\n{added}" if prompt else added
    if not prompt or not response:
        raise BadRow(f"“{layout.response if prompt else layout.prompt}” is empty")
    exchange: tuple[Turn, ...] = (("user", prompt), ("assistant", response))
    return (("system", system), *exchange) if system else exchange


def _as_text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if isinstance(value, str):
        return clean(value)
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise BadRow(f"“{name}” is not text")


def _chat(row: Mapping[str, Any], name: str) -> tuple[Turn, ...]:
    messages = row.get(name)
    if isinstance(messages, str):  # a table that cannot nest holds the list as JSON
        try:
            messages = json.loads(messages)
        except (ValueError, RecursionError):
            raise BadRow(f"“{name}” is not a list of messages") from None
    if not isinstance(messages, list) or not messages:
        raise BadRow(f"“{name}” is not a list of messages")
    turns = [_turn(message, name) for message in messages]
    while turns and turns[-1][0] != "assistant":  # nothing is learned from what nobody answered
        turns.pop()
    if not turns:
        raise BadRow(f"“{name}” has no answer of an assistant")
    return tuple(turns)


def _turn(message: Any, name: str) -> Turn:
    if not isinstance(message, Mapping):
        raise BadRow(f"“{name}” is not a list of messages")
    role, content = message.get("role"), message.get("content")
    if role is None:  # a table that mixes both ways fills the other's names with null
        role = message.get("from")
    if content is None:
        content = message.get("value")
    known = _ROLES.get(role.lower()) if isinstance(role, str) else None
    if known is None:
        raise BadRow(f"a message's role is {str(role)[:40]!r}")
    parts = content if isinstance(content, list) else [content]  # a list: as multimodal data has it
    text = clean("".join(_part(part) for part in parts))
    if known == "assistant" and not text.strip():  # it calls a tool, say: a model would learn to say nothing
        raise BadRow("an assistant's message has no text")
    return known, text


def _part(part: Any) -> str:
    """The text of a part of a message; tables fill what a part lacks, such as an image's text, with null."""
    text = part.get("text") if isinstance(part, Mapping) else part
    if text is not None and not isinstance(text, str):
        raise BadRow("a message's content is not text")
    return text or ""


def clean(text: str) -> str:
    """Text with `\\n` line ends and without lone surrogates (JSON escapes can make them; UTF-8 cannot)."""
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
