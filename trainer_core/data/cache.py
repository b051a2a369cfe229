"""The token cache: one folder per combination of data, tokenizer and options.

    CACHE/contents.json         content hashes of data files, by path, size and modification time
    CACHE/FINGERPRINT/          a complete cache
        meta.json               counts, warnings, and the sizes of all files
        tokenizer.json
        train/  validation/     see token_files.py
    CACHE/FINGERPRINT.building/   a cache being built; renamed when complete
        journal.json            the position at which another process resumes
    CACHE/FINGERPRINT.lock      held by the process that builds the cache

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from trainer_core.config import Config
from trainer_core.data import builtin_tasks
from trainer_core.data.column_mapping import PREFERENCE_ROLES
from trainer_core.data.sources import DatasetScan, DatasetScans, cache_root, common_task
from trainer_core.data.tokenizing import tokenizer_files
from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter
from trainer_core.runs import file_locks
from trainer_core.system import files
from trainer_core.system.result_cache import read_entries, write_entries

VERSION: Final = 9  # raise it when the files or their content change
META_FILE: Final = "meta.json"
_JOURNAL_FILE: Final = "journal.json"
_CONTENTS_FILE: Final = "contents.json"
_BLOCK_BYTES: Final = 4 * 1024 * 1024
_LOCK_POLL_INTERVAL_S: Final = 0.2
_MAX_HASHES: Final = 100_000  # in contents.json


def fingerprint(scans: DatasetScans, config: Config, reporter: Reporter) -> str:
    """The name of the cache of scanned data: 24 hex digits. Hashes new and changed files.

    It depends on the content of the files, not on their paths, names or times.
    """
    hashes = ContentHashes(cache_root(config), reporter, scans.bytes)
    try:
        train = _describe_files(scans.train, hashes, reporter)
        validation = _describe_files(scans.validation, hashes, reporter)
    finally:
        hashes.save()
    options: dict[str, Any] = {"version": VERSION, "task": common_task(scans.all)}
    if options["task"] != "pretrain":
        options["thinking"] = config.thinking
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
        options["token_cache"] = [str(file.path) for one in scans.train for file in one.files]
    inputs = json.dumps([[*train, *validation], options], sort_keys=True)
    return hashlib.sha256(inputs.encode("utf-8")).hexdigest()[:24]


def _describe_files(scans: Sequence[DatasetScan], hashes: ContentHashes, reporter: Reporter) -> list[list[Any]]:
    found: list[list[Any]] = []
    for one in scans:
        for file in one.files:
            reporter.poll()
            content = builtin_tasks.content_version(str(file.path)) if file.format == "tasks" else hashes.get(file.path)
            roles = asdict(file.mapping).items()  # without the later roles, so that older caches keep their names
            mapping = {role: name for role, name in roles if name or role not in PREFERENCE_ROLES}
            found.append([content, file.format, file.encoding, mapping])
        found.append([])  # separates the --data arguments
    return found


class ContentHashes:
    """Content hashes of files, cached on disk by path, size and modification time."""

    def __init__(self, root: Path, reporter: Reporter, total: int) -> None:
        self._path, self._reporter, self._done, self._total = root / _CONTENTS_FILE, reporter, 0, total
        self._entries = read_entries(self._path)
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
            write_entries(self._path, self._entries, _MAX_HASHES)


def are_hashes_cached(scans: Sequence[DatasetScan], config: Config) -> bool:
    """Whether `fingerprint` reads no data file."""
    known = read_entries(cache_root(config) / _CONTENTS_FILE)
    paths = [file.path for one in scans for file in one.files if file.format != "tasks"]
    return all((known.get(str(path)) or [None])[:2] == file_version(path) for path in paths)


def file_version(path: Path) -> list[int]:
    """Size and modification time; empty if the file cannot be inspected."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def read_meta(folder: Path) -> dict[str, Any] | None:
    """The metadata of a complete cache; None if there is none or a file has another size."""
    try:
        meta = json.loads((folder / META_FILE).read_bytes())
        complete = all((folder / name).stat().st_size == size for name, size in meta["files"].items())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return meta if complete and isinstance(meta, dict) else None


def _write_meta(folder: Path, meta: dict[str, Any]) -> dict[str, Any]:
    """Complete a cache, whose files are on disk: write meta.json with their sizes."""
    found = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != _JOURNAL_FILE]
    meta = {**meta, "files": {file.relative_to(folder).as_posix(): file.stat().st_size for file in found}}
    files.write_atomic(folder / META_FILE, json.dumps(meta, ensure_ascii=False).encode("utf-8"))
    (folder / _JOURNAL_FILE).unlink(missing_ok=True)
    return meta


def read_journal(folder: Path) -> dict[str, Any]:
    """The state to resume from; empty at the beginning."""
    return read_entries(folder / _JOURNAL_FILE)


def write_journal(folder: Path, journal: dict[str, Any]) -> None:
    """Write the state to resume from. The data files must be on disk already."""
    files.write_atomic(folder / _JOURNAL_FILE, json.dumps(journal).encode("utf-8"))


def build(folder: Path, reporter: Reporter, write: Callable[[Path], dict[str, Any]], needed: int) -> dict[str, Any]:
    """Build the cache `folder` of about `needed` bytes, unless another process has. Returns its metadata.

    `write` fills a working folder, which may hold the work of an interrupted process, and returns the metadata. A
    `TraindeckError` removes the working folder; any other exception keeps it for resuming. Raises `disk.full` or
    `disk.not_writable`.
    """
    root, working = folder.parent, folder.with_name(f"{folder.name}.building")
    with files.translate_os_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with _locked(folder, reporter):
            meta = read_meta(folder)
            if meta is None:
                meta = read_meta(working) or _fill(working, write, needed)  # the former if an earlier rename failed
                files.remove_tree(folder)  # damaged, if it exists
                files.replace(working, folder)
    return meta


def _fill(working: Path, write: Callable[[Path], dict[str, Any]], needed: int) -> dict[str, Any]:
    try:
        with files.translate_os_errors(working, needed):
            working.mkdir(exist_ok=True)
            for unfinished in working.glob(".*.tmp"):  # left by a killed process
                unfinished.unlink()
            return _write_meta(working, write(working))
    except TraindeckError:
        with contextlib.suppress(OSError):
            files.remove_tree(working)
        raise


@contextlib.contextmanager
def _locked(folder: Path, reporter: Reporter) -> Iterator[None]:
    """Hold the lock of a cache. Waits while another process prepares it."""
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
