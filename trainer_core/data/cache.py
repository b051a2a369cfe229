"""The token cache: one folder for each combination of data, tokenizer and options.

    CACHE/contents.json         hashes of files that were read, by path, size and time of change
    CACHE/latest.json           which cache was last used for which data: tells why a new one is made
    CACHE/FINGERPRINT/          a finished one
        meta.json               counts, warnings; and the sizes of all files, so that damage is seen
        inputs.json             what it was made from
        tokenizer.json
        train/  validation/     see store.py
        hashes.bin              uint64, one a document: finds duplicates
        validation_hashes.bin   those of held-out documents
    CACHE/FINGERPRINT.making/   one being made; renamed when it is whole
        journal.json            how far it is: a process that comes later goes on from there
    CACHE/FINGERPRINT.lock      who makes it

A cache is made beside its place and renamed, so that there never is half of one under its name.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from trainer_core import files
from trainer_core.config import Config
from trainer_core.data import tasks
from trainer_core.data.columns import Task
from trainer_core.data.sources import Look, Looks, cache_root
from trainer_core.data.tokenizing import tokenizer_files
from trainer_core.messages import TraindeckError, Value
from trainer_core.report import Reporter
from trainer_core.runs import owners

VERSION: Final = 5  # raise it when the files or their content change
META: Final = "meta.json"
_JOURNAL: Final = "journal.json"
_INPUTS: Final = "inputs.json"
_CONTENTS: Final = "contents.json"
_LATEST: Final = "latest.json"
_MORE: Final = 1024 * 1024
_MAKING: Final = ".making"
_BLOCK: Final = 4 * 1024 * 1024
_ABANDONED_S: Final = 7 * 86_400.0  # after that nobody is expected to go on with an unfinished cache
_WAIT_S: Final = 0.2
_REMEMBERED: Final = 1000  # data sets in latest.json
_FILES_REMEMBERED: Final = 100_000  # in contents.json

Inputs = dict[str, Any]  # {"files": [[path, [hash, and how it is read]]…], "options": {…}}


# --- what a cache is made from ---------------------------------------------------------------------


def inputs_of(looks: Looks, task: Task, config: Config, reporter: Reporter) -> Inputs:
    """All that the content of a cache depends on. Reads new and changed files whole, once."""
    known = _KnownContents(cache_root(config), reporter, looks.bytes)
    try:
        found = _contents_of(looks.train, known, reporter)
        evaluated = _contents_of(looks.validation, known, reporter)
    finally:
        known.save()
    options: dict[str, Any] = {"version": VERSION, "task": task}
    if looks.validation:
        options["validation_files"] = len(evaluated)
    else:
        options["validation_fraction"] = config.validation_fraction
    if config.tokenizer:
        options["tokenizer"] = _tokenizer_hashes(config.tokenizer)
    else:
        names = ("vocab_size", "pre_tokenizer", "tokenizer_sample_mib")
        options.update({name: getattr(config, name) for name in names})
    if not config.token_cache:  # then it says where the rows lie
        options["token_cache"] = [path for path, _ in found]
    return {"files": [*found, *evaluated], "options": options}


def _contents_of(looks: Sequence[Look], known: _KnownContents, reporter: Reporter) -> list[list[Any]]:
    found: list[list[Any]] = []
    for one in looks:
        for file, layout in zip(one.files, one.layouts, strict=True):
            reporter.poll()
            content = tasks.VERSION if file.format == "tasks" else known.hash_of(file.path)
            found.append([str(file.path), [content, file.format, file.encoding, asdict(layout)]])
        found.append(["", []])  # the boundary between two --data
    return found


def are_known(looks: Sequence[Look], config: Config) -> bool:
    """Whether `inputs_of` would read no file of the data."""
    known = _read_json(cache_root(config) / _CONTENTS)

    def is_known(path: Path) -> bool:
        status, before = path.stat(), known.get(str(path))
        return isinstance(before, list) and before[:2] == [status.st_size, status.st_mtime_ns]

    return all(file.format == "tasks" or is_known(file.path) for one in looks for file in one.files)


def _tokenizer_hashes(given: str) -> list[list[str]]:
    """Of a tokenizer and of what stands beside it."""
    path = tokenizer_files.find(given)
    beside = (path.parent / name for name in tokenizer_files.COMPANIONS)
    return [[file.name, files.sha256(file)] for file in (path, *beside) if file.is_file()]


def fingerprint(inputs: Inputs) -> str:
    """What the cache of these inputs is called: 24 hex digits that change whenever its content would.

    The content of files decides, not where they lie, what they are called or when they were written:
    a run whose data was moved, copied or unpacked again goes on.
    """
    told = [[content for _, content in inputs["files"]], inputs["options"]]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode("utf-8")).hexdigest()[:24]


class _KnownContents:
    """Hashes of file contents, remembered by path, size and time of change: gigabytes are read only once."""

    def __init__(self, root: Path, reporter: Reporter, total: int) -> None:
        self._path, self._reporter, self._done, self._total = root / _CONTENTS, reporter, 0, total
        self._known: dict[str, list[Any]] = _read_json(self._path)
        self._new = False

    def hash_of(self, path: Path) -> str:
        """The hash of a file's whole content."""
        status = path.stat()
        version = [status.st_size, status.st_mtime_ns]
        known = self._known.pop(str(path), None)  # and put back at the end: the oldest ones are forgotten
        if not isinstance(known, list) or known[:2] != version or len(known) != 3:
            known, self._new = [*version, self._read(path)], True
        else:
            self._done += status.st_size
        self._known[str(path)] = known
        return str(known[2])

    def _read(self, path: Path) -> str:
        digest = hashlib.blake2b(digest_size=16)
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                self._done += len(block)
                self._reporter.progress("preparing", self._done, self._total, "bytes")
                self._reporter.poll()
        return digest.hexdigest()

    def save(self) -> None:
        """Remember for next time; where that fails the files are just read again."""
        if self._new:
            kept = dict(list(self._known.items())[-_FILES_REMEMBERED:])
            with contextlib.suppress(OSError):
                files.write_atomic(self._path, json.dumps(kept).encode("utf-8"))


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        loaded = json.loads(path.read_bytes())
        if isinstance(loaded, dict):
            return loaded
    return {}


def why_new(config: Config, inputs: Inputs) -> tuple[str, dict[str, Value]] | None:
    """A message code and its parameters: why the cache last used for this data does not serve. None: there was none."""
    root = cache_root(config)
    last = str(_read_json(root / _LATEST).get(_data_key(config), ""))
    before = _read_json(root / last / _INPUTS) if last else {}
    if not before:
        return None if not last else ("cache.gone", {})
    if last == fingerprint(inputs):
        return "cache.damaged", {}
    old, new = dict(before.get("files", [])), dict(inputs["files"])
    for path, content in new.items():
        if old.get(path, content)[:1] != content[:1]:
            return "cache.file_changed", {"path": path}
    for code, paths in (("cache.file_gone", _only_in(old, new)), ("cache.file_new", _only_in(new, old))):
        if paths:
            first = min(paths)
            elsewhere = code == "cache.file_gone" and Path(first).exists()  # in the copy that the cache was made from
            return code, {"path": Path(first).name if elsewhere else first, "count": len(paths)}
    options = before.get("options", {})
    changed = [name for name in {**options, **inputs["options"]} if options.get(name) != inputs["options"].get(name)]
    if sorted(map(str, old.values())) != sorted(map(str, new.values())):
        changed.append("columns")
    return ("cache.option_changed", {"names": ", ".join(sorted(changed))}) if changed else None


def _only_in(these: dict[str, list[Any]], those: dict[str, list[Any]]) -> list[str]:
    """Files that the others have neither by name nor by content: a cache serves every copy of its data, and knows the
    paths of the one that it was made from."""
    contents = [content[:1] for content in those.values()]
    return [path for path in these.keys() - those.keys() if these[path][:1] not in contents]


def remember(config: Config, name: str) -> None:
    """Note that this data was last read from the cache called `name`."""
    path = cache_root(config) / _LATEST
    known = _read_json(path)
    key = _data_key(config)
    if known.get(key) != name:
        known.pop(key, None)
        kept = dict(list({**known, key: name}.items())[-_REMEMBERED:])
        with contextlib.suppress(OSError):
            files.write_atomic(path, json.dumps(kept).encode("utf-8"))


def _data_key(config: Config) -> str:
    return hashlib.sha256(json.dumps(config.data).encode("utf-8")).hexdigest()[:24]


# --- on disk ---------------------------------------------------------------------------------------


def read_meta(folder: Path) -> dict[str, Any] | None:
    """What a whole cache says of itself; None where there is none, or where files of it are gone."""
    try:
        meta = json.loads((folder / META).read_bytes())
        whole = all((folder / name).stat().st_size == size for name, size in meta["files"].items())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return meta if whole and isinstance(meta, dict) else None


def write_meta(folder: Path, meta: dict[str, Any], inputs: Inputs) -> None:
    """Complete a folder: flush its files, list their sizes, and write meta.json last."""
    files.write_atomic(folder / _INPUTS, json.dumps(inputs).encode("utf-8"))
    found = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != _JOURNAL]
    for file in found:
        files.flush_file(file)
    sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in found}
    content = json.dumps({**meta, "files": sizes}, ensure_ascii=False, indent=1)
    files.write_atomic(folder / META, content.encode("utf-8"))
    (folder / _JOURNAL).unlink(missing_ok=True)


def read_journal(making: Path) -> dict[str, Any]:
    """How far an earlier process came; empty: begin at the beginning."""
    return _read_json(making / _JOURNAL)


def write_journal(making: Path, journal: dict[str, Any]) -> None:
    """Everything that the journal speaks of must be on the disk already."""
    files.write_atomic(making / _JOURNAL, json.dumps(journal).encode("utf-8"))


@contextlib.contextmanager
def making(folder: Path, reporter: Reporter, needed: int = 0) -> Iterator[Path | None]:
    """The folder in which to make the cache `folder`, perhaps with part of the work done; it becomes
    `folder` when the block ends well. None: it is made already, by another process or an earlier one.

    Waits while another process makes it. A `TraindeckError` or a failed write within the block removes what
    is there; whatever else ends it (a stop, a kill, a power cut) leaves it for the next one. Raises
    `disk.full` or `disk.not_writable` for failed writes; `needed` bytes, more or less, are told to be needed.
    """
    root, working = folder.parent, folder.with_name(folder.name + _MAKING)
    with files.said_plainly(root):
        root.mkdir(parents=True, exist_ok=True)
        with _alone(folder, reporter):
            if read_meta(folder) is not None:
                yield None
                return
            _clear_abandoned(root, folder)
            working.mkdir(exist_ok=True)
            for unfinished in working.glob(".*.tmp"):  # of a process that was killed while it wrote one
                unfinished.unlink()
            if read_meta(working) is not None:  # all is done but the renaming
                _put_in_place(working, folder)
                yield None
                return
            try:
                yield working
            except (TraindeckError, OSError) as error:
                with contextlib.suppress(OSError):
                    files.remove_tree(working)
                if isinstance(error, OSError) and files.is_disk_full(error):  # what is free now was not enough
                    raise files.disk_full(root, max(needed, files.free_bytes(root) + _MORE), error) from error
                raise
            _put_in_place(working, folder)  # where that fails (somebody holds a file), the next one does it


@contextlib.contextmanager
def _alone(folder: Path, reporter: Reporter) -> Iterator[None]:
    told = False
    while True:
        try:
            with owners.held(folder.with_name(folder.name + ".lock")):
                yield
                return
        except owners.InUse:
            if not told:
                reporter.warn("cache.waiting")
            told = True
            reporter.progress("preparing", 0, None, "files")
            reporter.poll()
            time.sleep(_WAIT_S)


def _put_in_place(working: Path, folder: Path) -> None:
    if folder.exists():  # a damaged one
        files.remove_tree(folder)
    files.replace(working, folder)


def _clear_abandoned(root: Path, folder: Path) -> None:
    """Remove what others left half-done long ago."""
    old = [*root.glob(f"*{_MAKING}"), *root.glob(".building-*")]  # the second: of versions before 3
    for entry in old:
        owner = owners.read_owner(entry.with_name(entry.stem + ".lock"))
        busy = entry.stem == folder.name or (owner is not None and owner.alive)
        with contextlib.suppress(OSError):
            if not busy and time.time() - entry.stat().st_mtime > _ABANDONED_S:
                files.remove_tree(entry)
