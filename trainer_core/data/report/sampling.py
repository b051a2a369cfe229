"""A bounded sample of some data, spread over its files, with estimates for all of it.

No torch, no Qt.
"""

from __future__ import annotations

import time
import traceback
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from trainer_core.config import Config
from trainer_core.data.columns import Document
from trainer_core.data.documents import DocumentStream, RowCounts, choose_piece_chars
from trainer_core.data.formats import SourceFile
from trainer_core.data.sources import DatasetScan, DatasetScans
from trainer_core.messages import TraindeckError, Value
from trainer_core.progress import NullReporter, Reporter

_READ_TIMEOUT_S: Final = 3.5
_VALIDATION_FRACTION: Final = 0.25  # of budget and time, where there is validation data
_MIN_FILE_BYTES: Final = 256 * 1024  # text read of a file, about one chunk
_COMPRESSION_RATIO: Final = 4  # assumed
_MAX_CHARS_PER_BYTE: Final = 1.5  # of the budget; more means better compression than assumed

_NUM_SLICES: Final = 8
_MIN_SLICE_BYTES: Final = 64 * 1024
_MAX_LINE_BYTES: Final = 1024 * 1024
_SLICED_FORMATS: Final = ("text", "jsonl")
_SLICED_ENCODINGS: Final = ("utf-8", "utf-8-sig", "gb18030", "cp950", "big5hkscs", "cp1252")  # b"\n" only ends lines


# --- slices of long files ------------------------------------------------------------------------------


class FileSlices(NamedTuple):
    """A file made of slices of another file."""

    source: SourceFile
    original: SourceFile
    start_lines: list[int]  # index of the first line of each slice in the new file
    start_offsets: list[int]  # byte offset of each slice in the original

    def original_position(self, position: str) -> str:
        """The position in the original ("line 3 after byte 4096") of one in the new file ("line 17")."""
        unit, _, number = position.partition(" ")
        if unit != "line" or not number.isdigit():
            return position
        index = bisect_right(self.start_lines, int(number) - 1) - 1
        if not index:
            return position
        return f"line {int(number) - self.start_lines[index]} after byte {self.start_offsets[index]}"


def slice_file(source: SourceFile, size: int, path: Path) -> FileSlices | None:
    """Write about `size` bytes of whole lines from all over a file to `path`. None: it cannot be cut into lines."""
    slice_size = size // _NUM_SLICES
    is_lines = source.format in _SLICED_FORMATS and source.encoding in _SLICED_ENCODINGS and not source.compression
    if not is_lines or slice_size < _MIN_SLICE_BYTES or source.bytes <= 2 * size:
        return None
    lines, offsets, num_lines, end = [], [], 0, 0
    with source.path.open("rb") as file, path.open("wb") as new:
        for index in range(_NUM_SLICES):
            file.seek(index * (source.bytes - slice_size) // (_NUM_SLICES - 1))
            if index and not file.readline(_MAX_LINE_BYTES).endswith(b"\n"):
                continue
            start = file.tell()
            data = file.read(slice_size) + file.readline(_MAX_LINE_BYTES)
            if start + len(data) < source.bytes:
                data = data[: data.rfind(b"\n") + 1]
            if start < end or not data:
                continue
            lines.append(num_lines)
            offsets.append(start)
            num_lines, end = num_lines + data.count(b"\n"), start + len(data)
            new.write(data)
    if len(lines) <= _NUM_SLICES // 2:
        return None
    return FileSlices(replace(source, path=path, bytes=path.stat().st_size), source, lines, offsets)


# --- the sample ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class FileSample:
    """What was read of a file."""

    bytes: int  # of the file
    read: int = 0  # bytes
    rows: int = 0
    characters: int = 0

    @property
    def scale(self) -> float:
        return self.bytes / self.read if self.read else 1.0


class SplitSample:
    """Documents sampled from the files of one split."""

    def __init__(self, scans: Sequence[DatasetScan], budget: int, seconds: float) -> None:
        self.inputs = [
            (scan, file, mapping)
            for scan in scans
            for file, mapping in zip(scan.files, scan.column_mappings, strict=True)
        ]
        self.limits = allocate_budget([file for _, file, _ in self.inputs], budget)
        self.bytes = sum(scan.bytes for scan in scans)
        self.piece_chars = choose_piece_chars(scans)
        self.files: list[FileSample] = []
        self.documents: list[Document] = []
        self.characters = 0
        self._max_chars, self._seconds, self._deadline = _MAX_CHARS_PER_BYTE * budget, seconds, float("inf")

    def start_timer(self) -> None:
        self._deadline = time.monotonic() + self._seconds

    @property
    def is_exhausted(self) -> bool:
        """The time is over, or there is far more text than the size of the files suggests."""
        return time.monotonic() > self._deadline or self.characters > self._max_chars

    @property
    def read(self) -> int:
        """Bytes that were read."""
        return sum(file.read for file in self.files)

    @property
    def is_complete(self) -> bool:
        return len(self.files) == len(self.inputs) and all(file.read == file.bytes for file in self.files)

    def estimate(self, figure: Literal["rows", "characters"]) -> float:
        """Extrapolate from the bytes that were read to all bytes of all files."""
        sampled: float = sum(getattr(file, figure) * file.scale for file in self.files)
        return sampled * (self.bytes / max(1, sum(file.bytes for file in self.files)))


class _FileReporter(NullReporter):
    """Passes on warnings about a file, with positions in the original if it is made of slices."""

    def __init__(self, reporter: Reporter, slices: FileSlices | None) -> None:
        self._reporter, self._slices = reporter, slices

    def warn(self, code: str, **params: Value) -> None:
        self._reporter.warn(code, **self.original_params(params))

    def original_params(self, params: Mapping[str, Value]) -> dict[str, Any]:
        if self._slices is None or params.get("path") != str(self._slices.source.path):
            return dict(params)
        position = params.get("position")
        where = {"position": self._slices.original_position(str(position))} if position else {}
        return {**params, **where, "path": str(self._slices.original.path)}

    def poll(self) -> None:
        self._reporter.poll()


class DatasetSampler:
    """Reads about `budget` bytes of text: all of the data if there is no more, else some of every file.

    Long uncompressed files of lines are sampled in slices, which are kept in `folder`, others from their beginning.
    """

    def __init__(self, scans: DatasetScans, config: Config, budget: int, folder: Path, reporter: Reporter) -> None:
        self._config, self._folder, self._reporter = config, folder, reporter
        self.counts = RowCounts()  # of all files read, `first_bad` in terms of the original files
        share = _VALIDATION_FRACTION if scans.validation else 0.0
        shares = (("train", scans.train, 1 - share), ("validation", scans.validation, share))
        self.samples = {
            name: SplitSample(split, int(budget * share), _READ_TIMEOUT_S * share)
            for name, split, share in shares
            if split
        }
        self._read, self._total = 0, sum(sum(sample.limits.values()) for sample in self.samples.values())

    def read(self) -> None:
        """Fill `samples` and `counts`. Raises what `DocumentStream` and `poll` of the reporter raise."""
        first_file = 0
        for sample in self.samples.values():
            sample.start_timer()
            for index in sample.limits:
                if not sample.is_exhausted:
                    self._read_file(sample, index, first_file + index)
            first_file += len(sample.inputs)

    def _read_file(self, sample: SplitSample, index: int, number: int) -> None:
        """Read some of a file; `number`: its number in the data."""
        scan, file, mapping = sample.inputs[index]
        limit, is_partial = sample.limits[index], sample.limits[index] < file.bytes
        slices = slice_file(file, limit, self._folder / f"slices-{number}") if is_partial else None
        source = slices.source if slices else file
        reporter = _FileReporter(self._reporter, slices)
        stream = DocumentStream(
            [replace(scan, files=(source,), column_mappings=(mapping,))],
            self._config,
            reporter,
            self._start_position(sample.documents),
            sample.piece_chars,
        )
        found = FileSample(file.bytes)
        sample.files.append(found)
        is_enough, unit = False, -1
        try:
            for document in stream:
                if stream.done > found.read:  # all rows in these bytes have arrived
                    self._advance(stream.done - found.read)
                    found.read = stream.done
                    is_enough = (is_partial and not slices and found.read >= limit) or sample.is_exhausted
                if is_enough and found.rows and document.split_unit != unit:
                    stream.end_file()
                    break
                found.rows += document.split_unit != unit
                found.characters += document.characters
                sample.characters += document.characters
                unit = document.split_unit
                sample.documents.append(msgspec.structs.replace(document, file=number))
            else:
                self._advance(source.bytes - found.read)
                found.read = source.bytes
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # they keep slices open, which Windows then cannot delete
            if not isinstance(error, TraindeckError):
                raise
            raise TraindeckError(error.code, error.detail, **reporter.original_params(error.params)) from error
        self.counts = stream.counts
        self.counts.first_bad = reporter.original_params(self.counts.first_bad)

    def _start_position(self, documents: Sequence[Document]) -> dict[str, Any]:
        """Where a stream starts that continues the numbers of these documents."""
        last = documents[-1] if documents else Document(-1, split_unit=-1)
        numbers = {"number": last.number + 1, "unit": last.split_unit + 1}
        return {"file": 0, **numbers, "counts": asdict(self.counts), "tally": None}

    def _advance(self, read: int) -> None:
        self._read += read
        self._reporter.progress("preparing", self._read, 2 * self._total, "bytes")  # encoding is the second half


def allocate_budget(files: Sequence[SourceFile], budget: int) -> dict[int, int]:
    """Bytes to read of which files, by index, so that their text has about `budget` bytes.

    Files up to a common size are read whole, larger ones up to that size. If it would be tiny, only some files, evenly
    spread, are read.
    """
    ratios = [_COMPRESSION_RATIO if file.compression or file.format == "parquet" else 1 for file in files]
    sizes = [file.bytes * ratio for file, ratio in zip(files, ratios, strict=True)]
    cap = _waterfill(sizes, budget)
    chosen = list(range(len(files)))
    if cap < min(_MIN_FILE_BYTES, max(sizes)):
        share, cap = budget / sum(min(size, _MIN_FILE_BYTES) for size in sizes), _MIN_FILE_BYTES
        chosen = [index for index in chosen if int((index + 1) * share) > int(index * share)] or [0]
    return {index: min(files[index].bytes, cap // ratios[index]) for index in chosen}


def _waterfill(sizes: Sequence[int], budget: int) -> int:
    """The cap at which the capped sizes add up to the budget, or the largest size."""
    for rank, size in enumerate(ordered := sorted(sizes)):
        share = budget // (len(ordered) - rank)
        if size > share:
            return share
        budget -= size
    return max(sizes)
