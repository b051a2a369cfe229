"""The state of one run, as a machine fed with events: what the run bar shows and what may be pressed.

Whoever owns it passes every event of the trainer, every wish of the person and a tick of the clock
to `RunMachine.feed`, with `now` in seconds of a monotonic clock. The machine decides; it acts on
nothing. When `state` is KILLING, the owner kills the process; that is the only duty it hands out.

An event that makes no sense in the present state is ignored: events cross each other on the wire.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from app.state.training_time import TrainingTime
from trainer_core import protocol
from trainer_core.messages import ExitCode
from trainer_core.protocol import AnyEvent, Param, PauseReason, PhaseName


class RunState(enum.Enum):
    """What a run does, as a person would say it."""

    IDLE = "idle"
    STARTING = "starting"  # the process runs, nothing heard yet
    PREPARING = "preparing"  # data, checks
    COMPILING = "compiling"  # finding the fastest way to compute, and compiling the model
    TRAINING = "training"
    EVALUATING = "evaluating"
    SAVING = "saving"
    PAUSED = "paused"
    STOPPING = "stopping"
    KILLING = "killing"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"  # the trainer said why: `last_error`
    CRASHED = "crashed"  # it died without a word: show the last lines that it printed


ENDED: Final = frozenset({RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.CRASHED})
WORKING: Final = frozenset(
    {RunState.PREPARING, RunState.COMPILING, RunState.TRAINING, RunState.EVALUATING, RunState.SAVING}
)
ACTIVE: Final = WORKING | {RunState.STARTING, RunState.PAUSED, RunState.STOPPING, RunState.KILLING}

STOP_S: Final = 60.0
"""How long a trainer that was asked to stop may stay silent about it before it is killed."""
EXIT_S: Final = 30.0
"""How long a process may take to end after it said that the run is over (CUDA tears down slowly)."""
DOUBLE_CLICK_S: Final = 1.0
"""A second press on Stop within this time is a double click, not the wish to kill."""

_STATE_OF_PHASE: Final[dict[PhaseName, RunState]] = {
    "preparing": RunState.PREPARING,
    "checking": RunState.PREPARING,
    "compiling": RunState.COMPILING,
    "training": RunState.TRAINING,
    "evaluating": RunState.EVALUATING,
    "saving": RunState.SAVING,
    "paused": RunState.PAUSED,
    "stopping": RunState.STOPPING,
}
_SAID_BY_CODE: Final[dict[int, RunState]] = {
    ExitCode.FINISHED: RunState.FINISHED,
    ExitCode.USAGE: RunState.FAILED,
    ExitCode.STOPPED: RunState.STOPPED,
    ExitCode.DATA: RunState.FAILED,
    ExitCode.OUT_OF_MEMORY: RunState.FAILED,
    ExitCode.DEVICE: RunState.FAILED,
    ExitCode.DISK_FULL: RunState.FAILED,
}
"""How a run ended whose trainer said nothing but its exit code. 1 is what any uncaught exception gives."""
_STOPPING_WORK: Final = frozenset({"stopping", "saving", "done", "failed"})


@dataclass(frozen=True, slots=True)
class Started:
    """The trainer's process was asked to start. What is known before `hello` says it: it may die before that."""

    run_dir: str = ""
    has_checkpoint: bool = False  # it goes on from one
    trained: TrainingTime = field(default_factory=TrainingTime)  # by the processes before


@dataclass(frozen=True, slots=True)
class Exited:
    """The process is gone. `crashed`: by a signal or an exception that Python never saw."""

    exit_code: int
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class AskedStop:
    """Stop was pressed; a second time means: kill."""


@dataclass(frozen=True, slots=True)
class AskedPause:
    """Pause was pressed."""


@dataclass(frozen=True, slots=True)
class AskedResume:
    """Resume was pressed while paused. Resuming from disk is a new start instead."""


@dataclass(frozen=True, slots=True)
class AskedKill:
    """End it at once, whatever is lost."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Wish = AskedStop | AskedPause | AskedResume | AskedKill
Input = AnyEvent | Started | Exited | Wish | Tick


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """What ended the run, to be worded by its code."""

    code: str
    params: dict[str, Param] = field(default_factory=dict)
    detail: str = ""
    exit_code: int = 1


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """How far the present phase is. `total` is None while nobody knows."""

    phase: PhaseName
    done: float
    total: float | None
    unit: str

    @property
    def fraction(self) -> float | None:
        return min(1.0, max(0.0, self.done / self.total)) if self.total else None


_SILENT: Final = frozenset({protocol.Hardware, protocol.Performance})  # nothing for the run bar


class RunMachine:
    """One run from Start to its end. `feed` is the only way in; everything else reads."""

    def __init__(self, stop_s: float = STOP_S) -> None:
        self._stop_s = stop_s
        self._reset()

    def _reset(self) -> None:
        self.state = RunState.IDLE
        self.phase: PhaseName | None = None
        self.phase_progress: PhaseProgress | None = None
        self.run_dir = ""
        self.step = 0
        self.total_steps = 0  # 0 while unknown
        self.epoch = 0.0
        self.elapsed_s = 0.0  # of the run's processes, each from its first word on, without the time spent paused
        self.last_error: ErrorInfo | None = None
        self.done: protocol.Done | None = None
        self.exit_code: int | None = None
        self.has_checkpoint = False
        self.pause_pending = False  # asked, not yet paused
        self.pause_reason: PauseReason | None = None  # while it is paused
        self.pause_until: float | None = None  # when it goes on by itself, seconds since the epoch
        self.resume_pending = False
        self.killed = False
        self._trained = TrainingTime()
        self._before = 0.0  # of elapsed_s, what earlier processes took
        self._now = 0.0
        self._clock_set = False
        self._stop_asked_at: float | None = None
        self._deadline: float | None = None
        self._life_shown: set[str] = set()
        self._saved_bytes = 0.0
        self._eta: tuple[float, float] | None = None  # seconds to go, at which elapsed_s

    def moved(self, run_dir: str) -> None:
        """The folder of a run that is over has another name; empty: it is gone, with its checkpoints."""
        self.run_dir = run_dir
        self.has_checkpoint = self.has_checkpoint and bool(run_dir)

    # --- the one way in ---------------------------------------------------------------------------

    def feed(self, event: Input, now: float) -> bool:
        """Take one event at monotonic time `now`. Returns whether `state` changed."""
        before = self.state
        if type(event) in _SILENT:  # of many a second; a tick lets time pass as well
            return False
        if isinstance(event, Started):
            self._on_started(event, now)
            return self.state is not before
        self._advance(now)
        if self.state not in ACTIVE:
            return False
        self._take(event)
        return self.state is not before

    def _take(self, event: Input) -> None:
        match event:
            case protocol.Hello():
                self._on_hello(event)
            case protocol.Ready():
                self.total_steps = event.total_steps
            case protocol.Phase():
                self._on_phase(event)
            case protocol.Progress():
                self._on_progress(event)
            case protocol.Step():
                self._on_step(event)
            case protocol.Checkpoint():
                self.has_checkpoint = True
                self._sign_of_life(f"checkpoint {event.step}")
            case protocol.Error():
                self.last_error = ErrorInfo(event.code, dict(event.params), event.detail, event.exit_code)
                self._expect_exit()
            case protocol.Done():
                self._on_done(event)
            case protocol.Ack():
                self._on_ack(event)
            case AskedStop():
                self._on_asked_stop()
            case AskedPause():
                self.pause_pending = self.pause_pending or self.can_pause
            case AskedResume():
                self.resume_pending = self.resume_pending or self.state is RunState.PAUSED
                self.pause_pending = False
            case AskedKill():
                self._kill()
            case Exited():
                self._on_exited(event)
            case Tick():
                self._check_deadline()
            case _:  # measurements, samples, notices: nothing for the run bar
                pass

    def _advance(self, now: float) -> None:
        """Let time pass. A clock that goes backwards stands still."""
        passed = max(0.0, now - self._now) if self._clock_set else 0.0
        self._now, self._clock_set = max(now, self._now), True
        if self.state in ACTIVE and self.state not in (RunState.STARTING, RunState.PAUSED):
            self.elapsed_s += passed

    # --- what the trainer says ----------------------------------------------------------------------

    def _on_started(self, event: Started, now: float) -> None:
        if not self.can_start:
            return
        self._reset()
        self.state = RunState.STARTING
        self.run_dir, self.has_checkpoint = event.run_dir, event.has_checkpoint
        self._trained = event.trained
        self.elapsed_s = self._before = event.trained.seconds
        self._now, self._clock_set = now, True

    def _on_hello(self, event: protocol.Hello) -> None:
        self.run_dir = event.run_dir or self.run_dir
        max_steps = event.config.get("max_steps")
        self.total_steps = max_steps if isinstance(max_steps, int) else 0
        before, self._before = self._before, self._trained.until(event.resumed_from_step)
        self.elapsed_s += self._before - before  # what is done again is no time of the run
        if event.resumed_from_step is not None:
            self.step, self.has_checkpoint = event.resumed_from_step, True
        self._move(RunState.PREPARING)

    def _on_phase(self, event: protocol.Phase) -> None:
        self.phase = event.phase
        if self.phase_progress is not None and self.phase_progress.phase != event.phase:
            self.phase_progress = None
        self.step = max(self.step, event.step or 0)
        self.pause_reason, self.pause_until = event.reason, event.until
        if event.phase == "paused":
            self.pause_pending = False
        else:
            self.resume_pending = False
        if event.phase in _STOPPING_WORK:
            self._sign_of_life(event.phase)
        if event.phase in _STATE_OF_PHASE:
            self._move(_STATE_OF_PHASE[event.phase])

    def _on_progress(self, event: protocol.Progress) -> None:
        self.phase_progress = PhaseProgress(event.phase, event.done, event.total, event.unit)
        if event.phase == "training" and event.unit == "steps":
            self.step = max(self.step, int(event.done))
            self.total_steps = int(event.total) if event.total else self.total_steps
            self._eta = None if event.eta_s is None else (event.eta_s, self.elapsed_s)
        elif event.phase in _STOPPING_WORK and event.done > self._saved_bytes:
            self._saved_bytes = event.done  # only work that gets on counts as life
            self._extend_deadline()

    def _on_step(self, event: protocol.Step) -> None:
        self.step, self.epoch = event.step, event.epoch
        if self.state in (RunState.STARTING, RunState.PREPARING, RunState.COMPILING) or self.resume_pending:
            self.resume_pending = False
            self._move(RunState.TRAINING)

    def _on_done(self, event: protocol.Done) -> None:
        self.done = event
        self.step = event.steps
        self.total_steps = event.total_steps or self.total_steps
        self.has_checkpoint = self.has_checkpoint or event.model is not None
        self._expect_exit()

    def _on_ack(self, event: protocol.Ack) -> None:
        match event.command:
            case "stop" if event.accepted:
                self._sign_of_life("ack")
            case "pause":
                self.pause_pending = self.pause_pending and event.accepted
            case "resume":
                self.resume_pending = self.resume_pending and event.accepted
            case _:
                pass

    def _move(self, state: RunState) -> None:
        """Follow the trainer, but never out of a stop: it ends in one way only."""
        if self.state not in (RunState.STOPPING, RunState.KILLING):
            self.state = state

    # --- stopping, which always ends --------------------------------------------------------------------

    def _on_asked_stop(self) -> None:
        if self._stop_asked_at is None:
            self._stop_asked_at = self._now
            self.pause_pending = self.resume_pending = False
            self._move(RunState.STOPPING)
            self._extend_deadline()
        elif self.stop_kills:
            self._kill()

    def _sign_of_life(self, what: str) -> None:
        """Something that belongs to stopping. Each kind counts once, so that a stop cannot last forever."""
        if what not in self._life_shown and self._stop_asked_at is not None:
            self._life_shown.add(what)
            self._extend_deadline()

    def _extend_deadline(self) -> None:
        if self._stop_asked_at is not None and not self._is_over:
            self._deadline = self._now + self._stop_s

    def _expect_exit(self) -> None:
        """The trainer says that it is over: its process has to end now."""
        self._deadline = self._now + EXIT_S

    def _check_deadline(self) -> None:
        if self._deadline is not None and self._now >= self._deadline:
            self._kill()

    def _kill(self) -> None:
        self.state = RunState.KILLING
        self.killed = True

    @property
    def _is_over(self) -> bool:
        return self.done is not None or self.last_error is not None

    def _on_exited(self, event: Exited) -> None:
        self.exit_code = event.exit_code
        self.state = self._final_state(event)
        self.killed = self.killed and self.done is None
        self.pause_pending = self.resume_pending = False
        self.phase_progress = None
        self._deadline = None

    def _final_state(self, event: Exited) -> RunState:
        if self.done is not None:
            return RunState.FINISHED if self.done.reason == "finished" else RunState.STOPPED
        if self.last_error is not None and self.last_error.exit_code != ExitCode.STOPPED:
            return RunState.FAILED
        if self.killed:
            return RunState.STOPPED
        if event.crashed or event.exit_code not in _SAID_BY_CODE:
            return RunState.CRASHED
        # 3 is also what abort() of the Windows C library returns: only who was asked to stop has stopped
        if event.exit_code == ExitCode.STOPPED and self.last_error is None and self._stop_asked_at is None:
            return RunState.CRASHED
        # 0 is also what a Windows job leaves of its members when it is closed, as when .venv's launcher is killed
        if event.exit_code == ExitCode.FINISHED and not 0 < self.total_steps <= self.step:
            return RunState.CRASHED
        return _SAID_BY_CODE[event.exit_code]

    # --- what may be read -----------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether a process is there."""
        return self.state in ACTIVE

    @property
    def progress(self) -> float | None:
        """0..1 of the whole run once it trains, of the present phase before that; None: unknown."""
        if self.state is RunState.FINISHED:
            return 1.0
        if self.total_steps and (self.step or self.phase in ("training", "done")):
            return min(1.0, self.step / self.total_steps)
        return self.phase_progress.fraction if self.phase_progress else None

    @property
    def eta_s(self) -> float | None:
        """Seconds of training to go, counting down between two estimates; None: unknown or over."""
        if self._eta is None or self.state not in WORKING | {RunState.PAUSED}:
            return None
        estimate, made_at = self._eta
        return max(0.0, estimate - (self.elapsed_s - made_at))

    @property
    def stop_deadline_s(self) -> float | None:
        """Seconds until a stopping trainer is killed, for a visible countdown; None: none is running."""
        if self.state is not RunState.STOPPING or self._deadline is None:
            return None
        return max(0.0, self._deadline - self._now)

    @property
    def can_start(self) -> bool:
        return self.state not in ACTIVE

    @property
    def can_pause(self) -> bool:
        return self.state in WORKING and not self.pause_pending and not self._is_over

    @property
    def can_stop(self) -> bool:
        """Also while stopping: pressing again kills (see `stop_kills`)."""
        if self.state is RunState.STOPPING:
            return self._stop_asked_at is None or self.stop_kills
        return self.state in ACTIVE and self.state is not RunState.KILLING and not self._is_over

    @property
    def stop_kills(self) -> bool:
        """Whether pressing Stop now would kill the process instead of asking it."""
        asked = self._stop_asked_at
        return self.state is RunState.STOPPING and asked is not None and self._now - asked >= DOUBLE_CLICK_S

    @property
    def can_resume(self) -> bool:
        """Go on after a pause, or from the last checkpoint of a run that ended early."""
        return (self.state is RunState.PAUSED and not self.resume_pending) or self.resumes_from_disk

    @property
    def resumes_from_disk(self) -> bool:
        """Whether Resume means a new process with `train --resume RUN_DIR`."""
        early = self.state in ENDED and self.state is not RunState.FINISHED
        return early and self.has_checkpoint and bool(self.run_dir)
