"""Peak rates of the hardware: matrix products and copies, alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

import torch
from torch.utils.benchmark import Timer

from trainer_core.models.cpu_ops import linear
from trainer_core.train.device import native_bf16

_COPY_BYTES: Final = 128 * 1024**2
_MATRIX_SIZES: Final = {"cpu": 1024, "cuda": 8192}
_TYPES: Final = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_Work = tuple[str, str, int, dict[str, Any]]
"""Name of a ceiling, statement to repeat, its FLOPs or bytes, and its variables."""


def measure(device: torch.device, seconds: float, log: Callable[[str], None]) -> dict[str, float]:
    """Median rates by name: FLOP/s of `matmul TYPE`, bytes/s of `copy PATH`, each measured for about `seconds`.

    `log` receives each name before it is measured.
    """
    rates, before = {}, torch.get_float32_matmul_precision()
    for name, statement, amount, variables in chain(_products(device), _copies(device)):
        log(name)
        torch.set_float32_matmul_precision("high" if name == "matmul tf32" else "highest")
        timer = Timer(statement, globals=variables, num_threads=torch.get_num_threads())
        rates[name] = amount / timer.blocked_autorange(min_run_time=seconds).median
    torch.set_float32_matmul_precision(before)
    return rates


def _products(device: torch.device) -> Iterator[_Work]:
    """Matrix products in the types that the device multiplies natively. fp16 is emulated on a CPU and left out."""
    names = ["fp32", "bf16"] if device.type == "cpu" else ["fp32", "fp16"]
    if device.type == "cuda" and native_bf16(device):
        names += ["tf32", "bf16"]
    size = _MATRIX_SIZES[device.type]
    for name in names:
        left, right = (torch.randn(size, size, device=device).to(_TYPES[name]) for _ in range(2))
        values = {"linear": linear, "left": left, "right": right}
        yield f"matmul {name}", "linear(left, right)", 2 * size**3, values


def _copies(device: torch.device) -> Iterator[_Work]:
    host = torch.ones(_COPY_BYTES, dtype=torch.uint8)
    copies = {"RAM": (torch.empty_like(host), host)}
    if device.type == "cuda":
        on_device, other = (torch.ones(_COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
        pinned = host.pin_memory()
        copies = {
            "host to device": (on_device, host),
            "host to device, pinned": (on_device, pinned),
            "device to host, pinned": (pinned, on_device),
            "device": (other, on_device),
        }
    for name, (target, source) in copies.items():
        tensors = {"target": target, "source": source}
        yield f"copy {name}", "target.copy_(source, non_blocking=True)", _COPY_BYTES, tensors
