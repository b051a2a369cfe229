"""Types and helpers shared by all readers.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from trainer_core.data.encodings import ReadStats
from trainer_core.messages import TraindeckError

TEXT: Final = "text"  # the only column of plain text
MAX_ROW_BYTES: Final = 64 * 1024 * 1024  # limit for a line, an element or a member; more is a bad row
TOO_LONG: Final = f"longer than {MAX_ROW_BYTES >> 20} MiB"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file to read.

    `encoding` is empty for binary formats. `bytes` is the size on disk. `compression` is "", "gzip" or "zstd".
    """

    path: Path
    format: str
    encoding: str
    bytes: int
    compression: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a file.

    `columns`: the columns to read; empty for all. `piece_chars`: length of the pieces of plain text. `skip_rows`:
    resume after this number of rows (good and bad) or pieces.
    """

    columns: tuple[str, ...] = ()
    piece_chars: int = 64 * 1024
    skip_rows: int = 0


Row = Mapping[str, Any]
Reader = Callable[[SourceFile, ReadOptions, ReadStats], Iterator[Row]]
T = TypeVar("T")


def decode_rows(
    items: Iterable[tuple[int | str, T]], decode: Callable[[T], Row | str], options: ReadOptions, stats: ReadStats
) -> Iterator[Row]:
    """Decode the items after the first `skip_rows`, given by position. `decode` returns why a row is bad."""
    for number, item in islice(items, options.skip_rows, None):
        stats.number = number
        stats.read += 1
        row = decode(item)
        if isinstance(row, str):
            stats.record_bad_row(stats.position, row)
        else:
            yield row


def bad_format_error(source: SourceFile, position: str, reason: str) -> TraindeckError:
    """The error for a file that cannot be read further."""
    params = {"path": str(source.path), "format": source.format, "position": position, "reason": reason.rstrip(".")}
    return TraindeckError("data.bad_format", **params)
