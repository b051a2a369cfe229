"""YAML that may come from strangers: plain values, of bounded size and depth.

A reference to an earlier part (an alias) is refused: some lines of them stand for billions of values, which whoever
words or copies them would fill memory with.

No torch, no Qt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

_LARGEST: Final = 1024 * 1024  # bytes; a run's configuration has some thousands
_DEEPEST: Final = 20
# libyaml's is twenty times as quick, and its parser needs no stack for what is nested.
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnreadableError(ValueError):
    """Not YAML, or not such as is read here."""


def read(path: Path) -> Any:
    """The value in a file. Raises `UnreadableError`, `OSError`."""
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise UnreadableError(f"it is larger than {_LARGEST >> 20} MiB")
    try:
        text = content.decode("utf-8-sig")
        _refuse_bombs(text)
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # `2001-99-99` is a ValueError
        raise UnreadableError(str(error)) from error


def _refuse_bombs(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise UnreadableError(f"{_place(event)}references (*{event.anchor}) are not supported")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise UnreadableError(f"{_place(event)}it is nested more than {_DEEPEST} deep")


def _place(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}: " if event.start_mark is not None else ""
