"""The token cache: one folder per combination of data, tokenizer and options.

    CACHE/contents.json         content hashes of data files, by path, size and modification time
    CACHE/latest.json           fingerprint of the cache last used for each data set
    CACHE/FINGERPRINT/          a complete cache
        meta.json               counts, warnings, and the sizes of all files
        inputs.json             what the fingerprint was computed from
        tokenizer.json
        train/  validation/     see token_files.py
        hashes.bin              uint64 content hash per document, to find duplicates
        validation_hashes.bin   the same for held-out documents
    CACHE/FINGERPRINT.making/   a cache being built; renamed when complete
        journal.json            the position at which another process resumes
    CACHE/FINGERPRINT.lock      held by the process that builds the cache

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

from trainer_core.config import Config
from trainer_core.data import builtin_tasks
from trainer_core.data.columns import Task
from trainer_core.data.sources import DatasetScan, DatasetScans, cache_root
from trainer_core.data.tokenizing import tokenizer_files
from trainer_core.messages import TraindeckError, Value
from trainer_core.progress import Reporter
from trainer_core.runs import file_locks
from trainer_core.system import files

VERSION: Final = 5  # raise it when the files or their content change
META_FILE: Final = "meta.json"
_JOURNAL_FILE: Final = "journal.json"
_INPUTS_FILE: Final = "inputs.json"
_CONTENTS_FILE: Final = "contents.json"
_LATEST_FILE: Final = "latest.json"
_MIN_EXTRA_BYTES: Final = 1024 * 1024
_BUILD_SUFFIX: Final = ".making"
_BLOCK_BYTES: Final = 4 * 1024 * 1024
_STALE_AFTER_S: Final = 7 * 86_400.0  # unfinished caches are removed after this time
_LOCK_POLL_INTERVAL_S: Final = 0.2
_MAX_ENTRIES: Final = 100_000  # in contents.json and latest.json

Inputs = dict[str, Any]  # {"files": [[path, [hash, format, encoding, columns]]…], "options": {…}}


# --- inputs ----------------------------------------------------------------------------------------


def collect_inputs(scans: DatasetScans, task: Task, config: Config, reporter: Reporter) -> Inputs:
    """Everything that the content of a cache depends on. Hashes new and changed files."""
    hashes = _ContentHashes(cache_root(config), reporter, scans.bytes)
    try:
        train = _describe_files(scans.train, hashes, reporter)
        validation = _describe_files(scans.validation, hashes, reporter)
    finally:
        hashes.save()
    options: dict[str, Any] = {"version": VERSION, "task": task}
    if scans.validation:
        options["validation_files"] = len(validation)
    else:
        options["validation_fraction"] = config.validation_fraction
    if config.tokenizer:
        path = tokenizer_files.find_tokenizer(config.tokenizer)
        companions = (path.parent / name for name in tokenizer_files.COMPANION_FILES)
        options["tokenizer"] = [[file.name, files.sha256(file)] for file in (path, *companions) if file.is_file()]
    else:
        names = ("vocab_size", "pre_tokenizer", "tokenizer_sample_mib")
        options.update({name: getattr(config, name) for name in names})
    if not config.token_cache:  # the cache refers to the rows by path
        options["token_cache"] = [path for path, _ in train]
    return {"files": [*train, *validation], "options": options}


def _describe_files(scans: Sequence[DatasetScan], hashes: _ContentHashes, reporter: Reporter) -> list[list[Any]]:
    found: list[list[Any]] = []
    for one in scans:
        for file in one.files:
            reporter.poll()
            content = builtin_tasks.VERSION if file.format == "tasks" else hashes.get(file.path)
            found.append([str(file.path), [content, file.format, file.encoding, asdict(file.mapping)]])
        found.append(["", []])  # separates the --data arguments
    return found


def fingerprint(inputs: Inputs) -> str:
    """The name of the cache for these inputs: 24 hex digits.

    It depends on the content of the files, not on their paths, names or times.
    """
    described = [[content for _, content in inputs["files"]], inputs["options"]]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode("utf-8")).hexdigest()[:24]


class _ContentHashes:
    """Content hashes of files, cached on disk by path, size and modification time."""

    def __init__(self, root: Path, reporter: Reporter, total: int) -> None:
        self._path, self._reporter, self._done, self._total = root / _CONTENTS_FILE, reporter, 0, total
        self._entries = _read_json(self._path)
        self._changed = False

    def get(self, path: Path) -> str:
        version = file_version(path)
        known = self._entries.pop(str(path), None)  # inserted again below: the oldest entries are dropped first
        if not isinstance(known, list) or known[:2] != version or len(known) != 3:
            known, self._changed = [*version, self._hash_file(path)], True
        else:
            self._done += version[0]
        self._entries[str(path)] = known
        return str(known[2])

    def _hash_file(self, path: Path) -> str:
        digest = hashlib.blake2b(digest_size=16)
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                self._done += len(block)
                self._reporter.progress("preparing", self._done, self._total, "bytes")
                self._reporter.poll()
        return digest.hexdigest()

    def save(self) -> None:
        if self._changed:
            _write_entries(self._path, self._entries)


def are_hashes_cached(scans: Sequence[DatasetScan], config: Config) -> bool:
    """Whether `collect_inputs` hashes no data file."""
    known = _read_json(cache_root(config) / _CONTENTS_FILE)
    paths = [file.path for one in scans for file in one.files if file.format != "tasks"]
    return all((known.get(str(path)) or [None])[:2] == file_version(path) for path in paths)


def file_version(path: Path) -> list[int]:
    """Size and modification time; empty if the file cannot be inspected."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        loaded = json.loads(path.read_bytes())
        if isinstance(loaded, dict):
            return loaded
    return {}


def _write_entries(path: Path, entries: dict[str, Any]) -> None:
    """Write the newest entries. A failure only costs time later."""
    with contextlib.suppress(OSError):
        files.write_atomic(path, json.dumps(dict(list(entries.items())[-_MAX_ENTRIES:])).encode("utf-8"))


def explain_rebuild(config: Config, inputs: Inputs) -> tuple[str, dict[str, Value]] | None:
    """Message code and parameters: why the cache last used for this data is not reused. None: there was none."""
    root = cache_root(config)
    last = str(_read_json(root / _LATEST_FILE).get(_data_key(config), ""))
    before = _read_json(root / last / _INPUTS_FILE) if last else {}
    if not before:
        return ("cache.gone", {}) if last else None
    if last == fingerprint(inputs):
        return "cache.damaged", {}
    added, removed = _added_files(before, inputs), _added_files(inputs, before)
    changed = [path for path in added if path in removed]
    if changed:
        return "cache.file_changed", {"path": changed[0]}
    for code, paths in (("cache.file_gone", removed), ("cache.file_new", added)):
        if paths:
            first = Path(min(paths))
            elsewhere = code == "cache.file_gone" and first.exists()  # in the copy of the data that was prepared
            return code, {"path": first.name if elsewhere else str(first), "count": len(paths)}
    old, new = before["options"], inputs["options"]
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return "cache.option_changed", {"names": ", ".join(sorted(names or ["columns"]))}


def _added_files(before: Inputs, after: Inputs) -> list[str]:
    """Paths of the files in `after` whose content is not in `before`. A cache serves copies of its data, too."""
    known = {str(content[:1]) for _, content in before["files"]}
    return [path for path, content in after["files"] if str(content[:1]) not in known]


def record_latest(config: Config, name: str) -> None:
    """Record that the cache `name` was last used for this data."""
    path, key = cache_root(config) / _LATEST_FILE, _data_key(config)
    known = _read_json(path)
    if known.get(key) != name:
        known.pop(key, None)
        _write_entries(path, {**known, key: name})


def _data_key(config: Config) -> str:
    return hashlib.sha256(json.dumps(config.data).encode("utf-8")).hexdigest()[:24]


# --- on disk ---------------------------------------------------------------------------------------


def read_meta(folder: Path) -> dict[str, Any] | None:
    """The metadata of a complete cache; None if there is none or a file has another size."""
    try:
        meta = json.loads((folder / META_FILE).read_bytes())
        whole = all((folder / name).stat().st_size == size for name, size in meta["files"].items())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return meta if whole and isinstance(meta, dict) else None


def write_meta(folder: Path, meta: dict[str, Any], inputs: Inputs) -> None:
    """Complete a cache: flush its files, then write meta.json with their sizes."""
    files.write_atomic(folder / _INPUTS_FILE, json.dumps(inputs).encode("utf-8"))
    found = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != _JOURNAL_FILE]
    for file in found:
        files.fsync_file(file)
    sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in found}
    content = json.dumps({**meta, "files": sizes}, ensure_ascii=False, indent=1)
    files.write_atomic(folder / META_FILE, content.encode("utf-8"))
    (folder / _JOURNAL_FILE).unlink(missing_ok=True)


def read_journal(folder: Path) -> dict[str, Any]:
    """The state to resume from; empty at the beginning."""
    return _read_json(folder / _JOURNAL_FILE)


def write_journal(folder: Path, journal: dict[str, Any]) -> None:
    """Write the state to resume from. The data files must be on disk already."""
    files.write_atomic(folder / _JOURNAL_FILE, json.dumps(journal).encode("utf-8"))


@contextlib.contextmanager
def build(folder: Path, reporter: Reporter, needed_bytes: int = 0) -> Iterator[Path | None]:
    """The folder in which to build the cache `folder`, renamed to `folder` on success. None: the cache is complete.

    The folder may hold the work of an interrupted process. Waits while another process builds the same cache. A
    `TraindeckError` or `OSError` in the block removes the folder; any other exception keeps it for resuming. Raises
    `disk.full`, which names at least `needed_bytes`, or `disk.not_writable`.
    """
    root, working = folder.parent, folder.with_name(folder.name + _BUILD_SUFFIX)
    with files.translate_os_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with _locked(folder, reporter):
            if read_meta(folder) is not None:
                yield None
                return
            _remove_stale_builds(root, folder)
            working.mkdir(exist_ok=True)
            for unfinished in working.glob(".*.tmp"):  # left by a killed process
                unfinished.unlink()
            if read_meta(working) is not None:  # an earlier rename failed
                _publish(working, folder)
                yield None
                return
            try:
                yield working
            except (TraindeckError, OSError) as error:
                with contextlib.suppress(OSError):
                    files.remove_tree(working)
                if isinstance(error, OSError) and files.is_disk_full(error):
                    needed = max(needed_bytes, files.free_bytes(root) + _MIN_EXTRA_BYTES)
                    raise files.disk_full_error(root, needed, error) from error
                raise
            _publish(working, folder)


@contextlib.contextmanager
def _locked(folder: Path, reporter: Reporter) -> Iterator[None]:
    warned = False
    while True:
        try:
            with file_locks.file_lock(folder.with_name(folder.name + ".lock")):
                yield
                return
        except file_locks.LockHeldError:
            if not warned:
                reporter.warn("cache.waiting")
            warned = True
            reporter.progress("preparing", 0, None, "files")
            reporter.poll()
            time.sleep(_LOCK_POLL_INTERVAL_S)


def _publish(working: Path, folder: Path) -> None:
    if folder.exists():  # damaged
        files.remove_tree(folder)
    files.replace(working, folder)


def _remove_stale_builds(root: Path, folder: Path) -> None:
    """Remove the old unfinished caches that no process is building."""
    for entry in root.glob(f"*{_BUILD_SUFFIX}"):
        owner = file_locks.read_owner(entry.with_name(entry.stem + ".lock"))
        busy = entry.stem == folder.name or (owner is not None and owner.alive)
        with contextlib.suppress(OSError):
            if not busy and time.time() - entry.stat().st_mtime > _STALE_AFTER_S:
                files.remove_tree(entry)
