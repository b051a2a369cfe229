"""safetensors files of a model folder: which there are, what they hold, and their identity. No torch.

Format: https://huggingface.co/docs/safetensors. A file is the length of its header (8 bytes, little endian), the header
(JSON: name → dtype, shape, and data_offsets from the header's end) and the data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from trainer_core.messages import TraindeckError
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.checkpoint_dir import SAFE_FILE_NAME
from trainer_core.system import files

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
ADAPTER_FILE: Final = checkpoint_dir.ADAPTER_FILE
ADAPTER_CONFIG_FILE: Final = "adapter_config.json"
PICKLED_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt")
_LENGTH_BYTES: Final = 8
_SAMPLE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of a safetensors file. `dtype` is the format's name, such as BF16."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # in the file
    size: int  # bytes


def find_weights(folder: Path, single: str = SINGLE_FILE) -> tuple[str, ...]:
    """Names of the safetensors files of a model or, with `single` `ADAPTER_FILE`, of an adapter, each complete.

    As in transformers, a single file is preferred to shards. Raises `base_model.no_weights`,
    `base_model.pickled`, `base_model.missing_file` or `base_model.damaged`.
    """
    names: Sequence[str]
    if (folder / single).is_file():
        names = [single]
    elif (folder / INDEX_FILE).is_file():
        names = _shards(folder)
    else:
        pickled = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLED_SUFFIXES)
        if pickled:
            raise TraindeckError("base_model.pickled", path=str(folder), file=pickled[0])
        raise TraindeckError("base_model.no_weights", path=str(folder), file=single)
    for name in names:
        if not (folder / name).is_file():
            raise TraindeckError("base_model.missing_file", path=str(folder), file=name)
        with damage_errors(folder / name):
            read_header(folder / name)
    return tuple(names)


def _shards(folder: Path) -> list[str]:
    values = read_json(folder / INDEX_FILE)
    weight_map = values.get("weight_map")
    names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    # The index is untrusted: no other folder.
    if not names or not all(isinstance(name, str) and SAFE_FILE_NAME.fullmatch(name) for name in names):
        raise damaged_error(folder / INDEX_FILE, "“weight_map” is missing")
    pickled = sorted(name for name in names if not name.endswith(".safetensors"))
    if pickled:
        raise TraindeckError("base_model.pickled", path=str(folder), file=pickled[0])
    return sorted(names)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a file by name, in the order of the data.

    Raises `OSError` or `SafetensorError`, also for a file that is shorter or longer than its header says.
    """
    with files.open_with_retry(path) as file:
        with safe_open(path, "np"):  # validates header and size
            pass
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        values: dict[str, Any] = json.loads(file.read(length))
    values.pop("__metadata__", None)
    ordered = sorted(values.items(), key=lambda item: item[1]["data_offsets"])
    return {
        name: TensorEntry(
            path,
            entry["dtype"],
            tuple(entry["shape"]),
            _LENGTH_BYTES + length + entry["data_offsets"][0],
            entry["data_offsets"][1] - entry["data_offsets"][0],
        )
        for name, entry in ordered
    }


def identity(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 by file of its header and samples of the data: 4 KiB at the start, middle and end of each tensor.

    Training changes practically every value, so any fine-tuned, quantised or otherwise different model differs, as does
    one with other shards. Not proof against manipulation. Takes milliseconds where hashing 16 GB takes a minute.
    Raises `base_model.damaged`.
    """
    return {name: _sampled_hash(folder / name) for name in names}


def _sampled_hash(path: Path) -> str:
    with damage_errors(path):
        header = read_header(path)
        with files.open_with_retry(path) as file:
            data_start = min((entry.start for entry in header.values()), default=path.stat().st_size)
            digest = hashlib.sha256(file.read(data_start))
            for entry in header.values():
                last = max(0, entry.size - _SAMPLE_BYTES)
                for offset in sorted({0, last // 2, last}):
                    file.seek(entry.start + offset)
                    digest.update(file.read(min(_SAMPLE_BYTES, entry.size)))
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises `base_model.missing_file` or `base_model.damaged`."""
    if not path.is_file():
        raise TraindeckError("base_model.missing_file", path=str(path.parent), file=path.name)
    with damage_errors(path), files.open_with_retry(path) as file:
        values = json.load(file)
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        return values


@contextlib.contextmanager
def damage_errors(path: Path) -> Iterator[None]:
    """Report unreadable content of `path` as `base_model.damaged`."""
    try:
        yield
    except (OSError, SafetensorError, ValueError, RecursionError) as error:  # RecursionError: deeply nested JSON
        raise damaged_error(path, error) from error


def damaged_error(path: Path, error: object) -> TraindeckError:
    reason = str(error)[:200]
    if isinstance(error, SafetensorError):  # its texts are the names of the library's own errors
        reason = "it ends too early" if "incomplete" in reason.lower() else "a header is damaged"
    return TraindeckError("base_model.damaged", str(error), path=str(path.parent), file=path.name, reason=reason)
