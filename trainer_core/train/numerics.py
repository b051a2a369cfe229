"""Bad steps, gradient noise and plateau detection: computed on the device, read late, stored in checkpoints.

Only `GradientMonitor.read`, `GradientNoise.read` and `state_dict` synchronize with a GPU. Call them where the loss is
read or a checkpoint is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from trainer_core.config import Config

_WARM_UP: Final = 20  # good steps before spike detection starts: early norms are far above later ones
_MEMORY: Final = 0.01  # weight of the newest norm in the running mean, after 100 steps
_ROWS: Final = 1024  # maximum unread steps; then they are read
_SMALLEST_SCALE: Final = 1.0  # fp16: non-finite values at this scale are no overflow


@dataclass(frozen=True, slots=True)
class BadStepRecord:
    """A skipped step."""

    step: int
    kind: Literal["not_finite", "spike"]
    grad_norm: float | None  # None: not finite
    usual: float | None  # running mean of earlier norms; None: no norms yet
    epoch: int = 0
    samples: tuple[int, ...] = ()


class GradientMonitor:
    """Detects bad steps by the gradient norm: not finite, or above `spike_factor` times its running mean.

    Norms of bad steps do not enter the mean. With fp16, non-finite gradients are overflows (the scaler lowers its
    scale) and only counted, until the scale is too small to be the cause.
    """

    def __init__(self, config: Config, device: torch.device, scaler: torch.amp.GradScaler | None = None) -> None:
        self.factor = config.spike_factor or math.inf
        self.in_a_row = 0  # consecutive bad steps at the end of what was read; without overflows
        self.total = 0  # bad steps since the run began
        self.overflows = 0  # fp16: steps skipped since the run began because the scale was too large
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._usual = torch.zeros((), device=device)
        self._good = torch.zeros((), device=device)  # steps in the mean
        self._rows = torch.zeros(_ROWS, 4, device=device)  # per unread step: bad, norm, usual norm, fp16 scale
        self._pending: list[tuple[int, int, tuple[int, ...]]] = []  # step, epoch, samples of these rows
        self._found: list[BadStepRecord] = []  # read but not yet reported

    def judge(self, grad_norm: Tensor, step: int, sample_ids: Sequence[int] = (), epoch: int = 0) -> Tensor:
        """Returns 1.0 if the update with this gradient must be skipped, else 0.0: 0-dim float32 on the device.

        `grad_norm`: norm before clipping, unscaled. `sample_ids`: numbers of the samples in the step.
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

    def read(self) -> list[BadStepRecord]:
        """Bad steps since the last call, without overflows. Synchronizes."""
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
                self._found.append(BadStepRecord(step, kind, norm if finite else None, usual or None, epoch, samples))
        self._pending.clear()

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint. Synchronizes."""
        self._collect()
        return {
            "usual": self._usual.item(),
            "good": self._good.item(),
            "in_a_row": self.in_a_row,
            "total": self.total,
            "overflows": self.overflows,
            "found": [asdict(bad) for bad in self._found],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned and discard unread steps. Empty: initial state."""
        self._usual.fill_(state.get("usual", 0.0))
        self._good.fill_(state.get("good", 0.0))
        self.in_a_row, self.total = state.get("in_a_row", 0), state.get("total", 0)
        self.overflows = state.get("overflows", 0)
        self._found = [BadStepRecord(**{**bad, "samples": tuple(bad["samples"])}) for bad in state.get("found", ())]
        self._pending.clear()


class GradientNoise:
    """The simple gradient noise scale (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix
    A.1), from the gradients of a step's first micro-batch and of all micro-batches.

    Batches far above the noise scale gain little. Both estimates are averaged before the division, as in the paper.
    Needs at least two micro-batches per step.
    """

    def __init__(self, device: torch.device, scaler: torch.amp.GradScaler | None = None) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.mean = torch.zeros(3, dtype=torch.float64, device=device)  # steps, trace of the covariance, |gradient|²
        self._averaged = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64, device=device)  # which of these are means
        self._first: tuple[Tensor, int] | None = None

    def record_first(self, gradients: Sequence[Tensor], tokens: int) -> None:
        """Record the gradients (or their norms) of a part of a step with `tokens` tokens, scaled like all of them: its
        first micro-batch, or the share of one rank.
        """
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        if self._scaler:
            norm = norm / self._scaler.scale(torch.ones_like(norm))
        self._first = (norm, tokens)

    def record_last(self, norm: Tensor, tokens: int) -> None:
        """Call after all micro-batches of a step with `tokens` tokens: the unscaled norm before clipping."""
        (small_norm, small), self._first = self._first or (norm, tokens), None
        if small <= 0 or small >= tokens:
            return
        # A step's gradient is the sum over micro-batches divided by all its tokens: undo this for the first.
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
        """Noise scale in tokens; None: not measured, or no gradient above the noise. Synchronizes."""
        return self.scale(*self.mean.tolist())

    @staticmethod
    def scale(steps: float, trace: float, gradient_2: float) -> float | None:
        """Noise scale in tokens from the values of `mean`."""
        return trace / gradient_2 if steps and trace > 0 and gradient_2 > 0 else None

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint. Synchronizes."""
        return {"mean": self.mean.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Empty: initial state."""
        self.mean.copy_(torch.tensor(state.get("mean", [0.0, 0.0, 0.0]), dtype=torch.float64))


class PlateauSchedule:
    """Learning rate factor, lowered when evaluations have stopped improving, and early stopping.

    The factor stays at 1 unless the schedule is `plateau`. Its minimum is `min_learning_rate_ratio`.
    """

    def __init__(self, config: Config) -> None:
        self.scale = 1.0
        self._on = config.lr_schedule == "plateau"
        self._patience, self._factor = config.plateau_patience, config.plateau_factor
        self._lowest = config.min_learning_rate_ratio
        self._stop_patience = config.early_stop_patience
        self._since_best = 0  # evaluations
        self._waited = 0  # evaluations since the best one or the last reduction

    def observe(self, is_best: bool) -> bool:
        """Record whether an evaluation was the best so far. True: the rate is lowered from the next step on."""
        if is_best:
            self._waited = self._since_best = 0
            return False
        self._waited += 1
        self._since_best += 1
        if not self._on or self._waited < self._patience or self.scale <= self._lowest:
            return False
        self.scale, self._waited = max(self._lowest, self.scale * self._factor), 0
        return True

    @property
    def ends_run(self) -> bool:
        """Whether `early_stop_patience` evaluations in a row were no improvement."""
        return 0 < self._stop_patience <= self._since_best

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"scale": self.scale, "waited": self._waited, "since_best": self._since_best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Empty: initial state."""
        self.scale = state.get("scale", 1.0) if self._on else 1.0
        self._waited, self._since_best = state.get("waited", 0), state.get("since_best", 0)
