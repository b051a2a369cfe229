"""Which fast paths this machine has, and which of them a run uses, as far as nothing must be tried for that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import torch

from trainer_core.config import Config
from trainer_core.messages.engine import NOT_FOR_SPEED
from trainer_core.model.attention import BACKENDS
from trainer_core.model.decoder import Decoder
from trainer_core.protocol import FastPath
from trainer_core.train.device import Precision, native_bf16, uses_tf32
from trainer_core.train.engine import compiling, measuring

BY_SPANS: Final = ("flash2", "flash3", "varlen_attention")  # attention that keeps documents apart without a mask
_HEAD_DIM: Final = 64  # of the usual model


def of_machine(device: torch.device, precision: str) -> list[FastPath]:
    """Every path by its name: whether it can be used here, and why not. Starts and computes nothing."""
    cuda = device.type == "cuda"
    dtype = Precision.named(precision, device).dtype or torch.float32
    missing = compiling.missing(device)
    capable = cuda and native_bf16(device)  # TF32 came with it
    found = [
        _path("compile", *(missing or ("path.found", {}))),
        _path("cuda_graphs", *((missing or ("path.found", {})) if cuda else ("path.no_gpu", {}))),
        FastPath(name="attention", used=True, choice="sdpa", reason="path.found"),
        *(_by_spans(name, device, dtype) for name in BY_SPANS),
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


def remember(found: Sequence[FastPath], device: torch.device, precision: str) -> None:
    """What was found when they were tried (`doctor --fast-paths`)."""
    kept = {"paths": [msgspec.to_builtins(path) for path in found]}
    measuring.Memory().remember(kept, "paths", measuring.machine(device), precision)


def remembered(device: torch.device, precision: str) -> dict[str, FastPath]:
    """The same by its name, where this machine was tried."""
    kept = measuring.Memory().recall("paths", measuring.machine(device), precision) or {}
    try:
        return {path.name: path for path in msgspec.convert(kept.get("paths", []), list[FastPath])}
    except msgspec.ValidationError:
        return {}


def of_run(config: Config, model: Decoder, device: torch.device, precision: Precision) -> list[FastPath]:
    """The same for a run: what its settings say. The engine says more of what it tries."""
    shape = model.config
    said: dict[str, FastPath] = {path.name: path for path in of_machine(device, precision.name)}
    tried = remembered(device, precision.name).get("fused_adamw")  # a run compares nothing here, but always uses it
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
    padded = shape.used_vocab > 0
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
    used = reason in ("path.found", "path.on", "path.set", "path.by_name", *NOT_FOR_SPEED)
    return FastPath(name=name, used=used, reason=reason, params=params or {})


def _unused(name: str, reason: str) -> FastPath:
    return FastPath(name=name, used=False, reason=reason)


def backend_of(path: str, device: torch.device) -> str:
    """Which one a path of `BY_SPANS` is: what a GPU has a kernel for goes document after document on a CPU."""
    if path != "varlen_attention":
        return path
    return "documents" if device.type == "cpu" else "varlen"


def _by_spans(path: str, device: torch.device, dtype: torch.dtype) -> FastPath:
    name = backend_of(path, device)
    reason, params = BACKENDS[name].missing(device, dtype, _HEAD_DIM) or ("path.found", {})
    choice = name if name == "documents" else ""
    return FastPath(name=path, used=reason == "path.found", choice=choice, reason=reason, params=params)


def _why_precision(device: torch.device, precision: str) -> str:
    if precision != "fp32":
        return "path.found"
    return "path.not_needed" if device.type == "cpu" and native_bf16(device) else "path.no_gpu"


def _threads() -> str:
    count = torch.get_num_threads()
    return f"{count} thread{'s' * (count != 1)}"
