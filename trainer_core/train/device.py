"""Device, precision, seeds and determinism of a run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from trainer_core import presets
from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.progress import Reporter
from trainer_core.system import hardware

_MMAP_THRESHOLD: Final = -3  # mallopt(3): larger blocks are mapped separately; at most 32 MiB
_TRIM_THRESHOLD: Final = -1  # mallopt(3): free bytes at the end of the heap that are returned
_MAX_CACHED_BYTES: Final = 32 * 2**20
_SPILLS_TO_SYSTEM_MEMORY: Final = sys.platform == "win32"  # Windows drivers use system memory when VRAM is full
_RESERVED_BYTES: Final = 300 * 2**20  # bytes of VRAM that the driver needs


def choose_device(wanted: str) -> torch.device:
    """The device of a run; `auto` takes the first GPU, otherwise the CPU. Raises `device.not_available`."""
    if wanted == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise TraindeckError("device.not_available", device=wanted, reason="no such kind of device") from error
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise TraindeckError("device.not_available", device=wanted, reason="Traindeck trains on cuda or cpu")
    if not torch.cuda.is_available():
        reason = "this torch has no CUDA" if torch.version.cuda is None else "no usable NVIDIA driver was found"
        raise TraindeckError("device.not_available", device=wanted, reason=reason)
    if (device.index or 0) >= torch.cuda.device_count():
        raise TraindeckError("device.not_available", device=wanted, reason=f"{torch.cuda.device_count()} GPUs found")
    return torch.device("cuda", device.index or 0)


def device_of_rank(first: torch.device, local_rank: int, size: int) -> torch.device:
    """The device of one of `size` ranks of this machine: GPUs from `first` on, or the CPU.

    Raises `device.not_available`.
    """
    if first.type != "cuda":
        return first
    begin, there = first.index or 0, torch.cuda.device_count()
    if begin + size > there:
        raise TraindeckError("device.not_available", device=f"cuda:{begin + size - 1}", reason=f"{there} GPUs found")
    return torch.device("cuda", begin + local_rank)


def describe_device(device: torch.device) -> str:
    """Human-readable device name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({threads} thread{'s' if threads > 1 else ''})"


@dataclass(frozen=True, slots=True)
class Precision:
    """Arithmetic of forward and backward. Trained weights and optimizer state are always fp32."""

    name: str  # fp32, bf16 or fp16
    device_type: str
    dtype: torch.dtype | None  # None: no autocast

    @classmethod
    def from_name(cls, name: str, device: torch.device) -> Precision:
        """Create from `fp32`, `bf16` or `fp16` for a device."""
        return cls(name, device.type, {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name))

    def autocast(self) -> AbstractContextManager[Any]:
        """Context for forward passes."""
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    def base_dtype(self, tuning: Mapping[str, Any]) -> torch.dtype:
        """Of the weights that `tuning` (see `train.model_shape.tuning_of`) freezes: bf16 where training computes in it.

        Not beside trained embeddings, because the values between the layers have their dtype.
        """
        frozen = tuning["method"] != "full" and not tuning["lora_embeddings"]
        return torch.bfloat16 if frozen and self.name == "bf16" else torch.float32

    @property
    def needs_scaler(self) -> bool:
        """Whether gradients need scaling (torch.amp.GradScaler): fp16's range is too small."""
        return self.dtype is torch.float16


def native_bf16(device: torch.device) -> bool:
    """Whether the device multiplies in bf16: GPUs since Ampere; CPUs with AMX or AVX-512 BF16."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    supported = (getattr(torch.cpu, name, bool)() for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
    return any(supported)


def choose_precision(wanted: str, device: torch.device, reporter: Reporter) -> Precision:
    """`auto`: bf16 if the GPU supports it natively, otherwise fp16; fp32 on a CPU. An unsupported request falls back
    with a warning.

    A CPU with native bf16 uses it only on request: at sizes that train on a CPU, it costs accuracy for little time.
    `doctor --fast-paths` shows the speedup.
    """
    if wanted == "no" or (wanted == "auto" and device.type == "cpu"):
        return Precision.from_name("fp32", device)
    if wanted == "auto":
        wanted = "bf16" if native_bf16(device) else "fp16"
    if wanted == "bf16" and device.type == "cuda" and not native_bf16(device):
        reporter.warn("precision.fallback", wanted="bf16", used="fp16", device=describe_device(device))
        wanted = "fp16"
    if wanted == "fp16" and device.type == "cpu":
        reporter.warn("precision.fallback", wanted="fp16", used="fp32", device=describe_device(device))
        wanted = "fp32"
    return Precision.from_name(wanted, device)


def warn_if_preset_unsupported(config: Config, device: torch.device, reporter: Reporter) -> None:
    """Warn if a preset for a GPU runs on a CPU that was not requested."""
    if device.type != "cpu" or config.device == "cpu" or not config.preset:
        return
    with contextlib.suppress(TraindeckError):  # the preset of a resumed run may no longer exist
        if presets.load(config.preset).for_gpu:
            reporter.warn("preset.for_gpu", preset=config.preset, device=describe_device(device))


def uses_tf32(config: Config, device: torch.device) -> bool:
    """Whether fp32 matrix products use TF32 (10 bits of mantissa, GPUs since Ampere)."""
    return device.type == "cuda" and config.tf32 and not config.deterministic and native_bf16(device)


def keep_freed_memory() -> None:
    """Make glibc keep large freed blocks. Activations are allocated and freed every step, and returned pages are zeroed
    when allocated again: up to a tenth of a step. No effect on other systems.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            library = ctypes.CDLL(None)
            library.mallopt(_MMAP_THRESHOLD, _MAX_CACHED_BYTES)
            library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def limit_to_vram(device: torch.device) -> None:
    """Limit torch to the card's memory. On Windows, drivers would otherwise use system memory over the bus, at a tenth
    of the speed; running out instead triggers OOM recovery.

    Memory of other programs changes: call again before trying more memory. At least half of the card stays allowed,
    because Windows evicts idle programs.
    """
    if not _SPILLS_TO_SYSTEM_MEMORY or device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    usable = torch.cuda.memory_reserved(device) + free - _RESERVED_BYTES
    torch.cuda.set_per_process_memory_fraction(min(1.0, max(usable / total, 0.5)), device)


def configure_arithmetic(config: Config, device: torch.device) -> None:
    """Set threads (the ranks of a machine share the cores), seeds, TF32 and determinism."""
    if config.cpu_threads:
        torch.set_num_threads(config.cpu_threads)
    elif config.nproc_per_node > 1:
        torch.set_num_threads(max(1, hardware.usable_threads() // config.nproc_per_node))
    if device.type == "cpu":
        keep_freed_memory()
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        limit_to_vram(device)
        torch.set_float32_matmul_precision("high" if uses_tf32(config, device) else "highest")
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
