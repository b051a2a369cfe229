"""The documents of data that was looked at, one after the other. Nothing is ever held whole.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from trainer_core.config import Config
from trainer_core.data import columns, formats, tasks
from trainer_core.data.columns import PLAIN, BadRow, Document, Layout
from trainer_core.data.encodings import Tally
from trainer_core.data.formats import FORMATS, TEXT, Request, Source
from trainer_core.data.sources import Look, common_task, unreadable
from trainer_core.messages import TraindeckError
from trainer_core.report import Reporter

_PIECE_MAX, _PIECE_MIN = 64 * 1024, 512  # characters
_PART: Final = 4 * _PIECE_MAX  # characters of a row's text that are encoded at once
_PIECES: Final = 256  # about so many pieces of all text by its bytes, so that some can be held back
_MOST_ROWS: Final = 100  # bad rows after which a file that is mostly bad is given up

Position = dict[str, Any]  # plain values; what `Stream` needs to go on


def _no_poll() -> None:
    pass


@dataclass(slots=True)
class Counts:
    """What a stream has come across so far, over all files."""

    rows: int = 0  # good ones; pieces of plain text
    empty: int = 0  # rows without any text
    bad: int = 0
    first_bad: dict[str, str] = field(default_factory=dict)  # path, position, reason
    undecodable: int = 0  # bytes
    characters: int = 0


class _Judge(Tally):
    """A tally that gives up when there are too many bad rows, and lets a stop through between them."""

    def __init__(self, file: Source, config: Config, before: int, poll: Callable[[], None]) -> None:
        super().__init__()
        self._file, self._config, self._before, self._poll = file, config, before, poll

    def skip(self, position: str, reason: str) -> None:
        super().skip(position, reason)
        self._poll()
        path, config = str(self._file.path), self._config
        if config.on_bad_row == "stop":
            raise TraindeckError("data.bad_row", path=path, position=position, reason=reason)
        if self.bad >= _MOST_ROWS and self.bad > self.rows:
            raise formats.bad_format(self._file, self.first_bad, self.reason)
        count = self._before + self.bad
        if config.bad_row_limit and count > config.bad_row_limit:
            told = {"position": self.first_bad, "reason": self.reason}
            raise TraindeckError("data.too_many_bad_rows", path=path, count=count, **told)

    def move(self, done: int) -> None:
        super().move(done)
        self._poll()


def piece_size(looks: Sequence[Look]) -> int:
    """Into pieces of how many characters plain text is cut."""
    files = (pair for one in looks for pair in zip(one.files, one.layouts, strict=True))
    plain = sum(file.bytes for file, layout in files if layout is PLAIN)
    return min(_PIECE_MAX, max(_PIECE_MIN, plain // _PIECES))


class Stream:
    """All documents of some looked-at data, in order.

    `done` counts the bytes of the files read so far, of `total`. `position` after a document is where
    another stream over the same data goes on with the next one; None within a long text. With a
    reporter, what had to be skipped or replaced is warned of at the end of each file. `piece`: another
    size of the pieces of plain text, where this is a part of larger data. Raises
    `data.unreadable`, `data.bad_format`, `data.bad_row` or `data.too_many_bad_rows`.
    """

    def __init__(
        self,
        looks: Sequence[Look],
        config: Config,
        reporter: Reporter | None = None,
        position: Position | None = None,
        piece: int = 0,
    ) -> None:
        self._files = [pair for one in looks for pair in zip(one.files, one.layouts, strict=True)]
        self._config, self._reporter = config, reporter
        self._tally = Tally()
        self.total = sum(one.bytes for one in looks)
        self.task = common_task(looks)
        self._piece = piece or piece_size(looks)
        self._within = False  # a long text of which more parts follow
        start = position or {"file": 0, "number": 0, "unit": 0, "counts": {}, "tally": None}
        self._file: int = start["file"]
        self._number: int = start["number"]
        self._unit: int = start["unit"]
        self._restored: dict[str, Any] | None = start["tally"]
        self.counts = Counts(**start["counts"])
        self._finished = sum(file.bytes for file, _ in self._files[: self._file])

    @property
    def done(self) -> int:
        return self._finished + self._tally.done

    @property
    def bad(self) -> int:
        """Rows up to here that could not be used."""
        return self.counts.bad + self._tally.bad

    @property
    def position(self) -> Position | None:
        if self._within:
            return None
        counts, tally = asdict(self.counts), self._restored or self._tally.state()
        return {"file": self._file, "number": self._number, "unit": self._unit, "counts": counts, "tally": tally}

    def __iter__(self) -> Iterator[Document]:
        poll = self._reporter.poll if self._reporter is not None else _no_poll
        while self._file < len(self._files):
            file, layout = self._files[self._file]
            self._tally = tally = _Judge(file, self._config, self.counts.bad, poll)
            if self._restored is not None:
                tally.restore(self._restored)
                self._restored = None
            try:
                yield from self._exercises(tally) if file.format == "tasks" else self._documents(file, layout, tally)
            except OSError as error:
                raise unreadable(file.path, error) from error
            self._end_file(file, layout, tally)

    def path_of(self, number: int) -> str:
        """The path of a file by its number in the data."""
        return str(self._files[number][0].path)

    def _end_file(self, file: Source, layout: Layout, tally: Tally) -> None:
        if tally.bad > tally.rows and tally.bad:
            raise formats.bad_format(file, tally.first_bad, tally.reason)
        path, counts = str(file.path), self.counts
        if self._reporter is not None and tally.undecodable:
            self._reporter.warn("data.undecodable", count=tally.undecodable, path=path, encoding=file.encoding)
        if self._reporter is not None and tally.bad:
            told = {"reason": tally.reason, "position": tally.first_bad}
            self._reporter.warn("data.rows_skipped", count=tally.bad, path=path, **told)
        if tally.bad and not counts.first_bad:
            counts.first_bad = {"path": path, "position": tally.first_bad, "reason": tally.reason}
        counts.bad += tally.bad
        counts.undecodable += tally.undecodable
        self._number += layout is PLAIN
        self._file += 1
        self._finished += file.bytes
        self._tally = Tally()

    def _exercises(self, tally: Tally) -> Iterator[Document]:
        for prompt, response in tasks.examples()[tally.read :]:
            tally.read += 1
            tally.rows += 1
            tally.move(tally.read * tasks.BYTES)
            yield self._row("", (("user", prompt), ("assistant", response)))

    def _documents(self, file: Source, layout: Layout, tally: Tally) -> Iterator[Document]:
        read, is_chat, is_plain = FORMATS[file.format].read, layout.task == "sft", layout is PLAIN
        for row in read(file, Request(layout.used, self._piece, tally.read), tally):
            tally.rows += 1
            if is_plain:
                yield self._piece_of_text(row[TEXT])
                continue
            try:
                turns = columns.turns_of(row, layout) if is_chat else ()
                text = "" if turns else columns.text_of(row, layout)
            except BadRow as bad:
                tally.rows -= 1
                tally.skip(tally.position, str(bad))
                continue
            if len(text) > _PART:
                yield from self._parts(text)
            elif turns or text:
                yield self._row(text, turns)
            else:
                self.counts.empty += 1

    def _piece_of_text(self, text: str) -> Document:
        document = self._document(text)
        self.counts.rows += 1
        self._unit += 1
        return document

    def _row(self, text: str, turns: tuple[columns.Turn, ...] = ()) -> Document:
        document = self._document(text, turns)
        self.counts.rows += 1
        self._number += 1
        self._unit += 1
        return document

    def _parts(self, text: str) -> Iterator[Document]:
        """A row's text in parts that do not fill memory once encoded."""
        self._within = True
        *parts, last = parts_of(text)
        for part in parts:
            yield self._document(part)
        self._within = False
        yield self._row(last)

    def _document(self, text: str, turns: tuple[columns.Turn, ...] = ()) -> Document:
        length = len(text)
        for turn in turns:
            length += len(turn[1]) if len(turn) < 3 else len(turn[1]) + len(turn[2])
        self.counts.characters += length
        return Document(self._number, text, turns, self._unit, self._file, self._tally.read - 1, length)


def parts_of(text: str) -> list[str]:
    """A row's text, cut where it is longer than is encoded at once."""
    return [text[start : start + _PART] for start in range(0, len(text), _PART)]
