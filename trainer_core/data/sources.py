"""What data a person pointed at, and the stream of documents in it. Nothing is ever held whole.

No torch, no Qt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

from trainer_core import run_dir
from trainer_core.config import Config
from trainer_core.data import builtin, encodings, formats, tasks
from trainer_core.data.encodings import Tally
from trainer_core.data.formats import FORMATS, KNOWN, TEXT, Request, Row, Source
from trainer_core.messages import TraindeckError
from trainer_core.report import Reporter

Task = Literal["pretrain", "sft"]

_HEAD: Final = 64 * 1024
_PIECE_MAX, _PIECE_MIN = 64 * 1024, 512  # characters
_PIECES: Final = 256  # at least so many pieces of all text, so that some can be held back
_MOST_ROWS: Final = 100  # bad rows after which a file that is mostly bad is given up
_NONE: Final = "—"
_TASK_BYTES: Final = 32  # an exercise's length, near enough to show progress
_BLANK: Final = b" \t\r\n\xef\xbb\xbf\xff\xfe"  # white space and byte order marks


@dataclass(frozen=True, slots=True)
class Look:
    """What is at a path. `columns` are those of the first file; empty for plain text."""

    path: str
    files: tuple[Source, ...]
    format: str
    encoding: str
    columns: tuple[str, ...]
    task: Task
    bytes: int
    skipped: tuple[tuple[str, str], ...] = ()  # files of a folder that cannot be used, with the reason's code


class Piece(NamedTuple):
    """A document or, of a long text, a part of one. Parts of one document have the same number."""

    document: int
    prompt: str  # empty for plain text
    text: str  # the text, or the response


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
        return _summary(path, sources, (), config)
    place = Path(path).expanduser()
    try:
        if not place.exists():
            raise TraindeckError("data.not_found", path=path)
        if place.is_dir():
            return _look_at_folder(place, config, poll)
        source = _look_at_file(place, config)
        return _summary(path, (source,), columns(source), config)
    except OSError as error:
        raise _unreadable(place, error) from error


def _look_at_tasks(path: str, config: Config) -> Look:
    if config.task == "pretrain":
        found = f"{config.prompt_column}, {config.response_column}"
        raise TraindeckError("data.missing_columns", path=path, wanted=config.text_column, found=found)
    source = Source(Path(path), "tasks", "", tasks.count() * _TASK_BYTES)
    return Look(path, (source,), "tasks", "", (config.prompt_column, config.response_column), "sft", source.bytes)


def _look_at_folder(folder: Path, config: Config, poll: Callable[[], None]) -> Look:
    sources: list[Source] = []
    skipped: list[tuple[str, str]] = []
    shared: tuple[Task, tuple[str, ...]] | None = None
    for file in files_below(folder, config):
        poll()
        try:
            source = _look_at_file(file, config)
            found = columns(source)
            task = task_of(source, found, config)
        except (TraindeckError, OSError) as error:
            code = error.code if isinstance(error, TraindeckError) else "data.unreadable"
            if code != "data.empty":
                skipped.append((str(file), code))
            continue
        if shared is None or (task == "sft" and shared[0] == "pretrain" and config.task == "auto"):
            # Prompts and responses beside plain text: the text is a README, not what is to be learned.
            skipped.extend((str(other.path), "data.missing_columns") for other in sources)
            shared, sources = (task, found), []
        if task == shared[0]:
            sources.append(source)
        else:
            skipped.append((str(file), "data.missing_columns"))
    if not sources or shared is None:
        if len(skipped) == 1:
            return look(skipped[0][0], config)  # says what is wrong with the only file there is
        raise TraindeckError("data.no_files", path=str(folder), known=KNOWN)
    summary = _summary(str(folder), tuple(sources), shared[1], config)
    return replace(summary, skipped=tuple(skipped))


def cache_root(config: Config) -> Path:
    """The folder that holds all token caches."""
    return Path(config.cache_dir).expanduser().resolve() if config.cache_dir else run_dir.home() / "cache"


def files_below(folder: Path, config: Config) -> list[Path]:
    """The files of a folder that have a known kind of name, in the same order on every system."""
    found: list[Path] = []
    ours = {run_dir.runs_root(), cache_root(config)}  # Traindeck's own files are no data
    for place, folders, names in os.walk(folder):
        shown = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        folders[:] = [name for name in shown if Path(place, name).resolve() not in ours]
        for name in names:
            kind = formats.format_of(Path(name).suffix)
            wanted = kind is not None if config.data_format == "auto" else kind == config.data_format
            if wanted and not name.startswith("."):
                found.append(Path(place, name))
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def _look_at_file(path: Path, config: Config) -> Source:
    if not path.is_file():
        raise TraindeckError("data.unreadable", path=str(path), reason="it is not a regular file")
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if size <= _HEAD and not head.strip(_BLANK):
            raise TraindeckError("data.empty", path=str(path))
        kind = config.data_format if config.data_format != "auto" else _kind(path, head)
        if FORMATS[kind].binary:
            return Source(path, kind, "", size)
        if encodings.looks_binary(head):
            known = formats.format_of(path.suffix) is not None or not path.suffix or config.data_format != "auto"
            code = "data.binary" if known else "data.unknown_format"
            raise TraindeckError(code, path=str(path), known=KNOWN)
        encoding = encodings.detect(file, size)
    return Source(path, kind, encoding, size)


def _kind(path: Path, head: bytes) -> str:
    """The format by name, then by content: `.json` files often hold one object a line."""
    named = formats.format_of(path.suffix)
    if head.startswith(b"PAR1") and named is None:
        return "parquet"
    if named == "json" and not head.lstrip(b"\xef\xbb\xbf \t\r\n\x00\xff\xfe").startswith(b"["):
        return "jsonl"
    return named or "text"


def columns(source: Source) -> tuple[str, ...]:
    """The columns of a file: those of its schema or of its first rows. Empty for plain text."""
    if not FORMATS[source.format].tabular:
        return ()
    if source.format == "parquet":
        return _parquet_columns(source)
    tally = Tally()
    found: dict[str, None] = {}
    for row in islice(FORMATS[source.format].read(source, Request(), tally), 20):
        found.update(dict.fromkeys(str(name) for name in row))
    if not found and tally.bad:
        raise formats.bad_format(source, tally.first_bad, tally.reason)
    if not found:
        raise TraindeckError("data.empty", path=str(source.path))
    return tuple(found)


def _parquet_columns(source: Source) -> tuple[str, ...]:
    try:
        return formats.parquet_columns(source.path)
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise formats.bad_format(source, "the schema", str(error).splitlines()[0]) from error


def task_of(source: Source, found: Sequence[str], config: Config) -> Task:
    """What a file with these columns can teach; raises `data.missing_columns`.

    `auto`: prompt and response, where there are both and no text, make it `sft`.
    """
    pair = (config.prompt_column, config.response_column)
    if not FORMATS[source.format].tabular:
        if config.task != "sft":
            return "pretrain"
        raise _missing(source, pair[0], found)
    has_pair, has_text = set(pair) <= set(found), config.text_column in found
    if config.task == "sft" or (config.task == "auto" and has_pair and not has_text):
        if has_pair:
            return "sft"
        raise _missing(source, next(name for name in pair if name not in found), found)
    if has_text:
        return "pretrain"
    if config.task == "auto" and (pair[0] in found or pair[1] in found):
        raise _missing(source, pair[1] if pair[0] in found else pair[0], found)
    raise _missing(source, config.text_column, found)


def _missing(source: Source, wanted: str, found: Sequence[str]) -> TraindeckError:
    shown = ", ".join(found) or _NONE
    return TraindeckError("data.missing_columns", path=str(source.path), wanted=wanted, found=shown)


def _summary(path: str, files: tuple[Source, ...], found: tuple[str, ...], config: Config) -> Look:
    first = files[0]
    size = sum(file.bytes for file in files)
    return Look(path, files, first.format, first.encoding, found, task_of(first, found, config), size)


def _unreadable(path: Path, error: OSError) -> TraindeckError:
    reason = error.strerror or type(error).__name__
    return TraindeckError("data.unreadable", detail=str(error), path=str(path), reason=reason)


def common_task(looks: Sequence[Look], config: Config) -> Task:
    """The task of all data together; raises `data.missing_columns` where text and pairs are mixed."""
    if all(one.task == "sft" for one in looks):
        return "sft"
    for one in looks:
        if one.task == "sft":
            raise _missing(one.files[0], config.text_column, one.columns)
    return "pretrain"


# --- streaming -------------------------------------------------------------------------------------


class Stream:
    """All documents of some looked-at data, in order, each time it is iterated.

    `done` counts the bytes of the files read so far, of `total`. With a reporter, what had to be
    skipped or replaced is warned of at the end of each file. Raises `data.unreadable`, `data.bad_format`.
    """

    def __init__(self, looks: Sequence[Look], config: Config, reporter: Reporter | None = None) -> None:
        self._looks = looks
        self._config = config
        self._reporter = reporter
        self._finished = 0
        self._tally = Tally()
        self.total = sum(one.bytes for one in looks)
        self.task = common_task(looks, config)
        plain = sum(file.bytes for one in looks for file in one.files if not _tabular(file))
        self._piece = min(_PIECE_MAX, max(_PIECE_MIN, plain // _PIECES))

    @property
    def done(self) -> int:
        return self._finished + self._tally.done

    def __iter__(self) -> Iterator[Piece]:
        self._finished, document = 0, 0
        for file in (file for one in self._looks for file in one.files):
            self._tally = Tally()
            if file.format == "tasks":
                for prompt, response in tasks.examples():
                    self._tally.done += _TASK_BYTES
                    yield Piece(document, prompt, response)
                    document += 1
            else:
                try:
                    for piece in self._pieces(file, document):
                        document = piece.document
                        yield piece
                except OSError as error:
                    raise _unreadable(file.path, error) from error
                document += 1
            self._warn(file)
            self._finished += file.bytes
            self._tally = Tally()

    def _pieces(self, file: Source, document: int) -> Iterator[Piece]:
        tally, config = self._tally, self._config
        pair = self.task == "sft"
        wanted = (config.prompt_column, config.response_column) if pair else (config.text_column,)
        for row in FORMATS[file.format].read(file, Request(wanted, self._piece), tally):
            if not _tabular(file):
                yield Piece(document, "", row[TEXT])
                continue
            values = _values(row, wanted, tally)
            if values is not None:
                if pair:
                    yield Piece(document, *values)
                else:
                    yield from (Piece(document, "", part) for part in _parts(values[0]))
                document += 1
            if tally.bad >= _MOST_ROWS and tally.bad > tally.rows:
                raise formats.bad_format(file, tally.first_bad, tally.reason)
        if tally.bad > tally.rows:
            raise formats.bad_format(file, tally.first_bad, tally.reason)

    def _warn(self, file: Source) -> None:
        if self._reporter is None:
            return
        tally, path = self._tally, str(file.path)
        if tally.undecodable:
            self._reporter.warn("data.undecodable", count=tally.undecodable, path=path, encoding=file.encoding)
        if tally.bad:
            self._reporter.warn(
                "data.rows_skipped", count=tally.bad, path=path, reason=tally.reason, position=tally.first_bad
            )


def _tabular(file: Source) -> bool:
    return file.format not in FORMATS or FORMATS[file.format].tabular


def _values(row: Row, wanted: tuple[str, ...], tally: Tally) -> list[str] | None:
    """The wanted values as text, or None: a row without them is counted; an empty text is no loss."""
    number = tally.rows + tally.bad + 1
    values: list[str] = []
    for name in wanted:
        value = row.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if value is not None and not isinstance(value, str):
            tally.skip(f"row {number}", f"“{name}” is not text")
            return None
        if not value and (len(wanted) > 1 or name not in row):
            tally.skip(f"row {number}", f"“{name}” is empty")
            return None
        values.append(clean(value or ""))
    tally.rows += 1
    return values if any(values) else None


def clean(text: str) -> str:
    """Text with `\\n` line ends and without lone surrogates (JSON escapes can make them; UTF-8 cannot)."""
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _parts(text: str) -> Iterator[str]:
    """A row's text, cut where it is so long that it would fill memory once encoded."""
    for start in range(0, len(text), 4 * _PIECE_MAX):
        yield text[start : start + 4 * _PIECE_MAX]
