"""The rows of tables as documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from trainer_core.data.column_mapping import ColumnMapping

# (role, content) or (role, content, fields). Roles: system, user, assistant, tool; the first turn may be `tools`, with
# the JSON list of tools as its content. `fields`: JSON of the other fields of the message, see `turn_fields`.
Turn = tuple[str, ...]
Conversation = tuple[Turn, ...]
TOOLS_ROLE: Final = "tools"
THINK_TAGS: Final = ("<think>", "</think>")  # around reasoning, before an answer

_REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "thinking")
_FUNCTION_CALL_ROLE: Final = "function_call"  # ShareGPT: the content is a tool call
ROLE_ALIASES: Final = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatbot": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "ipython": "tool", "function_response": "tool",
    _FUNCTION_CALL_ROLE: "assistant",
}  # fmt: skip


class Preference(NamedTuple):
    """A good and a bad answer as two whole conversations, of which one may be missing (empty).

    Only the answers that differ are trained on: the others have the weight 0.
    """

    chosen: Conversation
    rejected: Conversation


Content = str | Conversation | Preference


def conversations_of(content: Content) -> tuple[Conversation, ...]:
    """The conversations of a row; none of a text."""
    if isinstance(content, Preference):
        return content
    return () if isinstance(content, str) else (content,)


class Document(msgspec.Struct, frozen=True, gc=False):
    """One row, or a part of a long text; the parts of a text have the same number.

    A struct without garbage collection, since there are many.
    """

    number: int
    content: Content
    split_unit: int = 0  # never divided between splits: a row, or a part of a plain text
    file: int = 0  # number of its file in the data
    row: int = 0  # number of the row or part in its file, counting bad ones
    characters: int = 0  # of the text or all turns

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else ""

    @property
    def turns(self) -> Conversation:
        """The conversation; of a preference, the chosen one."""
        return next(iter(conversations_of(self.content)), ())


class RowError(Exception):
    """The row cannot be used; the message is the reason."""


# --- rows ------------------------------------------------------------------------------------------


def extract_text(row: Mapping[str, Any], mapping: ColumnMapping) -> str:
    """The text of a row. Raises `RowError`."""
    if mapping.text not in row:
        raise RowError(f"“{mapping.text}” is missing")
    return cell_text(row, mapping.text)


def extract_turns(row: Mapping[str, Any], mapping: ColumnMapping) -> Conversation:
    """The conversation of a row, up to the last assistant turn. Raises `RowError`."""
    return _message_turns(row, mapping) if mapping.kind == "messages" else _prompt_response_turns(row, mapping)


def _prompt_response_turns(row: Mapping[str, Any], mapping: ColumnMapping) -> Conversation:
    prompt, response = prompt_text(row, mapping), cell_text(row, mapping.response)
    if not prompt.strip() or not response.strip():
        raise RowError(f"“{mapping.response if prompt.strip() else mapping.prompt}” is empty")
    return (*system_turns(row, mapping), ("user", prompt), ("assistant", response))


def prompt_text(row: Mapping[str, Any], mapping: ColumnMapping) -> str:
    """The prompt of a row, with its addition. Raises `RowError`."""
    parts = [cell_text(row, mapping.prompt), cell_text(row, mapping.input) if mapping.input in row else ""]
    return "\n\n".join(filter(None, parts))


def system_turns(row: Mapping[str, Any], mapping: ColumnMapping) -> Conversation:
    """The system prompt of a row, if it has one. Raises `RowError`."""
    system = cell_text(row, mapping.system) if mapping.system in row else ""
    return (("system", system),) if system else ()


def cell_text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if isinstance(value, str):
        return clean_text(value)
    if value is None or value != value:  # NaN: an empty cell of pandas
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise RowError(f"“{name}” is not text")


def _message_turns(row: Mapping[str, Any], mapping: ColumnMapping) -> Conversation:
    name = mapping.messages
    messages = parse_json(row.get(name))  # JSON in formats without nested values
    if not isinstance(messages, list) or not messages:
        raise RowError(f"“{name}” is not a list of messages")
    try:
        turns = trim_after_last_answer([parse_turn(message, name) for message in messages])
        tools = tools_turns(row, mapping)
    except (TypeError, RecursionError):  # values without JSON form; too deeply nested
        raise unsupported_value() from None
    if not turns:
        raise RowError(f"“{name}” has no answer of an assistant")
    return (*tools, *turns)


def unsupported_value() -> RowError:
    return RowError("a tool or a tool call has an unsupported value")


def parse_turn(message: Any, name: str) -> Turn:
    if not isinstance(message, Mapping):
        raise RowError(f"“{name}” is not a list of messages")
    role, content = message.get("role"), message.get("content")
    if role is None:  # not `in`: tables fill missing fields with null
        role = message.get("from")
    if content is None:
        content = message.get("value")
    role = role.lower() if isinstance(role, str) else role
    known = ROLE_ALIASES.get(role) if isinstance(role, str) else None
    if known is None:
        raise RowError(f"a message's role is “{str(role)[:40]}”")
    if known == "tool":
        return _tool_turn(message, content)
    is_call = role == _FUNCTION_CALL_ROLE
    text = "" if is_call else _content_text(content)
    return _assistant_turn(message, text, content, is_call) if known == "assistant" else (known, text)


def _assistant_turn(message: Mapping[str, Any], text: str, content: Any, is_call: bool) -> Turn:
    """`is_call`: the content is a tool call."""
    calls = _tool_calls(message, content if is_call else None)
    if not calls and not text.strip():
        raise RowError("an assistant's message has no text")
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
        raise RowError("a message's content is not text")
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


def without_reasoning(answer: str) -> str:
    """What follows the reasoning, also an empty one, which the template of a reasoning model writes."""
    return answer.rpartition(THINK_TAGS[1])[2]


def is_trained_on(turn: Turn) -> bool:
    """Whether the loss covers this assistant turn. `weight` 0, of OpenAI's format, excludes it."""
    return len(turn) < 3 or turn_fields(turn).get("weight") != 0


def without_loss(turn: Turn) -> Turn:
    """The turn, not trained on."""
    return (*turn[:2], _to_json({**turn_fields(turn), "weight": 0}))


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
    found = parse_json(found) or []
    return [_normalize_tool_call(call) for call in (found if isinstance(found, list) else [found])]


def _normalize_tool_call(call: Any) -> dict[str, Any]:
    """A tool call with its arguments as an object, since chat templates convert them to JSON."""
    call = _drop_nulls(parse_json(call))
    if isinstance(call, dict) and "function" not in call:
        call = {"type": "function", "function": call}
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError("a tool call names no function")
    arguments = function.get("arguments") or {}
    parsed = parse_json(arguments)
    _drop_nulls(parsed)  # checks the nesting depth only: nulls in arguments are meant
    return {**call, "function": {**function, "arguments": parsed if isinstance(parsed, dict) else arguments}}


def tools_turns(row: Mapping[str, Any], mapping: ColumnMapping) -> Conversation:
    """The tools of a row as the first turn of a conversation, in OpenAI's form; empty if there are none."""
    tools = parse_json(row.get(mapping.tools))
    if not tools:
        return ()
    tools = [_drop_nulls(parse_json(tool)) for tool in tools] if isinstance(tools, list) else []
    if not tools or not all(isinstance(tool, dict) for tool in tools):
        raise RowError(f"“{mapping.tools}” is not a list of tools")
    functions = [{"type": "function", "function": tool} if "name" in tool else tool for tool in tools]
    return ((TOOLS_ROLE, _to_json(functions)),)


def parse_json(value: Any) -> Any:
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
