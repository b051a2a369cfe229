"""Selects run events that warrant a desktop notification: the end of a run, a run that waits, and a run whose results
are lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from app.core.run_state import RunState, RunStateMachine
from trainer_core import protocol
from trainer_core.protocol import AnyEvent, Param

NotificationKind = Literal["finished", "failed", "not_a_number", "queue_held", "queue_done", "attention"]

NOTIFIED_WARNINGS: Final = frozenset({"disk.waiting", "checkpoint.not_saved", "events.not_written", "pause.no_room"})
"""Warnings that need attention soon: the run waits for disk space, or its results are not saved."""
NOTIFIED_ADVICE: Final = frozenset({"advice.thermal", "advice.battery", "advice.disk_low", "advice.not_finite"})
"""Urgent advice: hardware problems, or a model that no longer learns."""


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification. `code` is a message code; empty if `kind` is sufficient."""

    kind: NotificationKind
    code: str = ""
    params: dict[str, Param] = field(default_factory=dict)
    step: int = 0
    loss: float | None = None  # final loss; None: unknown


class NotificationFilter:
    """Selects run events that warrant a desktop notification, each at most once."""

    def __init__(self) -> None:
        self._sent: set[str] = set()

    def process(self, event: AnyEvent) -> Notification | None:
        """Process an event of the run."""
        match event:
            case protocol.Hello(resumed_from_step=None):
                self._sent.clear()
            case protocol.Warn(code=code) if code in NOTIFIED_WARNINGS:
                return self._notify_once(code, event.params)
            case protocol.Advice(code=code) if code in NOTIFIED_ADVICE:
                if event.resolved:
                    self._sent.discard(code)
                    return None
                return self._notify_once(code, event.params)
            case protocol.Step(loss=None) | protocol.BadStep(kind="not_finite", action="rolled_back"):
                return self._notify_once("not_a_number", {}, "not_a_number", event.step)
            case protocol.Phase(phase="training"):
                self._sent.discard("disk.waiting")  # space was available again; a later warning is a new one
        return None

    def on_run_ended(self, machine: RunStateMachine, *, will_restart: bool) -> Notification | None:
        """The process exited. `will_restart`: it is restarted automatically, so no notification is needed."""
        if will_restart:
            return None
        self._sent.clear()
        error = machine.last_error
        match machine.state:
            case RunState.FINISHED:
                done = machine.done
                loss = None if done is None else (done.final_loss if done.best_loss is None else done.best_loss)
                return Notification("finished", step=machine.step, loss=loss)
            case RunState.FAILED | RunState.CRASHED if error is not None:
                return Notification("failed", error.code, error.params, machine.step)
            case RunState.FAILED | RunState.CRASHED:
                return Notification("failed", step=machine.step)
        return None

    def _notify_once(
        self, key: str, params: dict[str, Param], kind: NotificationKind = "attention", step: int = 0
    ) -> Notification | None:
        if key in self._sent:
            return None
        self._sent.add(key)
        return Notification(kind, key if kind == "attention" else "", dict(params), step)
