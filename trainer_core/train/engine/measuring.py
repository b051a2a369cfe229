"""Short measurements before a run: how long something takes, how far it is from the reference, and what was found
out before on this machine."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from trainer_core import __version__
from trainer_core.machine import hardware
from trainer_core.remembered import Memory as Memory
from trainer_core.report import Reporter

ROUNDS: Final = 25  # where they fit into the time that is given


@contextlib.contextmanager
def undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Whatever runs inside leaves generators, gradients and the model's mode as they were."""
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


def seconds(
    ways: Mapping[str, Callable[[], object]],
    device: torch.device,
    reporter: Reporter,
    budget_s: float,
    rounds: int = ROUNDS,
) -> dict[str, float]:
    """How long each way takes, measured in turns so that what else the machine does meets all of them alike.

    The shortest of up to `rounds` rounds, as many as fit into `budget_s` (at least one, after a first that does not
    count): other programs only ever add to it. Where those took most of a processor, the ratio of the shortest of 25
    rounds varied by 2 %, that of lower quartiles and the median of ratios by 4 %; of 7 rounds each by 4 to 5 %.
    Stops early by `Reporter.poll`.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    end = time.perf_counter() + budget_s
    for number in range(rounds + 1):
        for name, way in ways.items():
            reporter.poll()
            once = _once(way, device)
            if number:
                taken[name].append(once)
        if number and time.perf_counter() > end:
            break
    return {name: min(times) for name, times in taken.items()}


def _once(way: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    since = time.perf_counter()
    way()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - since


def difference(found: Iterable[Tensor], reference: Iterable[Tensor]) -> float:
    """Largest relative difference of a tensor from its reference, in the Euclidean norm; inf where not finite.

    A tensor far smaller than all of them together (a gradient that is nearly zero) is measured against a
    thousandth of those. One tensor more is held at a time.
    """
    pairs = list(zip(found, reference, strict=True))
    sizes = [_norm(other) for _, other in pairs]
    whole = math.hypot(*sizes)
    apart = [_norm(one.detach().float() - other.detach().float()) for one, other in pairs]
    errors = [one / (size + 1e-3 * whole + 1e-30) for one, size in zip(apart, sizes, strict=True)]
    return max(errors, default=0.0) if all(map(math.isfinite, errors)) else math.inf


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64))


def machine(device: torch.device) -> str:
    """What measurements depend on: processor, torch, and this program."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{hardware.cpu_name()} x{hardware.usable_threads()}"
    return f"{name}, torch {torch.__version__}, traindeck {__version__}"
