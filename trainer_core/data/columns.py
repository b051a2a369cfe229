"""Maps table columns to roles, and rows to documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from trainer_core.config import Config, knobs

Task = Literal["pretrain", "sft"]
MappingKind = Literal["text", "pair", "messages"]
# (role, content) or (role, content, fields). Roles: system, user, assistant, tool; the first turn may be `tools`, with
# the JSON list of tools as its content. `fields`: JSON of the other fields of the message, see `turn_fields`.
Turn = tuple[str, ...]
TOOLS_ROLE: Final = "tools"

# Alternatives to the default column names.
_TEXT_COLUMNS: Final = (
    ("text",), ("content",), ("document",), ("raw_content",), ("code",), ("文本",), ("内容",),
)  # fmt: skip
_PROMPT_RESPONSE_COLUMNS: Final = (
    ("prompt", "response"), ("prompt", "completion"), ("instruction", "output"), ("instruction", "response"),
    ("question", "answer"), ("query", "response"), ("问题", "回答"), ("问题", "答案"), ("指令", "输出"),
)  # fmt: skip
_MESSAGES_COLUMNS: Final = (("messages",), ("conversations",))
_TOOLS_COLUMNS: Final = (("tools",), ("functions",))
_REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "thinking")
_FUNCTION_CALL_ROLE: Final = "function_call"  # ShareGPT: the content is a tool call
_ROLE_ALIASES: Final = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatbot": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "ipython": "tool", "function_response": "tool",
    _FUNCTION_CALL_ROLE: "assistant",
}  # fmt: skip


class Document(msgspec.Struct, frozen=True, gc=False):
    """One row, or a part of a long text; the parts of a text have the same number.

    A struct without garbage collection, since there are many.
    """

    number: int
    text: str = ""
    turns: tuple[Turn, ...] = ()  # a conversation; `text` is empty then
    split_unit: int = 0  # never divided between splits: a row, or a part of a plain text
    file: int = 0  # number of its file in the data
    row: int = 0  # number of the row or part in its file, counting bad ones
    characters: int = 0  # of the text or all turns


class BadRow(Exception):  # noqa: N818 - counted, not shown as an error
    """The row cannot be used; the message is the reason."""


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """Column name per role; empty if not used."""

    kind: MappingKind
    text: str = ""
    prompt: str = ""
    response: str = ""
    input: str = ""
    system: str = ""
    messages: str = ""
    tools: str = ""  # optional in each row

    @property
    def task(self) -> Task:
        return "pretrain" if self.kind == "text" else "sft"

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that are read, in document order."""
        names = (self.text, self.system, self.prompt, self.input, self.response, self.messages, self.tools)
        return tuple(name for name in names if name)


PLAIN_TEXT: Final = ColumnMapping("text")  # no columns


class MissingColumnError(Exception):
    """The columns cannot be mapped. The message is the first one that is missing."""


def map_columns(column_names: Sequence[str], config: Config) -> ColumnMapping:
    """How to read a table with these columns. Raises `MissingColumnError`.

    With the task `auto`, the order is: the column `text_column`, messages, prompt and response, another text column.
    """
    text = _find_columns(column_names, config, ("text_column",), _TEXT_COLUMNS)
    if config.task != "sft" and text and (config.task == "pretrain" or text[0].lower() == config.text_column.lower()):
        return ColumnMapping("text", text=text[0])
    if config.task != "pretrain":
        if messages := _find_columns(column_names, config, ("messages_column",), _MESSAGES_COLUMNS):
            tools = _find_columns(column_names, config, (), _TOOLS_COLUMNS) or _TOOLS_COLUMNS[0]
            return ColumnMapping("messages", messages=messages[0], tools=tools[0])
        if pair := _find_columns(column_names, config, ("prompt_column", "response_column"), _PROMPT_RESPONSE_COLUMNS):
            optional = {"input": config.input_column, "system": config.system_column}
            used = {role: name for role, name in optional.items() if name in column_names and name not in pair}
            return ColumnMapping("pair", prompt=pair[0], response=pair[1], **used)
        if text and config.task == "auto":
            return ColumnMapping("text", text=text[0])
    own = (config.prompt_column, config.response_column)
    if config.task == "sft" or (config.task == "auto" and any(name in column_names for name in own)):
        raise MissingColumnError(next(name for name in own if name not in column_names))
    raise MissingColumnError(config.text_column)


def _find_columns(
    found: Sequence[str], config: Config, names: tuple[str, ...], alternatives: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    """The columns that these knobs name, or if they have their defaults, the first alternative (ignoring case and outer
    spaces). Empty if missing."""
    own = tuple(getattr(config, name) for name in names)
    if own and set(own) <= set(found):
        return own
    if own != tuple(knobs()[name].default for name in names):
        return ()
    by_name = {column.strip().lower(): column for column in reversed(found)}
    return next((tuple(map(by_name.__getitem__, match)) for match in alternatives if by_name.keys() >= set(match)), ())


# --- rows ------------------------------------------------------------------------------------------


def extract_text(row: Mapping[str, Any], mapping: ColumnMapping) -> str:
    """The text of a row. Raises `BadRow`."""
    if mapping.text not in row:
        raise BadRow(f"“{mapping.text}” is missing")
    return _cell_text(row, mapping.text)


def extract_turns(row: Mapping[str, Any], mapping: ColumnMapping) -> tuple[Turn, ...]:
    """The conversation of a row, up to the last assistant turn. Raises `BadRow`."""
    return _message_turns(row, mapping) if mapping.kind == "messages" else _prompt_response_turns(row, mapping)


def _prompt_response_turns(row: Mapping[str, Any], mapping: ColumnMapping) -> tuple[Turn, ...]:
    prompt, response = _cell_text(row, mapping.prompt), _cell_text(row, mapping.response)
    added = _cell_text(row, mapping.input) if mapping.input in row else ""
    system = _cell_text(row, mapping.system) if mapping.system in row else ""
    if added:
        prompt = f"{prompt}\n\n{added}" if prompt else added
    if not prompt or not response:
        raise BadRow(f"“{mapping.response if prompt else mapping.prompt}” is empty")
    exchange: tuple[Turn, ...] = (("user", prompt), ("assistant", response))
    return (("system", system), *exchange) if system else exchange


def _cell_text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if isinstance(value, str):
        return clean_text(value)
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise BadRow(f"“{name}” is not text")


def _message_turns(row: Mapping[str, Any], mapping: ColumnMapping) -> tuple[Turn, ...]:
    name = mapping.messages
    messages = _parse_json(row.get(name))  # JSON in formats without nested values
    if not isinstance(messages, list) or not messages:
        raise BadRow(f"“{name}” is not a list of messages")
    try:
        turns = [_parse_turn(message, name) for message in messages]
        tools = _normalize_tools(row.get(mapping.tools), mapping.tools)
    except (TypeError, RecursionError):  # values without JSON form; too deeply nested
        raise BadRow("a tool or a tool call has an unsupported value") from None
    turns = trim_after_last_answer(turns)
    if not turns:
        raise BadRow(f"“{name}” has no answer of an assistant")
    return ((TOOLS_ROLE, tools), *turns) if tools else tuple(turns)


def _parse_turn(message: Any, name: str) -> Turn:
    if not isinstance(message, Mapping):
        raise BadRow(f"“{name}” is not a list of messages")
    role, content = message.get("role"), message.get("content")
    if role is None:  # not `in`: tables fill missing fields with null
        role = message.get("from")
    if content is None:
        content = message.get("value")
    role = role.lower() if isinstance(role, str) else role
    known = _ROLE_ALIASES.get(role) if isinstance(role, str) else None
    if known is None:
        raise BadRow(f"a message's role is “{str(role)[:40]}”")
    if known == "tool":
        return _tool_turn(message, content)
    is_call = role == _FUNCTION_CALL_ROLE
    text = "" if is_call else _content_text(content)
    return _assistant_turn(message, text, content, is_call) if known == "assistant" else (known, text)


def _assistant_turn(message: Mapping[str, Any], text: str, content: Any, is_call: bool) -> Turn:
    """`is_call`: the content is a tool call."""
    calls = _tool_calls(message, content if is_call else None)
    if not calls and not text.strip():
        raise BadRow("an assistant's message has no text")
    fields: dict[str, Any] = {"tool_calls": calls} if calls else {}
    if calls and not text.strip() and "content" in message:  # templates distinguish null from empty
        fields["content"] = None if content is None else text
    reasoning = next((message[name] for name in _REASONING_FIELDS if isinstance(message.get(name), str)), "")
    if reasoning.strip():
        fields["reasoning_content"] = reasoning
    if message.get("weight") == 0:
        fields["weight"] = 0
    return ("assistant", text, _to_json(fields)) if fields else ("assistant", text)


def _tool_turn(message: Mapping[str, Any], content: Any) -> Turn:
    text = _to_json(content) if isinstance(content, Mapping) and "text" not in content else _content_text(content)
    fields = {name: message[name] for name in ("tool_call_id", "name") if isinstance(message.get(name), str)}
    return ("tool", text, _to_json(fields)) if fields else ("tool", text)


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return clean_text(content)
    parts = content if isinstance(content, list) else [content]  # a list of parts in multimodal data
    return clean_text("".join(_part_text(part) for part in parts))


def _part_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if text is not None and not isinstance(text, str):
        raise BadRow("a message's content is not text")
    return text or ""


def clean_text(text: str) -> str:
    """Text with `\\n` line ends and without lone surrogates, which JSON escapes can produce."""
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


def turn_fields(turn: Turn) -> dict[str, Any]:
    """The other fields of a message: `tool_calls` (with `content` if that is blank), `reasoning_content`,
    `tool_call_id`, `name`, and `weight` if it is 0."""
    fields: dict[str, Any] = json.loads(turn[2]) if len(turn) > 2 else {}
    return fields


def is_trained_on(turn: Turn) -> bool:
    """Whether the loss covers this assistant turn. `weight` 0, of OpenAI's format, excludes it."""
    return len(turn) < 3 or turn_fields(turn).get("weight") != 0


def trim_after_last_answer(turns: Sequence[Turn]) -> list[Turn]:
    """The turns up to the last one that is trained on."""
    count = len(turns)
    while count and not (turns[count - 1][0] == "assistant" and is_trained_on(turns[count - 1])):
        count -= 1
    return list(turns[:count])


def _tool_calls(message: Mapping[str, Any], content: Any) -> list[dict[str, Any]]:
    """Tool calls in OpenAI's form, from `tool_calls`, the older `function_call` or `content`."""
    found = message.get("tool_calls") or message.get("function_call") or content
    if not found:
        return []
    found = _parse_json(found) or []
    return [_normalize_tool_call(call) for call in (found if isinstance(found, list) else [found])]


def _normalize_tool_call(call: Any) -> dict[str, Any]:
    """A tool call with its arguments as an object, since chat templates convert them to JSON."""
    call = _drop_nulls(_parse_json(call))
    if isinstance(call, dict) and "function" not in call:
        call = {"type": "function", "function": call}
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRow("a tool call names no function")
    arguments = function.get("arguments") or {}
    parsed = _parse_json(arguments)
    _drop_nulls(parsed)  # checks the nesting depth only: nulls in arguments are meant
    return {**call, "function": {**function, "arguments": parsed if isinstance(parsed, dict) else arguments}}


def _normalize_tools(value: Any, name: str) -> str:
    """The tools of a row as JSON in OpenAI's form; empty if there are none."""
    tools = _parse_json(value)
    if not tools:
        return ""
    tools = [_drop_nulls(_parse_json(tool)) for tool in tools] if isinstance(tools, list) else []
    if not tools or not all(isinstance(tool, dict) for tool in tools):
        raise BadRow(f"“{name}” is not a list of tools")
    return _to_json([{"type": "function", "function": tool} if "name" in tool else tool for tool in tools])


def _parse_json(value: Any) -> Any:
    """The parsed value of a JSON string; any other value as it is."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            pass
    return value


def _drop_nulls(value: Any) -> Any:
    """Remove null fields of objects: Arrow tables fill missing fields with null."""
    if isinstance(value, Mapping):
        return {name: _drop_nulls(one) for name, one in value.items() if one is not None}
    return [_drop_nulls(one) for one in value] if isinstance(value, list) else value


def _to_json(value: Any) -> str:
    return clean_text(json.dumps(value, ensure_ascii=False))
