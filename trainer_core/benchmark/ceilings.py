"""What the hardware reaches when it does one thing only: a matrix product, or a copy.

Training cannot be faster than these. Each is repeated for a fraction of a second: the best and the median are kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from trainer_core.train.device import native_bf16

_LEAST: Final = 3  # repetitions
_COPIED: Final = 128 * 1024**2  # bytes
_SIZES: Final = {"cpu": 1024, "cuda": 8192}  # of a square matrix, at most
_SMALL: Final = 256  # of the one that is tried first: some CPUs are a hundred times slower in bf16
_TYPES: Final = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """One limit. `best` and `median` in FLOP/s (`matmul …`) or bytes a second (`copy …`)."""

    name: str
    best: float
    median: float
    repetitions: int


def measure(device: torch.device, enough_s: float, say: Callable[[str], None]) -> list[Ceiling]:
    """All limits that this device has, each repeated for `enough_s` seconds. `say` is told the name of each
    before it is measured."""
    found = []
    for name in matmul_names(device):
        say(f"matmul {name}")
        found.append(_matmul(device, name, enough_s))
    for name, copy in _copies(device):
        say(f"copy {name}")
        found.append(_repeated(f"copy {name}", copy, device, 1.0 * _COPIED, enough_s))
    return found


def matmul_names(device: torch.device) -> list[str]:
    """The kinds of arithmetic that the device has. A CPU's fp16 is emulated, and nobody trains with it."""
    if device.type == "cpu":
        return ["fp32", "bf16"]
    return ["fp32", "tf32", "bf16", "fp16"] if native_bf16(device) else ["fp32", "fp16"]


def _matmul(device: torch.device, name: str, enough_s: float) -> Ceiling:
    """Products of square matrices: 2 n³ operations each."""
    with _tf32(name == "tf32"):
        tried = _product(name, _SMALL, device, enough_s / 4)
        size = _SIZES[device.type]
        while size > _SMALL and 2.0 * size**3 / tried.best > enough_s / _LEAST:
            size //= 2
        return tried if size == _SMALL else _product(name, size, device, enough_s)


def _product(name: str, size: int, device: torch.device, enough_s: float) -> Ceiling:
    left, right = (torch.randn(size, size, device=device).to(_TYPES[name]) for _ in range(2))
    out = torch.empty_like(left)
    return _repeated(f"matmul {name}", lambda: torch.mm(left, right, out=out), device, 2.0 * size**3, enough_s)


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _copies(device: torch.device) -> list[tuple[str, Callable[[], Tensor]]]:
    """Names and copies of `_COPIED` bytes, each counted once."""
    host = torch.ones(_COPIED, dtype=torch.uint8)
    if device.type == "cpu":
        other = torch.empty_like(host)
        return [("RAM", lambda: other.copy_(host))]
    there, beside = (torch.ones(_COPIED, dtype=torch.uint8, device=device) for _ in range(2))
    pinned = host.pin_memory()
    return [
        ("host to device", lambda: there.copy_(host)),
        ("host to device, pinned", lambda: there.copy_(pinned, non_blocking=True)),
        ("device to host, pinned", lambda: pinned.copy_(there, non_blocking=True)),
        ("device", lambda: beside.copy_(there)),
    ]


def _repeated(name: str, work: Callable[[], Tensor], device: torch.device, amount: float, enough_s: float) -> Ceiling:
    """Do `work`, which is `amount` operations or bytes, again and again."""
    work()
    _wait(device)
    rates: list[float] = []
    begun = time.perf_counter()
    while len(rates) < _LEAST or time.perf_counter() - begun < enough_s:
        since = time.perf_counter()
        work()
        _wait(device)
        rates.append(amount / (time.perf_counter() - since))
        if time.perf_counter() - begun > 5 * enough_s:  # so slow that once is enough
            break
    return Ceiling(name, max(rates), statistics.median(rates), len(rates))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
