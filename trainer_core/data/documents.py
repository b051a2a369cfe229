"""Streams the documents of scanned data in bounded memory.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from trainer_core.config import Config
from trainer_core.data import builtin_tasks, columns
from trainer_core.data.columns import PLAIN_TEXT, BadRow, Document
from trainer_core.data.encodings import ReadStats
from trainer_core.data.formats import FORMATS
from trainer_core.data.readers.base import TEXT, ReadOptions, SourceFile, bad_format_error
from trainer_core.data.sources import DatasetScan, unreadable_error
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter, Reporter

_MAX_PIECE_CHARS, _MIN_PIECE_CHARS = 64 * 1024, 512  # characters
_MAX_ENCODE_CHARS: Final = 4 * _MAX_PIECE_CHARS  # characters of a row that are encoded at once
_TARGET_PIECES: Final = 256  # of small data, so that some can be held out
_MIN_BAD_ROWS: Final = 100  # a file with more bad rows than this, and than good ones, is rejected

StreamPosition = dict[str, Any]  # plain values


@dataclass(slots=True)
class RowCounts:
    """Counts over all files read so far."""

    rows: int = 0  # good rows, or pieces of plain text
    empty: int = 0  # rows without text
    bad: int = 0
    first_bad: dict[str, str] = field(default_factory=dict)  # path, position, reason
    undecodable: int = 0  # bytes
    characters: int = 0


class _BadRowLimiter(ReadStats):
    """Raises when there are too many bad rows. Polls while reading."""

    def __init__(self, file: SourceFile, config: Config, before: int, poll: Callable[[], None]) -> None:
        super().__init__()
        self._file, self._config, self._bad_before, self._poll = file, config, before, poll

    def record_bad_row(self, position: str, reason: str) -> None:
        super().record_bad_row(position, reason)
        self._poll()
        path, config = str(self._file.path), self._config
        if config.on_bad_row == "stop":
            raise TraindeckError("data.bad_row", path=path, position=position, reason=reason)
        if self.bad >= _MIN_BAD_ROWS and self.bad > self.rows:
            raise bad_format_error(self._file, self.first_bad, self.reason)
        count = self._bad_before + self.bad
        if config.bad_row_limit and count > config.bad_row_limit:
            first = {"position": self.first_bad, "reason": self.reason}
            raise TraindeckError("data.too_many_bad_rows", path=path, count=count, **first)

    def advance(self, done: int) -> None:
        super().advance(done)
        self._poll()


def choose_piece_chars(scans: Sequence[DatasetScan]) -> int:
    """The length of the pieces into which plain text is cut, in characters."""
    plain = sum(file.bytes for one in scans for file in one.files if file.mapping is PLAIN_TEXT)
    return min(_MAX_PIECE_CHARS, max(_MIN_PIECE_CHARS, plain // _TARGET_PIECES))


class DocumentStream:
    """All documents of scanned data, in order.

    `done` of `total` bytes are read. Another stream continues after a document from its `position`, which is None
    within a long text. `sampled_bytes`: the bytes read of files of which only a sample is read, by file number. Warns
    the reporter about skipped rows and replaced bytes after each file. `piece_chars` overrides the length of the pieces
    of plain text. Raises `data.unreadable`, `data.bad_format`, `data.bad_row` or `data.too_many_bad_rows`.
    """

    def __init__(
        self,
        scans: Sequence[DatasetScan],
        config: Config,
        reporter: Reporter | None = None,
        position: StreamPosition | None = None,
        piece_chars: int = 0,
    ) -> None:
        self._files = [file for one in scans for file in one.files]
        self._config, self._reporter = config, reporter or NullReporter()
        self._stats = ReadStats()
        self.total = sum(one.bytes for one in scans)
        self.sampled_bytes: dict[int, int] = {}
        self._piece_chars = piece_chars or choose_piece_chars(scans)
        self._inside_long_text = False  # more parts of a long text follow
        start = position or {"file": 0, "number": 0, "unit": 0, "counts": {}, "tally": None}
        self._file: int = start["file"]
        self._number: int = start["number"]
        self._unit: int = start["unit"]
        self._restored: dict[str, Any] | None = start["tally"]
        self.counts = RowCounts(**start["counts"])
        self._finished = sum(file.bytes_to_read for file in self._files[: self._file])

    @property
    def done(self) -> int:
        return self._finished + self._stats.done

    @property
    def bad(self) -> int:
        """Bad rows so far."""
        return self.counts.bad + self._stats.bad

    @property
    def position(self) -> StreamPosition | None:
        if self._inside_long_text:
            return None
        counts, stats = asdict(self.counts), self._restored or self._stats.state_dict()
        return {"file": self._file, "number": self._number, "unit": self._unit, "counts": counts, "tally": stats}

    def __iter__(self) -> Iterator[Document]:
        while self._file < len(self._files):
            file = self._files[self._file]
            self._stats = stats = _BadRowLimiter(file, self._config, self.counts.bad, self._reporter.poll)
            if self._restored is not None:
                stats.load_state_dict(self._restored)
                self._restored = None
            try:
                yield from self._task_documents(stats) if file.format == "tasks" else self._documents(file, stats)
            except OSError as error:
                raise unreadable_error(file.path, error) from error
            if stats.bad > stats.rows and stats.bad:
                raise bad_format_error(file, stats.first_bad, stats.reason)
            self._end_file(file, stats)

    def path_of(self, number: int) -> str:
        """The path of a file by its number in the data."""
        return str(self._files[number].path)

    def _end_file(self, file: SourceFile, stats: ReadStats) -> None:
        """Add what was read of the file to `counts`, and warn about it."""
        path, counts = str(file.path), self.counts
        if stats.undecodable:
            self._reporter.warn("data.undecodable", count=stats.undecodable, path=path, encoding=file.encoding)
        if stats.bad:
            first = {"reason": stats.reason, "position": stats.first_bad}
            self._reporter.warn("data.rows_skipped", count=stats.bad, path=path, **first)
        if stats.bad and not counts.first_bad:
            counts.first_bad = {"path": path, "position": stats.first_bad, "reason": stats.reason}
        counts.bad += stats.bad
        counts.undecodable += stats.undecodable
        self._number += file.mapping is PLAIN_TEXT
        self._file += 1
        self._finished += file.bytes_to_read
        self._stats = ReadStats()

    def _task_documents(self, stats: ReadStats) -> Iterator[Document]:
        for prompt, response in builtin_tasks.examples()[stats.read :]:
            stats.read += 1
            stats.rows += 1
            stats.advance(stats.read * builtin_tasks.EXAMPLE_BYTES)
            yield self._row_document("", (("user", prompt), ("assistant", response)))

    def _documents(self, file: SourceFile, stats: ReadStats) -> Iterator[Document]:
        mapping = file.mapping
        limit = float("inf") if file.max_characters is None else self.counts.characters + file.max_characters
        options, done = ReadOptions(mapping.column_names, self._piece_chars, stats.read), 0
        for row in FORMATS[file.format].read(file, options, stats):
            if stats.done > done:  # all rows in these bytes were read before
                done = stats.done
                if self.counts.characters >= limit:
                    self.sampled_bytes[self._file] = done
                    return
            stats.rows += 1
            if mapping is PLAIN_TEXT:
                yield self._row_document(row[TEXT], is_piece=True)
                continue
            try:
                turns = columns.extract_turns(row, mapping) if mapping.task == "sft" else ()
                text = "" if turns else columns.extract_text(row, mapping)
            except BadRow as bad:
                stats.rows -= 1
                stats.record_bad_row(stats.position, str(bad))
                continue
            if len(text) > _MAX_ENCODE_CHARS:
                yield from self._long_text_documents(text)
            elif turns or text:
                yield self._row_document(text, turns)
            else:
                self.counts.empty += 1
        if file.ranges:
            self.sampled_bytes[self._file] = stats.done

    def _row_document(self, text: str, turns: tuple[columns.Turn, ...] = (), is_piece: bool = False) -> Document:
        document = self._new_document(text, turns)
        self.counts.rows += 1
        self._number += not is_piece
        self._unit += 1
        return document

    def _long_text_documents(self, text: str) -> Iterator[Document]:
        """A row's text in several parts."""
        self._inside_long_text = True
        *parts, last = split_long_text(text)
        for part in parts:
            yield self._new_document(part)
        self._inside_long_text = False
        yield self._row_document(last)

    def _new_document(self, text: str, turns: tuple[columns.Turn, ...] = ()) -> Document:
        length = len(text) + sum(len(part) for turn in turns for part in turn[1:])
        self.counts.characters += length
        return Document(self._number, text, turns, self._unit, self._file, self._stats.read - 1, length)


def split_long_text(text: str) -> list[str]:
    """A text in parts of at most `_MAX_ENCODE_CHARS` characters."""
    return [text[start : start + _MAX_ENCODE_CHARS] for start in range(0, len(text), _MAX_ENCODE_CHARS)]
