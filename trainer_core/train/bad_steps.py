"""Bad steps: skipped on the device, detected some steps later, then reported, rolled back, or fatal.

A rollback follows PaLM (Chowdhery et al. 2022, section 5.1): training continues from the last good checkpoint with the
data behind the bad batch. A loss spike comes from particular data meeting particular weights, so the same batches would
cause it again. The data position is one number in the checkpoint: an interrupted run detects the same bad step again,
or is already past it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.batch import Batch
from trainer_core.messages import TraindeckError
from trainer_core.models.sharding import whole_tensor
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.train.numerics import BadStepRecord, GradientMonitor

_MAX_ROLLBACKS: Final = 5  # to one checkpoint; more failures have another cause than data
_HISTORY: Final = 2048  # steps whose data position is kept; more than can wait to be read


@dataclass(frozen=True, slots=True)
class Rollback:
    """Where training resumes after a bad step: with the state of `folder`, at sample `position` of the data."""

    bad: BadStepRecord
    folder: Path
    position: int
    count: int  # consecutive rollbacks to this checkpoint


class BadStepHandler:
    """Detects bad steps and decides what to do."""

    def __init__(
        self,
        config: Config,
        run: RunDir,
        context: RunContext,
        device: torch.device,
        scaler: torch.amp.GradScaler,
    ) -> None:
        self._config, self._run, self._context = config, run, context
        self.monitor = GradientMonitor(config, device, scaler)
        self.count = torch.zeros((), device=device)  # steps skipped in this process
        self._known = 0.0  # value of `count` that was handled
        self._back_to, self._times = -1, 0  # step of the last rollback, and consecutive rollbacks to it
        self._positions: deque[tuple[int, int]] = deque(maxlen=_HISTORY)  # step and the data position behind it

    def judge(self, grad_norm: Tensor, step: int, window: list[Batch], position: int) -> Tensor:
        """Returns 1.0 if the update must be skipped, else 0.0: 0-dim float32 on the device. `position`: samples used
        when the step is done.
        """
        samples = [number for batch in window for number in batch.sample_ids]
        flag = self.monitor.judge(grad_norm, step, samples, window[0].epoch)
        self.count += flag
        self._positions.append((step, position))
        return flag

    def handle(self, count: float, wait_until_saved: Callable[[], None]) -> Rollback | None:
        """Handle a value of `count`: report new bad steps and return the rollback, if one is due.

        `wait_until_saved` waits for the current checkpoint write. Raises `train.bad_steps`.
        """
        if count == self._known:
            return None
        found, self._known = self.monitor.read(), float(self.count)
        for bad in found:
            if self._config.on_bad_step == "stop":
                self._give_up(bad, 1)
            if self._config.on_bad_step == "rollback":
                wait_until_saved()
                rollback = self._find_rollback(bad)
                if rollback is not None:
                    return rollback
            if bad is found[-1] and self.monitor.in_a_row >= self._config.bad_step_limit:
                self._give_up(bad, self.monitor.in_a_row)
            self._emit(bad, "skipped")
        return None

    def _find_rollback(self, bad: BadStepRecord) -> Rollback | None:
        """None if there is no checkpoint yet."""
        position = dict(self._positions).get(bad.step)
        target = self._target(bad.step)
        if target is None or position is None:
            return None
        times = self._times + 1 if self._back_to == target.step else 1
        if times > min(_MAX_ROLLBACKS, self._config.bad_step_limit):
            self._give_up(bad, times)
        self._emit(bad, "rolled_back")
        return Rollback(bad, target.path, position, times)

    def _target(self, step: int) -> checkpoint_dir.CheckpointInfo | None:
        """The newest good checkpoint before `step`: a scheduled one, so that it does not depend on stops and resumes;
        otherwise any.
        """
        infos = [info for info in checkpoint_dir.list_infos(self._run.checkpoints) if info.step < step]
        due = [info for info in infos if info.step == self.rollback_step(info.step)]
        for info in [*reversed(due), *reversed(infos)]:
            if checkpoint_dir.find_problem(info.path) is None:
                return info
        return None

    def rollback_step(self, step: int) -> int:
        """The step up to `step` whose checkpoint rollbacks need; -1: none."""
        every = self._config.save_steps if self._config.on_bad_step == "rollback" else 0
        return step // every * every if every else -1

    def on_rolled_back(self, back: Rollback, step: int) -> None:
        """Record that the state of `back.folder`, of `step`, was loaded."""
        self._back_to, self._times = step, back.count
        self._known = float(self.count)
        self._positions.clear()
        self._context.warn("train.rolled_back", step=back.bad.step, to=step)

    def _emit(self, bad: BadStepRecord, action: Literal["skipped", "rolled_back", "stopped"]) -> None:
        norm = bad.grad_norm if bad.grad_norm is not None and math.isfinite(bad.grad_norm) else None
        self._context.emit(
            protocol.BadStep(
                step=bad.step,
                kind=bad.kind,
                grad_norm=norm,
                mean_grad_norm=bad.usual,
                action=action,
                epoch=bad.epoch,
                samples=list(bad.samples),
            )
        )

    def _give_up(self, bad: BadStepRecord, count: int) -> None:
        self._emit(bad, "stopped")
        raise TraindeckError("train.bad_steps", count=count, step=bad.step)

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"watch": self.monitor.state_dict(), "back_to": self._back_to, "times": self._times}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Empty: initial state."""
        self.monitor.load_state_dict(state.get("watch", {}))
        self._back_to, self._times = state.get("back_to", -1), state.get("times", 0)
        self._known = -1.0  # bad steps found before may not be reported yet


def require_finite(trained: list[Tensor], loss_sum: float, step: int) -> None:
    """Raises `train.not_finite` for non-finite weights or loss, before saving.

    Steps with non-finite gradients are skipped, so the loss alone does not tell: the weights are checked too.
    """
    norm = whole_tensor(torch.nn.utils.get_total_norm(trained))  # a maximum would take 40 times as long on a CPU
    for value in (loss_sum, float(norm)):
        if not math.isfinite(value):
            raise TraindeckError("train.not_finite", value=str(value), step=step)
