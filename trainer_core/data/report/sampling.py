"""A bounded sample of some data, spread over its files, and estimates for all of it.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO, Final

from trainer_core.data.readers.base import SourceFile
from trainer_core.data.sources import DatasetScan, DatasetScans

_VALIDATION_FRACTION: Final = 0.25  # of the budget, where there is validation data
_MIN_FILE_BYTES: Final = 256 * 1024  # text read of a file, about one chunk
_COMPRESSION_RATIO: Final = 4  # assumed

_NUM_RANGES: Final = 8
_MIN_RANGE_BYTES: Final = 64 * 1024
_MAX_LINE_BYTES: Final = 1024 * 1024
_LINE_FORMATS: Final = ("text", "jsonl")
_LINE_ENCODINGS: Final = ("utf-8", "utf-8-sig", "gb18030", "cp950", "big5hkscs", "cp1252")  # b"\n" only ends lines


def sample_datasets(scans: DatasetScans, budget: int) -> DatasetScans:
    """The same data, of which about `budget` bytes of text are read: all of it if there is no more, else some of every
    file. Long uncompressed files of lines are read in ranges, others from their beginning."""
    share = _VALIDATION_FRACTION if scans.validation else 0.0
    train = _sample_split(scans.train, int(budget * (1 - share)))
    return DatasetScans(train, _sample_split(scans.validation, int(budget * share)))


def _sample_split(scans: Sequence[DatasetScan], budget: int) -> list[DatasetScan]:
    """Files up to a common size are read whole, larger ones up to that size. If it would be tiny, only some files,
    evenly spread, are read."""
    sizes = [_text_bytes(file) for scan in scans for file in scan.files]
    if not sizes:
        return []
    cap, share = _waterfill(sizes, budget), 1.0
    if cap < min(_MIN_FILE_BYTES, max(sizes)):
        share, cap = budget / sum(min(size, _MIN_FILE_BYTES) for size in sizes), _MIN_FILE_BYTES
    sampled: list[DatasetScan] = []
    number = 0
    for scan in scans:
        files = []
        for file in scan.files:
            if int((number + 1) * share) > int(number * share) or (number + 1 == len(sizes) and not sampled):
                files.append(_sample_file(file, cap))
            number += 1
        if files:
            sampled.append(replace(scan, files=tuple(files)))
    return sampled


def _text_bytes(file: SourceFile) -> int:
    return file.bytes * (_COMPRESSION_RATIO if file.compression or file.format == "parquet" else 1)


def _waterfill(sizes: Sequence[int], budget: int) -> int:
    """The cap at which the capped sizes add up to the budget, or the largest size."""
    for rank, size in enumerate(ordered := sorted(sizes)):
        share = budget // (len(ordered) - rank)
        if size > share:
            return share
        budget -= size
    return max(sizes)


def _sample_file(file: SourceFile, size: int) -> SourceFile:
    is_lines = file.format in _LINE_FORMATS and file.encoding in _LINE_ENCODINGS and not file.compression
    if is_lines and size >= _NUM_RANGES * _MIN_RANGE_BYTES and file.bytes > 2 * size:
        ranges = _line_ranges(file, size // _NUM_RANGES)
        if len(ranges) > _NUM_RANGES // 2:
            return replace(file, ranges=ranges)
    return replace(file, max_characters=size)


def _line_ranges(source: SourceFile, size: int) -> tuple[tuple[int, int], ...]:
    """Byte ranges of whole lines from all over the file, each of about `size` bytes; fewer if lines are very long."""
    ranges: list[tuple[int, int]] = []
    with source.path.open("rb") as file:
        for index in range(_NUM_RANGES):
            position = index * (source.bytes - size) // (_NUM_RANGES - 1)
            start = _next_line(file, position) if index else 0
            end = _next_line(file, position + size)
            if start is not None and end is not None and start < end and (not ranges or start >= ranges[-1][1]):
                ranges.append((start, end))
    return tuple(ranges)


def _next_line(file: BinaryIO, position: int) -> int | None:
    """The first beginning of a line after `position`, or the end of the file; None if the line is very long."""
    file.seek(position)
    line = file.readline(_MAX_LINE_BYTES)
    return None if len(line) == _MAX_LINE_BYTES else position + len(line)
