"""Verified copies of the files of a checkpoint, which may be damaged or untrusted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainer_core.export.job import OVERHEAD_BYTES, ExportRequest
from trainer_core.messages import TraindeckError
from trainer_core.runs import checkpoint_dir
from trainer_core.system import files

_CHUNK: Final = 4 * 1024 * 1024


def read_hashes(checkpoint: Path, required: Sequence[str], verify: bool) -> dict[str, str]:
    """SHA-256 of each file of a checkpoint by name. Raises `checkpoint.damaged`, also without the files `required`.

    `verify`: hash the files; otherwise only sizes are compared, and `copy_files` verifies what it copies.
    """
    problem = (checkpoint_dir.find_problem_cached if verify else _find_wrong_size)(checkpoint)
    if problem:
        raise _damaged_error(checkpoint, problem)
    listed = json.loads((checkpoint / checkpoint_dir.MANIFEST).read_bytes())["files"]
    missing = [name for name in required if name not in listed]
    if missing:
        raise _damaged_error(checkpoint, f"“{missing[0]}” is missing")
    return {name: entry["sha256"] for name, entry in listed.items()}


def _find_wrong_size(checkpoint: Path) -> str | None:
    return checkpoint_dir.find_problem(checkpoint, hashes=False)


def copy_files(job: ExportRequest, hashes: Mapping[str, str]) -> None:
    """Copy these files of the checkpoint. Raises `disk.full` or `checkpoint.damaged`."""
    done, total = 0, sum((job.checkpoint / name).stat().st_size for name in hashes)
    if files.free_bytes(job.folder) < total + OVERHEAD_BYTES:
        raise files.disk_full_error(job.folder, total + OVERHEAD_BYTES)
    for name, digest in hashes.items():
        for size in _copy(job.checkpoint / name, job.folder / name, digest):
            done += size
            job.reporter.progress("saving", done, total, "bytes")
            job.reporter.poll()


def _copy(source: Path, target: Path, expected_hash: str) -> Iterator[int]:
    """Copy, flush and verify one file; yields the size of each chunk."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(_CHUNK):
            digest.update(chunk)
            writer.write(chunk)
            yield len(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    if digest.hexdigest() != expected_hash:
        raise _damaged_error(source.parent, f"the content of “{source.name}” has changed")


def _damaged_error(checkpoint: Path, reason: str) -> TraindeckError:
    return TraindeckError("checkpoint.damaged", path=str(checkpoint), reason=reason)


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file; empty if it cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
