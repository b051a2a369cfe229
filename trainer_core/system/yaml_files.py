"""YAML from untrusted sources: plain values of bounded size and depth.

Aliases are refused: a few lines of them can stand for billions of values.

No torch, no Qt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

_MAX_BYTES: Final = 1024 * 1024  # a run's configuration has a few thousand
_MAX_DEPTH: Final = 20
# libyaml's loader is twenty times as fast, and its parser does not recurse.
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnreadableError(ValueError):
    """Invalid or unsupported YAML."""


def read(path: Path) -> Any:
    """Parse a file. Raises `UnreadableError`, `OSError`."""
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise UnreadableError(f"it is larger than {_MAX_BYTES >> 20} MiB")
    try:
        text = content.decode("utf-8-sig")
        _reject_yaml_bombs(text)
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # `2001-99-99` is a ValueError
        raise UnreadableError(str(error)) from error


def _reject_yaml_bombs(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise UnreadableError(f"{_location(event)}references (*{event.anchor}) are not supported")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise UnreadableError(f"{_location(event)}it is nested more than {_MAX_DEPTH} deep")


def _location(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}: " if event.start_mark is not None else ""
