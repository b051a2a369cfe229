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
# (role, content) or (role, content, fields). Roles: system, user, assistant, tool. `fields`: a JSON object of what else
# the message has, see `fields_of`. The first turn may have the role `tools`: the JSON list of tools as its content.
Turn = tuple[str, ...]
TOOLS: Final = "tools"

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
_TOOLS: Final = ("tools", "functions")
_CALL: Final = "function_call"  # ShareGPT: the text of such a message is a tool call
_ROLES: Final = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatbot": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "ipython": "tool", "function_response": "tool",
    _CALL: "assistant",
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
    tools: str = ""  # read where a row has it

    @property
    def task(self) -> Task:
        return "pretrain" if self.kind == "text" else "sft"

    @property
    def used(self) -> tuple[str, ...]:
        """The columns that are read, in the order in which a document is made of them."""
        names = (self.text, self.system, self.prompt, self.input, self.response, self.messages, self.tools)
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
            tools = next((own for own in (_named(name, found) for name in _TOOLS) if own), _TOOLS[0])
            return Layout("messages", messages=messages, tools=tools)
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
    return _chat(row, layout) if layout.kind == "messages" else _exchange(row, layout)


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


def _chat(row: Mapping[str, Any], layout: Layout) -> tuple[Turn, ...]:
    name = layout.messages
    messages = _parsed(row.get(name))  # a table that cannot nest holds the list as JSON
    if not isinstance(messages, list) or not messages:
        raise BadRow(f"“{name}” is not a list of messages")
    try:
        turns, tools = [_turn(message, name) for message in messages], _tools(row.get(layout.tools), layout.tools)
    except (TypeError, RecursionError):  # of a table, with values that JSON has no word for; or nested too deeply
        raise BadRow("a tool or a tool call has an unsupported value") from None
    turns = up_to_last_answer(turns)
    if not turns:
        raise BadRow(f"“{name}” has no answer of an assistant")
    return ((TOOLS, tools), *turns) if tools else tuple(turns)


def _turn(message: Any, name: str) -> Turn:
    if not isinstance(message, Mapping):
        raise BadRow(f"“{name}” is not a list of messages")
    role, content = message.get("role"), message.get("content")
    if role is None:  # a table that mixes both ways fills the other's names with null
        role = message.get("from")
    if content is None:
        content = message.get("value")
    role = role.lower() if isinstance(role, str) else role
    known = _ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        raise BadRow(f"a message's role is {str(role)[:40]!r}")
    if known == "tool":
        return _tool_result(message, content)
    text = "" if role == _CALL else clean(content) if isinstance(content, str) else _text_of(content)
    return _answer(message, text, content, role == _CALL) if known == "assistant" else (known, text)


def _answer(message: Mapping[str, Any], text: str, content: Any, is_call: bool) -> Turn:
    """A turn of the assistant. `is_call`: its content is a tool call."""
    calls = _calls(message, content if is_call else None)
    if not calls and not text.strip():  # a model would learn to say nothing
        raise BadRow("an assistant's message has no text")
    fields: dict[str, Any] = {"tool_calls": calls} if calls else {}
    if calls and not text.strip() and "content" in message:  # templates distinguish null from an empty text
        fields["content"] = None if content is None else text
    if message.get("weight") == 0:
        fields["weight"] = 0
    return ("assistant", text, _json(fields)) if fields else ("assistant", text)


def _tool_result(message: Mapping[str, Any], content: Any) -> Turn:
    text = _json(content) if isinstance(content, Mapping) and "text" not in content else _text_of(content)
    fields = {name: message[name] for name in ("tool_call_id", "name") if isinstance(message.get(name), str)}
    return ("tool", text, _json(fields)) if fields else ("tool", text)


def _text_of(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]  # a list: as multimodal data has it
    return clean("".join(_part(part) for part in parts))


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


# --- tool calls ------------------------------------------------------------------------------------


def fields_of(turn: Turn) -> dict[str, Any]:
    """What a message has beside role and content: `tool_calls` (then also `content` where the message has it and it is
    blank), `tool_call_id`, `name`, and `weight` 0 for one of the assistant that is not learned."""
    fields: dict[str, Any] = json.loads(turn[2]) if len(turn) > 2 else {}
    return fields


def is_learned(turn: Turn) -> bool:
    """Whether the loss may cover this turn of the assistant: OpenAI's format excludes some by `weight`: 0."""
    return len(turn) < 3 or fields_of(turn).get("weight") != 0


def up_to_last_answer(turns: Sequence[Turn]) -> list[Turn]:
    """A conversation without what follows the last turn that is learned."""
    count = len(turns)
    while count and not (turns[count - 1][0] == "assistant" and is_learned(turns[count - 1])):
        count -= 1
    return list(turns[:count])


def _calls(message: Mapping[str, Any], content: Any) -> list[dict[str, Any]]:
    """Tool calls of a message, in OpenAI's form: those of `tool_calls`, of the older `function_call`, or `content`."""
    found = message.get("tool_calls") or message.get("function_call") or content
    if not found:
        return []
    found = _parsed(found) or []
    return [_call(call) for call in (found if isinstance(found, list) else [found])]


def _call(call: Any) -> dict[str, Any]:
    """A call with its arguments as an object: chat templates write them as JSON, and would quote a text again."""
    call = _without_nulls(_parsed(call))
    if isinstance(call, dict) and "function" not in call:
        call = {"type": "function", "function": call}
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRow("a tool call names no function")
    arguments = function.get("arguments") or {}
    parsed = _parsed(arguments)
    _without_nulls(parsed)  # only for its RecursionError: here nulls are what the assistant wrote
    return {**call, "function": {**function, "arguments": parsed if isinstance(parsed, dict) else arguments}}


def _tools(value: Any, name: str) -> str:
    """The tools of a row as JSON, each in OpenAI's form; empty where there are none."""
    tools = _parsed(value)
    if not tools:
        return ""
    tools = [_without_nulls(_parsed(tool)) for tool in tools] if isinstance(tools, list) else []
    if not tools or not all(isinstance(tool, dict) for tool in tools):
        raise BadRow(f"“{name}” is not a list of tools")
    return _json([{"type": "function", "function": tool} if "name" in tool else tool for tool in tools])


def _parsed(value: Any) -> Any:
    """What a text holds as JSON; the value itself where it is no text or no JSON."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            pass
    return value


def _without_nulls(value: Any) -> Any:
    """Without the entries of objects that are null: Arrow tables fill with null what a row does not have."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _json(value: Any) -> str:
    return clean(json.dumps(value, ensure_ascii=False))
