"""Short status of a run for the tray icon and the taskbar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.core.run_state import ENDED_STATES, RunState, RunStateMachine

RunIndicator = Literal["working", "paused", "bad", "done"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Compared with the previous status, to skip updates."""

    indicator: RunIndicator
    state: RunState
    permille: int | None  # 0..1000 of the run, or of the current phase before it; None: unknown
    step: int
    total_steps: int  # 0: unknown
    loss: float | None
    minutes_left: int | None  # rounded up; None: unknown. Seconds would change the tooltip constantly

    @property
    def is_over(self) -> bool:
        return self.indicator in ("bad", "done")


def run_status(machine: RunStateMachine, loss: float | None) -> RunStatus:
    """Current status; `loss` is the latest."""
    progress, eta = machine.progress, machine.eta_s
    return RunStatus(
        _run_indicator(machine.state),
        machine.state,
        None if progress is None else round(1000 * progress),
        machine.step,
        machine.total_steps,
        loss,
        None if eta is None else int(eta // 60) + 1,
    )


def _run_indicator(state: RunState) -> RunIndicator:
    if state is RunState.PAUSED:
        return "paused"
    if state in (RunState.FAILED, RunState.CRASHED):
        return "bad"
    return "done" if state in ENDED_STATES or state is RunState.IDLE else "working"
