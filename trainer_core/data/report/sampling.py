"""A bounded sample of some data: parts of the same size, spread evenly over all files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import BinaryIO, Final

from trainer_core.data.readers.base import SourceFile
from trainer_core.data.sources import DatasetScan, DatasetScans

_VALIDATION_FRACTION: Final = 0.25  # of the budget, where there is validation data
_COMPRESSION_RATIO: Final = 4  # assumed
_MAX_PARTS: Final = 32
_MIN_PART_BYTES: Final = 64 * 1024
_MAX_LINE_BYTES: Final = 1024 * 1024
_LINE_FORMATS: Final = ("text", "jsonl")
_LINE_ENCODINGS: Final = ("utf-8", "utf-8-sig", "gb18030", "cp950", "big5hkscs", "cp1252")  # b"\n" only ends lines


def sample_datasets(scans: DatasetScans, budget: int) -> DatasetScans:
    """The same data, of which about `budget` bytes of text are read: all of it if there is no more.

    The parts are lines of uncompressed files of lines. Of other files, as much is read from the beginning.
    """
    share = _VALIDATION_FRACTION if scans.validation else 0.0
    train = _sample_split(scans.train, int(budget * (1 - share)))
    return DatasetScans(train, _sample_split(scans.validation, int(budget * share)))


def _sample_split(scans: Sequence[DatasetScan], budget: int) -> list[DatasetScan]:
    total = sum(_text_bytes(file) for scan in scans for file in scan.files)
    count = 1 if total <= budget else min(_MAX_PARTS, max(1, budget // _MIN_PART_BYTES))
    size = min(total, budget) // count
    starts = [number * (total - size) // max(1, count - 1) for number in range(count)]
    sampled: list[DatasetScan] = []
    begin = 0
    for scan in scans:
        files = []
        for file in scan.files:
            end = begin + _text_bytes(file)
            parts = [(max(start, begin) - begin, min(start + size, end) - begin) for start in starts]
            parts = [(first, last) for first, last in parts if first < last]
            if parts:
                files.append(_sample_file(file, parts, budget))
            begin = end
        if files:
            sampled.append(replace(scan, files=tuple(files)))
    return sampled


def _text_bytes(file: SourceFile) -> int:
    return file.bytes * (_COMPRESSION_RATIO if file.compression or file.format == "parquet" else 1)


def _sample_file(file: SourceFile, parts: Sequence[tuple[int, int]], budget: int) -> SourceFile:
    size, text_bytes = sum(end - start for start, end in parts), _text_bytes(file)
    if size >= text_bytes:
        return file if text_bytes == file.bytes else replace(file, max_characters=budget)
    is_lines = file.format in _LINE_FORMATS and file.encoding in _LINE_ENCODINGS and not file.compression
    ranges = _align_to_lines(file, parts) if is_lines else ()
    return replace(file, ranges=ranges) if ranges else replace(file, max_characters=size)


def _align_to_lines(source: SourceFile, parts: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The lines that begin in the parts, without those of parts with very long lines."""
    ranges = []
    with source.path.open("rb") as file:
        for start, end in parts:
            first, last = _next_line(file, start), _next_line(file, end)
            if first is not None and last is not None and first < last:
                ranges.append((first, last))
    return tuple(ranges)


def _next_line(file: BinaryIO, position: int) -> int | None:
    """The first beginning of a line at or after `position`, or the end of the file; None if the line is very long."""
    file.seek(max(0, position - 1))
    if not position:
        return 0
    line = file.readline(_MAX_LINE_BYTES)
    return None if len(line) == _MAX_LINE_BYTES else position - 1 + len(line)
