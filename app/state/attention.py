"""What a person who looks elsewhere wants to be told of a run: which of its events count, each of them once.

A run tells a thousand things; the window shows them all. Here are those that somebody would get up for: it is over, it
waits for somebody, or what it does is in vain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from app.state.run_machine import RunMachine, RunState
from trainer_core import protocol
from trainer_core.protocol import AnyEvent, Param

Kind = Literal["finished", "failed", "not_a_number", "queue_held", "queue_done", "attention"]

WARNINGS: Final = frozenset({"disk.waiting", "checkpoint.not_saved", "events.not_written", "pause.no_room"})
"""Warnings that somebody should see soon: the run waits for room, or what it makes is not kept."""
ADVICE: Final = frozenset({"advice.thermal", "advice.battery", "advice.disk_low", "advice.not_finite"})
"""Advice that cannot wait until somebody comes by: the machine suffers, or the model learns nothing any more."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell. `code` names its words in `messages.CATALOGUE`; it is empty where `kind` says it all."""

    kind: Kind
    code: str = ""
    params: dict[str, Param] = field(default_factory=dict)
    step: int = 0
    loss: float | None = None  # of the end; None: not known


class Attention:
    """Listens to one run after the other. What it returns is to be told, once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def add(self, event: AnyEvent) -> Notice | None:
        """Take one event of the run."""
        match event:
            case protocol.Hello(resumed_from_step=None):
                self._told.clear()
            case protocol.Warn(code=code) if code in WARNINGS:
                return self._once(code, event.params)
            case protocol.Advice(code=code) if code in ADVICE:
                if event.over:
                    self._told.discard(code)
                    return None
                return self._once(code, event.params)
            case protocol.Step(loss=None) | protocol.BadStep(kind="not_finite", action="rolled_back"):
                return self._once("not_a_number", {}, "not_a_number", event.step)
            case protocol.Phase(phase="training"):
                self._told.discard("disk.waiting")  # there was room again; the next time is another one
        return None

    def ended(self, machine: RunMachine, *, restarts: bool) -> Notice | None:
        """The process is gone. `restarts`: it goes on by itself, so nobody is needed, and what was told was told."""
        if restarts:
            return None
        self._told.clear()
        error = machine.last_error
        match machine.state:
            case RunState.FINISHED:
                done = machine.done
                loss = None if done is None else (done.final_loss if done.best_loss is None else done.best_loss)
                return Notice("finished", step=machine.step, loss=loss)
            case RunState.FAILED | RunState.CRASHED if error is not None:
                return Notice("failed", error.code, error.params, machine.step)
            case RunState.FAILED | RunState.CRASHED:
                return Notice("failed", step=machine.step)
        return None

    def _once(self, key: str, params: dict[str, Param], kind: Kind = "attention", step: int = 0) -> Notice | None:
        if key in self._told:
            return None
        self._told.add(key)
        return Notice(kind, key if kind == "attention" else "", dict(params), step)
