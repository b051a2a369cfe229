"""Playground page: generates text with one checkpoint, or with two side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from PySide6.QtCore import QEvent, QKeyCombination, Qt, Signal
from PySide6.QtGui import QAction, QKeyEvent, QKeySequence, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QPlainTextEdit, QVBoxLayout

from app.core.conversation import DeviceChoice, SamplingOptions
from app.pages.page import Page
from app.pages.playground.model_column import ModelColumn
from app.pages.playground.sampling_row import SamplingRow
from app.texts import tr
from app.theme.icons import icon
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    ElidedLabel,
    NoScrollComboBox,
    horizontal_layout,
    push_button,
    set_object_name,
    set_text_if_changed,
)
from app.widgets.raw_text import set_raw_text_font

_PROMPT_HEIGHT: Final = 66
_SHORTCUTS: Final = {
    "write": ("Ctrl+Return", "Ctrl+Enter"),
    "stop": ("Esc",),
    "again": ("Ctrl+R",),
    "new": ("Ctrl+N",),
}


@dataclass(frozen=True, slots=True)
class PageState:
    """State of the page, without its columns."""

    comparing: bool
    busy: bool  # a model is loaded or generates
    possible: bool  # a checkpoint is available
    has_turns: bool
    device: DeviceChoice
    requested_device: str
    gpus: int


class PlaygroundPage(Page):
    """Its shortcuts take precedence over the window's while it has the focus."""

    generate_requested = Signal(str, SamplingOptions)
    regenerate_requested = Signal(SamplingOptions)
    stop_requested = Signal()
    new_requested = Signal()
    compare_toggled = Signal(bool)
    device_chosen = Signal(str)
    shown = Signal()

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._state: PageState | None = None
        self._gpus: int | None = None  # that the list of devices contains
        self.compare, self.new = push_button("compare", checkable=True), push_button("newTalk")
        self.device_label = set_object_name(ElidedLabel(), "muted")
        self.device = set_object_name(NoScrollComboBox(), "tryDevice")
        self.columns = (ModelColumn(palette), ModelColumn(palette))
        self.columns[1].hide()
        self.row = SamplingRow(palette)
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
        columns, buttons = QHBoxLayout(), QVBoxLayout()
        columns.setSpacing(2 * SPACING)
        for column in self.columns:
            columns.addWidget(column, 1)
        buttons.setSpacing(SPACING // 2)
        for button in (self.write, self.stop, self.again):
            buttons.addWidget(button)
        bottom = horizontal_layout((self.prompt, 1))
        bottom.addLayout(buttons)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.setSpacing(SPACING)
        layout.addLayout(horizontal_layout(self.compare, self.new, (self.device_label, 1), self.device))
        layout.addLayout(columns, 1)
        layout.addWidget(self.row)
        layout.addLayout(bottom)

    def _connect(self) -> None:
        self.compare.clicked.connect(self.compare_toggled)
        self.new.clicked.connect(self._start_new)
        self.device.activated.connect(lambda: self.device_chosen.emit(self.device.currentData()))
        self.write.clicked.connect(self._generate)
        self.again.clicked.connect(self._regenerate)
        self.stop.clicked.connect(self.stop_requested)
        for name, action in self.keys.items():
            action.setShortcuts([QKeySequence(keys) for keys in _SHORTCUTS[name]])
            # For the list of shortcuts. `event` and `keyPressEvent` handle the keys before the window does.
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
            action.triggered.connect(self._buttons[name].click)
            self.addAction(action)

    def _generate(self) -> None:
        if self._state is not None and not self._state.busy:
            self.generate_requested.emit(self.prompt.toPlainText(), self.row.sampling)

    def _regenerate(self) -> None:
        self.row.randomize_seed()  # the same seed would generate the same text
        self.regenerate_requested.emit(self.row.sampling)

    def _start_new(self) -> None:
        self.new_requested.emit()
        self.prompt.clear()
        self.prompt.setFocus()

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
        idle = self._state is None or not self._state.busy
        return None if found is self.keys["stop"] and idle else found

    # --- state ----------------------------------------------------------------------------------------------

    def clear_prompt(self, prompt: str) -> None:
        """Clear the input after `prompt` was sent as a question."""
        if self.prompt.toPlainText() == prompt:
            self.prompt.clear()

    def display(self, state: PageState) -> None:
        if state == self._state:
            return
        self._state = state
        self.columns[1].setVisible(state.comparing)
        self.compare.setChecked(state.comparing)
        self._show_stop(state.busy)
        self.new.setEnabled(state.has_turns and not state.busy)
        self.write.setEnabled(state.possible)
        self.again.setEnabled(state.possible and state.has_turns and not state.busy)
        self._list_devices(state)
        self.device_label.setText(_format_device_reason(state.device))
        hint = tr("playground.write_beginning_or_question_below")
        if not state.possible:
            hint = tr("playground.no_checkpoint_try_yet_start")
        for column in self.columns:
            set_text_if_changed(column.transcript.note, hint)

    def _show_stop(self, busy: bool) -> None:
        """Show Stop in place of Generate, or vice versa, and keep the focus."""
        shown, hidden = (self.stop, self.write) if busy else (self.write, self.stop)
        focused = hidden.hasFocus()
        hidden.hide()
        shown.show()
        if focused:
            shown.setFocus()

    def _list_devices(self, state: PageState) -> None:
        if self._gpus != state.gpus:
            self._gpus = state.gpus
            self.device.clear()
            self.device.addItem(tr("playground.device_auto"), "auto")
            self.device.addItem("CPU", "cpu")
            for number in range(state.gpus):
                self.device.addItem("GPU" if state.gpus == 1 else f"GPU {number}", f"cuda:{number}")
        self.device.setCurrentIndex(max(0, self.device.findData(state.requested_device)))

    def retheme(self, palette: Palette) -> None:
        self.row.retheme(palette)
        self.write.setIcon(icon("start", palette.on_accent, palette.muted))
        self.stop.setIcon(icon("stop", palette.text, palette.muted))
        for column in self.columns:
            column.retheme(palette)

    def retranslate(self) -> None:
        for button, text, tooltip in (
            (self.compare, tr("playground.compare"), tr("playground.two_checkpoints_side_by_side")),
            (self.new, tr("playground.new_conversation"), tr("playground.clear_what_was_written_begin")),
            (self.write, tr("playground.generate"), tr("playground.ctrl_enter")),
            (self.stop, tr("playground.stop"), tr("playground.esc_what_was_written_stays")),
            (self.again, tr("playground.regenerate"), tr("playground.last_text_again_with_another")),
        ):
            button.setText(text)
            button.setToolTip(tooltip)
        self.device.setAccessibleName(tr("playground.device"))
        self.prompt.setAccessibleName(tr("playground.prompt"))
        self.prompt.setPlaceholderText(tr("playground.beginning_text_or_question"))
        for name, action in self.keys.items():
            action.setText(self._buttons[name].text())
        self._gpus, state, self._state = None, self._state, None
        if state is not None:
            self.display(state)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.shown.emit()


def _format_device_reason(device: DeviceChoice) -> str:
    """The device that models are loaded on, and why."""
    return {
        "gpu": tr("playground.on_the_gpu"),
        "no_gpu": tr("playground.on_cpu_no_gpu_was"),
        "run_has_gpu": tr("playground.on_cpu_training_has_only"),
        "other_gpu": tr("playground.on_another_gpu_than_training"),
    }.get(device.reason, "")
