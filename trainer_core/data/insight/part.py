"""A bounded part of some data, spread over its files, and how much more there is of it.

No torch, no Qt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Final

from trainer_core.config import Config
from trainer_core.data.columns import Document
from trainer_core.data.formats import FORMATS, Source
from trainer_core.data.insight.slices import Slices, slice_up
from trainer_core.data.sources import Look
from trainer_core.data.stream import Counts, Stream, piece_size
from trainer_core.messages import TraindeckError, Value
from trainer_core.report import Quiet

_LEAST: Final = 256 * 1024  # bytes of a file; readers take about so much at a time
_COMPRESSED: Final = 4  # text is so many times as large
_COMPRESSED_FORMATS: Final = ("parquet",)
_BYTES: Final = 2  # of a character, more or less
_MOST: Final = 1.5  # characters for each byte that was to be read
_LONG: Final = 1024 * 1024  # bytes between two rows: one of them is far longer than others


@dataclass(slots=True)
class FilePart:
    """What was read of one file."""

    source: Source
    read: int = 0  # bytes
    rows: int = 0
    characters: int = 0
    share: float = 1.0  # of the places looked at, those that are not within one very long row
    # The longest row by far, if there is one: a good one, or one that cannot be used.
    long_unit: int = -1
    long_bytes: int = 0
    long_rows: int = 0
    long_characters: int = 0

    @property
    def rows_in_all(self) -> float:
        share = 1.0 if self.long_bytes else self.share  # else it was not come across
        return self._in_all(self.rows, self.long_rows) * share

    @property
    def characters_in_all(self) -> float:
        return self._in_all(self.characters, self.long_characters)

    def _in_all(self, found: int, in_the_long: int) -> float:
        """What the whole file has; a row that is longer than all that was not read is not there once more."""
        rest, usual = self.source.bytes - self.read, self.read - self.long_bytes
        if self.long_bytes > rest and usual > 0:
            return found + rest * (found - in_the_long) / usual
        return found * self.source.bytes / max(1, self.read)


@dataclass(slots=True)
class Part:
    """Documents, and estimates of what all the data has."""

    documents: list[Document] = field(default_factory=list)
    files: dict[int, FilePart] = field(default_factory=dict)  # by their number in the data
    counts: Counts = field(default_factory=Counts)
    warnings: list[tuple[str, dict[str, Value]]] = field(default_factory=list)
    complete: bool = True
    bytes_in_all: int = 0

    def path_of(self, number: int) -> str:
        """The path of a file by its number in the data."""
        return str(self.files[number].source.path)

    @property
    def bytes(self) -> int:
        """That were read."""
        return sum(file.read for file in self.files.values())

    @property
    def rows_in_all(self) -> float:
        """Rows of tables, pieces of plain text."""
        return self._in_all(lambda file: file.rows_in_all)

    @property
    def characters_in_all(self) -> float:
        return self._in_all(lambda file: file.characters_in_all)

    def _in_all(self, figure: Callable[[FilePart], float]) -> float:
        """Files that were not read from are taken to be like those that were."""
        read_from = sum(file.source.bytes for file in self.files.values())
        found = sum(map(figure, self.files.values()))
        return found * self.bytes_in_all / max(1, read_from)


class _Ears(Quiet):
    """What a stream has to say, and a chance to stop it. Slices are called by the file that they are of."""

    def __init__(self, part: Part, sliced: Iterable[Slices], poll: Callable[[], None]) -> None:
        self._part, self._poll = part, poll
        self._sliced = {str(one.source.path): one for one in sliced}

    def warn(self, code: str, **params: Value) -> None:
        self._part.warnings.append((code, self.placed(params)))

    def placed(self, told: Mapping[str, Value]) -> dict[str, Any]:
        slices = self._sliced.get(str(told.get("path")))
        if slices is None:
            return dict(told)
        position = {"position": slices.position(str(told["position"]))} if "position" in told else {}
        return {**told, **position, "path": str(slices.original.path)}

    def poll(self) -> None:
        self._poll()


class PartReader:
    """Reads about `budget` bytes of text: all of it where there is no more, else some of every file.

    That is slices from all over a long file of lines (kept in `folder` meanwhile), and the beginning of any
    other. It ends after `seconds` with what there is. `poll` is called often, and may raise.
    """

    def __init__(
        self,
        looks: Sequence[Look],
        config: Config,
        budget: int,
        seconds: float,
        folder: Path,
        poll: Callable[[], None],
    ) -> None:
        self._config, self._piece = config, piece_size(looks)
        self._files = [file for one in looks for file in one.files]
        self.part = Part(bytes_in_all=sum(file.bytes for file in self._files))
        self._limits = limits(self._files, budget)
        self._originals = list(self._files)
        self._shares: dict[int, float] = {}  # of the files that are cut, as `FilePart` has them
        self._ears = _Ears(self.part, self._slice_up(folder), poll)
        rest = iter(self._files)
        self._looks = [replace(one, files=tuple(islice(rest, len(one.files)))) for one in looks]
        self._starts = list(accumulate((file.bytes for file in self._files), initial=0))
        self._deadline, self._budget, self._characters = time.monotonic() + seconds, budget, 0

    def _slice_up(self, folder: Path) -> list[Slices]:
        """Put slices in the place of long files."""
        sliced = []
        for number, limit in self._limits.items():
            file = self._files[number]
            slices = slice_up(file, limit, folder / f"slices-{number}") if limit < file.bytes else None
            if slices is None:
                continue
            self._shares[number] = slices.share
            if slices.source is not file:
                self._files[number], self._limits[number] = slices.source, slices.source.bytes
                sliced.append(slices)
        return sliced

    @property
    def total(self) -> int:
        """Bytes that are to be read, more or less."""
        return sum(limit // _expansion(self._files[number]) for number, limit in self._limits.items())

    def read(self) -> Part:
        """Raises what `Stream` and `poll` raise."""
        part = self.part
        part.complete = len(self._limits) == len(self._files) and self._files == self._originals
        next_file: int | None = next(iter(self._limits), None)
        try:
            while next_file is not None and not self._ended():
                next_file = self._read_from(next_file)
        except TraindeckError as error:
            raise TraindeckError(error.code, error.detail, **self._ears.placed(error.params)) from error
        part.complete = part.complete and next_file is None
        return part

    def _ended(self) -> bool:
        """Whether there is no time left, or far more text than was expected: it was well compressed."""
        longest = max((file.long_characters for file in self.part.files.values()), default=0)
        return time.monotonic() > self._deadline or self._characters - longest > _MOST * self._budget

    def _read_from(self, first: int) -> int | None:
        """Read files from `first` on until one has to be left early. The file to go on with."""
        part = self.part
        last = part.documents[-1] if part.documents else None
        number, unit = (last.number + 1, last.unit + 1) if last else (0, 0)
        start = {"file": first, "number": number, "unit": unit, "counts": {}, "tally": None}
        stream = Stream(self._looks, self._config, self._ears, start, self._piece)
        file, enough, bad = -1, False, 0
        for document in stream:
            if document.file != file:
                self._end_file(file)
                if document.file not in self._limits:
                    self._take_counts(stream, None)
                    return self._after(document.file)
                file, enough = document.file, False
                part.files[file] = FilePart(self._originals[file], share=self._shares.get(file, 1.0))
            done = stream.done - self._starts[file]
            if done > part.files[file].read and not enough:  # all rows of so many bytes have come
                is_long = self._note_long(file, document, done, stream.bad > bad)
                part.files[file].read = done
                enough = not is_long and (self._enough(file) or self._ended())
            bad = stream.bad
            if enough and part.documents and document.unit != part.documents[-1].unit:
                part.complete = False
                self._take_counts(stream, file)
                return self._after(file + 1)
            self._take(document, part.files[file])
        self._end_file(file)
        self._take_counts(stream, None)
        return None

    def _note_long(self, number: int, document: Document, done: int, is_bad: bool) -> bool:
        """Whether the row that was read up to `done` is far longer than others: the one that came, or a bad one."""
        file = self.part.files[number]
        length = done - file.read
        if length < _LONG or FORMATS[file.source.format].columns is not None:  # tables give many rows at a time
            return False
        if length > file.long_bytes:
            file.long_bytes, file.long_characters, file.long_rows = length, 0, int(not is_bad)
            file.long_unit = -1 if is_bad else document.unit
        return True

    def _enough(self, number: int) -> bool:
        """Whether so much of a file was read as was to be read, but for its longest row.

        Of its text, where it is compressed.
        """
        file, limit = self.part.files[number], self._limits[number]
        expansion = _expansion(file.source)
        if limit >= self._files[number].bytes * expansion:
            return False
        read, characters = file.read - file.long_bytes, file.characters - file.long_characters
        return (read if expansion == 1 else _BYTES * characters) >= limit

    def _take(self, document: Document, file: FilePart) -> None:
        documents = self.part.documents
        file.rows += not documents or documents[-1].unit != document.unit
        file.characters += document.characters
        if document.unit == file.long_unit:
            file.long_characters += document.characters
        self._characters += document.characters
        documents.append(document)

    def _end_file(self, file: int) -> None:
        if file in self.part.files:
            self.part.files[file].read = self._files[file].bytes

    def _after(self, file: int) -> int | None:
        return next((number for number in self._limits if number >= file), None)

    def _take_counts(self, stream: Stream, left: int | None) -> None:
        """Add what a stream has counted; `left`: the file in whose midst it was left."""
        counts, own = self.part.counts, stream.counts
        counts.empty += own.empty
        tally: Mapping[str, Any] = {}
        if left is not None and stream.position is not None:
            tally = stream.position["tally"]
        path = str(self._files[left].path) if left is not None else ""
        if tally.get("bad"):
            told = {"position": str(tally["first_bad"]), "reason": str(tally["reason"])}
            self._ears.warn("data.rows_skipped", count=int(tally["bad"]), path=path, **told)
            own.first_bad = own.first_bad or {"path": path, **told}
        if tally.get("undecodable"):
            encoding = self._files[left or 0].encoding
            self._ears.warn("data.undecodable", count=int(tally["undecodable"]), path=path, encoding=encoding)
        counts.first_bad = counts.first_bad or self._ears.placed(own.first_bad)
        counts.bad += own.bad + int(tally.get("bad", 0))
        counts.undecodable += own.undecodable + int(tally.get("undecodable", 0))


def limits(files: Sequence[Source], budget: int) -> dict[int, int]:
    """How many bytes of text to read of which files, so that there are about `budget` in all.

    Every file is read whole up to one size, and of larger ones as much; where that would be too little to
    be worth opening them all, some are left out, evenly.
    """
    weights = [file.bytes * _expansion(file) for file in files]
    if sum(weights) <= budget:
        return dict(enumerate(weights))
    cap = _level(weights, budget)
    chosen = list(range(len(files)))
    if cap < _LEAST:
        share, cap = budget / sum(min(weight, _LEAST) for weight in weights), _LEAST
        chosen = [number for number in chosen if int((number + 1) * share) > int(number * share)] or [0]
    return {number: min(weights[number], cap) for number in chosen}


def _expansion(file: Source) -> int:
    return _COMPRESSED if file.compression or file.format in _COMPRESSED_FORMATS else 1


def _level(weights: Sequence[int], budget: int) -> int:
    """The cap at which the capped weights make up the budget."""
    left = budget
    for place, weight in enumerate(ordered := sorted(weights)):
        share = left // (len(ordered) - place)
        if weight > share:
            return share
        left -= weight
    return max(weights, default=0)
