"""What goes wrong with numbers, and what their noise tells: found on the device, read late, kept in checkpoints.

Nothing here waits for a GPU but `Watch.read`, `Noise.read` and the `state` methods, which belong where the
loss is read or a checkpoint is written anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from trainer_core.config import Config

_WARM_UP: Final = 20  # good steps before a norm can be a spike: the first ones fall from far above what follows
_MEMORY: Final = 0.01  # weight of the newest norm in the running mean, once there are 100
_ROWS: Final = 1024  # steps that wait to be read at most; then they are read, wanted or not
_SMALLEST_SCALE: Final = 1.0  # fp16: what is not finite at such a scale is no overflow any more


@dataclass(frozen=True, slots=True)
class Bad:
    """A step that was left out."""

    step: int
    kind: Literal["not_finite", "spike"]
    grad_norm: float | None  # None: not finite
    usual: float | None  # the running mean of the norm before it; None: there was none yet
    epoch: int = 0
    samples: tuple[int, ...] = ()


class Watch:
    """Bad steps, found by the gradient's norm: not finite, or a spike of `spike_factor` times its running mean.

    Norms of bad steps stay out of the mean. With fp16, what is not finite is an overflow (the scaler lowers
    its scale) and only counted, until the scale has fallen so far that it cannot be the reason any more.
    """

    def __init__(self, config: Config, device: torch.device, scaler: torch.amp.GradScaler | None = None) -> None:
        self.factor = config.spike_factor or math.inf
        self.in_a_row = 0  # bad steps at the end of what was read; overflows do not count
        self.total = 0  # bad steps since the run began
        self.overflows = 0  # fp16: steps left out since the run began, for a scale that was too large
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._usual = torch.zeros((), device=device)
        self._good = torch.zeros((), device=device)  # steps in the mean
        self._rows = torch.zeros(_ROWS, 4, device=device)  # bad, norm, usual, fp16 scale of each step not yet read
        self._pending: list[tuple[int, int, tuple[int, ...]]] = []  # step, epoch, samples of these rows
        self._found: list[Bad] = []  # read, and not yet told

    def judge(self, grad_norm: Tensor, step: int, sample_ids: Sequence[int] = (), epoch: int = 0) -> Tensor:
        """1.0 where the update with this gradient must be left out, else 0.0: 0-dim float32 on the device.

        `grad_norm` is the norm before clipping, unscaled. `sample_ids` are numbers of the samples in its batches.
        """
        if len(self._pending) == _ROWS:
            self._collect()
        norm = grad_norm.detach().float()
        spike = (norm > self._usual * self.factor) & (self._good >= _WARM_UP)
        bad = spike | ~torch.isfinite(norm)
        scale = self._scaler.scale(torch.ones_like(norm)) if self._scaler else torch.zeros_like(norm)
        flag = bad.float()
        torch.stack((flag, norm, self._usual, scale), out=self._rows[len(self._pending)])
        self._pending.append((step, epoch, tuple(sample_ids)))
        self._good += 1 - flag
        weight = (1 / self._good.clamp(min=1)).clamp(min=_MEMORY)
        self._usual += torch.where(bad, 0.0, weight * (norm - self._usual))
        return flag

    def read(self) -> list[Bad]:
        """The bad steps since the last call, overflows left out. Waits for the device."""
        self._collect()
        found, self._found = self._found, []
        return found

    def _collect(self) -> None:
        rows = self._rows[: len(self._pending)].tolist()
        for (step, epoch, samples), (bad, norm, usual, scale) in zip(self._pending, rows, strict=True):
            if not bad:
                self.in_a_row = 0
            elif scale > _SMALLEST_SCALE and not math.isfinite(norm):
                self.overflows += 1
            else:
                self.in_a_row += 1
                self.total += 1
                finite = math.isfinite(norm)
                kind: Literal["not_finite", "spike"] = "spike" if finite else "not_finite"
                self._found.append(Bad(step, kind, norm if finite else None, usual or None, epoch, samples))
        self._pending.clear()

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint. Waits for the device."""
        self._collect()
        return {
            "usual": self._usual.item(),
            "good": self._good.item(),
            "in_a_row": self.in_a_row,
            "total": self.total,
            "overflows": self.overflows,
            "found": [asdict(bad) for bad in self._found],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Bring back what `state` gave; what was judged since is forgotten. Empty: as at the beginning."""
        self._usual.fill_(state.get("usual", 0.0))
        self._good.fill_(state.get("good", 0.0))
        self.in_a_row, self.total = state.get("in_a_row", 0), state.get("total", 0)
        self.overflows = state.get("overflows", 0)
        self._found = [Bad(**{**bad, "samples": tuple(bad["samples"])}) for bad in state.get("found", ())]
        self._pending.clear()


class Noise:
    """The simple gradient noise scale (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training",
    appendix A.1), from the gradient of a step's first micro-batch and of all of them.

    Batches far beyond the noise scale gain little. Both estimates are averaged before they are divided,
    as the paper does. Needs at least two micro-batches in a step.
    """

    def __init__(self, device: torch.device, scaler: torch.amp.GradScaler | None = None) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.mean = torch.zeros(3, dtype=torch.float64, device=device)  # steps, trace of the covariance, |gradient|²
        self._averaged = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64, device=device)  # what of it is a mean
        self._first: tuple[Tensor, int] | None = None

    def first(self, parameters: Iterable[Tensor], tokens: int) -> None:
        """After the backward pass of a step's first micro-batch of `tokens` tokens, scaled as all of them are."""
        gradients = [weight.grad for weight in parameters if weight.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        if self._scaler:
            norm = norm / self._scaler.scale(torch.ones_like(norm))
        self._first = (norm, tokens)

    def last(self, norm: Tensor, tokens: int) -> None:
        """After all micro-batches of a step, `tokens` tokens in all: the unscaled norm before clipping."""
        (small_norm, small), self._first = self._first or (norm, tokens), None
        if small <= 0 or small >= tokens:
            return
        # A step's gradient is the sum over micro-batches divided by all its tokens: back to the mean of the first.
        small_2 = (small_norm.detach().double() * (tokens / small)) ** 2
        large_2 = norm.detach().double() ** 2
        trace = (small_2 - large_2) / (1 / small - 1 / tokens)
        gradient_2 = (tokens * large_2 - small * small_2) / (tokens - small)
        newest = torch.stack((torch.ones_like(trace), trace, gradient_2))
        weight = (1 / (self.mean[0] + 1)).clamp(min=_MEMORY)
        moved = self.mean + torch.stack((torch.ones_like(weight), weight, weight)) * (
            newest - self.mean * self._averaged
        )
        self.mean = torch.where(torch.isfinite(newest).all(), moved, self.mean)

    def read(self) -> float | None:
        """The noise scale in tokens; None: nothing measured, or noise alone (no gradient to be seen). Waits."""
        return self.scale(*self.mean.tolist())

    @staticmethod
    def scale(steps: float, trace: float, gradient_2: float) -> float | None:
        """The noise scale in tokens from the values of `mean`, for who reads them late."""
        return trace / gradient_2 if steps and trace > 0 and gradient_2 > 0 else None

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint. Waits for the device."""
        return {"mean": self.mean.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Bring back what `state` gave. Empty: as at the beginning."""
        self.mean.copy_(torch.tensor(state.get("mean", [0.0, 0.0, 0.0]), dtype=torch.float64))


class Plateau:
    """What the learning rate is multiplied by: lowered when the eval loss has not become better for a while.

    Stays at 1 unless the schedule is `plateau`. Ends at `min_learning_rate_ratio`.
    """

    def __init__(self, config: Config) -> None:
        self.scale = 1.0
        self._on = config.lr_schedule == "plateau"
        self._patience, self._factor = config.plateau_patience, config.plateau_factor
        self._lowest = config.min_learning_rate_ratio
        self._best: float | None = None
        self._waited = 0  # evaluations since the best one, or since the rate was lowered

    def observe(self, loss: float | None) -> bool:
        """Take the loss of an evaluation (None: no finite number). True: the rate is lowered from the next step on."""
        if loss is not None and (self._best is None or loss < self._best):
            self._best, self._waited = loss, 0
            return False
        self._waited += 1
        if not self._on or self._waited < self._patience or self.scale <= self._lowest:
            return False
        self.scale, self._waited = max(self._lowest, self.scale * self._factor), 0
        return True

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"scale": self.scale, "best": self._best, "waited": self._waited}

    def load_state(self, state: dict[str, Any]) -> None:
        """Bring back what `state` gave. Empty: as at the beginning."""
        self.scale = state.get("scale", 1.0) if self._on else 1.0
        self._best, self._waited = state.get("best"), state.get("waited", 0)
