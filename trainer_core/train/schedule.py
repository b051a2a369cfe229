"""Length of a run, and learning rate of each step.

With `max_steps`, both count optimizer updates. Otherwise they count samples (sequences in the order of an epoch), so a
run that is resumed with another batch size, accumulation or number of processes trains on the remaining samples, and
its learning rate continues from the share of samples done.
"""

from __future__ import annotations

import math

from trainer_core.config import Config


class Schedule:
    """Length and learning rate of a run with these settings on `samples_per_epoch` samples.

    `step` and `position` below count optimizer updates and samples of the run so far, over all epochs.
    """

    def __init__(self, config: Config, samples_per_epoch: int, warmup_samples: int | None = None) -> None:
        """`warmup_samples`: length of the warmup from the run's first start; None: this is the first start."""
        self._config, self._samples = config, samples_per_epoch
        self.warmup_samples = self._samples_of_warmup() if warmup_samples is None else warmup_samples

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer updates per epoch, including a shorter last one."""
        return self._steps(self._samples)

    def total_steps(self, step: int, position: int) -> int:
        """Steps of the whole run, of which `step` are done; the rest is counted with the present batch size."""
        if self._config.max_steps:
            return self._config.max_steps
        epoch, used = divmod(position, self._samples)
        if epoch >= self._config.max_epochs:
            return step
        later_epochs = self._config.max_epochs - epoch - 1
        return step + self._steps(self._samples - used) + later_epochs * self.steps_per_epoch

    def learning_rate(self, step: int, position: int, scale: float = 1.0) -> float:
        """Learning rate of the update that completes `step` steps and `position` samples.

        Linear warmup to the peak, then cosine, linear or constant down to the end ratio; with `plateau` the peak times
        `scale`, which `numerics.PlateauSchedule` lowers.
        """
        if self._config.max_steps:
            done, total, warmup = step, self._config.max_steps, self._warmup_steps(self._config.max_steps)
        else:
            done, total, warmup = position, self._config.max_epochs * self._samples, self.warmup_samples
        peak = self._config.learning_rate * scale
        if done <= warmup:
            return peak * done / warmup
        if self._config.lr_schedule in ("constant", "plateau"):
            return peak
        share = min(1.0, (done - warmup) / max(1, total - warmup))
        low = self._config.min_learning_rate_ratio
        decay = 0.5 * (1 + math.cos(math.pi * share)) if self._config.lr_schedule == "cosine" else 1 - share
        return peak * (low + (1 - low) * decay)

    def _steps(self, samples: int) -> int:
        return -(-samples // self._config.effective_batch)

    def _warmup_steps(self, total_steps: int) -> int:
        """A warmup longer than the run is cut to a tenth of the run, so that a short trial still reaches the peak."""
        return self._config.warmup_steps if self._config.warmup_steps < total_steps else total_steps // 10

    def _samples_of_warmup(self) -> int:
        epochs, steps = divmod(self._warmup_steps(self.total_steps(0, 0)), self.steps_per_epoch)
        return epochs * self._samples + min(steps * self._config.effective_batch, self._samples)
