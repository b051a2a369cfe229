"""Short measurements: time, and error relative to the reference."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from trainer_core import __version__
from trainer_core.progress import Reporter
from trainer_core.system import hardware

ROUNDS: Final = 25  # if they fit into the budget
MIN_SPEEDUP: Final = 1.03  # above the variation of such measurements

Reason = tuple[str, dict[str, Any]]  # message code and its parameters


@contextlib.contextmanager
def preserved_state(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Preserve RNG states, gradients and the model's mode."""
    python, numbers, training = random.getstate(), np.random.get_state(), model.training
    gradients = [weight.grad for weight in model.parameters()]
    for weight in model.parameters():
        weight.grad = None
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python), np.random.set_state(numbers)
        model.train(training)
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight.grad = gradient


def time_alternatives(
    alternatives: Mapping[str, Callable[[], object]], device: torch.device, reporter: Reporter, budget_s: float
) -> dict[str, float]:
    """Seconds per alternative, measured in turns so that other load on the machine affects all of them alike.

    The minimum of up to `ROUNDS` rounds that fit into `budget_s` (at least one, after a warm-up): other programs only
    add time. With another program using most of a processor, the ratio of minima of 25 rounds varied by 2 %, of lower
    quartiles and medians by 4 %; with 7 rounds by 4 to 5 %. Polls the reporter.
    """
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    end = time.perf_counter() + budget_s
    for number in range(ROUNDS + 1):
        for name, once in alternatives.items():
            reporter.poll()
            seconds = _time_once(once, device)
            if number:
                times[name].append(seconds)
        if number and time.perf_counter() > end:
            break
    return {name: min(each) for name, each in times.items()}


def _time_once(once: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    since = time.perf_counter()
    once()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - since


def relative_error(found: Iterable[Tensor], reference: Iterable[Tensor]) -> float:
    """Largest relative difference of a tensor from its reference, in the Euclidean norm; inf if not finite.

    A tensor much smaller than all together (a gradient near zero) is measured against a thousandth of their norm. Holds
    one additional tensor at a time.
    """
    pairs = list(zip(found, reference, strict=True))
    sizes = [_norm(other) for _, other in pairs]
    total = math.hypot(*sizes)
    differences = [_norm(one.detach().float() - other.detach().float()) for one, other in pairs]
    errors = [one / (size + 1e-3 * total + 1e-30) for one, size in zip(differences, sizes, strict=True)]
    return max(errors, default=0.0) if all(map(math.isfinite, errors)) else math.inf


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64))


def machine_key(device: torch.device) -> str:
    """Identifies what measurements depend on: processor, torch, Traindeck."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{hardware.cpu_name()} x{hardware.usable_threads()}"
    return f"{name}, torch {torch.__version__}, traindeck {__version__}"
