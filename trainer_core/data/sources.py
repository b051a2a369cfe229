"""What data a person pointed at: the files, and how each is read. `stream.py` makes documents of them.

No torch, no Qt.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from trainer_core.config import Config
from trainer_core.data import builtin, columns, encodings, formats, tasks
from trainer_core.data.columns import PLAIN, Layout, Missing, Task
from trainer_core.data.encodings import Tally
from trainer_core.data.formats import FORMATS, KNOWN, Request, Source
from trainer_core.data.readers import streams
from trainer_core.data.splits import TRAIN, splits_of, training_split, validation_split
from trainer_core.messages import TraindeckError
from trainer_core.runs import run_dir

_HEAD: Final = 64 * 1024
_NONE: Final = "—"
_TEXT_OF_SPLIT: Final = (".txt", ".text")
_BLANK: Final = b" \t\r\n\xef\xbb\xbf\xff\xfe"  # white space and byte order marks
_WIDE_SPACE: Final = "\u3000".encode()  # what Chinese paragraphs begin with
_EXERCISE: Final = Layout("pair", prompt="prompt", response="response")


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
    split: str = ""  # of a data set folder, which these files are; empty: the folder is not divided into splits
    validation: str = ""  # the split of the same folder that can be evaluated; empty: none

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


@dataclass(frozen=True, slots=True)
class Looks:
    """All data of a run. Files are numbered from the first one to train on to the last one to evaluate."""

    train: list[Look]
    validation: list[Look] = field(default_factory=list)  # empty: `validation_fraction` of the training data

    @property
    def all(self) -> list[Look]:
        return [*self.train, *self.validation]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.all)

    @property
    def first_validation_file(self) -> int | None:
        """Files from this number on are evaluated; None: there is no validation data."""
        return sum(len(one.files) for one in self.train) if self.validation else None


def look_at_all(config: Config, poll: Callable[[], None] = _no_poll) -> Looks:
    """The data to train on and the data to evaluate: `validation_data`, else the validation splits of `data`.

    Raises what `look` raises, and `data.mixed`.
    """
    train = [look(path, config, poll) for path in config.data]
    paths = config.validation_data or [one.path for one in train if one.validation]
    looks = Looks(train, [look(path, config, poll, validation=True) for path in paths])
    common_task(looks.all)
    return looks


def look(path: str, config: Config, poll: Callable[[], None] = _no_poll, *, validation: bool = False) -> Look:
    """What the file or folder at `path` (or `builtin:…`) holds, without reading it whole.

    Of a data set folder with splits, the training split, or with `validation` the validation split.

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
            return _look_at_folder(place, config, poll, validation)
        source = _look_at_file(place, config)
        names = columns_of(source)
        return Look(path, (source,), (_layout(source, names, config),), names)
    except OSError as error:
        raise unreadable(place, error) from error


def _look_at_tasks(path: str, config: Config) -> Look:
    names = _EXERCISE.used
    if config.task == "pretrain":
        raise TraindeckError("data.missing_columns", path=path, wanted=config.text_column, found=", ".join(names))
    source = Source(Path(path), "tasks", "", tasks.count() * tasks.BYTES)
    return Look(path, (source,), (_EXERCISE,), names)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The files of a folder that are read. `split` and `validation`: as of `Look`."""

    files: list[Path]
    split: str = ""
    validation: str = ""


def _choose_files(folder: Path, config: Config, validation: bool, on_error: Callable[[OSError], None]) -> _Chosen:
    saved = formats.hugging_face_validation(folder)
    if validation and saved is not None:
        return _Chosen(saved[1], saved[0])
    files = formats.hugging_face_files(folder)
    if files:
        other = saved is not None and saved[1] != files  # a data set may have nothing but a test split
        return _Chosen(files, TRAIN if other else "", saved[0] if saved and other else "")
    files = files_below(folder, config, on_error)
    found = splits_of(folder, filter(_may_be_of_split, files))
    name = validation_split(list(found))
    if validation:
        return _Chosen(found[name], name) if name else _Chosen(files)
    train = training_split(found)
    return _Chosen(train, TRAIN, name) if train else _Chosen(files)


def _may_be_of_split(file: Path) -> bool:
    """Tables, archives and `.txt`: `train.py` and `test/` of a program are no splits."""
    kind, compression = formats.named(file)
    return kind != "text" or (Path(file.stem) if compression else file).suffix.lower() in _TEXT_OF_SPLIT


def _look_at_folder(folder: Path, config: Config, poll: Callable[[], None], validation: bool) -> Look:
    usable: list[tuple[Source, Layout, tuple[str, ...]]] = []
    skipped: list[Skipped] = []
    closed: list[OSError] = []
    chosen = _choose_files(folder, config, validation, closed.append)
    skipped += [_skipped(Path(error.filename), error) for error in closed]
    for file in chosen.files:
        poll()
        try:
            source = _look_at_file(file, config)
            names = columns_of(source)
            usable.append((source, _layout(source, names, config), names))
        except (TraindeckError, OSError) as error:
            found_out = _skipped(file, error)
            if found_out.code != "data.empty":
                skipped.append(found_out)
    if not usable and not skipped and chosen.files:
        raise TraindeckError("data.empty", path=str(folder))
    if not usable:
        if len(skipped) == 1:
            return look(skipped[0].path, config)  # says what is wrong with the only file there is
        raise TraindeckError("data.no_files", path=str(folder), known=KNOWN)
    # Prompts and responses beside plain text: the text is a README, not what is to be learned.
    task: Task = "sft" if any(layout.task == "sft" for _, layout, _ in usable) else "pretrain"
    fitting = [one for one in usable if one[1].task == task]
    left_out = (str(source.path) for source, layout, _ in usable if layout.task != task)
    skipped += [Skipped(path, "data.other_task", "it is plain text beside conversations") for path in left_out]
    sources, layouts = tuple(source for source, _, _ in fitting), tuple(layout for _, layout, _ in fitting)
    told = {"split": chosen.split, "validation": chosen.validation}
    return Look(str(folder), sources, layouts, fitting[0][2], tuple(sorted(skipped)), **told)


def _skipped(file: Path, error: TraindeckError | OSError) -> Skipped:
    """Why a file of a folder is left out."""
    known = error if isinstance(error, TraindeckError) else unreadable(file, error)
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


def unreadable(path: Path, error: OSError) -> TraindeckError:
    """The error for a file that the system does not let us read."""
    reason = error.strerror or type(error).__name__
    return TraindeckError("data.unreadable", detail=str(error), path=str(path), reason=reason)


def common_task(looks: Sequence[Look]) -> Task:
    """The task of all data together; raises `data.mixed` where some is plain text and some conversations."""
    chats = next((one for one in looks if one.task == "sft"), None)
    text = next((one for one in looks if one.task == "pretrain"), None)
    if chats is not None and text is not None:
        raise TraindeckError("data.mixed", text=text.path, chats=chats.path)
    return "sft" if chats is not None else "pretrain"
