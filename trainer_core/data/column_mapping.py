"""Maps the columns of a table to roles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from trainer_core.config import Config, knobs

Task = Literal["pretrain", "sft", "preference"]
# pair: a prompt and its response. preference: two answers. labelled: an answer that is good or bad.
MappingKind = Literal["text", "pair", "messages", "preference", "labelled"]

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
_PAIR_COLUMNS: Final = (
    ("chosen", "rejected"), ("accepted", "rejected"), ("preferred", "rejected"),
    ("chosen_response", "rejected_response"), ("response_chosen", "response_rejected"),
)  # fmt: skip
_LABEL_COLUMNS: Final = (("label",), ("kto_tag",))
_PROMPT_COLUMNS: Final = tuple((names[0],) for names in _PROMPT_RESPONSE_COLUMNS)

PREFERENCE_ROLES: Final = ("chosen", "rejected", "label")
COLUMN_ROLES: Final = ("text", "system", "prompt", "input", "response", "messages", *PREFERENCE_ROLES, "tools")


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
    chosen: str = ""
    rejected: str = ""
    label: str = ""

    @property
    def task(self) -> Task:
        if self.kind in ("preference", "labelled"):
            return "preference"
        return "pretrain" if self.kind == "text" else "sft"

    @property
    def sides(self) -> int:
        """Conversations of a row of preferences, at most; 0 for other data."""
        return {"preference": 2, "labelled": 1}.get(self.kind, 0)

    @property
    def columns(self) -> dict[str, str]:
        """The columns that are read, by role in document order."""
        return {role: name for role in COLUMN_ROLES if (name := getattr(self, role))}

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(self.columns.values())


PLAIN_TEXT: Final = ColumnMapping("text")  # no columns


class MissingColumnError(Exception):
    """The columns cannot be mapped. The message is the first one that is missing."""


def map_columns(column_names: Sequence[str], config: Config) -> ColumnMapping:
    """How to read a table with these columns. Raises `MissingColumnError`.

    With the task `auto`, the order is: the column `text_column`, messages, prompt and response, another text column.
    An objective that needs preferences determines the task.
    """
    if config.uses_preferences:
        return _map_preferences(column_names, config)
    text = _find_columns(column_names, config, ("text_column",), _TEXT_COLUMNS)
    if config.task != "sft" and text and (config.task == "pretrain" or text[0].lower() == config.text_column.lower()):
        return ColumnMapping("text", text=text[0])
    if config.task != "pretrain":
        # A configured column may be that of other files: corrections of the chat page have `messages`.
        if messages := (
            _find_columns(column_names, config, ("messages_column",), _MESSAGES_COLUMNS)
            or _find_columns(column_names, config, (), _MESSAGES_COLUMNS[:1])
        ):
            tools = _find_columns(column_names, config, (), _TOOLS_COLUMNS) or _TOOLS_COLUMNS[0]
            return ColumnMapping("messages", messages=messages[0], tools=tools[0])
        if pair := _find_columns(column_names, config, ("prompt_column", "response_column"), _PROMPT_RESPONSE_COLUMNS):
            optional = _optional_columns(column_names, config, ("input", "system"), pair)
            return ColumnMapping("pair", prompt=pair[0], response=pair[1], **optional)
        if text and config.task == "auto":
            return ColumnMapping("text", text=text[0])
    own = (config.prompt_column, config.response_column)
    if config.task == "sft" or (config.task == "auto" and any(name in column_names for name in own)):
        raise MissingColumnError(next(name for name in own if name not in column_names))
    raise MissingColumnError(config.text_column)


def _map_preferences(column_names: Sequence[str], config: Config) -> ColumnMapping:
    """Pairs of answers, or for `kto` also labelled answers. The prompt may be in the answers."""

    def find(names: tuple[str, ...], alternatives: Sequence[tuple[str, ...]]) -> dict[str, str]:
        found = _find_columns(column_names, config, names, alternatives)
        return dict(zip((name.removesuffix("_column") for name in names), found, strict=False))

    messages = find(("messages_column",), _MESSAGES_COLUMNS)
    prompt = find(("prompt_column",), _PROMPT_COLUMNS)
    if pair := find(("chosen_column", "rejected_column"), _PAIR_COLUMNS):
        roles = {**pair, **prompt, **messages}
    elif config.objective != "kto":
        raise MissingColumnError(
            config.rejected_column if config.chosen_column in column_names else config.chosen_column
        )
    elif label := find(("label_column",), _LABEL_COLUMNS):
        roles = label | (messages or find(("prompt_column", "response_column"), _PROMPT_RESPONSE_COLUMNS))
        if len(roles) == 1:
            raise MissingColumnError(config.messages_column)
    else:
        raise MissingColumnError(config.label_column)
    optional = ("system", "input") if "prompt" in roles else ("system",)
    roles |= _optional_columns(column_names, config, optional, roles.values())
    tools = _find_columns(column_names, config, (), _TOOLS_COLUMNS) or _TOOLS_COLUMNS[0]
    return ColumnMapping("preference" if pair else "labelled", **roles, tools=tools[0])


def _optional_columns(
    found: Sequence[str], config: Config, roles: Sequence[str], used: Collection[str]
) -> dict[str, str]:
    """Columns by role, of those that a row may lack: the first rows, which show the columns, may all lack them."""
    names = {}
    for role in roles:
        name = getattr(config, f"{role}_column")
        [names[role]] = _find_columns(found, config, (f"{role}_column",), ((role,),)) or (name,)
    return {role: name for role, name in names.items() if name not in used}


def has_pair(column_names: Sequence[str], config: Config) -> bool:
    """Whether there are columns of a chosen and a rejected answer."""
    return bool(_find_columns(column_names, config, ("chosen_column", "rejected_column"), _PAIR_COLUMNS))


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
