"""What data a person pointed at, and the stream of documents in it. Nothing is ever held whole.

No torch, no Qt.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from trainer_core import run_dir
from trainer_core.config import Config
from trainer_core.data import builtin, columns, encodings, formats, tasks
from trainer_core.data.columns import PLAIN, BadRow, Document, Layout, Missing, Task
from trainer_core.data.encodings import Tally
from trainer_core.data.formats import FORMATS, KNOWN, TEXT, Request, Source
from trainer_core.data.readers import streams
from trainer_core.messages import TraindeckError
from trainer_core.report import Reporter

_HEAD: Final = 64 * 1024
_PIECE_MAX, _PIECE_MIN = 64 * 1024, 512  # characters
_PART: Final = 4 * _PIECE_MAX  # characters of a row's text that are encoded at once
_PIECES: Final = 256  # at least so many pieces of all text, so that some can be held back
_MOST_ROWS: Final = 100  # bad rows after which a file that is mostly bad is given up
_NONE: Final = "—"
_TASK_BYTES: Final = 32  # an exercise's length, near enough to show progress
_BLANK: Final = b" \t\r\n\xef\xbb\xbf\xff\xfe"  # white space and byte order marks
_WIDE_SPACE: Final = "\u3000".encode()  # what Chinese paragraphs begin with
_EXERCISE: Final = Layout("pair", prompt="prompt", response="response")

Position = dict[str, Any]  # plain values; what `Stream` needs to go on


class Skipped(NamedTuple):
    """A file of a folder that is not read. `code`: of `messages.CATALOGUE`; `reason`: the same in a few words."""

    path: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Look:
    """What is at a path. `columns` are those of the first file; empty for plain text."""

    path: str
    files: tuple[Source, ...]
    layouts: tuple[Layout, ...]  # how each file is read
    columns: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def format(self) -> str:
        return _kinds(file.format for file in self.files)

    @property
    def encoding(self) -> str:
        return _kinds(file.encoding for file in self.files)

    @property
    def compression(self) -> str:
        return _kinds(file.compression for file in self.files)

    @property
    def task(self) -> Task:
        return self.layouts[0].task

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def _kinds(names: Iterable[str]) -> str:
    """`utf-8`, or the most frequent first: `gb18030 ×2, utf-8-sig`. Files that have none are not told."""
    counts = Counter(filter(None, names)).most_common()
    return ", ".join(f"{name} ×{count}" if count > 1 and len(counts) > 1 else name for name, count in counts)


def _no_poll() -> None:
    pass


# --- looking ---------------------------------------------------------------------------------------


def look(path: str, config: Config, poll: Callable[[], None] = _no_poll) -> Look:
    """What the file or folder at `path` (or `builtin:…`) holds, without reading it whole.

    Raises `data.not_found`, `data.empty`, `data.binary`, `data.unreadable`, `data.missing_columns`,
    `data.bad_format`, `data.unknown_format` or `data.no_files`.
    """
    if path == builtin.TASKS:
        return _look_at_tasks(path, config)
    if path == builtin.PYTHON:
        _, found = builtin.python_library()
        sources = tuple(Source(file, "text", "utf-8", file.stat().st_size) for file in found)
        return Look(path, sources, (_layout(sources[0], (), config),) * len(sources), ())
    place = Path(path).expanduser()
    try:
        if not place.exists():
            raise TraindeckError("data.not_found", path=path)
        if place.is_dir():
            return _look_at_folder(place, config, poll)
        source = _look_at_file(place, config)
        names = columns_of(source)
        return Look(path, (source,), (_layout(source, names, config),), names)
    except OSError as error:
        raise _unreadable(place, error) from error


def _look_at_tasks(path: str, config: Config) -> Look:
    names = _EXERCISE.used
    if config.task == "pretrain":
        raise TraindeckError("data.missing_columns", path=path, wanted=config.text_column, found=", ".join(names))
    source = Source(Path(path), "tasks", "", tasks.count() * _TASK_BYTES)
    return Look(path, (source,), (_EXERCISE,), names)


def _look_at_folder(folder: Path, config: Config, poll: Callable[[], None]) -> Look:
    usable: list[tuple[Source, Layout, tuple[str, ...]]] = []
    skipped: list[Skipped] = []
    unreadable: list[OSError] = []
    found = formats.hugging_face_files(folder) or files_below(folder, config, unreadable.append)
    skipped += [_skipped(Path(error.filename), error) for error in unreadable]
    for file in found:
        poll()
        try:
            source = _look_at_file(file, config)
            names = columns_of(source)
            usable.append((source, _layout(source, names, config), names))
        except (TraindeckError, OSError) as error:
            found_out = _skipped(file, error)
            if found_out.code != "data.empty":
                skipped.append(found_out)
    if not usable and not skipped and found:
        raise TraindeckError("data.empty", path=str(folder))
    if not usable:
        if len(skipped) == 1:
            return look(skipped[0].path, config)  # says what is wrong with the only file there is
        raise TraindeckError("data.no_files", path=str(folder), known=KNOWN)
    # Prompts and responses beside plain text: the text is a README, not what is to be learned.
    task: Task = "sft" if any(layout.task == "sft" for _, layout, _ in usable) else "pretrain"
    chosen = [one for one in usable if one[1].task == task]
    left_out = (str(source.path) for source, layout, _ in usable if layout.task != task)
    skipped += [Skipped(path, "data.other_task", "it is plain text beside conversations") for path in left_out]
    sources, layouts = tuple(source for source, _, _ in chosen), tuple(layout for _, layout, _ in chosen)
    return Look(str(folder), sources, layouts, chosen[0][2], tuple(sorted(skipped)))


def _skipped(file: Path, error: TraindeckError | OSError) -> Skipped:
    """Why a file of a folder is left out."""
    known = error if isinstance(error, TraindeckError) else _unreadable(file, error)
    match known.code:
        case "data.binary":
            reason = "it looks like a binary file, not text"
        case "data.missing_columns":
            reason = f"it has no column “{known.params['wanted']}”"
        case _:
            reason = str(known.params.get("reason", known.code))
    return Skipped(str(file), known.code, reason)


def cache_root(config: Config) -> Path:
    """The folder that holds all token caches."""
    return Path(config.cache_dir).expanduser().resolve() if config.cache_dir else run_dir.home() / "cache"


def files_below(folder: Path, config: Config, on_error: Callable[[OSError], None] | None = None) -> list[Path]:
    """The files of a folder that have a known kind of name, in the same order on every system.

    `on_error` is told of folders that cannot be read.
    """
    found: list[Path] = []
    ours = {run_dir.runs_root(), cache_root(config)}  # Traindeck's own files are no data
    for place, folders, names in os.walk(folder, onerror=on_error):
        shown = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        folders[:] = [name for name in shown if Path(place, name).resolve() not in ours]
        for name in names:
            kind = formats.named(Path(name))[0]
            wanted = kind is not None if config.data_format == "auto" else kind == config.data_format
            if wanted and not name.startswith("."):
                found.append(Path(place, name))
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def _look_at_file(path: Path, config: Config) -> Source:
    streams.check_regular(path)
    size, (named, compression) = path.stat().st_size, formats.named(path)
    head = streams.head(path, compression, encodings.SAMPLE if compression else _HEAD)
    if len(head) < _HEAD and not head.replace(_WIDE_SPACE, b"").strip(_BLANK):
        raise TraindeckError("data.empty", path=str(path))
    kind = config.data_format if config.data_format != "auto" else _kind(named, head)
    if FORMATS[kind].binary:
        return Source(path, kind, "", size, compression)
    if encodings.looks_binary(head):
        known = named is not None or not path.suffix or config.data_format != "auto"
        raise TraindeckError("data.binary" if known else "data.unknown_format", path=str(path), known=KNOWN)
    if compression:
        return Source(path, kind, encodings.detect(io.BytesIO(head), len(head)), size, compression)
    with path.open("rb") as file:
        return Source(path, kind, encodings.detect(file, size), size)


def _kind(named: str | None, head: bytes) -> str:
    """The format by name, then by content: `.json` files often hold one object a line."""
    if head.startswith(b"PAR1") and named is None:
        return "parquet"
    if named == "json" and not head.lstrip(b"\xef\xbb\xbf \t\r\n\x00\xff\xfe").startswith(b"["):
        return "jsonl"
    return named or "text"


def columns_of(source: Source) -> tuple[str, ...]:
    """The columns of a file: those of its schema or of its first rows. Empty for plain text."""
    entry = FORMATS[source.format]
    if not entry.tabular:
        return ()
    if entry.columns is not None:
        return entry.columns(source)
    tally = Tally()
    found: dict[str, None] = {}
    for row in islice(entry.read(source, Request(), tally), 20):
        found.update(dict.fromkeys(str(name) for name in row))
    if not found and tally.bad:
        raise formats.bad_format(source, tally.first_bad, tally.reason)
    if not found:
        raise TraindeckError("data.empty", path=str(source.path))
    return tuple(found)


def _layout(source: Source, found: Sequence[str], config: Config) -> Layout:
    """How a file is read; raises `data.missing_columns`."""
    if not FORMATS[source.format].tabular:
        if config.task != "sft":
            return PLAIN
        raise _missing(source, config.prompt_column, found)
    try:
        return columns.find_layout(found, config)
    except Missing as missing:
        raise _missing(source, missing.wanted, found) from missing


def _missing(source: Source, wanted: str, found: Sequence[str]) -> TraindeckError:
    shown = ", ".join(found) or _NONE
    return TraindeckError("data.missing_columns", path=str(source.path), wanted=wanted, found=shown)


def _unreadable(path: Path, error: OSError) -> TraindeckError:
    reason = error.strerror or type(error).__name__
    return TraindeckError("data.unreadable", detail=str(error), path=str(path), reason=reason)


def common_task(looks: Sequence[Look]) -> Task:
    """The task of all data together; raises `data.mixed` where some is plain text and some conversations."""
    chats = next((one for one in looks if one.task == "sft"), None)
    text = next((one for one in looks if one.task == "pretrain"), None)
    if chats is not None and text is not None:
        raise TraindeckError("data.mixed", text=text.path, chats=chats.path)
    return "sft" if chats is not None else "pretrain"


# --- streaming -------------------------------------------------------------------------------------


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
                raise _unreadable(file.path, error) from error
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
            tally.move(tally.read * _TASK_BYTES)
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
        for _, content in turns:
            length += len(content)
        self.counts.characters += length
        return Document(self._number, text, turns, self._unit, self._file, self._tally.read - 1, length)


def parts_of(text: str) -> list[str]:
    """A row's text, cut where it is longer than is encoded at once."""
    return [text[start : start + _PART] for start in range(0, len(text), _PART)]
