"""Playground page: generates text with one checkpoint, or with two side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PySide6.QtCore import QEvent, QKeyCombination, Qt
from PySide6.QtGui import QAction, QKeyEvent, QKeySequence, QShowEvent
from PySide6.QtWidgets import QPlainTextEdit

from app.core.active_run import ActiveRun
from app.core.conversation import DeviceChoice, choose_device
from app.core.history.run_list import RunHistory
from app.core.settings import Settings
from app.pages.page import Page
from app.pages.playground.model_column import ModelColumn
from app.pages.playground.sampling_row import SamplingRow
from app.services.generation_session import GenerationSession
from app.services.trainer_process import TrainerProcess
from app.texts import tr
from app.theme.icons import icon
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    ElidedLabel,
    horizontal_layout,
    push_button,
    set_object_name,
    set_text_if_changed,
    vertical_layout,
)
from app.widgets.raw_text import set_raw_text_font
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

if TYPE_CHECKING:
    from trainer_core.system.hardware import MachineInfo

_PROMPT_HEIGHT: Final = 66
_SHORTCUTS: Final = {
    "write": ("Ctrl+Return", "Ctrl+Enter"),
    "stop": ("Esc",),
    "again": ("Ctrl+R",),
    "new": ("Ctrl+N",),
}


class PlaygroundPage(Page):
    """Its shortcuts take precedence over the window's while it has the focus."""

    _active_run: ActiveRun  # these are set by `connect_services`
    _history: RunHistory
    _settings: Settings

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self.sessions = [GenerationSession(TrainerProcess, self) for _ in range(2)]
        self.machine: MachineInfo | None = None  # None: not probed yet
        self._run_hello: protocol.Hello | None = None  # of the active run
        self._runs: list[Path] = []  # with checkpoints, newest first
        self.compare, self.new = push_button("compare", checkable=True), push_button("newTalk")
        self.device_label = set_object_name(ElidedLabel(), "muted")
        self.columns = [ModelColumn(session, palette) for session in self.sessions]
        self.columns[1].hide()
        self.row = SamplingRow()
        self.prompt = set_object_name(QPlainTextEdit(), "tryPrompt")
        self.prompt.setFixedHeight(_PROMPT_HEIGHT)
        self.prompt.setTabChangesFocus(True)
        set_raw_text_font(self.prompt)
        self.write, self.stop, self.again = push_button("primary"), push_button("tryStop"), push_button("tryAgain")
        self.stop.hide()
        self._buttons = {"write": self.write, "stop": self.stop, "again": self.again, "new": self.new}
        self.keys = {name: QAction(self) for name in _SHORTCUTS}
        self._build_layout()
        self._connect()
        self.retheme(palette)
        self.retranslate()

    def _build_layout(self) -> None:
        self.device_label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        buttons = vertical_layout(spacing=SPACING // 2)
        for button in (self.write, self.stop, self.again):
            buttons.addWidget(button)
        bottom = horizontal_layout((self.prompt, 1))
        bottom.addLayout(buttons)
        layout = vertical_layout()
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.addLayout(horizontal_layout(self.compare, self.new, (self.device_label, 1)))
        layout.addLayout(horizontal_layout(*((column, 1) for column in self.columns), spacing=2 * SPACING), 1)
        layout.addWidget(self.row)
        layout.addLayout(bottom)
        self.setLayout(layout)

    def _connect(self) -> None:
        self.compare.toggled.connect(self._set_comparing)
        self.new.clicked.connect(self._start_new)
        self.write.clicked.connect(lambda: self.generate(self.prompt.toPlainText()))
        self.again.clicked.connect(self._regenerate)
        self.stop.clicked.connect(self._stop_generation)
        for session, column in zip(self.sessions, self.columns, strict=True):
            session.changed.connect(self.refresh)
            session.prompt_sent.connect(self._clear_prompt)
            column.chosen.connect(session.select)
        for name, action in self.keys.items():
            action.setShortcuts([QKeySequence(keys) for keys in _SHORTCUTS[name]])
            # For the list of shortcuts. `event` and `keyPressEvent` handle the keys before the window does.
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
            action.triggered.connect(self._buttons[name].click)
            self.addAction(action)

    def connect_services(self, active_run: ActiveRun, history: RunHistory, settings: Settings) -> None:
        self._active_run, self._history, self._settings = active_run, history, settings
        self.row.set_sampling(settings.sampling)
        active_run.event_received.connect(self._on_event)
        active_run.state_changed.connect(self.refresh_checkpoints)

    def set_machine(self, machine: MachineInfo) -> None:
        self.machine = machine
        self.refresh()

    def shutdown(self) -> None:
        """End the processes."""
        for session in self.sessions:
            session.blockSignals(True)
            session.shutdown()

    # --- shortcuts ------------------------------------------------------------------------------------------

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent):
            event.setAccepted(self._action_for(event) is not None)  # Ctrl+Enter is Start elsewhere in the window
            return event.isAccepted()
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        action = self._action_for(event)
        if action is None:
            super().keyPressEvent(event)
        else:
            action.trigger()

    def _action_for(self, event: QKeyEvent) -> QAction | None:
        modifiers = event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier
        keys = QKeySequence(QKeyCombination(modifiers, Qt.Key(event.key())))
        found = next((action for action in self.keys.values() if keys in action.shortcuts()), None)
        return None if found is self.keys["stop"] and not self.is_busy else found

    # --- models -------------------------------------------------------------------------------------------

    @property
    def visible_sessions(self) -> list[GenerationSession]:
        return self.sessions if self.compare.isChecked() else self.sessions[:1]

    @property
    def is_busy(self) -> bool:
        """Whether a model is loaded or generates."""
        return any(session.is_busy for session in self.visible_sessions)

    def select_checkpoint(self, checkpoint: Path) -> None:
        """Select a checkpoint for the first session."""
        self.sessions[0].select(checkpoint.parent.parent, checkpoint)

    def _set_comparing(self, comparing: bool) -> None:
        """Show two models side by side, or one."""
        first, second = self.sessions
        if not comparing:
            second.unload()
        elif second.run is None:
            second.select(first.run, next((info.path for info in first.checkpoints[1:]), None))
        self.refresh()

    def on_run_moved(self, old: Path, new: Path | None) -> None:
        """Follow a run whose folder was renamed to `new`, or deleted (None)."""
        for session in self.sessions:
            if session.run == old:
                checkpoint = session.checkpoint
                session.select(new, new / "checkpoints" / checkpoint.name if new and checkpoint else None)

    @property
    def _training_run(self) -> Path | None:
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
        if self.isVisible():
            self._runs = [run.path for run in self._history.runs if run.checkpoints]
            if self.sessions[0].run is None:
                self.sessions[0].run = next(iter(self._selectable_runs(None)), None)
            for session in self.visible_sessions:
                session.refresh_checkpoints()
            self.refresh()

    def _selectable_runs(self, selected: Path | None) -> list[Path]:
        """Runs with a checkpoint, and the selected one; the active run first."""
        training = self._training_run
        listed = self._runs if selected is None or selected in self._runs else [*self._runs, selected]
        return sorted(listed, key=lambda path: path != training)

    # --- the device -----------------------------------------------------------------------------------------

    def _choose_device(self) -> DeviceChoice:
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
        device = self._choose_device().flag
        for session in self.sessions:
            if session.key is not None and session.key[1] != device and not session.is_busy:
                session.unload()
        self.refresh()

    # --- generating ---------------------------------------------------------------------------------------

    def generate(self, prompt: str) -> None:
        """Generate text with every visible model."""
        answers = any(session.loaded is not None and session.loaded.chat for session in self.visible_sessions)
        if self.is_busy or (answers and not prompt.strip()):
            return
        self._settings.sampling = self.row.sampling
        for session in self.visible_sessions:
            session.refresh_checkpoints()
            if (checkpoint := session.selected_path) is not None:
                session.generate((checkpoint, self._choose_device().flag), prompt, self.row.sampling)
        self.refresh()

    def _regenerate(self) -> None:
        """Replace the last text by one with another seed."""
        last = next((session.turns[-1] for session in self.visible_sessions if session.turns), None)
        if last is None or self.is_busy:
            return
        self.row.randomize_seed()  # the same seed would generate the same text
        for session in self.visible_sessions:
            if session.turns and session.turns[-1].prompt == last.prompt:
                session.turns.pop()
        self.generate(last.prompt)

    def _stop_generation(self) -> None:
        for session in self.visible_sessions:
            session.stop_generation()

    def _start_new(self) -> None:
        for session in self.sessions:
            session.turns.clear()
        self.prompt.clear()
        self.prompt.setFocus()
        self.refresh()

    def _clear_prompt(self, prompt: str) -> None:
        """Clear the input after `prompt` was sent as a question."""
        if self.prompt.toPlainText() == prompt:
            self.prompt.clear()

    # --- display ------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        if not self.isVisible():
            return
        busy, sessions = self.is_busy, self.visible_sessions
        can_generate = any(session.selected_path is not None for session in sessions)
        has_turns = any(session.turns for session in sessions)
        self._show_stop(busy)
        self.new.setEnabled(has_turns and not busy)
        self.write.setEnabled(can_generate)
        self.write.setToolTip(tr("playground.ctrl_enter" if can_generate else "playground.empty_page"))
        self.again.setEnabled(can_generate and has_turns and not busy)
        reason = self._choose_device().reason
        self.device_label.setText(tr(reason) if reason else "")
        hint = tr("playground.transcript_hint") if can_generate else tr("playground.empty_page")
        self.columns[1].setVisible(len(sessions) > 1)
        for session, column in zip(sessions, self.columns, strict=False):
            set_text_if_changed(column.transcript.placeholder, hint)
            column.display(self._selectable_runs(session.run), self._training_run)

    def _show_stop(self, busy: bool) -> None:
        """Show Stop in place of Generate, or vice versa, and keep the focus."""
        shown, hidden = (self.stop, self.write) if busy else (self.write, self.stop)
        focused = hidden.hasFocus()
        hidden.hide()
        shown.show()
        if focused:
            shown.setFocus()

    def retheme(self, palette: Palette) -> None:
        self.write.setIcon(icon("start", palette.on_accent, palette.muted))
        self.stop.setIcon(icon("stop", palette.text, palette.muted))
        for column in self.columns:
            column.transcript.colors = palette
            column.transcript.render_all()

    def retranslate(self) -> None:
        texts: dict[Any, tuple[str, str]] = {
            self.compare: (tr("playground.compare"), tr("playground.compare_hint")),
            self.new: (tr("playground.new_conversation"), tr("playground.new_conversation_hint")),
            self.write: (tr("playground.generate"), tr("playground.ctrl_enter")),
            self.stop: (tr("playground.stop"), tr("playground.stop_hint")),
            self.again: (tr("playground.regenerate"), tr("playground.regenerate_hint")),
        }
        for button, (text, tooltip) in texts.items():
            button.setText(text)
            button.setToolTip(tooltip)
        self.prompt.setAccessibleName(tr("playground.prompt"))
        self.prompt.setPlaceholderText(tr("playground.prompt_hint"))
        for name, action in self.keys.items():
            action.setText(self._buttons[name].text())
        self.refresh()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.refresh_checkpoints()
