"""Peak rates of the hardware: matrix products and copies, alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from trainer_core.train.device import native_bf16

_COPY_BYTES: Final = 128 * 1024**2
_MATRIX_SIZES: Final = {"cpu": 1024, "cuda": 8192}
_TYPES: Final = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A measured rate: FLOP/s of `matmul TYPE`, bytes/s of `copy PATH`."""

    name: str
    best: float
    median: float


def measure(device: torch.device, seconds: float, log: Callable[[str], None]) -> list[Ceiling]:
    """Measure all rates, each for about `seconds`. `log` receives the name of each before it is measured."""
    ceilings = []
    for name in matmul_names(device):
        log(f"matmul {name}")
        ceilings.append(_matmul(device, name, seconds))
    for name, target, source in _copies(device):
        log(f"copy {name}")
        copy = "target.copy_(source, non_blocking=True)"
        ceilings.append(_rate(f"copy {name}", copy, _COPY_BYTES, seconds, target=target, source=source))
    return ceilings


def matmul_names(device: torch.device) -> list[str]:
    """Number formats that the device multiplies natively, by name. fp16 is emulated on a CPU and left out."""
    if device.type == "cpu":
        return ["fp32", "bf16"]
    return ["fp32", "tf32", "bf16", "fp16"] if native_bf16(device) else ["fp32", "fp16"]


def _matmul(device: torch.device, name: str, seconds: float) -> Ceiling:
    size = _MATRIX_SIZES[device.type]
    left, right = (torch.randn(size, size, device=device).to(_TYPES[name]) for _ in range(2))
    out = torch.empty_like(left)
    with _tf32(name == "tf32"):
        product = "torch.mm(left, right, out=out)"
        return _rate(f"matmul {name}", product, 2 * size**3, seconds, left=left, right=right, out=out)


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _copies(device: torch.device) -> list[tuple[str, Tensor, Tensor]]:
    """Names, targets and sources of copies of `_COPY_BYTES`."""
    host = torch.ones(_COPY_BYTES, dtype=torch.uint8)
    if device.type == "cpu":
        return [("RAM", torch.empty_like(host), host)]
    on_device, other = (torch.ones(_COPY_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    pinned = host.pin_memory()
    return [
        ("host to device", on_device, host),
        ("host to device, pinned", on_device, pinned),
        ("device to host, pinned", pinned, on_device),
        ("device", other, on_device),
    ]


def _rate(name: str, statement: str, amount: int, seconds: float, **tensors: Any) -> Ceiling:
    """Repeat `statement`, which computes or copies `amount`, for about `seconds`."""
    timer = Timer(statement, globals={"torch": torch, **tensors}, num_threads=torch.get_num_threads())
    timed = timer.blocked_autorange(min_run_time=seconds)
    return Ceiling(name, amount / min(timed.times), amount / timed.median)
