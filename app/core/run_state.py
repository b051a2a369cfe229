"""State machine of one run: its state, and which commands are possible.

The owner passes trainer events, user requests and ticks to `RunStateMachine.feed`, with monotonic times in seconds. The
machine has no side effects: the owner kills the process when `state` becomes KILLING. Events that are invalid in the
current state are ignored, since events and commands can cross.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from app.core.training_time import TrainingTime
from trainer_core import protocol
from trainer_core.messages import ExitCode
from trainer_core.protocol import AnyEvent, PauseReason, PhaseName


class RunState(enum.Enum):
    IDLE = "idle"
    STARTING = "starting"  # no event received yet
    PREPARING = "preparing"
    COMPILING = "compiling"  # selects fast paths and compiles the model
    TRAINING = "training"
    EVALUATING = "evaluating"
    SAVING = "saving"
    PAUSED = "paused"
    STOPPING = "stopping"
    KILLING = "killing"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"  # with `last_error`
    CRASHED = "crashed"  # without an error event


ENDED_STATES: Final = frozenset({RunState.FINISHED, RunState.STOPPED, RunState.FAILED, RunState.CRASHED})
WORKING_STATES: Final = frozenset(
    {RunState.PREPARING, RunState.COMPILING, RunState.TRAINING, RunState.EVALUATING, RunState.SAVING}
)
ACTIVE_STATES: Final = WORKING_STATES | {RunState.STARTING, RunState.PAUSED, RunState.STOPPING, RunState.KILLING}

STOP_TIMEOUT_S: Final = 60.0
"""Timeout without progress after a stop request; then the trainer is killed."""
EXIT_TIMEOUT_S: Final = 30.0
"""Timeout between the end of the run and the exit of its process. Destroying a CUDA context is slow."""
DOUBLE_CLICK_S: Final = 1.0
"""A second Stop within this time is a double click and does not kill the trainer."""

_STATE_BY_PHASE: Final[dict[PhaseName, RunState]] = {
    "loading": RunState.PREPARING,
    "preparing": RunState.PREPARING,
    "training_base": RunState.PREPARING,
    "checking": RunState.PREPARING,
    "compiling": RunState.COMPILING,
    "training": RunState.TRAINING,
    "evaluating": RunState.EVALUATING,
    "saving": RunState.SAVING,
    "paused": RunState.PAUSED,
    "stopping": RunState.STOPPING,
    "connecting": RunState.PREPARING,
    "installing": RunState.PREPARING,
    "uploading": RunState.PREPARING,
    "downloading": RunState.SAVING,
}
_FAILURE_EXIT_CODES: Final = frozenset(
    {ExitCode.USAGE, ExitCode.DATA, ExitCode.OUT_OF_MEMORY, ExitCode.DEVICE, ExitCode.DISK_FULL}
)
"""Without exit code 1, which is that of any uncaught exception."""
_SHUTDOWN_PHASES: Final = frozenset({"stopping", "saving", "done", "failed"})


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """The process is being started. The fields are known before `hello`."""

    run_dir: str = ""
    has_checkpoint: bool = False  # to resume from
    training_time: TrainingTime = field(default_factory=TrainingTime)  # of earlier processes
    is_remote: bool = False  # the process follows a run on another machine, without deadlines: it may be disconnected


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """The process exited. `crashed`: by a signal or a native exception."""

    exit_code: int
    crashed: bool = False


class RunRequest(enum.Enum):
    STOP = "stop"  # a second request kills the process
    PAUSE = "pause"
    RESUME = "resume"  # after a pause; resuming from a checkpoint starts a new process instead
    TICK = "tick"  # update times and check deadlines


RunInput = AnyEvent | ProcessStarted | ProcessExited | RunRequest


class RunStateMachine:
    """One run from its start to its end. Only `feed` and `set_run_dir` change it."""

    def __init__(self, stop_timeout_s: float = STOP_TIMEOUT_S) -> None:
        self._stop_timeout_s = stop_timeout_s
        self._reset()

    def _reset(self) -> None:
        self.state = RunState.IDLE
        self.phase: PhaseName | None = None
        self.phase_progress: protocol.Progress | None = None
        self.run_dir = ""
        self.step = 0
        self.total_steps = 0  # 0 while unknown
        self.epoch = 0.0
        self.elapsed_s = 0.0  # without pauses, over all processes of the run
        self.last_error: protocol.Error | None = None
        self.done: protocol.Done | None = None
        self.exit_code: int | None = None
        self.has_checkpoint = False
        self.pause_pending = False
        self.pause_reason: PauseReason | None = None
        self.pause_until: float | None = None  # end of the pause, Unix time
        self.resume_pending = False
        self.killed = False
        self._is_remote = False
        self._training_time = TrainingTime()
        self._now = 0.0
        self._stop_requested_at: float | None = None
        self._deadline: float | None = None
        self._eta: tuple[float, float] | None = None  # remaining seconds, and elapsed_s at the time of the estimate

    def set_run_dir(self, run_dir: str) -> None:
        """Set the folder of an ended run after it was renamed, or to an empty string after it was deleted."""
        self.run_dir = run_dir
        self.has_checkpoint = self.has_checkpoint and bool(run_dir)

    # --- input ------------------------------------------------------------------------------------

    def feed(self, event: RunInput, now: float) -> bool:
        """Process an event at monotonic time `now`. Returns whether `state` changed."""
        before = self.state
        if isinstance(event, ProcessStarted) and self.can_start:
            self._on_started(event, now)
        elif self.is_active:
            self._advance_clock(now)
            self._dispatch(event)
        return self.state is not before

    def _dispatch(self, event: RunInput) -> None:
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
                self._extend_deadline()
            case protocol.Error():
                self.last_error = event
                self._expect_exit()
            case protocol.Done():
                self._on_done(event)
            case protocol.Ack():
                self._on_ack(event)
            case RunRequest.STOP:
                self._on_stop_requested()
            case RunRequest.PAUSE:
                self.pause_pending = self.pause_pending or self.can_pause
            case RunRequest.RESUME:
                self.resume_pending = self.resume_pending or self.state is RunState.PAUSED
                self.pause_pending = False
            case ProcessExited():
                self._on_exited(event)
            case RunRequest.TICK if self._deadline is not None and self._now >= self._deadline:
                self._kill()

    def _advance_clock(self, now: float) -> None:
        if self.state not in (RunState.STARTING, RunState.PAUSED):
            self.elapsed_s += max(0.0, now - self._now)
        self._now = max(now, self._now)

    # --- trainer events -----------------------------------------------------------------------------

    def _on_started(self, event: ProcessStarted, now: float) -> None:
        self._reset()
        self.state = RunState.STARTING
        self.run_dir, self.has_checkpoint = event.run_dir, event.has_checkpoint
        self._is_remote = event.is_remote
        self._training_time = event.training_time
        self.elapsed_s = event.training_time.seconds
        self._now = now

    def _on_hello(self, event: protocol.Hello) -> None:
        if not self._is_remote:  # there it is another folder
            self.run_dir = event.run_dir or self.run_dir
        self.last_error = self.done = None  # of the trainer before, on another machine
        max_steps = event.config.get("max_steps")
        self.total_steps = max_steps if isinstance(max_steps, int) else 0
        self.elapsed_s = self._training_time.seconds_at_step(event.resumed_from_step)  # without repeated steps
        if event.resumed_from_step is not None:
            self.step, self.has_checkpoint = event.resumed_from_step, True
        if self._stop_requested_at is None:  # a restarted trainer does not undo a requested stop
            self.state = RunState.PREPARING

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
        if event.phase in _SHUTDOWN_PHASES:
            self._extend_deadline()
        if event.phase in _STATE_BY_PHASE:
            self._transition(_STATE_BY_PHASE[event.phase])

    def _on_progress(self, event: protocol.Progress) -> None:
        before, self.phase_progress = self.phase_progress, event
        if event.phase == "training" and event.unit == "steps":
            self.step = max(self.step, int(event.done))
            self.total_steps = int(event.total) if event.total else self.total_steps
            self._eta = None if event.eta_s is None else (event.eta_s, self.elapsed_s)
        elif event.phase in _SHUTDOWN_PHASES and (before is None or event.done > before.done):
            self._extend_deadline()  # saving proceeds

    def _on_step(self, event: protocol.Step) -> None:
        self.step, self.epoch = event.step, event.epoch
        if self.state in (RunState.STARTING, RunState.PREPARING, RunState.COMPILING) or self.resume_pending:
            self.resume_pending = False
            self._transition(RunState.TRAINING)

    def _on_done(self, event: protocol.Done) -> None:
        self.done = event
        self.step = event.steps
        self.total_steps = event.total_steps or self.total_steps
        self.has_checkpoint = self.has_checkpoint or event.model is not None
        self._expect_exit()

    def _on_ack(self, event: protocol.Ack) -> None:
        match event.command:
            case "stop" if event.accepted:
                self._extend_deadline()
            case "pause":
                self.pause_pending = self.pause_pending and event.accepted
            case "resume":
                self.resume_pending = self.resume_pending and event.accepted

    def _transition(self, state: RunState) -> None:
        """Change the state, unless the run is being stopped."""
        if self.state not in (RunState.STOPPING, RunState.KILLING):
            self.state = state

    # --- stopping ---------------------------------------------------------------------------------------

    def _on_stop_requested(self) -> None:
        if self._stop_requested_at is None:
            self._stop_requested_at = self._now
            self.pause_pending = self.resume_pending = False
            self._transition(RunState.STOPPING)
            self._extend_deadline()
        elif self.next_stop_kills:
            self._kill()

    def _extend_deadline(self) -> None:
        """The trainer works on a requested stop."""
        if self._stop_requested_at is not None and not self._is_over and not self._is_remote:
            self._deadline = self._now + self._stop_timeout_s

    def _expect_exit(self) -> None:
        if not self._is_remote:
            self._deadline = self._now + EXIT_TIMEOUT_S

    def _kill(self) -> None:
        self.state = RunState.KILLING
        self.killed = True

    @property
    def _is_over(self) -> bool:
        return self.done is not None or self.last_error is not None

    def _on_exited(self, event: ProcessExited) -> None:
        self.exit_code = event.exit_code
        self.state = self._final_state(event)
        self.pause_pending = self.resume_pending = False
        self.phase_progress = None
        self._deadline = None

    def _final_state(self, event: ProcessExited) -> RunState:
        if self.done is not None:
            return RunState.FINISHED if self.done.reason in ("finished", "early_stop") else RunState.STOPPED
        if self.last_error is not None and self.last_error.exit_code != ExitCode.STOPPED:
            return RunState.FAILED
        if self.killed:
            return RunState.STOPPED
        if event.crashed:
            return RunState.CRASHED
        # Exit code 3 is also that of abort() in the Windows C library.
        stop_expected = self.last_error is not None or self._stop_requested_at is not None
        if event.exit_code == ExitCode.STOPPED and stop_expected:
            return RunState.STOPPED
        # Exit code 0 is also that of processes whose Windows job is closed, e.g. when the launcher of .venv is killed.
        if event.exit_code == ExitCode.FINISHED and 0 < self.total_steps <= self.step:
            return RunState.FINISHED
        return RunState.FAILED if event.exit_code in _FAILURE_EXIT_CODES else RunState.CRASHED

    # --- properties -----------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether the process exists."""
        return self.state in ACTIVE_STATES

    @property
    def progress(self) -> float | None:
        """Progress (0..1) of the run while it trains, of the current phase before; None if unknown."""
        if self.state is RunState.FINISHED:
            return 1.0
        if self.total_steps and (self.step or self.phase in ("training", "done")):
            return min(1.0, self.step / self.total_steps)
        current = self.phase_progress
        return min(1.0, max(0.0, current.done / current.total)) if current and current.total else None

    @property
    def eta_s(self) -> float | None:
        """Remaining seconds, counted down between two estimates; None if unknown."""
        if self._eta is None or self.state not in WORKING_STATES | {RunState.PAUSED}:
            return None
        estimate, elapsed_s = self._eta
        return max(0.0, estimate - (self.elapsed_s - elapsed_s))

    @property
    def stop_deadline_s(self) -> float | None:
        """Seconds until a trainer that is stopping is killed; None otherwise."""
        if self.state is not RunState.STOPPING or self._deadline is None:
            return None
        return max(0.0, self._deadline - self._now)

    @property
    def can_start(self) -> bool:
        return not self.is_active

    @property
    def can_pause(self) -> bool:
        return self.state in WORKING_STATES and not self.pause_pending and not self._is_over

    @property
    def can_save(self) -> bool:
        """Whether the trainer saves a checkpoint on request."""
        return self.state in (RunState.TRAINING, RunState.EVALUATING)

    @property
    def can_stop(self) -> bool:
        """Whether Stop is possible, also to kill a trainer that is stopping (see `next_stop_kills`)."""
        if self.state is RunState.STOPPING:
            return self._stop_requested_at is None or self.next_stop_kills
        return self.is_active and self.state is not RunState.KILLING and not self._is_over

    @property
    def next_stop_kills(self) -> bool:
        """Whether Stop kills the process."""
        requested = self._stop_requested_at
        return self.state is RunState.STOPPING and requested is not None and self._now - requested >= DOUBLE_CLICK_S

    @property
    def can_resume(self) -> bool:
        """Whether Resume is possible, after a pause or from a checkpoint."""
        return (self.state is RunState.PAUSED and not self.resume_pending) or self.can_resume_from_disk

    @property
    def can_resume_from_disk(self) -> bool:
        """Whether Resume starts a new process with `train --resume RUN_DIR`."""
        early = self.state in ENDED_STATES and self.state is not RunState.FINISHED
        return early and self.has_checkpoint and bool(self.run_dir)
