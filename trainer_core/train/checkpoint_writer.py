"""Transactional checkpoints: written to a temporary folder, flushed, hashed, renamed and verified before old ones are
removed.

Whatever interrupts the process, every folder named `step-…` is complete, and the next process removes leftovers
(`remove_leftovers`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from trainer_core.messages import TraindeckError
from trainer_core.protocol import Checkpoint, CheckpointKind
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.checkpoint_dir import TEMPORARY_PREFIX
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files

_MARGIN_BYTES: Final = 4 * 1024 * 1024  # small files and file system overhead
_REPLACED: Final = f"{TEMPORARY_PREFIX}replaced-"
_REMOVED: Final = f"{TEMPORARY_PREFIX}removed-"
_RETRY_TIMEOUT_S: Final = 1.0  # per save, for a checkpoint that another program holds open
# fmt: off
_DTYPES: Final = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}
# fmt: on


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """Content of a checkpoint by file name. Tensors may be on any device."""

    step: int
    kind: CheckpointKind
    eval_loss: float | None
    tensors: dict[str, dict[str, Tensor]]
    documents: dict[str, bytes]

    @property
    def disk_bytes(self) -> int:
        """Free disk space required."""
        tensor_bytes = sum(tensor.nbytes for file in self.tensors.values() for tensor in file.values())
        return tensor_bytes + sum(map(len, self.documents.values())) + _MARGIN_BYTES


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What rotation keeps: the last N, the best N, and the checkpoint of one step."""

    last: int
    best: int
    step: int = -1


def write(run: RunDir, content: CheckpointContent, keep: RetentionPolicy) -> Checkpoint:
    """Write, verify and rotate.

    Raises `disk.full` (the attempt is removed) or `disk.not_writable`. Existing checkpoints stay untouched.
    """
    since = time.perf_counter()
    name = checkpoint_dir.folder_name(content.step)
    with files.translate_os_errors(run.checkpoints):
        free = files.free_bytes(run.checkpoints)
    if free < content.disk_bytes:
        raise files.disk_full_error(run.checkpoints, content.disk_bytes)
    with _transaction(run, name, content.disk_bytes) as working:
        hashes = {file: write_tensors(working / file, tensors) for file, tensors in content.tensors.items()}
        for file, document in content.documents.items():
            files.write_atomic(working / file, document)
        size = checkpoint_dir.write_manifest(working, content.step, content.kind, content.eval_loss, hashes)
    removed = rotate(run, keep)
    return Checkpoint(
        step=content.step,
        path=name,
        bytes=size,
        seconds=time.perf_counter() - since,
        kind=content.kind,
        kept=[path.name for path in checkpoint_dir.list_checkpoints(run.checkpoints)],
        removed=removed,
    )


def write_tensors(path: Path, tensors: Mapping[str, Tensor], read: Callable[[str], Tensor] | None = None) -> str:
    """Write a safetensors file, flushed; returns the hex SHA-256 of the intended content.

    In Python because writes and hashing release the GIL, errors are `OSError`, and a GPU's tensors pass through host
    memory one by one. With `read`, only shapes and dtypes of `tensors` are used, and `read` returns each tensor by its
    name when it is written. Format: https://github.com/huggingface/safetensors#format
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # aligned like the library's files
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": _DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    head = json.dumps(header, separators=(",", ":")).encode("utf-8")
    head += b" " * (-len(head) % 8)
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for part in (len(head).to_bytes(8, "little"), head):
            file.write(part)
            digest.update(part)
        for name in names:
            content = (
                (tensors[name] if read is None else read(name))
                .detach()
                .cpu()
                .contiguous()
                .reshape(-1)
                .view(torch.uint8)
                .numpy()
                .data
            )
            file.write(content)
            digest.update(content)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def rotate(run: RunDir, keep: RetentionPolicy) -> list[str]:
    """Remove checkpoints that the policy does not keep. One that is held open is left for the next rotation."""
    removed = []
    for left in sorted(run.checkpoints.glob(f"{_REMOVED}*")):
        _discard(left, patience_s=0.0)
    infos = checkpoint_dir.list_infos(run.checkpoints)
    damaged = {info.path for info in infos if checkpoint_dir.find_problem_cached(info.path)}
    for info in checkpoint_dir.select_expired(infos, keep.last, keep.best, damaged):
        if info.step == keep.step:
            continue
        aside = info.path.with_name(f"{_REMOVED}{info.path.name}-{os.getpid()}")
        try:  # rename first: never a half-deleted checkpoint
            files.replace(info.path, aside, _RETRY_TIMEOUT_S)
        except OSError:
            continue
        removed.append(info.path.name)
        _discard(aside)
    return removed


def copy_checkpoint(run: RunDir, source: Path) -> Path:
    """Copy a checkpoint of another run into this run, so that it does not depend on the other run.

    Returns `source` if it is already in this run. Raises as `write` does.
    """
    if source.parent == run.checkpoints:
        return source
    with _transaction(run, source.name, files.folder_size(source)) as working:
        for name in (*checkpoint_dir.verify_files(source, hashes=False), checkpoint_dir.MANIFEST):
            shutil.copyfile(source / name, working / name)  # only the files of the manifest
            files.fsync_file(working / name)
    return run.checkpoints / source.name


def remove_leftovers(run: RunDir) -> None:
    """Remove what interrupted writes left behind. Only for the owner of the run's lock."""
    for left in sorted(run.checkpoints.glob(f"{TEMPORARY_PREFIX}*")):
        target = run.checkpoints / left.name.removeprefix(_REPLACED).rpartition("-")[0]
        if left.name.startswith(_REPLACED) and checkpoint_dir.find_problem(target):  # interrupted before verification
            _discard(target)
            with contextlib.suppress(OSError):
                files.replace(left, target)
        else:
            _discard(left)


@contextlib.contextmanager
def _transaction(run: RunDir, name: str, needed: int) -> Iterator[Path]:
    """A temporary folder for checkpoint `name`, moved into place and verified at exit. On failure nothing is left."""
    working, target = run.checkpoints / f"{TEMPORARY_PREFIX}{name}-{os.getpid()}", run.checkpoints / name
    try:
        with files.translate_os_errors(run.checkpoints, needed):
            files.remove_tree(working)
            working.mkdir(parents=True)
            yield working
            _move_into_place(working, target)
    except BaseException:
        _discard(working)
        raise


def _discard(folder: Path, patience_s: float = _RETRY_TIMEOUT_S) -> None:
    """Remove a folder. One that is held open is left to `rotate` or `remove_leftovers`."""
    with contextlib.suppress(OSError):
        files.remove_tree(folder, patience_s)


def _move_into_place(working: Path, target: Path) -> None:
    """Rename `working` to `target` and verify it. A replaced checkpoint is removed only afterwards."""
    aside = target.with_name(f"{_REPLACED}{target.name}-{os.getpid()}")
    if target.exists():  # the same step again, after a resume from before it
        files.replace(target, aside)
    try:
        files.replace(working, target)
        problem = checkpoint_dir.find_problem(target)
        if problem:
            raise TraindeckError("checkpoint.damaged", path=str(target), reason=problem)
    except BaseException:
        with contextlib.suppress(OSError):
            if not working.exists():
                files.replace(target, working)
            if aside.exists():
                files.replace(aside, target)
        raise
    _discard(aside)
