"""Checkpoint folders without torch: manifest, verification, rotation. The window and `runs` list and verify with this
module; `train/checkpoint.py` fills the folders.

    checkpoints/step-00000500/
        model.safetensors  optimizer.safetensors  state.json  config.json  tokenizer.json ...
        manifest.json      {"step", "kind", "eval_loss", "eval_reward" (preferences),
                            "files": {name: {"bytes", "sha256"}}, "sha256": of all that}
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trainer_core.system import files

MANIFEST: Final = "manifest.json"
ADAPTER_FILE: Final = "adapter_model.safetensors"  # of PEFT
SAFE_FILE_NAME: Final = re.compile(r"[^/\\:\0]*[^/\\:\0.][^/\\:\0]*")  # a plain name: no path, drive, `.` or `..`
_FOLDER_NAME: Final = re.compile(r"step-(\d{8,})")
TEMPORARY_PREFIX: Final = ".writing-"
_READ_ERRORS: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """Content of a manifest. `eval_loss`, `eval_reward` (`protocol.Eval.reward_accuracy`): of this step, if it was
    evaluated. `saved`: Unix time.
    """

    path: Path
    step: int
    kind: str
    eval_loss: float | None
    bytes: int
    saved: float = field(default=0.0, compare=False)
    eval_reward: float | None = None


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def write_manifest(
    folder: Path,
    step: int,
    kind: str,
    eval_loss: float | None,
    eval_reward: float | None = None,
    hashes: Mapping[str, str] | None = None,
) -> int:
    """Hash every file of `folder` into its manifest, except those in `hashes`. Returns total bytes."""
    entries: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.iterdir()):
        if file.name != MANIFEST:
            digest = (hashes or {}).get(file.name) or files.sha256(file)
            entries[file.name] = {"bytes": file.stat().st_size, "sha256": digest}
    manifest: dict[str, Any] = {"step": step, "kind": kind, "eval_loss": eval_loss, "files": entries}
    if eval_reward is not None:
        manifest["eval_reward"] = eval_reward
    manifest["sha256"] = _manifest_hash(manifest)
    files.write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1).encode("utf-8"))
    return sum(entry["bytes"] for entry in entries.values())


def _manifest_hash(manifest: dict[str, Any]) -> str:
    """Hash of the manifest's content. JSON values round-trip exactly."""
    import hashlib  # here: OpenSSL takes 4 MB, which the window does not need

    content = json.dumps({name: value for name, value in manifest.items() if name != "sha256"}, sort_keys=True)
    return hashlib.sha256(content.encode("ascii")).hexdigest()


def read_info(folder: Path) -> CheckpointInfo | None:
    """Read the manifest without verification; None if it is missing or unreadable."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        size = sum(int(entry["bytes"]) for entry in manifest["files"].values())
        loss, reward = _measured(manifest["eval_loss"]), _measured(manifest.get("eval_reward"))
        saved = (folder / MANIFEST).stat().st_mtime
        return CheckpointInfo(folder, int(manifest["step"]), str(manifest["kind"]), loss, size, saved, reward)
    except _READ_ERRORS:
        return None


def _measured(value: Any) -> float | None:
    number = None if value is None else float(value)
    return number if number is not None and math.isfinite(number) else None  # NaN has no sort order


def find_problem(folder: Path, hashes: bool = True) -> str | None:
    """Why a checkpoint cannot be trusted, or None. `hashes=False` compares sizes only (fast)."""
    return next((problem for problem in verify_files(folder, hashes).values() if problem), None)


def verify_files(folder: Path, hashes: bool = True) -> dict[str, str | None]:
    """Problem of each file of a checkpoint, or None; only that of the manifest if it cannot be read."""
    try:
        with files.open_with_retry(folder / MANIFEST) as file:
            manifest = json.load(file)
        entries = [(str(name), int(entry["bytes"]), str(entry["sha256"])) for name, entry in manifest["files"].items()]
        changed = manifest["sha256"] != _manifest_hash(manifest)
    except OSError as error:
        return {MANIFEST: f"“{MANIFEST}” cannot be read: {error.strerror}"}
    except _READ_ERRORS:
        return {MANIFEST: f"“{MANIFEST}” cannot be read"}
    if changed:
        return {MANIFEST: f"the content of “{MANIFEST}” has changed"}
    if not entries:
        return {MANIFEST: f"“{MANIFEST}” lists no files"}
    if not all(SAFE_FILE_NAME.fullmatch(name) for name, _, _ in entries):  # untrusted
        return {MANIFEST: f"“{MANIFEST}” lists files outside of the checkpoint"}
    return {name: _file_problem(folder / name, size, digest if hashes else None) for name, size, digest in entries}


def _file_problem(file: Path, size: int, digest: str | None) -> str | None:
    try:
        if not file.is_file():
            return f"“{file.name}” is missing"
        if file.stat().st_size != size:
            return f"“{file.name}” has the wrong size: {file.stat().st_size}/{size} bytes"
        if digest is not None and files.sha256(file) != digest:
            return f"the content of “{file.name}” has changed"
    except OSError as error:
        return f"“{file.name}” cannot be read: {error.strerror}"
    except ValueError:  # a name that no file can have
        return f"“{MANIFEST}” cannot be read"
    return None


def find_problem_cached(folder: Path) -> str | None:
    """As `find_problem`, but files are hashed again only when their sizes or times have changed."""
    try:
        found = ((entry.name, entry.stat()) for entry in sorted(folder.iterdir()))
        return _find_problem_cached(folder, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found))
    except OSError:
        return find_problem(folder)


@functools.lru_cache(maxsize=64)
def _find_problem_cached(folder: Path, files_seen: tuple[tuple[str, int, int], ...]) -> str | None:
    return find_problem(folder)


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint, valid or not."""
    return _FOLDER_NAME.fullmatch(folder.name) is not None or (folder / MANIFEST).is_file()


def list_checkpoints(checkpoints: Path) -> list[Path]:
    """Checkpoint folders, oldest first, valid or not, without incomplete ones (`.writing-…`)."""
    if not checkpoints.is_dir():
        return []
    found = [entry for entry in checkpoints.iterdir() if entry.is_dir() and _FOLDER_NAME.fullmatch(entry.name)]
    return sorted(found, key=lambda entry: int(entry.name.removeprefix("step-")))


def latest_valid(
    checkpoints: Path, find_problem: Callable[[Path], str | None] = find_problem
) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest valid checkpoint, and newer damaged ones with their problems."""
    skipped: list[tuple[Path, str]] = []
    for folder in reversed(list_checkpoints(checkpoints)):
        reason = find_problem(folder)
        if reason is None:
            return folder, skipped
        skipped.append((folder, reason))
    return None, skipped


def select_expired(
    infos: Sequence[CheckpointInfo], keep_last: int, keep_best: int, damaged: Collection[Path] = ()
) -> list[CheckpointInfo]:
    """Checkpoints that rotation deletes: all but the last N, the best N by reward, then loss, and final ones.

    Damaged ones do not count. They are deleted once they are older than the last N.
    """
    by_step = sorted(infos, key=lambda info: info.step)
    valid = [info for info in by_step if info.path not in damaged]
    measured = [info for info in valid if info.eval_loss is not None]
    best = sorted(measured, key=lambda info: (-(info.eval_reward or 0.0), info.eval_loss, info.step))[:keep_best]
    last = valid[-keep_last:]
    newer = [info for info in by_step if info.path in damaged and (not last or info.step > last[0].step)]
    kept = {info.path for info in [*last, *best, *newer]}
    return [info for info in by_step if info.path not in kept and info.kind != "final"]


def list_infos(checkpoints: Path) -> list[CheckpointInfo]:
    """Checkpoints with a readable manifest, oldest first."""
    read: Iterable[CheckpointInfo | None] = map(read_info, list_checkpoints(checkpoints))
    return [info for info in read if info is not None]
