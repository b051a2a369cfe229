"""What is known of the data chosen in the form: one report for each configuration that was looked at."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trainer_core import protocol
from trainer_core.config import knobs

_KEPT: Final = 8
# What a report says follows from these; a change of any other knob leaves it true.
_ALSO: Final = ("max_seq_len", "batch_size", "gradient_accumulation_steps", "max_epochs", "max_steps")
_NOT: Final = ("preset", "data", "cache_dir", "token_cache")

_BUILTIN: Final = "builtin:"
_ENTRIES: Final = 1000
_STAMPED_S: Final = 2.0

Key = tuple[Any, ...]
"""The configuration of a look and the state of its files, as far as its report depends on them."""
Stamp = tuple[int, int, int]
"""Files, bytes, newest date in nanoseconds."""


def key_of(values: Mapping[str, Any], data: Sequence[str], stamps: Sequence[Stamp] = ()) -> Key:
    """`values`: resolved knobs by name; those that are not there have their defaults. `stamps`: of the data."""
    names = [name for name, knob in knobs().items() if name in _ALSO or (knob.group == "data" and name not in _NOT)]
    return (*data, *stamps, *((name, values.get(name, knobs()[name].default)) for name in names))


def stamp_of(path: str) -> Stamp:
    """What changes when a file does, or something in a folder: how many files, their bytes, the newest date.

    Of a folder with more than a thousand entries only so many are asked: to ask them all takes seconds.
    """
    if path.startswith(_BUILTIN):
        return (0, 0, 0)
    files, size, newest = 0, 0, 0
    for found in itertools.islice(_entries(Path(path)), _ENTRIES):
        with contextlib.suppress(OSError):
            status = found.stat()
            folder = stat.S_ISDIR(status.st_mode)  # its date tells of what came and went
            files, size = files + 1, size + (0 if folder else status.st_size)
            newest = max(newest, status.st_mtime_ns)
    return (files, size, newest)


def _entries(path: Path) -> Iterator[Path]:
    yield path
    for folder, folders, files in os.walk(path):  # of a file: nothing
        folders.sort()
        yield from (Path(folder, name) for name in (*folders, *sorted(files)))


class Stamps:
    """The stamps of the chosen data, asked for at most every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: tuple[Stamp, ...] = ()
        self._of: list[str] = []
        self._until = 0.0

    def of(self, data: Sequence[str], *, fresh: bool = False) -> tuple[Stamp, ...]:
        """`fresh`: as they are now, for a look that begins."""
        now = self._clock()
        if fresh or list(data) != self._of or now >= self._until:
            self._known, self._of = tuple(map(stamp_of, data)), list(data)
            self._until = now + _STAMPED_S + 20 * (self._clock() - now)  # a slow disk is asked less often
        return self._known


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
