"""What every reader takes and gives.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainer_core.data.encodings import Tally
from trainer_core.messages import TraindeckError

TEXT: Final = "text"  # the one column of a format without columns
LONGEST: Final = 64 * 1024 * 1024  # bytes of a line, an element, a field or a member; more is a bad row
TOO_LONG: Final = f"longer than {LONGEST >> 20} MiB"


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read.

    `encoding` is empty where the format knows its own. `bytes` is the size on disk. `compression` of
    the whole file: "", "gzip" or "zstd".
    """

    path: Path
    format: str
    encoding: str
    bytes: int
    compression: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """How to read a file.

    `columns`: which ones (none: all); `piece`: how long pieces of plain text are to be, in characters;
    `skip`: the first so many rows (good and bad; of plain text: pieces) were taken before: go on after them.
    """

    columns: tuple[str, ...] = ()
    piece: int = 64 * 1024
    skip: int = 0


Row = Mapping[str, Any]
Reader = Callable[[Source, Request, Tally], Iterator[Row]]


def bad_format(source: Source, position: str, reason: str) -> TraindeckError:
    """The error that ends the reading of a file."""
    told = {"path": str(source.path), "format": source.format, "position": position, "reason": reason.rstrip(".")}
    return TraindeckError("data.bad_format", **told)
