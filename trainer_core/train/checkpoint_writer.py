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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from trainer_core.messages import TraindeckError
from trainer_core.models.sharding import Rows
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
    rows: dict[str, dict[str, Rows]] = field(default_factory=dict)
    """By file and tensor: which rows `tensors` have of those that are divided over ranks."""
    eval_reward: float | None = None
    copied: bool = False
    """Whether training does not change the tensors."""

    @property
    def disk_bytes(self) -> int:
        """Free disk space required."""
        tensor_bytes = sum(
            self.rows[file][name].shape.numel() * tensor.itemsize if name in self.rows.get(file, {}) else tensor.nbytes
            for file, tensors in self.tensors.items()
            for name, tensor in tensors.items()
        )
        return tensor_bytes + sum(map(len, self.documents.values())) + _MARGIN_BYTES


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What rotation keeps: the last N, the best N, and the checkpoint of one step."""

    last: int
    best: int
    step: int = -1


def write(run: RunDir, content: CheckpointContent, keep: RetentionPolicy, shards: Shards | None = None) -> Checkpoint:
    """Write, verify and rotate. `shards`: of other ranks, which call `write_shards` at the same time.

    Raises `disk.full` (the attempt is removed) or `disk.not_writable`. Existing checkpoints stay untouched.
    """
    try:
        return _write(run, content, keep, shards)
    finally:
        if shards is not None:
            shards.cancel()


def _write(run: RunDir, content: CheckpointContent, keep: RetentionPolicy, shards: Shards | None) -> Checkpoint:
    since = time.perf_counter()
    name = checkpoint_dir.folder_name(content.step)
    with files.translate_os_errors(run.checkpoints):
        free = files.free_bytes(run.checkpoints)
    if free < content.disk_bytes:
        raise files.disk_full_error(run.checkpoints, content.disk_bytes)
    with _transaction(run, name, content.disk_bytes) as working:
        hashes = _write_files(working, content) if shards is None else _write_shared_files(working, content, shards)
        for file, document in content.documents.items():
            files.write_atomic(working / file, document)
        evaluation = content.eval_loss, content.eval_reward
        size = checkpoint_dir.write_manifest(working, content.step, content.kind, *evaluation, hashes)
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


def _write_files(working: Path, content: CheckpointContent) -> dict[str, str]:
    return {file: write_tensors(working / file, tensors) for file, tensors in content.tensors.items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], read: Callable[[str], Tensor] | None = None) -> str:
    """Write a safetensors file, flushed; returns the hex SHA-256 of the intended content.

    In Python because writes and hashing release the GIL, errors are `OSError`, and a GPU's tensors pass through host
    memory one by one. With `read`, only shapes and dtypes of `tensors` are used, and `read` returns each tensor by its
    name when it is written. Format: https://github.com/huggingface/safetensors#format
    """
    head, offsets = _header({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()})
    digest = hashlib.sha256(head)
    with path.open("xb") as file:
        file.write(head)
        for name in offsets:
            content = _bytes_of(tensors[name] if read is None else read(name))
            file.write(content)
            digest.update(content)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _header(layout: Mapping[str, tuple[torch.dtype, torch.Size]]) -> tuple[bytes, dict[str, int]]:
    """The header of a safetensors file, and the offset of each tensor in the file, in their order."""
    names = sorted(layout, key=lambda name: (-layout[name][0].itemsize, name))  # aligned like the library's files
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offsets, end = {}, 0
    for name in names:
        dtype, shape = layout[name]
        offsets[name], end = end, end + dtype.itemsize * shape.numel()
        header[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [offsets[name], end]}
    head = json.dumps(header, separators=(",", ":")).encode("utf-8")
    head += b" " * (-len(head) % 8)
    head = len(head).to_bytes(8, "little") + head
    return head, {name: len(head) + offset for name, offset in offsets.items()}


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


# --- files of several ranks --------------------------------------------------------------------------


class Shards(Protocol):
    """What ranks tell each other while they write a checkpoint."""

    def open(self, folder: str) -> str:
        """The folder of rank 0, once it has created the files there."""

    def finish(self, problem: str) -> None:
        """This rank has written its part, or has failed with `problem`. Rank 0 waits for all. Raises `OSError`."""

    def cancel(self) -> None:
        """Rank 0 has failed: `open` returns an empty path, unless it has returned before."""


def write_shards(content: CheckpointContent, shards: Shards) -> None:
    """On ranks other than 0: write this rank's rows into the files that rank 0 creates."""
    folder, problem = shards.open(""), ""
    if not folder:
        return
    try:
        _write_rows(Path(folder), content)
    except OSError as error:
        problem = str(error)
    shards.finish(problem)


def _write_shared_files(working: Path, content: CheckpointContent, shards: Shards) -> dict[str, str]:
    """Create the files at their full size, write the rows of rank 0, wait for the others, hash."""
    for file in content.tensors:
        layout = _layout(content, file)
        head, _ = _header(layout)
        with (working / file).open("xb") as target:
            target.write(head)
            target.truncate(len(head) + sum(dtype.itemsize * shape.numel() for dtype, shape in layout.values()))
    shards.open(str(working))
    _write_rows(working, content)
    shards.finish("")
    hashes = {}
    for file in content.tensors:
        with (working / file).open("rb") as source:
            hashes[file] = hashlib.file_digest(source, "sha256").hexdigest()
    return hashes


def _layout(content: CheckpointContent, file: str) -> dict[str, tuple[torch.dtype, torch.Size]]:
    """Dtype and whole shape of the tensors of a file."""
    rows = content.rows.get(file, {})
    tensors = content.tensors[file].items()
    return {name: (tensor.dtype, rows[name].shape if name in rows else tensor.shape) for name, tensor in tensors}


def _write_rows(folder: Path, content: CheckpointContent) -> None:
    """Write this rank's rows of all tensors, flushed, and compare them with what is read back.

    Tensors that are not divided are written by rank 0, whose content alone has documents.
    """
    for file, tensors in content.tensors.items():
        _, offsets = _header(_layout(content, file))
        rows = content.rows.get(file, {})
        with (folder / file).open("r+b") as target:
            parts = []
            for name, tensor in tensors.items():
                if name in rows:
                    row_bytes = tensor.dtype.itemsize * rows[name].shape[1:].numel()
                    parts.append((offsets[name] + rows[name].start * row_bytes, tensor))
                elif content.documents:
                    parts.append((offsets[name], tensor))
            for offset, tensor in parts:
                target.seek(offset)
                target.write(_bytes_of(tensor))
            target.flush()
            os.fsync(target.fileno())
            for offset, tensor in parts:
                target.seek(offset)
                if target.read(tensor.nbytes) != _bytes_of(tensor):
                    raise OSError(f"{file} differs from what was written")


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
