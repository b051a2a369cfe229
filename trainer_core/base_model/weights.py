"""Weights of safetensors files into a model, one tensor at a time.

Peak memory: the model, and the largest tensor of the files. Files are read rather than mapped: mapped reads can be 30
times slower on Windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from trainer_core.base_model.source import BaseModel
from trainer_core.base_model.weight_files import TensorEntry, damage_errors, read_header
from trainer_core.messages import TraindeckError
from trainer_core.models.adapters import base_weights
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.sharding import copy_whole, whole_shape
from trainer_core.models.transformers_model import TransformersModel
from trainer_core.progress import NullReporter, Reporter
from trainer_core.system import files

DTYPES: Final = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_IGNORED_SUFFIX: Final = ".rotary_emb.inv_freq"  # a buffer that older versions of transformers saved; computed today
_READ_BYTES: Final = 32 * 1024 * 1024  # between two polls


class WeightMismatchError(ValueError):
    """Weights do not fit the model. Its text names the first difference."""


def require_weights(base: BaseModel, model: LanguageModel) -> None:
    """Check that names, shapes and dtypes of the weights fit `model`, which may be on the device `meta`.

    Raises `base_model.mismatch` or `base_model.damaged`.
    """
    headers = _read_headers(base)
    if not isinstance(model, TransformersModel) or _has_names_of(headers, model):
        _match(base, headers, model)


def load_weights(
    base: BaseModel,
    model: LanguageModel,
    reporter: Reporter,
    new_tokens: Iterable[int] = (),
    store: Callable[[str, Tensor, Tensor], None] | None = None,
) -> None:
    """Copy the weights into `model`, of any floating dtype and on any device. Tied weights are copied once.

    Rows of embedding and head that the base model lacks, and those of `new_tokens`, which it was not trained on, become
    the mean of its rows (Hewitt 2021, https://nlp.stanford.edu/~johnhew/vocab-expansion.html).
    `store`, called with name, tensor and weight, replaces `copy` for the other weights.

    Raises `base_model.mismatch` before any weight is read, `base_model.not_finite` or `base_model.damaged`.
    """
    headers = _read_headers(base)
    if isinstance(model, TransformersModel) and not _has_names_of(headers, model):
        _load_renamed(base, headers, model, new_tokens)
        return
    targets, vocabulary = _match(base, headers, model), model.vocabulary_weights()
    all_entries = [entry for entries in headers.values() for entry in entries.values()]
    buffer = new_buffer(all_entries)
    done, total = 0, sum(entry.size for entry in all_entries)
    for path, entries in headers.items():
        with damage_errors(path):
            for name, tensor in read_tensors(path, entries, reporter, buffer):
                if not is_finite(tensor):
                    raise TraindeckError("base_model.not_finite", path=str(base.folder), name=name, file=path.name)
                if name in vocabulary and name in targets:
                    copy_whole(_with_new_rows(tensor, targets[name], new_tokens), targets[name])
                elif name in targets and store is not None:
                    store(name, tensor, targets[name])
                elif name in targets:
                    copy_whole(tensor, targets[name])
                done += entries[name].size
                reporter.progress("loading", done, total, "bytes")


def _has_names_of(headers: Mapping[Path, Mapping[str, TensorEntry]], model: LanguageModel) -> bool:
    names = model.state_dict().keys()
    return all(entries.keys() <= names for entries in headers.values())


def _load_renamed(
    base: BaseModel,
    headers: Mapping[Path, Mapping[str, TensorEntry]],
    model: TransformersModel,
    new_tokens: Iterable[int],
) -> None:
    """Load weights that older or other programs named, as transformers translates them."""
    try:
        for entries in headers.values():
            for name, entry in entries.items():
                if name.endswith(".weight"):  # others may be masks, which are not loaded
                    _require_dtype(name, entry)
        weights = model.read_folder(base.folder, base.config)
    except ValueError as error:
        raise TraindeckError("base_model.mismatch", path=str(base.folder), reason=str(error)) from error
    vocabulary, targets = model.vocabulary_weights(), model.state_dict()
    for name, tensor in weights.items():
        if not is_finite(tensor):
            raise TraindeckError("base_model.not_finite", path=str(base.folder), name=name, file=base.weights[0])
        if name in vocabulary:
            tensor = _with_new_rows(tensor, targets[name], new_tokens)
        copy_whole(tensor, targets[name])


def _read_headers(base: BaseModel) -> dict[Path, dict[str, TensorEntry]]:
    headers = {}
    for name in base.weights:
        with damage_errors(base.folder / name):
            headers[base.folder / name] = read_header(base.folder / name)
    return headers


def _match(
    base: BaseModel, headers: Mapping[Path, Mapping[str, TensorEntry]], model: LanguageModel
) -> dict[str, Tensor]:
    try:
        entries = {name: entry for entries in headers.values() for name, entry in entries.items()}
        rows = base.config.get("vocab_size")
        return match(entries, model, rows if isinstance(rows, int) else None)
    except WeightMismatchError as error:
        raise TraindeckError("base_model.mismatch", path=str(base.folder), reason=str(error)) from error


# --- one file, also of checkpoints ---------------------------------------------------------------------


def match(entries: Mapping[str, TensorEntry], model: LanguageModel, rows: int | None = None) -> dict[str, Tensor]:
    """The weight of the model that each entry belongs to, tied weights once. Raises `WeightMismatchError`.

    `rows`: of embedding and head in the entries, if the model may have more.
    """
    weights, vocabulary = base_weights(model), model.vocabulary_weights()
    tied: dict[int, list[str]] = {}
    for name, weight in weights.items():
        tied.setdefault(id(weight), []).append(name)
    for name in entries:
        if name not in weights and not name.endswith(_IGNORED_SUFFIX):
            raise WeightMismatchError(f"“{name}” is unexpected")
    matched = {}
    for names in tied.values():
        name = next((name for name in names if name in entries), "")
        if not name:
            raise WeightMismatchError(f"“{names[0]}” is missing")
        entry, weight = entries[name], weights[name]
        wanted = tuple(whole_shape(weight))
        if rows is not None and name in vocabulary and wanted[0] > rows:
            wanted = (rows, *wanted[1:])
        if entry.shape != wanted:
            raise WeightMismatchError(f"“{name}” {list(entry.shape)} → {list(wanted)}")
        _require_dtype(name, entry)
        matched[name] = weight
    return matched


def _require_dtype(name: str, entry: TensorEntry) -> None:
    if entry.dtype not in DTYPES:
        raise WeightMismatchError(f"the dtype of “{name}” is not supported: {entry.dtype}")


def read_tensors(
    path: Path, entries: Mapping[str, TensorEntry], reporter: Reporter, buffer: Tensor | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield the floating-point tensors of a file, each in its own memory. Raises `OSError`.

    With `buffer`, all in its memory, each until the next is read.
    """
    with files.open_with_retry(path) as file:
        for name, entry in entries.items():
            if entry.dtype in DTYPES:
                memory = torch.empty(entry.size, dtype=torch.uint8) if buffer is None else buffer[: entry.size]
                _read(file, entry, memory, reporter)
                yield name, memory.view(DTYPES[entry.dtype]).reshape(entry.shape)


def new_buffer(entries: Iterable[TensorEntry]) -> Tensor:
    """Memory for the largest of these tensors. Memory for each in turn fragments the heap of glibc."""
    return torch.empty(max((entry.size for entry in entries), default=0), dtype=torch.uint8)


def _read(file: BufferedReader, entry: TensorEntry, memory: Tensor, reporter: Reporter) -> None:
    file.seek(entry.start)
    for part in torch.split(memory, _READ_BYTES):
        reporter.poll()
        if file.readinto(part.numpy()) != len(part):  # type: ignore[arg-type] # a buffer
            raise OSError("it ends too early")


def _with_new_rows(tensor: Tensor, target: Tensor, new_tokens: Iterable[int]) -> Tensor:
    """As many rows as the target has, in its dtype. Those of new tokens are the mean of all."""
    rows, spare = tensor.to(target.dtype), len(target) - len(tensor)
    new = [number for number in new_tokens if number < len(tensor)]
    if not (new or spare):
        return rows
    mean = rows.mean(0)
    rows = torch.cat([rows, mean.expand(spare, *rows.shape[1:])])
    rows[new] = mean
    return rows


def copy_file(path: Path, model: LanguageModel, store: Callable[[Tensor, Tensor], None] = copy_whole) -> None:
    """Copy the weights of one file into `model`, each with `store`.

    Raises `WeightMismatchError`, `OSError` or `SafetensorError`.
    """
    entries = read_header(path)
    targets = match(entries, model)
    for name, tensor in read_tensors(path, entries, NullReporter(), new_buffer(entries.values())):
        if name in targets:
            store(tensor, targets[name])


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor has no NaN and no infinite value. Needs no memory, and a fifth of the time of `isfinite`."""
    if not tensor.numel():
        return True
    low, high = torch.aminmax(tensor)  # NaN if there is one
    return math.isfinite(low) and math.isfinite(high)
