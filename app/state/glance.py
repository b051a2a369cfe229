"""A run at a glance: what fits into a tray icon's tooltip and the progress of a taskbar button."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.state.run_machine import ENDED, RunMachine, RunState

Mood = Literal["working", "paused", "bad", "done"]


@dataclass(frozen=True, slots=True)
class Glance:
    """Compared with the one before: what is the same is not shown again."""

    mood: Mood
    state: RunState
    permille: int | None  # 0..1000 of the run, or of the present work before it; None: unknown
    step: int
    total_steps: int  # 0: unknown
    loss: float | None
    minutes_left: int | None  # rounded up; None: unknown. Seconds would change the tooltip all the time

    @property
    def is_over(self) -> bool:
        return self.mood in ("bad", "done")


def of(machine: RunMachine, loss: float | None) -> Glance:
    """The run as it is now; `loss` is the newest."""
    progress, eta = machine.progress, machine.eta_s
    return Glance(
        _mood(machine.state),
        machine.state,
        None if progress is None else round(1000 * progress),
        machine.step,
        machine.total_steps,
        loss,
        None if eta is None else int(eta // 60) + 1,
    )


def _mood(state: RunState) -> Mood:
    if state is RunState.PAUSED:
        return "paused"
    if state in (RunState.FAILED, RunState.CRASHED):
        return "bad"
    return "done" if state in ENDED or state is RunState.IDLE else "working"
