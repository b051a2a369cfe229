"""What a report on the chosen data depends on: some knobs, and the state of the files."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from app.state.looks import Key
from trainer_core.config import knobs
from trainer_core.protocol import Error

# What a report says follows from these; a change of any other knob leaves it true.
_STEPS: Final = ("batch_size", "gradient_accumulation_steps", "max_epochs", "max_steps")
_ALSO: Final = ("max_seq_len", *_STEPS)
_NOT: Final = ("preset", "data", "cache_dir", "token_cache")

_BUILTIN: Final = "builtin:"
_ENTRIES: Final = 1000
_STAMPED_S: Final = 2.0

Stamp = tuple[int, int, int]
"""Files, bytes, newest date in nanoseconds."""


def key_of(values: Mapping[str, Any], data: Sequence[str], stamps: Sequence[Stamp] = ()) -> Key:
    """`values`: resolved knobs by name; those that are not there have their defaults. `stamps`: of the data."""
    names = [name for name, knob in knobs().items() if name in _ALSO or (knob.group == "data" and name not in _NOT)]
    return (*data, *stamps, *((name, _plain(values.get(name, knobs()[name].default))) for name in names))


def _plain(value: Any) -> Any:
    """Keys are hashed."""
    return tuple(value) if isinstance(value, list) else value


def about_sequences(key: Key) -> Key:
    """The part of a key that says which sequences the data makes, whatever is made of them."""
    return _without(key, _STEPS)


def about_data(key: Key) -> Key:
    """The part of a key that says whether the data can be read: the files, and how they are read."""
    return _without(key, _ALSO)


def _without(key: Key, names: Sequence[str]) -> Key:
    return tuple(part for part in key if not (isinstance(part, tuple) and part[0] in names))


class Refusal:
    """That data cannot be trained on, as the last look, check or run said of the files as they were then."""

    def __init__(self) -> None:
        self._about: Key = ()
        self._error: Error | None = None

    @property
    def known(self) -> bool:
        return self._error is not None

    def take(self, key: Key, error: Error | None) -> None:
        """How a try with this key ended; None: it could be read."""
        self._about, self._error = about_data(key), error

    def of(self, key: Key) -> Error | None:
        """What is wrong with the data of this key; None: nothing that is known."""
        return self._error if self._about == about_data(key) else None


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
