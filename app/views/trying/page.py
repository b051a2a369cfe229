"""The page “Try it”: a prompt, and what one checkpoint, or two side by side, make of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from PySide6.QtCore import QEvent, QKeyCombination, Qt, Signal
from PySide6.QtGui import QAction, QKeyEvent, QKeySequence, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

from app.state.trying import Device, Sampling
from app.theme.icons import icon
from app.theme.tokens import SPACE, Tokens
from app.views.raw_text import show_as_it_stands
from app.views.trying import trying_words
from app.views.trying.column import Column
from app.views.trying.sampling_row import SamplingRow
from app.views.widgets import ElidedLabel, QuietCombo, Retranslating, button, named, put

_PROMPT_HEIGHT: Final = 66
_KEYS: Final = {"write": ("Ctrl+Return", "Ctrl+Enter"), "stop": ("Esc",), "again": ("Ctrl+R",), "new": ("Ctrl+N",)}


@dataclass(frozen=True, slots=True)
class PageState:
    """Everything but the columns."""

    comparing: bool
    busy: bool  # something is being written, or loaded for it
    possible: bool  # there is a checkpoint to write with
    talked: bool  # there is something that could be had again, or cleared away
    device: Device
    wanted_device: str
    gpus: int


class TryPage(Retranslating):
    """Its keys (Ctrl+Enter writes, Esc stops) are its own wherever the focus is on it."""

    asked = Signal(str, Sampling)
    again_asked = Signal(Sampling)
    stop_asked = Signal()
    new_asked = Signal()
    compare_toggled = Signal(bool)
    device_chosen = Signal(str)
    shown = Signal()

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._state: PageState | None = None
        self._gpus: int | None = None  # that the devices list
        self.compare, self.new = button("compare", checkable=True), button("newTalk")
        self._why, self.device = named(ElidedLabel(), "muted"), named(QuietCombo(), "tryDevice")
        self.columns = (Column(tokens), Column(tokens))
        self.columns[1].hide()
        self.row = SamplingRow(tokens)
        self.prompt = named(QPlainTextEdit(), "tryPrompt")
        self.prompt.setFixedHeight(_PROMPT_HEIGHT)
        self.prompt.setTabChangesFocus(True)
        show_as_it_stands(self.prompt)
        self.write, self.stop, self.again = button("primary"), button("tryStop"), button("tryAgain")
        self.stop.hide()
        self._buttons = {"write": self.write, "stop": self.stop, "again": self.again, "new": self.new}
        self.keys = {name: QAction(self) for name in _KEYS}
        self._arrange()
        self._connect()
        self.retheme(tokens)
        self.retranslate()

    def _arrange(self) -> None:
        bar = QHBoxLayout()
        bar.setSpacing(SPACE)
        self._why.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        bar.addWidget(self.compare)
        bar.addWidget(self.new)
        bar.addWidget(self._why, 1)
        bar.addWidget(self.device)
        sides = QHBoxLayout()
        sides.setSpacing(2 * SPACE)
        for column in self.columns:
            sides.addWidget(column, 1)
        buttons = QVBoxLayout()
        buttons.setSpacing(SPACE // 2)
        for widget in (self.write, self.stop, self.again):
            buttons.addWidget(widget)
        ask = QHBoxLayout()
        ask.setSpacing(SPACE)
        ask.addWidget(self.prompt, 1)
        ask.addLayout(buttons)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE, 0, 0)
        layout.setSpacing(SPACE)
        layout.addLayout(bar)
        layout.addLayout(sides, 1)
        layout.addWidget(self.row)
        layout.addLayout(ask)

    def _connect(self) -> None:
        self.row.changed.connect(self._allow)
        self.compare.clicked.connect(self.compare_toggled)
        self.new.clicked.connect(self._begin_anew)
        self.device.activated.connect(lambda: self.device_chosen.emit(self.device.currentData()))
        self.write.clicked.connect(self._ask)
        self.again.clicked.connect(self._ask_again)
        self.stop.clicked.connect(self.stop_asked)
        for name, keys in _KEYS.items():
            action = self.keys[name]
            action.setShortcuts([QKeySequence(key) for key in keys])
            # For the list of all keys: what they do is done below, where they come before the window's own.
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
            action.triggered.connect(self._buttons[name].click)
            self.addAction(action)

    # --- asking -------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        if self.write.isEnabled() and self._state is not None and not self._state.busy:
            self.asked.emit(self.prompt.toPlainText(), self.row.sampling)

    def _ask_again(self) -> None:
        self.row.roll()  # the same seed would give the same text
        self.again_asked.emit(self.row.sampling)

    def _begin_anew(self) -> None:
        self.new_asked.emit()
        self.prompt.clear()
        self.prompt.setFocus()

    def event(self, event: QEvent) -> bool:
        """Ctrl+Enter means Start elsewhere in the window: here it is this page's."""
        if event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent):
            event.setAccepted(self._meant(event) is not None)
            return event.isAccepted()
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        action = self._meant(event)
        if action is None:
            super().keyPressEvent(event)
        else:
            action.trigger()

    def _meant(self, event: QKeyEvent) -> QAction | None:
        """What a key does here."""
        keypad = Qt.KeyboardModifier.KeypadModifier
        pressed = QKeySequence(QKeyCombination(event.modifiers() & ~keypad, Qt.Key(event.key())))
        found = next((action for action in self.keys.values() if pressed in action.shortcuts()), None)
        idle = self._state is None or not self._state.busy
        return None if found is self.keys["stop"] and idle else found  # Esc is also others'

    def take_prompt(self, prompt: str) -> None:
        """A question was sent: the box is free for the next one."""
        if self.prompt.toPlainText() == prompt:
            self.prompt.clear()

    # --- showing ------------------------------------------------------------------------------------------

    def display(self, state: PageState) -> None:
        if state == self._state:
            return
        self._state = state
        self.columns[1].setVisible(state.comparing)
        self.compare.setChecked(state.comparing)
        self._show_stop(state.busy)
        self.new.setEnabled(state.talked and not state.busy)
        self._allow()
        self._list_devices(state)
        self._why.setText(trying_words.device(state.device))
        self._explain(state)

    def _allow(self) -> None:
        """Nothing is written with a checkpoint that is not there, or with a field that is wrong."""
        state, right = self._state, self.row.sampling is not None
        self.write.setEnabled(state is not None and state.possible and right)
        self.again.setEnabled(self.write.isEnabled() and state is not None and state.talked and not state.busy)

    def _show_stop(self, busy: bool) -> None:
        """One of the two, without the focus being lost to somewhere else."""
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
            self.device.addItem(self.tr("Device: auto"), "auto")
            self.device.addItem("CPU", "cpu")
            for number in range(state.gpus):
                self.device.addItem("GPU" if state.gpus == 1 else f"GPU {number}", f"cuda:{number}")
        self.device.setCurrentIndex(max(0, self.device.findData(state.wanted_device)))

    def _explain(self, state: PageState) -> None:
        """What to do, where there is nothing to read yet."""
        text = self.tr("Write a beginning or a question below, then press Generate.")
        if not state.possible:
            text = self.tr(
                "No checkpoint to try yet. Start a run at the left: "
                "as soon as it has saved its first checkpoint, its model writes here."
            )
        for column in self.columns:
            put(column.transcript.note, text)

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.row.retheme(tokens)
        self.write.setIcon(icon("start", tokens.on_accent, tokens.muted))
        self.stop.setIcon(icon("stop", tokens.text, tokens.muted))
        for column in self.columns:
            column.retheme(tokens)

    def retranslate(self) -> None:
        self.compare.setText(self.tr("Compare"))
        self.compare.setToolTip(self.tr("Two checkpoints side by side, with the same prompt and seed"))
        self.new.setText(self.tr("New conversation"))
        self.new.setToolTip(self.tr("Clear what was written, and begin anew"))
        self.device.setAccessibleName(self.tr("Device"))
        self.prompt.setAccessibleName(self.tr("Prompt"))
        self.prompt.setPlaceholderText(self.tr("Beginning of a text, or a question"))
        self.write.setText(self.tr("Generate"))
        self.write.setToolTip(self.tr("Ctrl+Enter"))
        self.stop.setText(self.tr("Stop"))
        self.stop.setToolTip(self.tr("Esc; what was written stays"))
        self.again.setText(self.tr("Regenerate"))
        self.again.setToolTip(self.tr("The last text again, with another seed"))
        for name, action in self.keys.items():
            action.setText(self._buttons[name].text())
        self._gpus, state, self._state = None, self._state, None
        if state is not None:
            self.display(state)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.shown.emit()
