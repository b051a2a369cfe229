"""A checkpoint folder seen from outside: its manifest, whether it is whole, which ones to keep.

`train/checkpoint.py` fills such folders; this file needs no torch, so that the window and `runs` can
list and verify them.

    checkpoints/step-00000500/
        model.safetensors  optimizer.safetensors  state.json  config.json  tokenizer.json …
        manifest.json      {"step", "kind", "eval_loss", "files": {name: {"bytes", "sha256"}}, "sha256": of all that}
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainer_core import files

MANIFEST: Final = "manifest.json"
_PLAIN: Final = re.compile(r"[^/\\:\0]*[^/\\:\0.][^/\\:\0]*")  # a name in this folder: no path, drive, `.` or `..`
_NAME: Final = re.compile(r"step-(\d{8,})")
WORKING_PREFIX: Final = ".writing-"
_DAMAGE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a manifest says. `eval_loss` is the held-out loss of that very step, if it was measured."""

    path: Path
    step: int
    kind: str
    eval_loss: float | None
    bytes: int


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def write_manifest(
    folder: Path, step: int, kind: str, eval_loss: float | None, hashes: Mapping[str, str] | None = None
) -> int:
    """Hash every file of `folder` into its manifest, but those whose `hashes` are known. Returns the bytes of all."""
    entries: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.iterdir()):
        if file.name != MANIFEST:
            digest = (hashes or {}).get(file.name) or files.sha256(file)
            entries[file.name] = {"bytes": file.stat().st_size, "sha256": digest}
    manifest: dict[str, Any] = {"step": step, "kind": kind, "eval_loss": eval_loss, "files": entries}
    manifest["sha256"] = _digest(manifest)
    files.write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1).encode("utf-8"))
    return sum(entry["bytes"] for entry in entries.values())


def _digest(manifest: dict[str, Any]) -> str:
    """Of all that a manifest says. JSON's numbers and texts come back as they were written."""
    said = json.dumps({name: value for name, value in manifest.items() if name != "sha256"}, sort_keys=True)
    return files.sha256_of(said.encode("ascii"))


def _vouches_for_itself(manifest: dict[str, Any]) -> bool:
    """Whether a manifest says what was written. Those of version 0.1's first checkpoints have no hash."""
    if set(manifest) == {"step", "kind", "eval_loss", "files"}:
        return True
    return set(manifest) == {"step", "kind", "eval_loss", "files", "sha256"} and manifest["sha256"] == _digest(manifest)


def read_info(folder: Path) -> CheckpointInfo | None:
    """The manifest's statement, unverified; None where there is none that can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        size = sum(int(entry["bytes"]) for entry in manifest["files"].values())
        loss = None if manifest["eval_loss"] is None else float(manifest["eval_loss"])
        measured = loss if loss is not None and math.isfinite(loss) else None  # NaN would sort anywhere
        return CheckpointInfo(folder, int(manifest["step"]), str(manifest["kind"]), measured, size)
    except _DAMAGE:
        return None


def problem(folder: Path, hashes: bool = True) -> str | None:
    """Why a checkpoint cannot be trusted, or None. `hashes=False` compares sizes only (fast)."""
    return next((problem for problem in check_files(folder, hashes).values() if problem), None)


def check_files(folder: Path, hashes: bool = True) -> dict[str, str | None]:
    """What is wrong with each file of a checkpoint; None: nothing. Of an unreadable manifest, only that."""
    try:
        with files.opened(folder / MANIFEST) as file:
            manifest = json.load(file)
        entries = [(str(name), int(entry["bytes"]), str(entry["sha256"])) for name, entry in manifest["files"].items()]
        changed = not _vouches_for_itself(manifest)
    except OSError as error:
        return {MANIFEST: f"{MANIFEST} cannot be read: {error.strerror}"}
    except _DAMAGE:
        return {MANIFEST: f"{MANIFEST} is not readable"}
    if changed:
        return {MANIFEST: f"the content of {MANIFEST} has changed"}
    if not entries:
        return {MANIFEST: f"{MANIFEST} lists no files"}
    if any(Path(name).name != name for name, _, _ in entries):  # a stranger's: nothing outside of the folder is read
        return {MANIFEST: f"{MANIFEST} is not readable"}
    if not all(_PLAIN.fullmatch(name) for name, _, _ in entries):  # never looked at, copied or deleted
        return {MANIFEST: f"{MANIFEST} lists files outside of the checkpoint"}
    return {name: _file_problem(folder / name, size, digest if hashes else None) for name, size, digest in entries}


def _file_problem(file: Path, size: int, digest: str | None) -> str | None:
    try:
        if not file.is_file():
            return f"{file.name} is missing"
        if file.stat().st_size != size:
            return f"{file.name} has {file.stat().st_size} bytes instead of {size}"
        if digest is not None and files.sha256(file) != digest:
            return f"the content of {file.name} has changed"
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"
    except ValueError:  # a name that no file can have
        return f"{MANIFEST} is not readable"
    return None


def known_problem(folder: Path) -> str | None:
    """As `problem`, but files are hashed again only when their sizes or dates have changed."""
    try:
        found = ((entry.name, entry.stat()) for entry in sorted(folder.iterdir()))
        return _known_problem(folder, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found))
    except OSError:
        return problem(folder)


@functools.lru_cache(maxsize=64)
def _known_problem(folder: Path, files_seen: tuple[tuple[str, int, int], ...]) -> str | None:
    return problem(folder)


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is meant to be one, whole or not."""
    return _NAME.fullmatch(folder.name) is not None or (folder / MANIFEST).is_file()


def list_checkpoints(checkpoints: Path) -> list[Path]:
    """Checkpoint folders, oldest first, whole or not. Unfinished (`.writing-…`) ones are left out."""
    if not checkpoints.is_dir():
        return []
    found = [entry for entry in checkpoints.iterdir() if entry.is_dir() and _NAME.fullmatch(entry.name)]
    return sorted(found, key=lambda entry: int(entry.name.removeprefix("step-")))


def latest_good(checkpoints: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest checkpoint that verifies, and the newer ones passed over with their reasons."""
    skipped: list[tuple[Path, str]] = []
    for folder in reversed(list_checkpoints(checkpoints)):
        reason = problem(folder)
        if reason is None:
            return folder, skipped
        skipped.append((folder, reason))
    return None, skipped


def to_remove(
    infos: Sequence[CheckpointInfo], keep_last: int, keep_best: int, damaged: Collection[Path] = ()
) -> list[CheckpointInfo]:
    """What rotation deletes: all but the last N, the best N by eval loss, and final ones.

    Damaged ones are none of these N. They go when they are older than the last N: nobody is to find an old run's
    damaged checkpoint gone before there are others.
    """
    by_step = sorted(infos, key=lambda info: info.step)
    whole = [info for info in by_step if info.path not in damaged]
    measured = [info for info in whole if info.eval_loss is not None]
    best = sorted(measured, key=lambda info: (info.eval_loss, info.step))[:keep_best]
    last = whole[-keep_last:]
    newer = [info for info in by_step if info.path in damaged and (not last or info.step > last[0].step)]
    kept = {info.path for info in [*last, *best, *newer]}
    return [info for info in by_step if info.path not in kept and info.kind != "final"]


def infos_of(checkpoints: Path) -> list[CheckpointInfo]:
    """The checkpoints whose manifest can be read, oldest first."""
    read: Iterable[CheckpointInfo | None] = map(read_info, list_checkpoints(checkpoints))
    return [info for info in read if info is not None]
