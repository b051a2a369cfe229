"""The run that this window trains: its process, its state, what it told, and what follows when it fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, Signal

from app.opening import FIGURES, RunRecord
from app.services.trainer_process import Outcome, TrainerProcess
from app.state import command_line
from app.state.following import Follower
from app.state.restarting import Restarting
from app.state.run_machine import (
    AskedPause,
    AskedResume,
    AskedStop,
    Exited,
    Input,
    RunMachine,
    RunState,
    Started,
    Tick,
)
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

if TYPE_CHECKING:
    from app.state.measurements.bulk import Reader

_QUIET_S: Final = 3.0  # a trainer says something more often, mostly


class OwnRun(QObject):
    """At most one at a time. Whoever starts a run (a person, the queue) does it through `start` or `go_on`."""

    beginning = Signal()  # the last one is forgotten; the next one's process starts now
    told = Signal(object)  # an event, after it was taken in; not for each of the figures: see `take`
    changed = Signal()  # what a person may do, or what there is to see
    ticked = Signal()  # only how long something has been going on
    ended = Signal(object)  # Outcome

    def __init__(self, process: TrainerProcess | None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.machine = RunMachine()
        self.restarting = Restarting()  # what follows when the run fails in a way that passes
        self.process = process or TrainerProcess(self)
        self.record = RunRecord()
        self.stop_asked = False  # of this process, by a person: it may end in another way all the same
        self._last_seq = 0  # of the newest event that came
        self._heard = 0.0  # when the pipe last brought one
        self._follower: Follower | None = None
        self._reader: Reader | None = None  # of what piles up in the pipe; made when it does
        self.process.many = self._take_many
        self.process.event.connect(self._on_heard)
        self.process.output.connect(lambda text: self.record.log.add_output(text, time.time()))
        self.process.finished.connect(self._on_finished)

    # --- beginning ---------------------------------------------------------------------------------------

    def start(self, arguments: list[str], path: Path) -> None:
        """Begin a new run in the folder `path`."""
        self.restarting.began_by_person()
        self._launch(arguments, path, RunRecord(), has_checkpoint=False)

    def go_on(self, path: Path, record: RunRecord, *, has_checkpoint: bool) -> None:
        """Go on with a run that is on disk; `record` is what it told until now."""
        self.restarting.began_by_person()
        self._launch(command_line.resume(str(path)), path, record, has_checkpoint=has_checkpoint)

    def _launch(self, arguments: list[str], path: Path, record: RunRecord, *, has_checkpoint: bool) -> None:
        self.record, self._last_seq, self.stop_asked, self._reader = record, 0, False, None
        self._follower, self._heard = Follower(path), time.monotonic()
        self.beginning.emit()
        self._feed(Started(str(path), has_checkpoint, record.trained))
        self.process.start(arguments)

    # --- what a person asks for ----------------------------------------------------------------------------

    def pause(self) -> None:
        if self.machine.can_pause and self.process.pause():
            self._feed(AskedPause())

    def resume(self) -> None:
        """After a pause, or from the last checkpoint of the run that just ended."""
        if self.machine.state is RunState.PAUSED:
            if self.process.resume():
                self._feed(AskedResume())
        elif self.machine.resumes_from_disk:
            self.restarting.began_by_person()
            self._go_on_with_this()

    def stop(self) -> None:
        """Ask the trainer to stop; asked again, end it."""
        if self.machine.can_stop:
            self.stop_asked = True
            self.process.stop()
            self._feed(AskedStop())

    def cancel_restart(self) -> None:
        """Not by itself: the run stays as it ended until a person resumes it."""
        self.restarting.cancel()
        self.changed.emit()

    def restart_now(self) -> None:
        """Do not wait for the countdown."""
        self.restarting.hurry(time.monotonic())
        self._restart_when_due()

    def moved(self, old: Path, new: Path | None) -> None:
        """The folder of a run that is over has another name, or is gone (None)."""
        if self.machine.run_dir and not self.machine.is_active and Path(self.machine.run_dir) == old:
            self.restarting.cancel()
            self.machine.moved(str(new) if new is not None else "")
            self.changed.emit()

    # --- as time goes by -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """To be called several times a second: what waited long enough happens."""
        self._feed(Tick())
        self._look_on_disk()
        self._restart_when_due()

    def _restart_when_due(self) -> None:
        if self.restarting.is_due(time.monotonic()) and self.machine.can_start:
            self.restarting.began_by_itself()
            self._go_on_with_this()

    def _go_on_with_this(self) -> None:
        path, known = Path(self.machine.run_dir), self.machine.has_checkpoint
        self._launch(command_line.resume(str(path)), path, self.record, has_checkpoint=known)

    def _look_on_disk(self) -> None:
        """A pipe that is quiet may have fallen silent: the same events are on disk."""
        now = time.monotonic()
        if self.machine.is_active and self._follower and now - self._heard > _QUIET_S:
            for event in self._follower.look(self._last_seq, now, self._heard):
                self.take(event)

    def _on_heard(self, event: AnyEvent) -> None:
        self._heard = time.monotonic()
        if event.seq > self._last_seq:  # else it came from the disk already
            self.take(event)

    def _take_many(self, lines: list[bytes], take: Callable[[bytes], None]) -> bool:
        """Measurements that piled up go into the record together, a quarter of the work; `take` gets all other lines,
        and what the state of the run needs. False: some of it is no event, or came already."""
        from app.state.measurements import bulk  # numpy, which the first paint need not wait for

        first, last = bulk.number_of(lines[0]), bulk.number_of(lines[-1])
        if first is None or last is None or first <= self._last_seq or last - first < len(lines) - 1:
            return False
        self._heard = time.monotonic()
        self._reader = self._reader or bulk.Reader(live=True)
        self._reader.take(b"\n".join([*lines, b""]))
        for rows, line in self._reader.block().pieces():
            self.record.metrics.add_rows(rows)
            if line:
                take(line)
        self._last_seq = last
        return True

    def take(self, event: AnyEvent) -> None:
        """Take one event in. Of figures nobody is told, unless there is none: they come by the thousand."""
        self._last_seq = event.seq
        self.record.add(event)
        if self.machine.feed(event, time.monotonic()):
            self.changed.emit()
        if type(event) not in FIGURES or (isinstance(event, protocol.Step) and event.loss is None):
            self.restarting.add(event)
            self.told.emit(event)

    def _feed(self, event: Input) -> None:
        changed = self.machine.feed(event, time.monotonic())
        if self.machine.state is RunState.KILLING:
            self.process.kill()
        (self.changed if changed else self.ticked).emit()

    def _on_finished(self, outcome: Outcome) -> None:
        if self._follower and self.machine.done is None and self.machine.last_error is None:
            for event in self._follower.rest(self._last_seq):
                self.take(event)
        asked = self.machine.state in (RunState.STOPPING, RunState.KILLING)
        self._feed(Exited(outcome.exit_code, outcome.crashed))
        if not asked and self.machine.state in (RunState.FAILED, RunState.CRASHED):
            error = self.machine.last_error.code if self.machine.last_error else ""
            self.restarting.ended(outcome.exit_code, time.monotonic(), crashed=outcome.crashed, error=error)
        self.ended.emit(outcome)
