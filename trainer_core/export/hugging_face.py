"""Command `export`: a checkpoint as a model folder in the layout of Hugging Face.

    FOLDER/
        model.safetensors  config.json  tokenizer.json  tokenizer_config.json   copies of the checkpoint's
        generation_config.json  README.md                                       new

An adapter is merged into its base model, and transformers writes the weights of models that it computes; `config.json`
then has the dtype of these weights. Torch is imported only for that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainer_core.base_model.weight_files import ADAPTER_FILE, read_header
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.export.model_card import MODEL_CARD_FILE, model_card, read_json
from trainer_core.messages import Language, TraindeckError
from trainer_core.models import hf_config
from trainer_core.progress import Reporter
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.system import files

_REQUIRED_FILES: Final = ("config.json", "tokenizer.json", "model.safetensors")
_EXPORTED_FILES: Final = ("tokenizer_config.json", *_REQUIRED_FILES)  # nothing else: the checkpoint may be untrusted
_CHUNK: Final = 4 * 1024 * 1024
_OVERHEAD_BYTES: Final = 1024 * 1024  # new files and the file system
_DTYPE_NAMES: Final = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
_TEMPERATURE: Final = 0.8  # the default of `generate`
_MAX_NAME_CHARS: Final = 80  # `safe_name` truncates longer names


def export(checkpoint: Path, folder: Path, reporter: Reporter, language: Language = "en") -> Path:
    """Write the model of `checkpoint` into `folder`, completely or not at all. Returns its absolute path.

    Raises `export.drive`, `export.bad_name`, `export.not_empty`, `checkpoint.damaged`, `data.bad_tokenizer`,
    `disk.full` or `disk.not_writable`.
    """
    target = resolve_target(folder)
    _require_empty(target)
    hashes = _hashes_of_files(checkpoint)
    merges = "model.safetensors" not in hashes
    total = sum((checkpoint / name).stat().st_size for name in hashes)
    with files.translate_os_errors(target, total), _temporary_folder(target) as working:
        if files.free_bytes(target) < total + _OVERHEAD_BYTES:
            raise files.disk_full_error(target, total + _OVERHEAD_BYTES)
        done = 0
        for name, digest in hashes.items():
            for size in _copy(checkpoint / name, working / name, digest):
                done += size
                reporter.progress("saving", done, total, "bytes")
                reporter.poll()
        weights = working / "model.safetensors"
        if merges:
            from trainer_core.train.adapter_checkpoint import write_merged  # imports torch

            write_merged(checkpoint, weights, reporter)
        documents = {
            "config.json": _config_of(weights),
            "generation_config.json": _generation_config(working),
            MODEL_CARD_FILE: model_card(checkpoint, target.name, language, weights).encode("utf-8"),
        }
        for name, content in documents.items():
            files.write_atomic(working / name, content)
    return target


def resolve_target(folder: Path, *, windows: bool = os.name == "nt") -> Path:
    """The absolute path of a folder that can be replaced; links are followed.

    Raises `export.drive` or `export.bad_name`.
    """
    if windows and run_dir.safe_name(folder.name[:_MAX_NAME_CHARS]) != folder.name[:_MAX_NAME_CHARS].strip(" ."):
        raise TraindeckError("export.bad_name", name=folder.name, other=run_dir.safe_name(folder.name))
    # `resolve` for links only: on Windows it replaces a network drive by its server.
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


def _hashes_of_files(checkpoint: Path) -> dict[str, str]:
    """SHA-256 of each file to export, which `_copy` verifies; the weights last. Raises `checkpoint.damaged`."""
    merges = (checkpoint / ADAPTER_FILE).is_file()
    rewrites = merges or not hf_config.is_decoder(read_json(checkpoint / "config.json"))
    problem = checkpoint_dir.find_problem(checkpoint, hashes=rewrites)  # of what is not copied
    if problem:
        raise _damaged_error(checkpoint, problem)
    listed = json.loads((checkpoint / checkpoint_dir.MANIFEST).read_bytes())["files"]
    required = [ADAPTER_FILE if merges and name == "model.safetensors" else name for name in _REQUIRED_FILES]
    missing = [name for name in required if name not in listed]
    if missing:
        raise _damaged_error(checkpoint, f"“{missing[0]}” is missing")
    copied = (name for name in _EXPORTED_FILES if name in listed and not (rewrites and name == "model.safetensors"))
    return {name: listed[name]["sha256"] for name in copied}


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


@contextlib.contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside `target` that replaces it on success and is deleted on failure."""
    working = target.with_name(f".{target.name[:_MAX_NAME_CHARS]}.exporting")
    try:
        files.remove_tree(working)  # of an export that was killed
        working.mkdir(parents=True)
        yield working
        if target.is_dir():  # empty; Windows does not rename to an existing folder
            target.rmdir()
        files.replace(working, target)
    except BaseException:
        with contextlib.suppress(OSError):
            files.remove_tree(working)
        raise


def _config_of(weights: Path) -> bytes:
    """Content of config.json with the dtype of the weights, in which transformers loads them."""
    largest = max(read_header(weights).values(), key=lambda entry: entry.size)
    config = {**read_json(weights.parent / "config.json"), "torch_dtype": _DTYPE_NAMES[largest.dtype]}
    return json.dumps(config, indent=1).encode("utf-8")


def _generation_config(folder: Path) -> bytes:
    """Content of generation_config.json: end tokens, and sampling as in `generate`."""
    config = read_json(folder / "config.json")
    codec = Codec.load(folder / "tokenizer.json")
    first = config.get("eos_token_id")
    ends = [first, *sorted(codec.stop_token_ids - {first})] if isinstance(first, int) else sorted(codec.stop_token_ids)
    generation: dict[str, Any] = {
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_id": ends,
        "pad_token_id": config.get("pad_token_id"),
        "do_sample": True,
        "temperature": _TEMPERATURE,
    }
    used, rows = config.get("used_vocab_size") or 0, config.get("vocab_size") or 0
    if isinstance(used, int) and isinstance(rows, int) and 0 < used < rows <= used + 1024:
        generation["suppress_tokens"] = list(range(used, rows))  # padding rows of the embedding
    return json.dumps(generation, indent=1).encode("utf-8")


def _damaged_error(checkpoint: Path, reason: str) -> TraindeckError:
    return TraindeckError("checkpoint.damaged", path=str(checkpoint), reason=reason)
