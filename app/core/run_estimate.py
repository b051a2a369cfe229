"""What is known of a run before its start: its tokens, the speed of this machine, what a check measured. No Qt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np  # with one thread: `app.core.metrics` is imported first

from app.core.preview_keys import PreviewKey, PreviewResult
from trainer_core.config import knobs
from trainer_core.protocol import CheckReport, DataReport
from trainer_core.system import gpu_specs
from trainer_core.system.hardware import GpuInfo, MachineInfo

_BYTES_PER_TOKEN: Final = 4  # of text in English or Chinese
_KNOBS: Final = ("max_steps", "max_epochs", "batch_size", "gradient_accumulation_steps")
_MATRIX_SIZE: Final = 1024
_PRODUCTS: Final = 4
_MODEL_KNOBS: Final = ("base_model", "method", "optimizer")  # that a choice in the list of models changes


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a check measured of a base model."""

    model: str
    method: str
    peak: int  # bytes; 0: not known
    seconds: float  # of the run; 0: not known, or that of other data or settings


def find_measurement(check: PreviewResult[CheckReport] | None, key: PreviewKey) -> Measurement | None:
    """The measurement of the last check. `key`: of a check of the present settings."""
    if check is None or check.report is None or not check.key.get("base_model"):
        return None
    is_current = all(check.key[name] == value for name, value in key.items() if name not in _MODEL_KNOBS)
    seconds = check.report.seconds if is_current else None
    return Measurement(check.key["base_model"], check.key["method"], check.report.chosen.peak or 0, seconds or 0.0)


def estimate_tokens(values: Mapping[str, Any], preview: DataReport | None, file_bytes: int) -> float:
    """Tokens that a run computes; 0: not known.

    `values`: settings by name, without defaults. `preview`: of the data. `file_bytes`: of the data, used without a
    preview; 0: not known.
    """
    steps, epochs, batch_size, accumulation = (int(values.get(name, knobs()[name].default)) for name in _KNOBS)
    if preview is None:
        return 0 if steps else epochs * file_bytes / _BYTES_PER_TOKEN  # the tokens of a step are not known
    if steps:
        return steps * batch_size * accumulation * preview.train_tokens / max(1, preview.samples_per_epoch)
    return epochs * preview.train_tokens


def estimate_flops(machine: MachineInfo, gpu: GpuInfo | None) -> float:
    """FLOP/s of training on a GPU in 16 bits, or on the CPU in fp32, which is measured; 0: not known."""
    if gpu is None:
        return gpu_specs.EXPECTED_MFU * measure_core() * min(machine.cpu_cores, machine.cpu_threads)
    peak = gpu_specs.lookup_peak(gpu.name, "fp16" if gpu.bf16 is False else "bf16")
    return gpu_specs.EXPECTED_MFU * peak.flops_per_s if peak else 0.0


def measure_core() -> float:
    """FLOP/s of an fp32 matrix product on one core: the fastest of a few, about 0.2 s."""
    left, seconds = np.ones((_MATRIX_SIZE, _MATRIX_SIZE), dtype=np.float32), []
    for _ in range(_PRODUCTS):
        since = time.perf_counter()
        left @ left
        seconds.append(time.perf_counter() - since)
    return float(2 * _MATRIX_SIZE**3 / min(seconds))
