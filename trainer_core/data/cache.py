"""The token cache: one folder for each combination of data, tokenizer and options.

    CACHE/FINGERPRINT/
        meta.json        counts, sources, warnings; and the sizes of all files, so that damage is seen
        tokenizer.json
        train/  validation/     see store.py
    CACHE/.building-…/   one being made; renamed when it is whole

A cache is made beside its place and renamed, so that there never is half of one under its name. Two
processes that make the same one both succeed: the later one throws its own away.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from trainer_core import files
from trainer_core.config import Config
from trainer_core.data import tasks, tokenizer
from trainer_core.data.sources import Look, Task, cache_root

VERSION: Final = 2  # raise it when the files or their content change
META: Final = "meta.json"
_BUILDING: Final = ".building-"
_BLOCK: Final = 4 * 1024 * 1024


def fingerprint(looks: Sequence[Look], task: Task, config: Config, poll: Callable[[], None]) -> str:
    """What the cache of this data is called: 24 hex digits that change whenever its content would.

    The content of files decides, not where they lie, what they are called or when they were written:
    a run whose data was moved, copied or unpacked again goes on.
    """
    digest = hashlib.sha256()
    known = _KnownContents(cache_root(config))
    for one in looks:
        for file in one.files:
            poll()
            content = tasks.VERSION if file.format == "tasks" else known.hash_of(file.path, poll)
            digest.update(_told([file.format, file.encoding, content]))
        digest.update(b"|")
    known.save()
    options: dict[str, Any] = {"version": VERSION, "task": task, "validation": config.validation_fraction}
    if task == "sft":
        options["columns"] = [config.prompt_column, config.response_column]
    else:
        options["columns"] = [config.text_column]
    if config.tokenizer:
        options["tokenizer"] = files.sha256(tokenizer.find(config.tokenizer))
    else:
        options["tokenizer"] = [config.vocab_size, config.pre_tokenizer, config.tokenizer_sample_mib]
    digest.update(_told(options))
    return digest.hexdigest()[:24]


def _told(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode("utf-8") + b"\n"


class _KnownContents:
    """Hashes of file contents, remembered by path, size and time of change: gigabytes are read only once."""

    def __init__(self, root: Path) -> None:
        self._path = root / "contents.json"
        self._known: dict[str, list[Any]] = {}
        self._new = False
        with contextlib.suppress(OSError, ValueError):
            loaded = json.loads(self._path.read_bytes())
            self._known = loaded if isinstance(loaded, dict) else {}

    def hash_of(self, path: Path, poll: Callable[[], None]) -> str:
        """The hash of a file's whole content."""
        status = path.stat()
        version = [status.st_size, status.st_mtime_ns]
        known = self._known.get(str(path))
        if isinstance(known, list) and known[:2] == version:
            return str(known[2])
        digest = hashlib.blake2b(digest_size=16)
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                poll()
        self._known[str(path)] = [*version, digest.hexdigest()]
        self._new = True
        return digest.hexdigest()

    def save(self) -> None:
        """Remember for next time; where that fails the files are just read again."""
        if self._new:
            with contextlib.suppress(OSError):
                files.write_atomic(self._path, json.dumps(self._known).encode("utf-8"))


def read_meta(folder: Path) -> dict[str, Any] | None:
    """What a whole cache says of itself; None where there is none, or where files of it are gone."""
    try:
        meta = json.loads((folder / META).read_bytes())
        whole = all((folder / name).stat().st_size == size for name, size in meta["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return meta if whole and isinstance(meta, dict) else None


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Complete a folder: list the sizes of its files, flush them all, and write meta.json."""
    found = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    for file in found:
        files.flush_file(file)
    sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in found}
    content = json.dumps({**meta, "files": sizes}, ensure_ascii=False, indent=1)
    files.write_atomic(folder / META, content.encode("utf-8"))


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Path]:
    """A new folder to fill; becomes `folder` when the block ends well, and nothing otherwise.

    Raises `disk.full` or `disk.not_writable` for failed writes in it.
    """
    root = folder.parent
    with files.said_plainly(root):
        root.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(root)
        working = root / f"{_BUILDING}{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        working.mkdir()
        try:
            yield working
            _put_in_place(working, folder)
        except BaseException:
            with contextlib.suppress(OSError):
                files.remove_tree(working)
            raise


def _put_in_place(working: Path, folder: Path) -> None:
    for attempt in range(3):
        if read_meta(folder) is not None:  # another process was first
            files.remove_tree(working)
            return
        try:
            if folder.exists():  # a damaged one
                files.remove_tree(folder)
            files.replace(working, folder)
            return
        except OSError:
            if attempt == 2:
                raise


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode("utf-8")).hexdigest()[:8]


def _clear_abandoned(root: Path) -> None:
    """Remove what processes of this machine that are gone have left half-done."""
    for entry in root.glob(f"{_BUILDING}{_host()}-*"):
        found = re.fullmatch(rf"{re.escape(_BUILDING)}[0-9a-f]+-(\d+)-[0-9a-f]+", entry.name)
        if found and not psutil.pid_exists(int(found[1])):
            with contextlib.suppress(OSError):
                files.remove_tree(entry)
