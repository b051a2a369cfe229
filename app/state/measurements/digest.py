"""A long run's events as arrays on disk, so that it opens again at once.

`events.jsonl` is cut into parts. Processes (`python -m app.state.measurements.digest EVENTS FOLDER BEGIN-END …`) make
of each a file of blocks: the measurements as columns, the lines of all other events as they are. They take the parts in
turn, so that the first ones can be read while the others are made. A file says of which bytes of which version of the
events it was made, and each block has a checksum. What does not fit, or is damaged, is made anew; nothing else depends
on these files.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np

from app.state.measurements.bulk import LAYOUT, Block, Reader
from app.state.measurements.metrics import Rows
from trainer_core import files

FOLDER: Final = "plots.cache"  # in the run's folder
MOST_PROCESSES: Final = 4
_PART: Final = 16 * 1024 * 1024  # of the events, about
_PIECE: Final = 256 * 1024  # of the events: what is made of it stays within the processor's cache
_PIECES: Final = 16  # of a block, which the window takes in within 3 ms
_LONGEST_LINE: Final = 4 * 1024 * 1024
_NICER: Final = 3  # than the window, which reads and paints meanwhile


class Head(msgspec.Struct, frozen=True):
    """What a file was made of: bytes [begin, end) of events of this size and time, with these columns."""

    layout: str
    size: int
    changed: int  # nanoseconds
    begin: int
    end: int


class _BlockHead(msgspec.Struct):
    bytes: int  # of what follows; 0: the end
    crc: int = 0
    shapes: list[tuple[int, int]] = []  # of steps, performance, host and each GPU
    gpus: list[int] = []  # their indices
    others: list[tuple[int, int]] = []  # place and length


class DamagedError(Exception):
    """A file is not what it was written as."""


_head = msgspec.json.Decoder(Head)
_block_head = msgspec.json.Decoder(_BlockHead)


# --- which files ---------------------------------------------------------------------------------------


def known(run: Path) -> list[Path]:
    """The files that hold the run's events as they are now, in order; empty where they are not all there."""
    stamp = _stamp(_events(run))
    if stamp is None:
        return []
    found: dict[int, tuple[int, Path]] = {}
    with contextlib.suppress(OSError):
        for path in (run / FOLDER).glob("*.part"):
            head = _head_of(path)
            if head is not None and (head.layout, head.size, head.changed) == (LAYOUT, *stamp):
                found[head.begin] = (head.end, path)
    paths, reached = [], 0
    while reached in found:
        reached, path = found.pop(reached)
        paths.append(path)
    return paths if reached == stamp[0] else []


def wanted(run: Path, most: int = MOST_PROCESSES) -> tuple[list[Path], list[list[str]]]:
    """The files that are to be made, in order; the arguments of the processes that make them, one list for each."""
    events = _events(run)
    size, _ = _stamp(events) or (0, 0)
    processes = min(most, os.cpu_count() or 1)
    count = processes * max(1, round(size / _PART / processes))
    edges = [size * place // count for place in range(count)] + [size]
    parts = list(pairwise(edges))
    spans = [f"{begin}-{end}" for begin, end in parts]
    commands = [[str(events), str(run / FOLDER), *spans[place::processes]] for place in range(processes)]
    return [_file(run / FOLDER, begin) for begin, _ in parts], commands


def is_made(run: Path, part: Path) -> bool:
    """Whether this file is there, and of the run's events as they are now."""
    head, stamp = _head_of(part), _stamp(_events(run))
    return head is not None and (head.layout, head.size, head.changed) == (LAYOUT, *(stamp or ()))


def _file(folder: Path, begin: int) -> Path:
    return folder / f"{begin}.part"


def forget(run: Path) -> None:
    """Remove the files: they are of other events, or damaged."""
    with contextlib.suppress(OSError):
        for path in (run / FOLDER).iterdir():
            path.unlink()


def _events(run: Path) -> Path:
    from trainer_core.runs.run_dir import RunDir  # a quarter of the imports, which the processes need not wait for

    return RunDir(run).events


def _stamp(events: Path) -> tuple[int, int] | None:
    try:
        found = events.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if found.st_size else None


def _head_of(path: Path) -> Head | None:
    try:
        with path.open("rb") as file:
            return _head.decode(file.readline(8192))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


# --- reading ---------------------------------------------------------------------------------------------


def blocks(paths: list[Path]) -> Iterator[tuple[float, Block]]:
    """(share of all that was read, 0..1; block) in order. Raises `DamagedError`."""
    total = sum(path.stat().st_size for path in paths) or 1
    done = 0
    for path in paths:
        try:
            with path.open("rb") as file:
                file.readline(8192)
                while (block := _read(file)) is not None:
                    yield (done + file.tell()) / total, block
                done += file.tell()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise DamagedError(str(path)) from error


def _read(file: BinaryIO) -> Block | None:
    head = _block_head.decode(file.readline(_LONGEST_LINE))
    if not head.bytes:
        return None
    if not 0 < head.bytes < 1 << 30:
        raise ValueError(head.bytes)
    content = file.read(head.bytes)
    if len(content) != head.bytes or zlib.crc32(content) != head.crc:
        raise ValueError("checksum")
    tables, at = [], 0
    for rows, columns in head.shapes:
        tables.append(np.frombuffer(content, "<f8", rows * columns, at).reshape(rows, columns))
        at += 8 * rows * columns
    others = []
    for place, length in head.others:
        others.append((place, content[at : at + length]))
        at += length
    return Block(Rows(tables[0], tables[1], tables[2], dict(zip(head.gpus, tables[3:], strict=True))), others)


# --- making ----------------------------------------------------------------------------------------------


def make(events: Path, begin: int, end: int, out: Path, tell: Callable[[float], Any]) -> None:
    """Write one file; `tell` hears the share that is done."""
    stamp = _stamp(events) or (0, 0)
    out.parent.mkdir(exist_ok=True)
    unfinished = out.with_suffix(f".{os.getpid()}")
    reader, seen, taken = Reader(), 0, 0
    try:
        with events.open("rb") as source, unfinished.open("wb") as file:
            file.write(msgspec.json.encode(Head(LAYOUT, *stamp, begin, end)) + b"\n")
            for lines in _pieces(source, begin, end):
                reader.take(lines)
                seen, taken = seen + len(lines), taken + 1
                if taken % _PIECES == 0:
                    _write(file, reader.block())
                    tell(min(0.99, seen / (end - begin)))
            _write(file, reader.block())
            file.write(msgspec.json.encode(_BlockHead(0)) + b"\n")
        files.replace(unfinished, out)
        tell(1.0)
    finally:
        unfinished.unlink(missing_ok=True)


def _write(file: BinaryIO, block: Block) -> None:
    tables = [np.ascontiguousarray(table, "<f8") for table in block.rows.tables()]
    lines = b"".join(line for _, line in block.others)
    content: list[Any] = [*(table for table in tables if table.size), lines]
    size = sum(table.nbytes for table in tables) + len(lines)
    if not size:
        return
    head = _BlockHead(
        size,
        reduce(lambda crc, part: zlib.crc32(part, crc), content, 0),
        [(table.shape[0], table.shape[1]) for table in tables],
        list(block.rows.gpus),
        [(place, len(line)) for place, line in block.others],
    )
    file.write(msgspec.json.encode(head) + b"\n")
    file.writelines(content)


def _pieces(file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    """The lines that start in [begin, end), some at a time, each with its newline; a line that is too long for an event
    is left out."""
    file.seek(max(0, begin - 1))
    if begin:
        file.readline()  # its start is in the part before
    at = file.tell()
    while at < end:
        lines = file.read(min(_PIECE, end - at))
        if not lines:
            return
        rest = b"" if lines.endswith(b"\n") else file.readline()
        at += len(lines) + len(rest)
        lines = lines + rest if len(rest) <= _LONGEST_LINE else lines[: lines.rfind(b"\n") + 1]
        yield lines if lines.endswith(b"\n") else lines + b"\n"


def main() -> None:
    """Parts one after the other; the share of all that is done is told on stdout, at the end of each one too."""
    events, folder, *spans = sys.argv[1:]
    gc.disable()  # nothing made here is in a circle
    if sys.platform != "win32":  # which by itself prefers the program in front
        os.nice(_NICER)
    for number, span in enumerate(spans):
        begin, end = (int(edge) for edge in span.split("-"))

        def tell(share: float, before: int = number) -> None:
            sys.stdout.write(f"{(before + share) / len(spans):.4f}\n")
            sys.stdout.flush()

        make(Path(events), begin, end, _file(Path(folder), begin), tell)


if __name__ == "__main__":
    main()
