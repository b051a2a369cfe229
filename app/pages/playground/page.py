"""Playground page: generates text with one checkpoint, or with two side by side."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QEvent, QKeyCombination, Qt, Signal
from PySide6.QtGui import QAction, QKeyEvent, QKeySequence, QShowEvent
from PySide6.QtWidgets import QDoubleSpinBox, QGridLayout, QHBoxLayout, QPlainTextEdit, QToolButton, QVBoxLayout

from app.core.conversation import MAX_SEED, DeviceChoice, SamplingOptions
from app.pages.page import Page
from app.pages.playground.model_column import ModelColumn
from app.texts import tr
from app.theme.icons import icon
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    ElidedLabel,
    NoScrollComboBox,
    TranslatableWidget,
    horizontal_layout,
    label,
    push_button,
    set_object_name,
    set_text_if_changed,
)
from app.widgets.raw_text import set_raw_text_font

if TYPE_CHECKING:
    from app.pages.playground.playground_controller import PlaygroundController

_PROMPT_HEIGHT: Final = 66
_SHORTCUTS: Final = {
    "write": ("Ctrl+Return", "Ctrl+Enter"),
    "stop": ("Esc",),
    "again": ("Ctrl+R",),
    "new": ("Ctrl+N",),
}
_FIELDS: Final = {  # object name, minimum, maximum, step, decimals
    "temperature": ("temperature", 0.0, 5.0, 0.1, 2),
    "top_k": ("topK", 0, 1_000_000, 1, 0),
    "top_p": ("topP", 0.01, 1.0, 0.05, 2),
    "max_tokens": ("maxTokens", 1, 100_000, 50, 0),
    "seed": ("tryingSeed", 0, MAX_SEED, 1, 0),
}


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
        self._controller: PlaygroundController | None = None  # displayed
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
        if not self._is_busy:
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
        return None if found is self.keys["stop"] and not self._is_busy else found

    # --- state ----------------------------------------------------------------------------------------------

    def clear_prompt(self, prompt: str) -> None:
        """Clear the input after `prompt` was sent as a question."""
        if self.prompt.toPlainText() == prompt:
            self.prompt.clear()

    @property
    def _is_busy(self) -> bool:
        return self._controller is not None and self._controller.is_busy

    def display(self, controller: PlaygroundController) -> None:
        """Show the state of the controller, without its columns."""
        self._controller = controller
        busy, can_generate = controller.is_busy, controller.can_generate
        has_turns = any(session.conversation.turns for session in controller.visible_sessions)
        self.columns[1].setVisible(controller.comparing)
        self.compare.setChecked(controller.comparing)
        self._show_stop(busy)
        self.new.setEnabled(has_turns and not busy)
        self.write.setEnabled(can_generate)
        self.again.setEnabled(can_generate and has_turns and not busy)
        self._list_devices(len(controller.machine.gpus) if controller.machine else 0, controller.requested_device)
        self.device_label.setText(_format_device_reason(controller.device))
        hint = tr("playground.transcript_hint")
        if not can_generate:
            hint = tr("playground.empty_page")
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

    def _list_devices(self, gpus: int, selected: str) -> None:
        devices = {"auto": tr("playground.device_auto"), "cpu": "CPU"}
        for number in range(gpus):
            devices[f"cuda:{number}"] = "GPU" if gpus == 1 else f"GPU {number}"
        if [self.device.itemText(index) for index in range(self.device.count())] != list(devices.values()):
            self.device.clear()
            for device, text in devices.items():
                self.device.addItem(text, device)
        self.device.setCurrentIndex(max(0, self.device.findData(selected)))

    def retheme(self, palette: Palette) -> None:
        self.row.retheme(palette)
        self.write.setIcon(icon("start", palette.on_accent, palette.muted))
        self.stop.setIcon(icon("stop", palette.text, palette.muted))
        for column in self.columns:
            column.retheme(palette)

    def retranslate(self) -> None:
        for button, text, tooltip in (
            (self.compare, tr("playground.compare"), tr("playground.compare_hint")),
            (self.new, tr("playground.new_conversation"), tr("playground.new_conversation_hint")),
            (self.write, tr("playground.generate"), tr("playground.ctrl_enter")),
            (self.stop, tr("playground.stop"), tr("playground.stop_hint")),
            (self.again, tr("playground.regenerate"), tr("playground.regenerate_hint")),
        ):
            button.setText(text)
            button.setToolTip(tooltip)
        self.device.setAccessibleName(tr("playground.device"))
        self.prompt.setAccessibleName(tr("playground.prompt"))
        self.prompt.setPlaceholderText(tr("playground.prompt_hint"))
        for name, action in self.keys.items():
            action.setText(self._buttons[name].text())
        if self._controller is not None:
            self.display(self._controller)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.shown.emit()


def _format_device_reason(device: DeviceChoice) -> str:
    """The device that models are loaded on, and why."""
    return {
        "gpu": tr("playground.device_gpu"),
        "no_gpu": tr("playground.device_no_gpu"),
        "run_has_gpu": tr("playground.device_gpu_busy"),
        "other_gpu": tr("playground.device_other_gpu"),
    }.get(device.reason, "")


class _SpinBox(QDoubleSpinBox):
    def textFromValue(self, value: float) -> str:  # noqa: N802 - Qt's name
        return f"{value:.{self.decimals()}f}".rstrip("0").rstrip(".") if self.decimals() else f"{value:.0f}"


class SamplingRow(TranslatableWidget):
    """One spin box per option, below its name."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self.fields = {name: _spin_box(*arguments) for name, arguments in _FIELDS.items()}
        self.dice = set_object_name(QToolButton(), "dice")
        self._names = {name: label("muted") for name in _FIELDS}
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACING)
        grid.setVerticalSpacing(2)
        for column, (name, field) in enumerate(self.fields.items()):
            grid.addWidget(self._names[name], 0, column)
            grid.addWidget(field, 1, column)
            grid.setColumnStretch(column, 1)
            self._names[name].setBuddy(field)
        grid.addWidget(self.dice, 1, len(self.fields))
        self.set_sampling(SamplingOptions())
        self.dice.clicked.connect(self.randomize_seed)
        self.retheme(palette)
        self.retranslate()

    @property
    def sampling(self) -> SamplingOptions:
        return SamplingOptions.from_mapping({name: field.value() for name, field in self.fields.items()})

    def set_sampling(self, sampling: SamplingOptions) -> None:
        for name, field in self.fields.items():
            field.setValue(getattr(sampling, name))

    def randomize_seed(self) -> None:
        self.fields["seed"].setValue(random.randrange(1, 1_000_000))

    def retheme(self, palette: Palette) -> None:
        self.dice.setIcon(icon("dice", palette.text, palette.muted))

    def retranslate(self) -> None:
        texts = {
            "temperature": (tr("playground.temperature"), tr("playground.temperature_hint")),
            "top_k": (tr("playground.top_k"), tr("playground.top_k_hint")),
            "top_p": (tr("playground.top_p"), tr("playground.top_p_hint")),
            "max_tokens": (tr("playground.max_tokens"), tr("playground.max_tokens_hint")),
            "seed": (tr("playground.seed"), tr("playground.seed_hint")),
        }
        for name, field in self.fields.items():
            title, help_ = texts[name]
            tooltip = f"{help_} ({field.minimum():g} – {field.maximum():,.15g})"
            self._names[name].setText(title)
            for widget in (field, self._names[name]):
                widget.setToolTip(tooltip)
            field.setAccessibleName(title)
            field.setAccessibleDescription(tooltip)
        self.dice.setToolTip(tr("playground.another_seed"))
        self.dice.setAccessibleName(tr("playground.another_seed"))


def _spin_box(name: str, low: float, high: float, step: float, decimals: int) -> QDoubleSpinBox:
    box = set_object_name(_SpinBox(decimals=decimals, minimum=low, maximum=high, singleStep=step), name)
    box.lineEdit().setTextMargins(4, 0, 4, 0)
    box.setMinimumWidth(48)
    return box
