"""Controls the playground: selects checkpoints and devices, and generates text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject

from app.core.active_run import ActiveRun
from app.core.conversation import DeviceChoice, SamplingOptions, choose_device, selectable_runs
from app.core.history.run_list import RunHistory
from app.core.settings import Settings
from app.services import desktop_shell
from app.services.generation_session import GenerationSession, ModelKey
from app.services.trainer_process import TrainerProcess
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

if TYPE_CHECKING:  # imported after the first paint
    from app.pages.playground.page import PlaygroundPage
    from trainer_core.system.hardware import MachineInfo

_MAX_SESSIONS: Final = 2


class PlaygroundController(QObject):
    """One generation session, or two to compare, and the page that displays them."""

    def __init__(
        self,
        active_run: ActiveRun,
        history: RunHistory,
        settings: Settings,
        create_process: Callable[[], TrainerProcess] = TrainerProcess,
    ) -> None:
        super().__init__(active_run)
        self._active_run, self._history, self._settings = active_run, history, settings
        self.sessions = [GenerationSession(create_process, self) for _ in range(_MAX_SESSIONS)]
        self.comparing = False
        self._runs_with_checkpoints: list[Path] = []  # newest first
        self.requested_device = "auto"
        self.machine: MachineInfo | None = None  # None: not probed yet
        self._run_hello: protocol.Hello | None = None  # of the active run
        self._page: PlaygroundPage | None = None
        for session in self.sessions:
            session.changed.connect(self.refresh)
        active_run.about_to_start.connect(self._on_run_starting)
        active_run.event_received.connect(self._on_event)
        active_run.state_changed.connect(self._refresh_checkpoints)

    def connect_page(self, page: PlaygroundPage) -> None:
        self._page = page
        page.row.set_sampling(SamplingOptions.from_mapping(self._settings.sampling))
        page.generate_requested.connect(self.generate)
        page.regenerate_requested.connect(self.regenerate)
        page.stop_requested.connect(self.stop_generation)
        page.compare_toggled.connect(self.set_comparing)
        page.new_requested.connect(self.start_new_conversation)
        page.device_chosen.connect(self.set_device)
        page.shown.connect(self._refresh_checkpoints)
        for column, session in zip(page.columns, self.sessions, strict=True):
            session.prompt_sent.connect(page.clear_prompt)
            column.run_chosen.connect(lambda path, session=session: self._select(session, path, None))
            column.checkpoint_chosen.connect(
                lambda path, session=session: self._select(session, session.selection.run, path)
            )
            column.copy_requested.connect(desktop_shell.copy_text)

    def set_machine(self, machine: MachineInfo) -> None:
        self.machine = machine
        self.refresh()

    # --- models -------------------------------------------------------------------------------------------

    @property
    def visible_sessions(self) -> list[GenerationSession]:
        return self.sessions if self.comparing else self.sessions[:1]

    @property
    def is_busy(self) -> bool:
        """Whether a model is loaded or generates."""
        return any(session.is_busy for session in self.visible_sessions)

    @property
    def can_generate(self) -> bool:
        """Whether a checkpoint is available."""
        return any(self._model_key(session) is not None for session in self.visible_sessions)

    def select_checkpoint(self, checkpoint: Path) -> None:
        """Select a checkpoint for the first session."""
        self._select(self.sessions[0], checkpoint.parent.parent, checkpoint)

    def set_comparing(self, comparing: bool) -> None:
        """Show two models side by side, or one."""
        self.comparing = comparing
        first, second = self.sessions
        if not comparing:
            second.unload()
        elif second.selection.run is None:
            earlier = first.selection.checkpoints[1:2]
            second.selection.select(first.selection.run, earlier[0].path if earlier else None)
        self.refresh()

    def set_device(self, device: str) -> None:
        self.requested_device = device
        self._unload_unselected()
        self.refresh()

    def _select(self, session: GenerationSession, run: Path | None, checkpoint: Path | None) -> None:
        session.select(run, checkpoint)
        self._unload_unselected()
        self.refresh()

    def _unload_unselected(self) -> None:
        """Unload models of another checkpoint or device than the selected one. A newer checkpoint unloads nothing."""
        device = self.device.flag
        for session in self.sessions:
            if session.key is None:
                continue
            checkpoint, flag = session.key
            selected = session.selection
            if selected.checkpoint:
                other = checkpoint != selected.checkpoint
            else:
                other = checkpoint.parent.parent != selected.run
            if other or (flag != device and not session.is_busy):
                session.unload()

    @property
    def device(self) -> DeviceChoice:
        """The device that models are loaded on."""
        gpus = len(self.machine.gpus) if self.machine else None
        return choose_device(self.requested_device, gpus, self._training_device)

    @property
    def _training_device(self) -> str | None:
        if not self._active_run.machine.is_active:
            return None
        hello = self._run_hello
        if hello is None:
            return "auto"
        on_cpu = bool(hello.devices) and hello.devices[0].startswith("CPU")
        return None if on_cpu else str(hello.config.get("device", "auto"))

    def _on_run_starting(self) -> None:
        self._run_hello = None

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Hello):
            self._run_hello = event
        if isinstance(event, protocol.Hello | protocol.Checkpoint):
            self._refresh_checkpoints()

    def _refresh_checkpoints(self) -> None:
        self._unload_unselected()  # also while the page is hidden: a run that starts needs the GPU
        if self._page is None or not self._page.isVisible():
            return
        first = self.sessions[0].selection
        if first.run is None:
            runs = selectable_runs(self._runs_with_checkpoints, self._training_run, None)
            first.select(runs[0] if runs else None)
        for session in self.visible_sessions:
            session.selection.refresh()
        self.refresh()

    @property
    def _training_run(self) -> Path | None:
        machine = self._active_run.machine
        return Path(machine.run_dir) if machine.is_active and machine.run_dir else None

    def on_run_moved(self, old: Path, new: Path | None) -> None:
        """Follow a run whose folder was renamed to `new`, or deleted (None)."""
        for session in self.sessions:
            selection = session.selection
            if selection.run == old:
                checkpoint = selection.checkpoint
                moved = new / "checkpoints" / checkpoint.name if new and checkpoint else None
                self._select(session, new, moved)

    def on_runs_listed(self) -> None:
        self._runs_with_checkpoints = [run.path for run in self._history.runs if run.checkpoints]
        self._refresh_checkpoints()

    # --- generating ---------------------------------------------------------------------------------------

    def generate(self, prompt: str, sampling: SamplingOptions) -> None:
        """Generate text with every visible model."""
        answers = any(session.loaded is not None and session.loaded.chat for session in self.visible_sessions)
        if self.is_busy or (answers and not prompt.strip()):
            return
        self._settings.sampling = asdict(sampling)
        for session in self.visible_sessions:
            session.selection.refresh()
            key = self._model_key(session)
            if key is not None:
                session.generate(key, prompt, sampling)
        self.refresh()

    def _model_key(self, session: GenerationSession) -> ModelKey | None:
        """The model to generate with. A checkpoint that was deleted from disk is available while it is loaded."""
        path = session.selection.selected_path
        if session.selection.is_missing:
            return session.key if session.key is not None and session.key[0] == path else None
        return None if path is None else (path, self.device.flag)

    def regenerate(self, sampling: SamplingOptions) -> None:
        """Replace the last text by one with another seed."""
        conversations = [session.conversation for session in self.visible_sessions]
        last = next((one.turns[-1] for one in conversations if one.turns), None)
        if last is None or self.is_busy:
            return
        for conversation in conversations:
            if conversation.turns and conversation.turns[-1].prompt == last.prompt:
                conversation.turns.pop()
        self.generate(last.prompt, sampling)

    def stop_generation(self) -> None:
        for session in self.visible_sessions:
            session.stop_generation()

    def start_new_conversation(self) -> None:
        self.stop_generation()
        for session in self.sessions:
            if not session.is_busy:
                session.conversation.turns.clear()
        self.refresh()

    # --- display ------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        page = self._page
        if page is None or not page.isVisible():
            return
        page.display(self)
        training = self._training_run
        for session, column in zip(self.visible_sessions, page.columns, strict=False):
            runs = selectable_runs(self._runs_with_checkpoints, training, session.selection.run)
            column.display(session, runs, training)

    def shutdown(self) -> None:
        """End the processes."""
        self._page = None
        for session in self.sessions:
            session.shutdown()
