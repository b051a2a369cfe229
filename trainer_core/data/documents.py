"""Streams the documents of scanned data in bounded memory.

A row is a row of a table, or a piece of a plain text file, which is cut into pieces of `piece_chars` characters. Each
row with text becomes a document; a row with a long text becomes several, its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Final

from trainer_core.config import Config
from trainer_core.data import columns
from trainer_core.data.column_mapping import PLAIN_TEXT, ColumnMapping
from trainer_core.data.columns import Content, Document, RowError, conversations_of
from trainer_core.data.encodings import count_replaced_bytes
from trainer_core.data.formats import read_rows
from trainer_core.data.preferences import extract_preference
from trainer_core.data.readers.base import TEXT, FileInput, Row, SourceFile
from trainer_core.data.sources import DatasetScan, unreadable_error
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter, Reporter

_MAX_PIECE_CHARS, _MIN_PIECE_CHARS = 64 * 1024, 512  # characters
_MAX_TOKENIZE_CHARS: Final = 4 * _MAX_PIECE_CHARS  # characters of a row that are tokenized at once
_TARGET_PIECES: Final = 256  # small data is cut into about this many pieces, so that a validation split can be made
_MIN_BAD_ROWS: Final = 100  # from this number on, a file with more bad rows than good ones is rejected before its end

StreamPosition = dict[str, Any]  # JSON-serializable; stored in the journal of the token cache


@dataclass(slots=True)
class RowCounts:
    """Counts over files, or over the part of a file that was read."""

    read: int = 0  # all rows: rows + empty + bad
    rows: int = 0  # good rows with text
    empty: int = 0  # good rows without text
    bad: int = 0
    first_bad: dict[str, str] = field(default_factory=dict)  # path, position, reason
    undecodable: int = 0  # bytes that were replaced, not rows
    characters: int = 0

    def add(self, other: RowCounts) -> None:
        self.first_bad = self.first_bad or other.first_bad
        for name in ("read", "rows", "empty", "bad", "undecodable", "characters"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def choose_piece_chars(scans: Sequence[DatasetScan]) -> int:
    """Return the length of the pieces into which plain text is cut, in characters."""
    plain = sum(file.bytes for scan in scans for file in scan.files if file.mapping is PLAIN_TEXT)
    return min(_MAX_PIECE_CHARS, max(_MIN_PIECE_CHARS, plain // _TARGET_PIECES))


class DocumentStream:
    """All documents of scanned data, in order.

    `bytes_done` of `total_bytes` are read. Pass `position` to a new stream to continue after the last document; it is
    None between the parts of a long text. `counts`: of the files that were read completely. `sampled_bytes`: the bytes
    read of files of which only a sample is read, by file number. Warns the reporter about skipped rows and replaced
    bytes after each file. `piece_chars`: 0 for `choose_piece_chars(scans)`. Iteration raises `data.unreadable`,
    `data.bad_format`, `data.bad_row` or `data.too_many_bad_rows`.
    """

    def __init__(
        self,
        scans: Sequence[DatasetScan],
        config: Config,
        reporter: Reporter | None = None,
        position: StreamPosition | None = None,
        piece_chars: int = 0,
    ) -> None:
        self._files = [file for scan in scans for file in scan.files]
        self._config, self._reporter = config, reporter or NullReporter()
        self.total_bytes = sum(scan.bytes for scan in scans)
        self.sampled_bytes: dict[int, int] = {}
        self._piece_chars = piece_chars or choose_piece_chars(scans)
        self._inside_long_text = False  # more parts of a long text follow
        start = position or {"file": 0, "number": 0, "unit": 0, "counts": {}, "file_counts": {}}
        self._file: int = start["file"]  # index of the current file
        self._number: int = start["number"]  # `Document.number` of the next document
        self._unit: int = start["unit"]  # its `Document.split_unit`
        self.counts, self._file_counts = RowCounts(**start["counts"]), RowCounts(**start["file_counts"])
        self._input: FileInput | None = None
        self._finished = sum(file.bytes_to_read for file in self._files[: self._file])

    @property
    def bytes_done(self) -> int:
        return self._finished + (self._input.done if self._input else 0)

    @property
    def bad(self) -> int:
        """Bad rows so far."""
        return self.counts.bad + self._file_counts.bad

    @property
    def position(self) -> StreamPosition | None:
        if self._inside_long_text:
            return None
        counts = {"counts": asdict(self.counts), "file_counts": asdict(self._file_counts)}
        return {"file": self._file, "number": self._number, "unit": self._unit, **counts}

    def path_of(self, number: int) -> str:
        """The path of a file by its number in the data."""
        return str(self._files[number].path)

    def __iter__(self) -> Iterator[Document]:
        while self._file < len(self._files):
            file, counts = self._files[self._file], self._file_counts
            names, poll = file.mapping.column_names, self._reporter.poll
            self._input = FileInput(file, names, self._piece_chars, counts.read, poll)
            try:
                yield from self._iter_documents(file, self._input)
            except OSError as error:
                raise unreadable_error(file.path, error) from error
            self._end_file(file, self._input)

    def _iter_documents(self, file: SourceFile, file_input: FileInput) -> Iterator[Document]:
        counts, done = self._file_counts, 0
        rows = read_rows(file_input)
        replaced_before = count_replaced_bytes() - counts.undecodable  # an earlier stream has counted some of this file
        for row in rows:
            # A sample ends only where a chunk of bytes begins, so that all rows of `sampled_bytes` were read.
            if file_input.done > done and file.max_characters is not None:
                done = file_input.done
                if counts.characters >= file.max_characters:
                    self.sampled_bytes[self._file] = done
                    break
            counts.read += 1
            counts.undecodable = count_replaced_bytes() - replaced_before
            try:
                yield from self._row_documents(row, file)
            except RowError as bad:
                self._record_bad_row(str(bad), file_input)
        counts.undecodable = count_replaced_bytes() - replaced_before
        if file.ranges:
            self.sampled_bytes[self._file] = file_input.done

    def _row_documents(self, row: Row | str, file: SourceFile) -> Iterator[Document]:
        """Yield the document of a row, or its parts if it is long. Raises `RowError`, also if `row` is a reason."""
        if isinstance(row, str):
            raise RowError(row)
        mapping, counts = file.mapping, self._file_counts
        content = row[TEXT] if mapping is PLAIN_TEXT else extract_content(row, mapping)
        if not content:
            counts.empty += 1
            return
        *parts, last = split_long_text(content) if isinstance(content, str) else [content]
        self._inside_long_text = True
        for part in parts:
            yield self._new_document(part)
        self._inside_long_text = False
        document = self._new_document(last)
        counts.rows += 1
        if mapping is not PLAIN_TEXT:  # all pieces of a plain text file have the same number
            self._number += 1
        self._unit += 1
        yield document

    def _new_document(self, content: Content) -> Document:
        turns = chain.from_iterable(conversations_of(content))
        length = len(content) if isinstance(content, str) else sum(len(part) for turn in turns for part in turn[1:])
        self._file_counts.characters += length
        return Document(self._number, content, self._unit, self._file, self._file_counts.read - 1, length)

    def _record_bad_row(self, reason: str, file_input: FileInput) -> None:
        """Count a bad row. Raises if there are too many."""
        counts, config = self._file_counts, self._config
        row = {"path": str(file_input.source.path), "position": file_input.position, "reason": reason}
        counts.first_bad = counts.first_bad or row
        counts.bad += 1
        self._reporter.poll()
        if config.on_bad_row == "stop":
            raise TraindeckError("data.bad_row", **row)
        if counts.bad >= _MIN_BAD_ROWS:
            self._require_good_rows(file_input)
        if config.bad_row_limit and self.bad > config.bad_row_limit:
            raise TraindeckError("data.too_many_bad_rows", count=self.bad, **counts.first_bad)

    def _require_good_rows(self, file_input: FileInput) -> None:
        """Raises `data.bad_format` if most rows are bad."""
        counts = self._file_counts
        if counts.bad > counts.rows + counts.empty:
            raise file_input.bad_format_error(counts.first_bad["position"], counts.first_bad["reason"])

    def _end_file(self, file: SourceFile, file_input: FileInput) -> None:
        """Add the counts of the file to `counts`, and warn about them."""
        counts = self._file_counts
        self._require_good_rows(file_input)
        if counts.undecodable:
            path, encoding = str(file.path), file.encoding
            self._reporter.warn("data.undecodable", count=counts.undecodable, path=path, encoding=encoding)
        if counts.bad:
            self._reporter.warn("data.rows_skipped", count=counts.bad, **counts.first_bad)
        self.counts.add(counts)
        self._file_counts, self._input = RowCounts(), None
        if file.mapping is PLAIN_TEXT:
            self._number += 1
        self._file += 1
        self._finished += file.bytes_to_read


def extract_content(row: Row, mapping: ColumnMapping) -> Content:
    """The text, conversation or preference of a row of a table. Raises `RowError`."""
    if mapping.task == "preference":
        return extract_preference(row, mapping)
    return columns.extract_text(row, mapping) if mapping.task == "pretrain" else columns.extract_turns(row, mapping)


def split_long_text(text: str) -> list[str]:
    """Return a text in parts of at most `_MAX_TOKENIZE_CHARS` characters; at least one part."""
    return [text[start : start + _MAX_TOKENIZE_CHARS] for start in range(0, len(text) or 1, _MAX_TOKENIZE_CHARS)]
