"""Availability of fast paths on this machine, and which of them a run uses according to its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import torch

from trainer_core.config import Config
from trainer_core.models.attention import BACKENDS
from trainer_core.models.decoder import Decoder
from trainer_core.performance_texts import NON_SPEED_REASONS
from trainer_core.protocol import FastPath
from trainer_core.train.device import Precision, native_bf16, uses_tf32
from trainer_core.train.engine import compilation, measuring

VARLEN_BACKENDS: Final = ("flash3", "flash2", "varlen_attention")  # variable-length attention, preferred first
_HEAD_DIM: Final = 64  # of common models


def machine_paths(device: torch.device, precision: str) -> list[FastPath]:
    """All fast paths by name: usable here, or why not. Computes nothing."""
    cuda = device.type == "cuda"
    dtype = Precision.from_name(precision, device).dtype or torch.float32
    missing = compilation.unavailable_reason(device)
    capable = cuda and native_bf16(device)  # since the same generation
    found = [
        _path("compile", *(missing or ("path.found", {}))),
        _path("cuda_graphs", *((missing or ("path.found", {})) if cuda else ("path.no_gpu", {}))),
        FastPath(name="attention", used=True, choice="sdpa", reason="path.found"),
        *(_by_spans(name, device, dtype) for name in VARLEN_BACKENDS),
        _path("fused_adamw", "path.found"),
        _path("muon", "path.fewer_steps"),
        _path("chunked_loss", "path.found"),
        _path("tf32", "path.found" if capable else "path.unsupported" if cuda else "path.no_gpu", {"what": "TF32"}),
        FastPath(
            name="precision", used=precision != "fp32", choice=precision, reason=_why_precision(device, precision)
        ),
        _path("transfer", "path.found" if cuda else "path.no_gpu"),
        _path("padded_vocabulary", "path.found"),
        _path("activation_checkpointing", "path.trades"),
    ]
    if not cuda:
        found.append(FastPath(name="threads", used=True, choice=_threads(), reason="path.found"))
    return found


def cache_paths(found: Sequence[FastPath], device: torch.device, precision: str) -> None:
    """Store the results of `doctor --fast-paths`."""
    kept = {"paths": [msgspec.to_builtins(path) for path in found]}
    measuring.MeasurementCache().store(kept, "paths", measuring.machine_key(device), precision)


def cached_paths(device: torch.device, precision: str) -> dict[str, FastPath]:
    """Stored results by name."""
    kept = measuring.MeasurementCache().get("paths", measuring.machine_key(device), precision) or {}
    try:
        return {path.name: path for path in msgspec.convert(kept.get("paths", []), list[FastPath])}
    except msgspec.ValidationError:
        return {}


def run_paths(config: Config, model: Decoder, device: torch.device, precision: Precision) -> list[FastPath]:
    """Paths of a run according to its settings. The engine adds its selections."""
    shape = model.config
    said: dict[str, FastPath] = {path.name: path for path in machine_paths(device, precision.name)}
    tried = cached_paths(device, precision.name).get("fused_adamw")  # a run does not compare it, but always uses it
    if tried is not None:
        said["fused_adamw"] = msgspec.structs.replace(tried, used=True)
    said["muon"] = _path("muon", "path.set") if config.optimizer == "muon" else _unused("muon", "path.off")
    if said["tf32"].used:
        unneeded = precision.name != "fp32"
        said["tf32"] = _path("tf32", "path.set") if uses_tf32(config, device) else _unused("tf32", "path.off")
        said["tf32"] = _unused("tf32", "path.not_needed") if unneeded else said["tf32"]
    if said["transfer"].used:
        pinned = config.pin_memory and not config.low_memory
        said["transfer"] = _path("transfer", "path.found") if pinned else _unused("transfer", "path.off")
    padded = shape.unpadded_vocab_size > 0
    reason = "path.found" if padded else "path.off" if config.vocab_multiple == 1 else "path.not_needed"
    said["padded_vocabulary"] = FastPath(
        name="padded_vocabulary", used=padded, reason=reason, choice=str(shape.vocab_size) if padded else ""
    )
    mode = config.activation_checkpointing
    said["activation_checkpointing"] = FastPath(
        name="activation_checkpointing",
        used=mode != "off",
        choice=mode if mode != "off" else "",
        reason="path.set" if mode != "off" else "path.off",
    )
    if config.mixed_precision != "auto" and precision.name in (config.mixed_precision, "fp32"):
        reason = "path.off" if config.mixed_precision == "no" else "path.set"
        said["precision"] = FastPath(
            name="precision", used=precision.name != "fp32", choice=precision.name, reason=reason
        )
    return list(said.values())


def _path(name: str, reason: str, params: dict[str, Any] | None = None) -> FastPath:
    used = reason in ("path.found", "path.on", "path.set", "path.by_name", *NON_SPEED_REASONS)
    return FastPath(name=name, used=used, reason=reason, params=params or {})


def _unused(name: str, reason: str) -> FastPath:
    return FastPath(name=name, used=False, reason=reason)


def backend_of(path: str, device: torch.device) -> str:
    """Backend of a path of `VARLEN_BACKENDS`. On a CPU, documents are computed one after the other."""
    if path != "varlen_attention":
        return path
    return "documents" if device.type == "cpu" else "varlen"


def _by_spans(path: str, device: torch.device, dtype: torch.dtype) -> FastPath:
    name = backend_of(path, device)
    reason, params = BACKENDS[name].unavailable_reason(device, dtype, _HEAD_DIM) or ("path.found", {})
    choice = name if name == "documents" else ""
    return FastPath(name=path, used=reason == "path.found", choice=choice, reason=reason, params=params)


def _why_precision(device: torch.device, precision: str) -> str:
    if precision != "fp32":
        return "path.found"
    return "path.not_needed" if device.type == "cpu" and native_bf16(device) else "path.no_gpu"


def _threads() -> str:
    count = torch.get_num_threads()
    return f"{count} thread{'s' * (count != 1)}"
