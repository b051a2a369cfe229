"""Bad steps: left out on the device, found some steps later, and then told, gone back from, or the end.

Going back follows PaLM (Chowdhery et al. 2022, section 5.1): training goes on from the last good checkpoint with
the data behind the bad batch. A spike comes from particular data meeting particular weights, so the same
batches would lead to it again. Where training is in the data is one number of the checkpoint, so nothing
else need be remembered: a run that is interrupted after that finds the same step bad, or is past it already.
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
from trainer_core.data.batches import Batch
from trainer_core.messages import TraindeckError
from trainer_core.model.decoder import Decoder
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.session import Session
from trainer_core.train.numerics import Bad, Watch

_MOST_ROLLBACKS: Final = 5  # to one checkpoint: what fails so often has another reason than its data
_REMEMBERED: Final = 2048  # steps whose place in the data is known still; more than can wait to be read


@dataclass(frozen=True, slots=True)
class Return:
    """Where training resumes after a bad step: with the state of `folder`, at sample `position` of the data."""

    bad: Bad
    folder: Path
    position: int
    times: int  # that training goes back to there, this one included


class Recovery:
    """Judges every step, and says what to do about the bad ones."""

    def __init__(
        self,
        config: Config,
        run: RunDir,
        session: Session,
        device: torch.device,
        scaler: torch.amp.GradScaler,
        saved: Callable[[], None],
    ) -> None:
        """`saved` waits until the checkpoint that is being written is on disk."""
        self._config, self._run, self._session, self._wait_until_saved = config, run, session, saved
        self.watch = Watch(config, device, scaler)
        self.count = torch.zeros((), device=device)  # steps left out in this process
        self._known = 0.0  # of these
        self._back_to, self._times = -1, 0  # the step that training went back to last, and how often in a row
        self._places: deque[tuple[int, int]] = deque(
            maxlen=_REMEMBERED
        )  # steps, and the position in the data after them

    def judge(self, grad_norm: Tensor, step: int, window: list[Batch], position: int) -> Tensor:
        """1.0 where the update must be left out, else 0.0: 0-dim float32 on the device. `position`: samples that
        the run has used when the step is done."""
        samples = [number for batch in window for number in batch.ids]
        flag = self.watch.judge(grad_norm, step, samples, window[0].epoch)
        self.count += flag
        self._places.append((step, position))
        return flag

    def answer(self, count: float) -> Return | None:
        """Take the value that `count` had: tell what is new, and where to go back to if that is to be done.

        Raises `train.bad_steps`.
        """
        if count == self._known:
            return None
        found, self._known = self.watch.read(), float(self.count)
        for bad in found:
            if self._config.on_bad_step == "stop":
                self._give_up(bad, 1)
            place = self._place(bad)
            if place is not None:
                return place
            if bad is found[-1] and self.watch.in_a_row >= self._config.bad_step_limit:
                self._give_up(bad, self.watch.in_a_row)
            self._tell(bad, "skipped")
        return None

    def _place(self, bad: Bad) -> Return | None:
        """None where bad steps are only left out, and where there is no checkpoint yet."""
        position = dict(self._places).get(bad.step)
        target = self._target(bad.step) if self._config.on_bad_step == "rollback" else None
        if target is None or position is None:
            return None
        times = self._times + 1 if self._back_to == target.step else 1
        if times > min(_MOST_ROLLBACKS, self._config.bad_step_limit):
            self._give_up(bad, times)
        self._tell(bad, "rolled_back")
        return Return(bad, target.path, position, times)

    def _target(self, step: int) -> checkpoint_dir.CheckpointInfo | None:
        """The newest checkpoint before `step` that is whole: one that was due, so that it is the same however often
        the run was stopped and resumed; else any."""
        self._wait_until_saved()
        infos = [info for info in checkpoint_dir.infos_of(self._run.checkpoints) if info.step < step]
        due = [info for info in infos if info.step == self.due_before(info.step)]
        for info in [*reversed(due), *reversed(infos)]:
            if checkpoint_dir.problem(info.path) is None:
                return info
        return None

    def due_before(self, step: int) -> int:
        """The step up to `step` whose checkpoint must be kept for going back to; -1: none."""
        every = self._config.save_steps if self._config.on_bad_step == "rollback" else 0
        return step // every * every if every else -1

    def came_back(self, back: Return, step: int) -> None:
        """After the state of `back.folder`, of `step`, was loaded."""
        self._back_to, self._times = step, back.times
        self._known = float(self.count)
        self._places.clear()
        self._session.warn("train.rolled_back", step=back.bad.step, to=step)

    def _tell(self, bad: Bad, action: Literal["skipped", "rolled_back", "stopped"]) -> None:
        norm = bad.grad_norm if bad.grad_norm is not None and math.isfinite(bad.grad_norm) else None
        self._session.emit(
            protocol.BadStep(
                step=bad.step,
                kind=bad.kind,
                grad_norm=norm,
                usual=bad.usual,
                action=action,
                epoch=bad.epoch,
                samples=list(bad.samples),
            )
        )

    def _give_up(self, bad: Bad, count: int) -> None:
        self._tell(bad, "stopped")
        raise TraindeckError("train.bad_steps", count=count, step=bad.step)

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"watch": self.watch.state(), "back_to": self._back_to, "times": self._times}

    def load_state(self, state: dict[str, Any]) -> None:
        """Bring back what `state` gave. Empty: as at the beginning."""
        self.watch.load_state(state.get("watch", {}))
        self._back_to, self._times = state.get("back_to", -1), state.get("times", 0)
        self._known = -1.0  # what was found before may not be told yet


def refuse_what_is_not_finite(model: Decoder, loss_sum: float, step: int) -> None:
    """Before saving: raises `train.not_finite` for broken weights, or a loss that tells of them.

    Steps whose gradient is not finite are left out, so it says nothing: the weights are looked at themselves.
    """
    weights = [weight.detach() for weight in model.parameters()]
    norm = torch.nn.utils.get_total_norm(weights)  # the largest weights would take 40 times as long on a CPU
    for value in (loss_sum, float(norm)):
        if not math.isfinite(value):
            raise TraindeckError("train.not_finite", value=str(value), step=step)
