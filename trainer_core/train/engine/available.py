"""Availability of fast paths on this machine, and which of them a run uses according to its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import torch

from trainer_core.config import Config
from trainer_core.models.attention import BACKENDS
from trainer_core.models.decoder import Decoder
from trainer_core.protocol import FastPath
from trainer_core.system.result_cache import MeasurementCache
from trainer_core.train.device import Precision, native_bf16, uses_tf32
from trainer_core.train.engine import compilation, measuring
from trainer_core.train.engine.measuring import Reason

VARLEN_BACKENDS: Final = ("flash3", "flash2", "varlen_attention")  # variable-length attention, preferred first
_HEAD_DIM: Final = 64  # of common models


def machine_paths(device: torch.device, precision: str) -> list[FastPath]:
    """All fast paths by name: usable here, or why not. Computes nothing."""
    cuda = device.type == "cuda"
    dtype = Precision.from_name(precision, device).dtype or torch.float32
    no_gpu: Reason | None = None if cuda else ("path.no_gpu", {})
    no_compiler = compilation.unavailable_reason(device)
    no_tf32 = no_gpu or (None if native_bf16(device) else ("path.unsupported", {"what": "TF32"}))  # same generation
    if precision != "fp32":
        precision_reason = "path.found"
    else:
        precision_reason = "path.not_needed" if not cuda and native_bf16(device) else "path.no_gpu"
    paths = [
        _path("compile", no_compiler),
        _path("cuda_graphs", no_gpu or no_compiler),
        _path("attention", choice="sdpa"),
        *(_varlen_path(name, device, dtype) for name in VARLEN_BACKENDS),
        _path("fused_adamw"),
        _path("muon", found="path.fewer_steps"),
        _path("chunked_loss"),
        _path("tf32", no_tf32),
        FastPath(name="precision", used=precision != "fp32", choice=precision, reason=precision_reason),
        _path("transfer", no_gpu),
        _path("padded_vocabulary"),
        _path("activation_checkpointing", found="path.trades"),
    ]
    return paths if cuda else [*paths, _path("threads", choice=format_threads(torch.get_num_threads()))]


def _path(name: str, missing: Reason | None = None, choice: str = "", found: str = "path.found") -> FastPath:
    reason, params = missing or (found, {})
    return FastPath(name=name, used=missing is None, choice=choice, reason=reason, params=params)


def _varlen_path(name: str, device: torch.device, dtype: torch.dtype) -> FastPath:
    backend = backend_of(name, device)
    missing = BACKENDS[backend].unavailable_reason(device, dtype, _HEAD_DIM)
    return _path(name, missing, choice=backend if backend == "documents" else "")


def backend_of(path: str, device: torch.device) -> str:
    """Backend of a path of `VARLEN_BACKENDS`. On a CPU, documents are computed one after the other."""
    if path != "varlen_attention":
        return path
    return "documents" if device.type == "cpu" else "varlen"


def format_threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def store_measured(paths: Sequence[FastPath], device: torch.device, precision: str) -> None:
    """Store the results of `doctor --fast-paths`."""
    MeasurementCache().store({"paths": msgspec.to_builtins(paths)}, "paths", measuring.machine_key(device), precision)


def load_measured(device: torch.device, precision: str) -> dict[str, FastPath]:
    """Stored results by name."""
    stored = MeasurementCache().get("paths", measuring.machine_key(device), precision) or {}
    try:
        return {path.name: path for path in msgspec.convert(stored.get("paths", []), list[FastPath])}
    except msgspec.ValidationError:
        return {}


def run_paths(config: Config, model: Decoder, device: torch.device, precision: Precision) -> list[FastPath]:
    """Paths of a run according to its settings. The engine adds its selections."""
    paths: dict[str, FastPath] = {path.name: path for path in machine_paths(device, precision.name)}

    def record(name: str, used: bool, reason: str, choice: Any = "") -> None:
        paths[name] = FastPath(name=name, used=used, choice=str(choice) if used else "", reason=reason)

    measured = load_measured(device, precision.name).get("fused_adamw")
    if measured is not None:  # a run does not compare it, but always uses it
        paths["fused_adamw"] = msgspec.structs.replace(measured, used=True)
    muon = config.optimizer == "muon"
    record("muon", muon, "path.set" if muon else "path.off")
    if paths["tf32"].used:
        tf32 = precision.name == "fp32" and uses_tf32(config, device)
        record("tf32", tf32, "path.set" if tf32 else "path.off" if precision.name == "fp32" else "path.not_needed")
    if paths["transfer"].used and (config.low_memory or not config.pin_memory):
        record("transfer", False, "path.off")
    padded = model.config.unpadded_vocab_size > 0
    not_padded = "path.off" if config.vocab_multiple == 1 else "path.not_needed"
    record("padded_vocabulary", padded, "path.found" if padded else not_padded, model.config.vocab_size)
    mode = config.activation_checkpointing
    record("activation_checkpointing", mode != "off", "path.off" if mode == "off" else "path.set", mode)
    if config.mixed_precision != "auto" and precision.name in (config.mixed_precision, "fp32"):
        reason = "path.off" if config.mixed_precision == "no" else "path.set"
        used = precision.name != "fp32"
        paths["precision"] = FastPath(name="precision", used=used, choice=precision.name, reason=reason)
    return list(paths.values())
