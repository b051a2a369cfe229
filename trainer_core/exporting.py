"""`export`: a checkpoint as a model folder for other programs, in the layout of Hugging Face.

    FOLDER/
        model.safetensors  config.json  tokenizer.json  tokenizer_config.json   as they stand in the checkpoint
        generation_config.json  README.md                                       made here

What only training needs (optimizer, counters) stays behind. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from trainer_core import files
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import Language, TraindeckError
from trainer_core.model_card import CARD, model_card
from trainer_core.report import Reporter
from trainer_core.runs import checkpoint_dir, run_dir

_NEEDED: Final = ("model.safetensors", "config.json", "tokenizer.json")
_OF_MODEL: Final = (*_NEEDED, "tokenizer_config.json")  # and nothing else that a stranger's checkpoint may list
_CHUNK: Final = 4 * 1024 * 1024
_SMALL_BYTES: Final = 1024 * 1024  # what is made here, and what the file system keeps for itself
_TEMPERATURE: Final = 0.8  # as `generate` has it
_ASIDE: Final = re.compile(r"(\..+\.exporting-)(\d{1,9})")
_NAME: Final = 80  # characters of a name that are looked at: any name may be so long
_OLD_S: Final = 24 * 3600.0  # on a network disk, a process that is not here may live on another computer


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the checkpoint as its manifest describes it."""

    name: str
    bytes: int
    sha256: str


def export(checkpoint: Path, folder: Path, reporter: Reporter, language: Language = "en") -> Path:
    """Write the model of `checkpoint` into `folder`, all of it or nothing; returns its absolute path.

    Raises `export.drive`, `export.bad_name`, `export.not_empty`, `checkpoint.damaged`, `data.bad_tokenizer`,
    `disk.full` or `disk.not_writable`.
    """
    target = target_of(folder)
    _require_empty(target)
    wanted = _wanted(checkpoint)
    total = sum(file.bytes for file in wanted)
    with files.said_plainly(target, total), _aside(target) as working:
        if files.free_bytes(target) < total + _SMALL_BYTES:
            raise files.disk_full(target, total + _SMALL_BYTES)
        done = 0
        for file in wanted:
            for size in _copy(checkpoint, working, file):
                done += size
                reporter.progress("saving", done, total, "bytes")
                reporter.poll()
        documents = {
            "generation_config.json": _generation_config(working),
            CARD: model_card(checkpoint, target.name, language).encode("utf-8"),
        }
        for name, content in documents.items():
            files.write_atomic(working / name, content)
    return target


def target_of(folder: Path, *, windows: bool = os.name == "nt") -> Path:
    """The absolute path of a folder that another one can take the place of; links are followed.

    Raises `export.drive` or `export.bad_name`.
    """
    if windows and run_dir.safe_name(folder.name[:_NAME]) != folder.name[:_NAME].strip(" ."):
        raise TraindeckError("export.bad_name", name=folder.name, other=run_dir.safe_name(folder.name))
    # `resolve` for links only: on Windows it names a drive of a network by its server.
    target = folder.resolve() if folder.is_symlink() else Path(os.path.abspath(folder))  # noqa: PTH100
    # Not `Path.is_mount`: on Windows only from Python 3.12 on.
    if not target.name or os.path.ismount(target):
        raise TraindeckError("export.drive", path=str(target), example=str(target / "model"))
    return target


def _require_empty(target: Path) -> None:
    try:
        taken = target.is_file() or (target.is_dir() and any(target.iterdir()))
    except OSError as error:
        raise TraindeckError("disk.not_writable", path=str(target), reason=error.strerror or "?") from error
    if taken:
        raise TraindeckError("export.not_empty", path=str(target))


def _wanted(checkpoint: Path) -> list[_File]:
    """The files to copy, small ones first. Raises `checkpoint.damaged`; contents are compared while they are copied."""
    problem = checkpoint_dir.problem(checkpoint, hashes=False)
    if problem:
        raise _damaged(checkpoint, problem)
    manifest = json.loads((checkpoint / checkpoint_dir.MANIFEST).read_bytes())
    found = [
        _File(name, int(entry["bytes"]), str(entry["sha256"]))
        for name, entry in manifest["files"].items()
        if name in _OF_MODEL
    ]
    missing = set(_NEEDED) - {file.name for file in found}
    if missing:
        raise _damaged(checkpoint, f"{min(missing)} is missing")
    return sorted(found, key=lambda file: file.bytes)


def _copy(checkpoint: Path, working: Path, file: _File) -> Iterator[int]:
    """Copy, flush and compare one file; yields the bytes of each piece."""
    digest = hashlib.sha256()
    with (checkpoint / file.name).open("rb") as source, (working / file.name).open("xb") as copy:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            copy.write(chunk)
            yield len(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    if digest.hexdigest() != file.sha256:
        raise _damaged(checkpoint, f"the content of {file.name} has changed")


@contextlib.contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """An empty folder beside `target`, which takes its place when it is filled; if anything fails, nothing is left."""
    own = f".{target.name[:80]}.exporting-"
    working = target.with_name(f"{own}{os.getpid()}")
    _sweep(target.parent, own)
    try:
        files.remove_tree(working)
        working.mkdir(parents=True)
        yield working
        if target.is_dir():  # empty; Windows renames to no folder that is there
            target.rmdir()
        files.replace(working, target)
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove_tree(working)
        raise


def _sweep(folder: Path, own: str) -> None:
    """Delete what exports that were killed left in `folder`: of this target (`own`) at once, of others if it is old."""
    with contextlib.suppress(OSError):  # the folder may not be there yet
        for path in folder.iterdir():
            found = _ASIDE.fullmatch(path.name)
            if found is None or psutil.pid_exists(int(found[2])):
                continue
            with contextlib.suppress(OSError):
                if found[1] == own or time.time() - path.stat().st_mtime > _OLD_S:
                    files.remove_tree(path, 1.0)


def _generation_config(folder: Path) -> bytes:
    """How transformers ends a text, and draws tokens as `generate` does. Raises `checkpoint.damaged`."""
    config = _json(folder / "config.json")
    codec = Codec.load(folder / "tokenizer.json")
    first = config.get("eos_token_id")
    ends = [first, *sorted(codec.ends - {first})] if isinstance(first, int) else sorted(codec.ends)
    made: dict[str, Any] = {
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_id": ends,
        "pad_token_id": config.get("pad_token_id"),
        "do_sample": True,
        "temperature": _TEMPERATURE,
    }
    used, rows = config.get("used_vocab_size") or 0, config.get("vocab_size") or 0
    if isinstance(used, int) and isinstance(rows, int) and 0 < used < rows <= used + 1024:
        made["suppress_tokens"] = list(range(used, rows))  # rows that fill the matrix up stand for nothing
    return json.dumps(made, indent=1).encode("utf-8")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(path.parent, f"{path.name}: {error}") from error
    if not isinstance(found, dict):
        raise _damaged(path.parent, f"{path.name} holds no JSON object")
    return found


def _damaged(checkpoint: Path, reason: str) -> TraindeckError:
    return TraindeckError("checkpoint.damaged", path=str(checkpoint), reason=reason)
