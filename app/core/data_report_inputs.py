"""Inputs of a data preview: some knobs, and the state of the files."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from app.core.preview_cache import PreviewKey
from trainer_core.config import knobs
from trainer_core.protocol import Error

# Knobs that a preview depends on.
_STEP_KEYS: Final = ("batch_size", "gradient_accumulation_steps", "max_epochs", "max_steps")
_NON_READER_KEYS: Final = ("max_seq_len", *_STEP_KEYS)
_EXCLUDED_KEYS: Final = ("preset", "data", "cache_dir", "token_cache")

_BUILTIN_PREFIX: Final = "builtin:"
_MAX_ENTRIES: Final = 1000
_STAMP_TTL_S: Final = 2.0

SourceStamp = tuple[int, int, int]
"""Number of files, bytes, newest modification time in ns."""


def preview_key(values: Mapping[str, Any], data: Sequence[str], stamps: Sequence[SourceStamp] = ()) -> PreviewKey:
    """Cache key of a preview. `values`: resolved knobs by name, without defaults. `stamps`: of the data."""
    names = [
        name
        for name, knob in knobs().items()
        if name in _NON_READER_KEYS or (knob.group == "data" and name not in _EXCLUDED_KEYS)
    ]
    return (*data, *stamps, *((name, _hashable(values.get(name, knobs()[name].default))) for name in names))


def _hashable(value: Any) -> Any:
    """Make a value hashable."""
    return tuple(value) if isinstance(value, list) else value


def sequence_key(key: PreviewKey) -> PreviewKey:
    """Part of a key that determines the sequences."""
    return _without(key, _STEP_KEYS)


def source_key(key: PreviewKey) -> PreviewKey:
    """Part of a key that determines whether the data can be read."""
    return _without(key, _NON_READER_KEYS)


def _without(key: PreviewKey, names: Sequence[str]) -> PreviewKey:
    return tuple(part for part in key if not (isinstance(part, tuple) and part[0] in names))


class DataRejection:
    """Data errors of the last preview, check or run, by files and reading settings."""

    def __init__(self) -> None:
        self._source_key: PreviewKey = ()
        self._error: Error | None = None

    @property
    def is_set(self) -> bool:
        return self._error is not None

    def record(self, key: PreviewKey, error: Error | None) -> None:
        """Record the result of a key; None: readable."""
        self._source_key, self._error = source_key(key), error

    def error_for(self, key: PreviewKey) -> Error | None:
        """Data error of this key; None: none known."""
        return self._error if self._source_key == source_key(key) else None


def source_stamp(path: str) -> SourceStamp:
    """Stamp of a file or folder: number of files, bytes, newest modification time.

    Of a folder, at most a thousand entries are read; more would take seconds.
    """
    if path.startswith(_BUILTIN_PREFIX):
        return (0, 0, 0)
    files, size, newest = 0, 0, 0
    for found in itertools.islice(_iter_entries(Path(path)), _MAX_ENTRIES):
        with contextlib.suppress(OSError):
            status = found.stat()
            folder = stat.S_ISDIR(status.st_mode)  # a folder's own date reflects added and removed entries
            files, size = files + 1, size + (0 if folder else status.st_size)
            newest = max(newest, status.st_mtime_ns)
    return (files, size, newest)


def _iter_entries(path: Path) -> Iterator[Path]:
    yield path
    for folder, folders, files in os.walk(path):  # nothing for a file
        folders.sort()
        yield from (Path(folder, name) for name in (*folders, *sorted(files)))


class SourceStampCache:
    """Stamps of the selected data, refreshed at most every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stamps: tuple[SourceStamp, ...] = ()
        self._sources: list[str] = []
        self._expires_at = 0.0

    def get(self, data: Sequence[str], *, refresh: bool = False) -> tuple[SourceStamp, ...]:
        """Return the stamps of `data`, cached for a short time unless `refresh`."""
        now = self._clock()
        if refresh or list(data) != self._sources or now >= self._expires_at:
            self._stamps, self._sources = tuple(map(source_stamp, data)), list(data)
            self._expires_at = now + _STAMP_TTL_S + 20 * (self._clock() - now)  # slow disks are read less often
        return self._stamps
