"""What is known of the data chosen in the form: one report for each configuration that was looked at."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trainer_core import protocol
from trainer_core.config import knobs

_KEPT: Final = 8
# What a report says follows from these; a change of any other knob leaves it true.
_ALSO: Final = ("max_seq_len", "batch_size", "gradient_accumulation_steps", "max_epochs", "max_steps")
_NOT: Final = ("preset", "data", "cache_dir", "token_cache")

Key = tuple[Any, ...]
"""The configuration of a look, as far as its report depends on it."""


def key_of(values: Mapping[str, Any], data: Sequence[str]) -> Key:
    """`values`: resolved knobs by name; those that are not there have their defaults."""
    names = [name for name, knob in knobs().items() if name in _ALSO or (knob.group == "data" and name not in _NOT)]
    return (*data, *((name, values.get(name, knobs()[name].default)) for name in names))


@dataclass(slots=True)
class Look:
    """One look at the data: what was found, and what was said on the way."""

    key: Key
    report: protocol.DataReport | None = None
    warnings: list[protocol.Notice] = field(default_factory=list)
    error: protocol.Error | None = None
    progress: protocol.Progress | None = None

    def add(self, event: protocol.AnyEvent) -> None:
        """Take an event of the trainer that looks."""
        match event:
            case protocol.DataReport():
                self.report = event
            case protocol.Progress():
                self.progress = event
            case protocol.Warn() | protocol.Advice():
                self.warnings.append(event)
            case protocol.Error():
                self.error = event
            case _:
                pass


class Looks:
    """The newest looks that ended with a report, by configuration; and the one that was shown last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, Look] = OrderedDict()
        self._newest: Look | None = None

    def keep(self, look: Look) -> None:
        """Remember a finished look in place of an earlier one of the same configuration."""
        self._known[look.key] = look
        self._known.move_to_end(look.key)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        self._newest = look

    def drop(self, key: Key) -> None:
        """A look at this configuration has failed: what earlier ones found holds no more, and is not shown."""
        self._known.pop(key, None)
        self._newest = None

    def show(self, key: Key | None) -> tuple[Look | None, bool]:
        """The look to show for a configuration, and whether it is of that one: else it is the last one shown."""
        if key is not None and key in self._known:
            self._newest = self._known[key]
            return self._newest, True
        return self._newest, False
