"""Run bar: starts, pauses and stops a run, and displays its progress."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, Signal
from PySide6.QtWidgets import QProgressBar, QPushButton, QToolTip, QVBoxLayout, QWidget

from app.core.run_state import RunState, RunStateMachine
from app.texts import tr
from app.theme.icons import IconName, icon
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    TranslatableWidget,
    card,
    horizontal_layout,
    label,
    plain_tooltip,
    push_button,
    set_object_name,
    set_text_if_changed,
    vertical_layout,
)
from app.widgets.table import bind_button
from app.window.commands import Menus

_PROGRESS_STEPS = 1000
_SLOTS = ((("check", "pause"), ("window.check", "window.pause")), (("stop",), ("window.stop", "window.force_stop")))
"""Buttons that share a place, and the texts that they show in turn."""


class RunBar(TranslatableWidget):
    """Buttons of the run commands, and the state of a run. Which commands are possible is up to `Menus.display`."""

    show_reason_clicked = Signal()  # show what prevents a start

    def __init__(self, palette: Palette, commands: Menus) -> None:
        super().__init__()
        self._machine, self._commands = RunStateMachine(), commands
        self._blocked = ""
        self.start, self.queue = push_button("primary"), push_button("addToQueue")
        self.check, self.pause = push_button("check"), push_button("pause")
        self.resume, self.stop = push_button("resume"), push_button("stop")
        self.state_label, self.time_label = label("stateWord"), label("muted")
        self.status_label = set_object_name(ElidedLabel(), "muted")
        self.reason_label = set_object_name(ElidedLabel(), "warnText")
        self.show_reason_button = push_button("link")
        self.progress_bar = QProgressBar(textVisible=False, maximum=_PROGRESS_STEPS)
        buttons = (self.start, self.queue, self.check, self.pause, self.resume, self.stop)
        # Progress and reason share a row, so that the pages do not move while a wrong value is typed.
        lower_row = QWidget()
        lower_row.setLayout(
            horizontal_layout(
                (self.progress_bar, 1), self.time_label, (self.reason_label, 1), self.show_reason_button,
                spacing=2 * SPACING,
            )
        )  # fmt: skip
        inner, outer = vertical_layout(spacing=SPACING - 2), QVBoxLayout(self)
        inner.addLayout(horizontal_layout(self.state_label, (self.status_label, 1), *buttons, spacing=SPACING - 2))
        inner.addWidget(lower_row)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(card(inner))
        self._buttons = {name: getattr(self, name) for name in ("start", "check", "pause", "resume", "stop")}
        for name, button in self._buttons.items():
            bind_button(button, commands.actions[name], self.start)
        self.queue.clicked.connect(commands.actions["add_to_queue"].trigger)
        self.show_reason_button.clicked.connect(self.show_reason_clicked)
        self.retheme(palette)
        self.retranslate()
        lower_row.setMinimumHeight(self.show_reason_button.sizeHint().height())

    def display(self, machine: RunStateMachine, blocked: str, delay: str = "", check_blocked: str = "") -> None:
        """`blocked`, `check_blocked`: why a run or a check cannot start. `delay`: why a run cannot start yet."""
        self._machine, self._blocked = machine, blocked
        for name, button in self._buttons.items():
            set_text_if_changed(button, self._commands.actions[name].text())
        self.start.setToolTip((blocked or delay) if machine.can_start else tr("setup.run_active"))
        self.check.setToolTip(check_blocked or tr("window.check_hint"))
        # Check and Pause share a place: they are never possible at the same time.
        self.check.setVisible(machine.can_start)
        self.pause.setVisible(not machine.can_start)
        set_text_if_changed(self.state_label, formatting.format_run_state(machine.state))
        self.status_label.setText(_format_status(machine) or delay)
        self.reason_label.setText(tr("window.start_blocked", reason=blocked))
        set_text_if_changed(self.time_label, _format_time(machine))
        waiting = bool(blocked) and machine.can_start
        self.reason_label.setVisible(waiting)
        self.show_reason_button.setVisible(waiting)
        self.progress_bar.setVisible(not waiting)
        self.time_label.setVisible(bool(self.time_label.text()) and not waiting)
        unknown = machine.progress is None and machine.is_active
        self.progress_bar.setMaximum(0 if unknown else _PROGRESS_STEPS)  # 0: busy indicator
        if not unknown:
            self.progress_bar.setValue(round(_PROGRESS_STEPS * (machine.progress or 0.0)))

    def set_queue_enabled(self, blocked: str, *, possible: bool) -> None:
        """`blocked`: why the configuration cannot be queued, or empty. `possible`: this window has the queue."""
        self.queue.setEnabled(possible and not blocked)
        self.queue.setToolTip(blocked or tr("window.add_to_queue_hint"))

    def show_queue_message(self, text: str) -> None:
        """Show a message at the queue button for some seconds."""
        QToolTip.showText(self.queue.mapToGlobal(QPoint(0, self.queue.height() // 2)), plain_tooltip(text), self.queue)

    def retheme(self, palette: Palette) -> None:
        self.start.setIcon(icon("start", palette.on_accent, palette.muted))
        self.stop.setIcon(icon("stop", palette.bad, palette.muted))
        others: tuple[IconName, ...] = ("pause", "resume", "queue")
        for name in others:
            getattr(self, name).setIcon(icon(name, palette.text, palette.muted))

    def retranslate(self) -> None:
        self.queue.setAccessibleName(tr("window.add_to_queue"))
        self.show_reason_button.setText(tr("window.show_setting"))
        self.progress_bar.setAccessibleName(tr("common.progress"))
        self._reserve_widths()

    def _reserve_widths(self) -> None:
        for slot, texts in _SLOTS:
            _reserve_width([self._buttons[name] for name in slot], [tr(key) for key in texts])
        self.display(self._machine, self._blocked)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange:  # the style sheet is set after the window is built
            self._reserve_widths()


def _reserve_width(buttons: list[QPushButton], texts: list[str]) -> None:
    """Give the buttons of one place the width of the longest text, so that their neighbours do not move."""
    width = 0
    for button in buttons:
        for text in texts:
            button.setText(text)
            width = max(width, button.sizeHint().width())
    for button in buttons:
        button.setMinimumWidth(width)


def _format_status(machine: RunStateMachine) -> str:
    match machine.state:
        case RunState.STOPPING:
            left, phase = machine.stop_deadline_s, machine.phase or "stopping"
            doing = tr("window.finishing_this_step") if phase == "training" else formatting.format_phase(phase)
            return doing if left is None else tr("window.force_stop_countdown", doing=doing, seconds=round(left))
        case RunState.KILLING:
            return tr("window.killing_trainer")
        case RunState.STARTING:
            return tr("window.waiting_for_trainer")
        case RunState.PREPARING | RunState.COMPILING:
            doing, progress = formatting.format_phase(machine.phase or "preparing"), machine.phase_progress
            done = formatting.format_progress(progress.done, progress.total, progress.unit) if progress else ""
            return _join(doing, done)
    position = formatting.format_position(machine)
    if machine.pause_pending:
        return _join(position, tr("window.pausing_after_this_step"))
    if machine.state is RunState.PAUSED:
        return _join(formatting.format_pause_reason(machine.pause_reason or "", machine.pause_until), position)
    return position


def _format_time(machine: RunStateMachine) -> str:
    if machine.state is RunState.IDLE:
        return ""
    epoch = tr("window.epoch", epoch=f"{machine.epoch:.2f}") if machine.epoch else ""
    elapsed = tr("window.elapsed", time=formatting.format_duration(machine.elapsed_s))
    left = "" if machine.eta_s is None else tr("window.time_left", time=formatting.format_duration(machine.eta_s))
    return _join(epoch, elapsed, left)


def _join(*parts: str) -> str:
    return "  ·  ".join(filter(None, parts))
