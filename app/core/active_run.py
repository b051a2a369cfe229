"""The run that this window trains: process, state, record and automatic restarts."""

from __future__ import annotations

import time
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.core import command_line
from app.core.auto_restart import AutoRestart
from app.core.installation import installation
from app.core.run_loader import METRIC_EVENTS, RunRecord
from app.core.run_state import ProcessExited, ProcessStarted, RunInput, RunRequest, RunState, RunStateMachine
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir


class ActiveRun(QObject):
    """At most one run at a time, started by `start` or `resume_from_disk`."""

    about_to_start = Signal()
    event_received = Signal(object)  # AnyEvent, after it was processed; see `handle_event`
    state_changed = Signal()
    ended = Signal(object)  # ProcessOutcome

    def __init__(self, process: TrainerProcess | None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.machine = RunStateMachine()
        self.auto_restart = AutoRestart()  # after transient failures
        self.process = process or TrainerProcess(self)
        self.record = RunRecord()
        self.stop_requested = False  # by the user; the process may end for another reason
        self.host = ""  # the other machine that trains; empty: this one
        self._trainer_started = False
        self.process.event_received.connect(self.handle_event)
        self.process.output_received.connect(lambda text: self.record.log.add_output(text, time.time()))
        self.process.finished.connect(self._on_finished)

    # --- starting ----------------------------------------------------------------------------------------

    @property
    def can_start(self) -> bool:
        """Whether a run can start or resume at once."""
        return self.machine.can_start and installation.is_complete

    def start(self, arguments: list[str], path: Path) -> None:
        """Start a new run in the folder `path`."""
        self.auto_restart = AutoRestart()
        self._launch(arguments, path, RunRecord(), has_checkpoint=False)

    def resume_from_disk(self, path: Path, record: RunRecord, *, has_checkpoint: bool) -> None:
        """Resume a run from its newest checkpoint; `record` has its earlier events."""
        self.auto_restart = AutoRestart()
        self._launch(command_line.resume_arguments(str(path)), path, record, has_checkpoint=has_checkpoint)

    def _launch(self, arguments: list[str], path: Path, record: RunRecord, *, has_checkpoint: bool) -> None:
        self.record, self.stop_requested, self._trainer_started = record, False, False
        remote = run_dir.read_remote(RunDir(path))
        self.host = arguments[2] if arguments[:2] == ["remote", "train"] else remote.host if remote else ""
        self.about_to_start.emit()
        self._update_state(ProcessStarted(str(path), has_checkpoint, record.training_time, bool(self.host)))
        self.process.start(arguments)

    # --- user requests -------------------------------------------------------------------------------------

    def pause(self) -> None:
        if self.machine.can_pause and self.process.send(protocol.Pause()):
            self._update_state(RunRequest.PAUSE)

    def resume(self) -> None:
        """Resume after a pause, or the ended run from its newest checkpoint."""
        if self.machine.state is RunState.PAUSED:
            if self.process.send(protocol.Resume()):
                self._update_state(RunRequest.RESUME)
        elif self.machine.can_resume_from_disk:
            self.auto_restart = AutoRestart()
            self._resume_current()

    def stop(self) -> None:
        """Stop the trainer; a second call kills it."""
        if self.machine.can_stop:
            self.stop_requested = True
            self.process.send(protocol.Stop())
            self._update_state(RunRequest.STOP)

    def cancel_restart(self) -> None:
        self.auto_restart.pending = None
        self.state_changed.emit()

    def restart_now(self) -> None:
        self.auto_restart.skip_countdown()
        self._restart_when_due()

    def handle_run_moved(self, old: Path, new: Path | None) -> None:
        """Follow an ended run whose folder was renamed to `new`, or deleted (None)."""
        if self.machine.run_dir and not self.machine.is_active and Path(self.machine.run_dir) == old:
            self.auto_restart.pending = None
            self.machine.set_run_dir(str(new) if new is not None else "")
            self.state_changed.emit()

    # --- events ----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Check deadlines, the event file and pending restarts. Call it several times per second."""
        self._update_state(RunRequest.TICK)
        self._restart_when_due()

    def _restart_when_due(self) -> None:
        if self.auto_restart.is_due(time.monotonic()) and self.machine.can_start:
            self.auto_restart.on_restarted()
            self._resume_current()

    def _resume_current(self) -> None:
        path, known = Path(self.machine.run_dir), self.machine.has_checkpoint
        self._launch(command_line.resume_arguments(str(path)), path, self.record, has_checkpoint=known)

    def handle_event(self, event: AnyEvent) -> None:
        """Process an event. Emits `event_received`, but not for measurements, except for steps without a loss."""
        self.record.add(event)
        self._trainer_started = self._trainer_started or isinstance(event, protocol.Hello | protocol.Step)
        if self.machine.feed(event, time.monotonic()):
            self.state_changed.emit()
        if type(event) not in METRIC_EVENTS or (isinstance(event, protocol.Step) and event.loss is None):
            self.auto_restart.add(event)
            self.event_received.emit(event)

    def _update_state(self, event: RunInput) -> None:
        changed = self.machine.feed(event, time.monotonic())
        if self.machine.state is RunState.KILLING:
            self._kill(again=not changed)
        if changed or event is not RunRequest.TICK:
            self.state_changed.emit()

    def _kill(self, *, again: bool) -> None:
        """Kill the trainer; on another machine, a second Stop does."""
        if not (self.host and self._trainer_started):
            self.process.kill()
        elif not again:
            self.process.send(protocol.Stop())

    def _on_finished(self, outcome: ProcessOutcome) -> None:
        stopping = self.machine.state in (RunState.STOPPING, RunState.KILLING)
        self._update_state(ProcessExited(outcome.exit_code, outcome.crashed))
        # On another machine, the trainer's keeper has restarted it.
        if not self.host and not stopping and self.machine.state in (RunState.FAILED, RunState.CRASHED):
            error = self.machine.last_error.code if self.machine.last_error else ""
            self.auto_restart.on_exited(outcome.exit_code, time.monotonic(), crashed=outcome.crashed, error=error)
        self.ended.emit(outcome)
