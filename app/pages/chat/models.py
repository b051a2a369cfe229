"""Models of the chat page: their sessions, the runs to select from, and the device that generates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.core.active_run import ActiveRun
from app.core.conversation import DeviceChoice, choose_device
from app.core.conversation_store import ModelTurns
from app.core.history.run_list import RunList
from app.services.generation_session import BASE, Checkpoint, GenerationSession
from app.services.trainer_process import TrainerProcess
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

if TYPE_CHECKING:
    from trainer_core.system.hardware import MachineInfo


class ChatModels(QObject):
    """Two sessions. The second one is used while `comparing`."""

    changed = Signal()

    _active_run: ActiveRun  # these are set by `connect_services`
    _history: RunList

    def __init__(self, page: QWidget) -> None:
        super().__init__(page)
        self._page = page
        self.all_sessions = [GenerationSession(TrainerProcess, self) for _ in range(2)]
        self.comparing = False
        self.machine: MachineInfo | None = None  # None: not probed yet
        self._run_hello: protocol.Hello | None = None  # of the active run
        self._runs: list[Path] = []  # with checkpoints, newest first
        for session in self.all_sessions:
            session.changed.connect(self.changed)

    def connect_services(self, active_run: ActiveRun, history: RunList) -> None:
        self._active_run, self._history = active_run, history
        active_run.event_received.connect(self._on_event)
        active_run.state_changed.connect(self.refresh_checkpoints)

    def set_machine(self, machine: MachineInfo) -> None:
        self.machine = machine
        self.changed.emit()

    def shutdown(self) -> None:
        """End the processes."""
        for session in self.all_sessions:
            session.blockSignals(True)
            session.shutdown()

    @property
    def sessions(self) -> list[GenerationSession]:
        """Sessions in use."""
        return self.all_sessions if self.comparing else self.all_sessions[:1]

    @property
    def are_busy(self) -> bool:
        """Whether a model is loaded or generates."""
        return any(session.is_busy for session in self.sessions)

    # --- selection ----------------------------------------------------------------------------------------

    def set_comparing(self, comparing: bool) -> None:
        """Use one model, or two: at first the base model of the run and itself, or its two newest checkpoints."""
        self.comparing = comparing
        first, second = self.all_sessions
        if not comparing:
            second.unload()
        elif second.run is None:
            other: Checkpoint = next((info.path for info in first.checkpoints[1:]), None)
            second.select(first.run, BASE if first.base_model and first.checkpoint != BASE else other)
        self.changed.emit()

    def on_run_moved(self, old: Path, new: Path | None) -> None:
        """Follow a run whose folder was renamed to `new`, or deleted (None)."""
        for session in self.all_sessions:
            if session.run == old:
                checkpoint = session.checkpoint
                if isinstance(checkpoint, Path):
                    checkpoint = new / "checkpoints" / checkpoint.name if new else None
                session.select(new, checkpoint if new else None)

    def snapshot(self) -> list[ModelTurns]:
        """The models in use and their turns."""
        return [
            ModelTurns(str(session.run or ""), str(session.checkpoint or ""), session.turns)
            for session in self.sessions
        ]

    def restore(self, models: Sequence[ModelTurns]) -> None:
        """Restore turns, and select the models that still exist."""
        for session, model in zip(self.sessions, models, strict=False):
            session.turns = model.turns
            if model.run and Path(model.run).is_dir():
                stored: Checkpoint = BASE if model.checkpoint == BASE else Path(model.checkpoint)
                exists = stored == BASE or (model.checkpoint and Path(model.checkpoint).is_dir())
                session.select(Path(model.run), stored if exists else None)

    def selectable_runs(self, session: GenerationSession) -> list[Path]:
        """Runs with a checkpoint, and what the session uses; the active run first."""
        training, selected = self.training_run, session.run
        listed = self._runs if selected is None or selected in self._runs else [*self._runs, selected]
        return sorted(listed, key=lambda path: path != training)

    @property
    def training_run(self) -> Path | None:
        machine = self._active_run.machine
        return Path(machine.run_dir) if machine.is_active and machine.run_dir else None

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Hello):
            self._run_hello = event
        if isinstance(event, protocol.Hello | protocol.Checkpoint):
            self.refresh_checkpoints()

    def refresh_checkpoints(self) -> None:
        """List the checkpoints on disk. A model leaves the GPU that a run needs, also while the page is hidden."""
        if not self._active_run.machine.is_active:
            self._run_hello = None
        self._unload_from_other_device()
        if self._page.isVisible():
            self._runs = [run.path for run in self._history.runs if run.checkpoints]
            first = self.all_sessions[0]
            if first.run is None:
                first.select(next(iter(self.selectable_runs(first)), None))
            for session in self.sessions:
                session.refresh_checkpoints()
            self.changed.emit()

    # --- the device -----------------------------------------------------------------------------------------

    def choose_device(self) -> DeviceChoice:
        gpus = len(self.machine.gpus) if self.machine else None
        return choose_device(gpus, self._training_device)

    @property
    def _training_device(self) -> str | None:
        hello = self._run_hello
        if not self._active_run.machine.is_active:
            return None
        if hello is None:
            return "auto"
        on_cpu = bool(hello.devices) and hello.devices[0].startswith("CPU")
        return None if on_cpu else str(hello.config.get("device", "auto"))

    def _unload_from_other_device(self) -> None:
        device = self.choose_device().flag
        for session in self.all_sessions:
            if session.key is not None and session.key[-1] != device and not session.is_busy:
                session.unload()
        self.changed.emit()
