"""Scans data paths: the files, and how each is read."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from trainer_core.config import Config
from trainer_core.data import builtin, builtin_tasks, encodings, formats
from trainer_core.data.column_mapping import PLAIN_TEXT, ColumnMapping, MissingColumnError, Task, has_pair, map_columns
from trainer_core.data.formats import FORMATS, KNOWN_SUFFIXES, read_rows
from trainer_core.data.readers.base import FileInput, Row, SourceFile, read_head, require_regular_file
from trainer_core.data.splits import TRAIN, choose_validation_split, group_by_split, saved_splits
from trainer_core.messages import TraindeckError
from trainer_core.runs import run_dir

_HEAD_BYTES: Final = 64 * 1024
_MAX_HEAD_ROWS, _COLUMN_ROWS = 200, 20  # rows read to find the columns; good rows whose columns are used
_SPLIT_TEXT_SUFFIXES: Final = (".txt", ".text")
_BLANK_BYTES: Final = b" \t\r\n\xef\xbb\xbf\xff\xfe"  # includes byte order marks
_WIDE_SPACE: Final = "\u3000".encode()  # begins Chinese paragraphs
_TASKS_MAPPING: Final = ColumnMapping("pair", prompt="prompt", response="response")


class SkippedFile(NamedTuple):
    """A file of a folder that is not read. `code`: a message code; `reason`: a short text."""

    path: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class DatasetScan:
    """The data at a path. `columns` are those of the first file; empty for plain text."""

    path: str
    files: tuple[SourceFile, ...]
    columns: tuple[str, ...]
    skipped: tuple[SkippedFile, ...] = ()
    split: str = ""  # the split that these files are; empty if the folder has none
    validation_split: str = ""  # another split of the folder, for evaluation; empty if there is none

    @property
    def task(self) -> Task:
        return self.files[0].mapping.task

    @property
    def bytes(self) -> int:
        return sum(file.bytes_to_read for file in self.files)

    def summarize(self, attribute: str) -> str:
        """`format`, `encoding` or `compression`: `utf-8`, or the most frequent first: `gb18030 ×2, utf-8-sig`."""
        counts = Counter(filter(None, (getattr(file, attribute) for file in self.files))).most_common()
        return ", ".join(f"{name} ×{count}" if count > 1 and len(counts) > 1 else name for name, count in counts)


# --- scanning --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DatasetScans:
    """All data of a run. File numbers count the training files, then the validation files."""

    train: list[DatasetScan]
    validation: list[DatasetScan] = field(default_factory=list)  # empty: `validation_fraction` of the training data

    @property
    def all(self) -> list[DatasetScan]:
        return [*self.train, *self.validation]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.all)

    @property
    def first_validation_file(self) -> int | None:
        """Number of the first validation file; None if there is no validation data."""
        return sum(len(one.files) for one in self.train) if self.validation else None


def scan_datasets(config: Config, poll: Callable[[], None] = lambda: None) -> DatasetScans:
    """Scan the training data and the validation data: `validation_data`, else the validation splits of `data`.

    Raises what `scan_path` raises, `data.none_given` and `data.mixed`.
    """
    if not config.data:
        raise TraindeckError("data.none_given")
    train = [scan_path(path, config, poll) for path in config.data]
    paths = config.validation_data or [one.path for one in train if one.validation_split]
    scans = DatasetScans(train, [scan_path(path, config, poll, validation=True) for path in paths])
    common_task(scans.all)
    return scans


def scan_path(
    path: str, config: Config, poll: Callable[[], None] = lambda: None, *, validation: bool = False
) -> DatasetScan:
    """Scan a file, a folder or `builtin:…`. Reads only the beginning of files and samples of them.

    Of a folder with splits, selects the training split, or with `validation` the validation split.

    Raises `data.not_found`, `data.empty`, `data.binary`, `data.unreadable`, `data.missing_columns`,
    `data.bad_format`, `data.unknown_format` or `data.no_files`.
    """
    if path in (builtin.TASKS, builtin.NEW_TASKS):
        size = builtin_tasks.count_examples(path) * builtin_tasks.EXAMPLE_BYTES
        source = SourceFile(Path(path), "tasks", "", size, mapping=_TASKS_MAPPING)
        if config.task == "pretrain" or config.uses_preferences:
            wanted = config.chosen_column if config.uses_preferences else config.text_column
            raise _missing_columns_error(source, wanted, _TASKS_MAPPING.column_names, config)
        return DatasetScan(path, (source,), _TASKS_MAPPING.column_names)
    if path == builtin.PYTHON:
        _, found = builtin.list_python_library()
        sources = tuple(SourceFile(file, "text", "utf-8", file.stat().st_size) for file in found)
        _map_columns(sources[0], (), config)  # raises for --task sft
        return DatasetScan(path, sources, ())
    place = Path(path).expanduser()
    try:
        if not place.exists():
            raise TraindeckError("data.not_found", path=path)
        if place.is_dir():
            return _scan_folder(place, config, poll, validation)
        source, names = _scan_file(place, config)
        return DatasetScan(path, (source,), names)
    except OSError as error:
        raise unreadable_error(place, error) from error


def _select_files(
    folder: Path, config: Config, validation: bool, on_error: Callable[[OSError], None]
) -> tuple[list[Path], str, str]:
    """Files of a folder to read; `split` and `validation_split` as in `DatasetScan`."""
    saved = saved_splits(folder)
    files = [] if saved else list_data_files(folder, config, on_error)
    splits = saved or group_by_split(folder, filter(_can_belong_to_split, files))
    name = choose_validation_split(splits)
    if validation and name:
        return splits[name], name, ""
    if TRAIN in splits and len(splits) > 1 and not validation:
        return splits[TRAIN], TRAIN, name
    if len(saved) > 1:
        first = next(iter(saved.values()))[0].parent
        raise TraindeckError("data.no_train_split", path=str(folder), found=", ".join(saved), first=str(first))
    return next(iter(saved.values()), files), "", ""


def _can_belong_to_split(file: Path) -> bool:
    """Excludes source code and the like: `train.py` and `test/` of a program are not splits."""
    kind, compression = formats.format_from_name(file)
    return kind != "text" or (Path(file.stem) if compression else file).suffix.lower() in _SPLIT_TEXT_SUFFIXES


def _scan_folder(folder: Path, config: Config, poll: Callable[[], None], validation: bool) -> DatasetScan:
    usable: list[tuple[SourceFile, tuple[str, ...]]] = []
    unreadable: list[OSError] = []  # folders
    selected, split, validation_split = _select_files(folder, config, validation, unreadable.append)
    skipped = [_skipped_file(Path(error.filename), error) for error in unreadable]
    for file in selected:
        poll()
        try:
            usable.append(_scan_file(file, config))
        except (TraindeckError, OSError) as error:
            skipped.append(_skipped_file(file, error))
    skipped = [one for one in skipped if one.code != "data.empty"]
    if not usable:
        if len(skipped) == len(unreadable) == 1:
            raise unreadable_error(Path(skipped[0].path), unreadable[0])
        if len(skipped) == 1 or {one.code for one in skipped} == {"data.preferences"}:
            return scan_path(skipped[0].path, config)  # raises the error of the only file
        code = "data.no_files" if skipped or not selected else "data.empty"
        raise TraindeckError(code, path=str(folder), known=KNOWN_SUFFIXES)
    # Plain text beside prompts and responses is a README, not training data.
    task = next((source.mapping.task for source, _ in usable if source.mapping.task != "pretrain"), "pretrain")
    other = [str(source.path) for source, _ in usable if source.mapping.task != task]
    skipped += [SkippedFile(path, "data.other_task", "it is plain text beside conversations") for path in other]
    files, names = zip(*(one for one in usable if one[0].mapping.task == task), strict=True)
    return DatasetScan(str(folder), files, names[0], tuple(sorted(skipped)), split, validation_split)


def _skipped_file(file: Path, error: TraindeckError | OSError) -> SkippedFile:
    known = error if isinstance(error, TraindeckError) else unreadable_error(file, error)
    reasons = {
        "data.binary": "it looks like a binary file, not text",
        "data.missing_columns": f"it has no column “{known.params.get('wanted')}”",
        "data.no_preferences": f"it has no column “{known.params.get('wanted')}”",
        "data.preferences": "it has pairs of chosen and rejected answers",
    }
    reason = reasons.get(known.code, str(known.params.get("reason", known.code)))
    return SkippedFile(str(file), known.code, reason)


def cache_root(config: Config) -> Path:
    """The folder that holds all token caches."""
    return Path(config.cache_dir).expanduser().resolve() if config.cache_dir else run_dir.home() / "cache"


def list_data_files(folder: Path, config: Config, on_error: Callable[[OSError], None] | None = None) -> list[Path]:
    """The files of a folder with a known suffix, in the same order on every system.

    `on_error` is called for folders that cannot be read.
    """
    found: list[Path] = []
    ours = {run_dir.runs_root(), cache_root(config)}  # not data
    for place, folders, names in os.walk(folder, onerror=on_error):
        shown = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        folders[:] = [name for name in shown if Path(place, name).resolve() not in ours]
        for name in names:
            kind = formats.format_from_name(Path(name))[0]
            wanted = kind is not None if config.data_format == "auto" else kind == config.data_format
            if wanted and not name.startswith("."):
                found.append(Path(place, name))
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def _scan_file(path: Path, config: Config) -> tuple[SourceFile, tuple[str, ...]]:
    """How to read a file, and its columns."""
    source = _inspect_file(path, config)
    names = _read_column_names(source)
    return replace(source, mapping=_map_columns(source, names, config)), names


def _inspect_file(path: Path, config: Config) -> SourceFile:
    require_regular_file(path)
    size, (named, compression) = path.stat().st_size, formats.format_from_name(path)
    head = read_head(path, compression, encodings.SAMPLE_BYTES if compression else _HEAD_BYTES)
    if len(head) < _HEAD_BYTES and not head.replace(_WIDE_SPACE, b"").strip(_BLANK_BYTES):
        raise TraindeckError("data.empty", path=str(path))
    kind = config.data_format if config.data_format != "auto" else _detect_format(named, head)
    if FORMATS[kind].binary:
        return SourceFile(path, kind, "", size, compression)
    if encodings.looks_binary(head):
        known = named is not None or not path.suffix or config.data_format != "auto"
        raise TraindeckError("data.binary" if known else "data.unknown_format", path=str(path), known=KNOWN_SUFFIXES)
    with io.BytesIO(head) if compression else path.open("rb") as file:
        encoding = encodings.detect_encoding(file, len(head) if compression else size)
    return SourceFile(path, kind, encoding, size, compression)


def _detect_format(named: str | None, head: bytes) -> str:
    """The format by name, then by content: `.json` files often hold one object per line."""
    if head.startswith(b"PAR1") and named is None:
        return "parquet"
    if named == "json" and not head.lstrip(b"\xef\xbb\xbf \t\r\n\x00\xff\xfe").startswith(b"["):
        return "jsonl"
    return named or "text"


def _read_column_names(source: SourceFile) -> tuple[str, ...]:
    """The columns of a file, from its schema or its first rows. Empty for plain text."""
    entry, file = FORMATS[source.format], FileInput(source)
    if not entry.tabular:
        return ()
    if entry.columns is not None:
        return entry.columns(file)
    rows: list[Row] = []
    first_bad: tuple[str, str] | None = None
    for row in islice(read_rows(file), _MAX_HEAD_ROWS):
        if isinstance(row, str):
            first_bad = first_bad or (file.position, row)
        else:
            rows.append(row)
    found = dict.fromkeys(str(name) for row in rows[:_COLUMN_ROWS] for name in row)
    if not found and first_bad:
        raise file.bad_format_error(*first_bad)
    if not found:
        raise TraindeckError("data.empty", path=str(source.path))
    return tuple(found)


def _map_columns(source: SourceFile, names: Sequence[str], config: Config) -> ColumnMapping:
    """Raises `data.missing_columns`, `data.preferences` or `data.no_preferences`."""
    if not FORMATS[source.format].tabular and config.task != "sft" and not config.uses_preferences:
        return PLAIN_TEXT
    try:
        return map_columns(names, config)
    except MissingColumnError as missing:
        raise _missing_columns_error(source, str(missing), names, config) from missing


def _missing_columns_error(source: SourceFile, wanted: str, found: Sequence[str], config: Config) -> TraindeckError:
    params = {"path": str(source.path), "found": ", ".join(found) or "—"}
    if config.uses_preferences:
        return TraindeckError("data.no_preferences", objective=config.objective, wanted=wanted, **params)
    if has_pair(found, config):
        return TraindeckError("data.preferences", **params)
    return TraindeckError("data.missing_columns", wanted=wanted, **params)


def unreadable_error(path: Path, error: OSError) -> TraindeckError:
    """The error for a file that cannot be opened or read."""
    reason = error.strerror or type(error).__name__
    return TraindeckError("data.unreadable", detail=str(error), path=str(path), reason=reason)


def count_sides(scans: Sequence[DatasetScan]) -> int:
    """Conversations of a row of preferences, at most; 0 for other data."""
    return max(file.mapping.sides for one in scans for file in one.files)


def common_task(scans: Sequence[DatasetScan]) -> Task:
    """The task of all data. Raises `data.mixed` for plain text together with conversations."""
    chats = next((one for one in scans if one.task != "pretrain"), None)
    text = next((one for one in scans if one.task == "pretrain"), None)
    if chats is not None and text is not None:
        raise TraindeckError("data.mixed", text=text.path, chats=chats.path)
    return chats.task if chats is not None else "pretrain"
