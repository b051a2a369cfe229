"""Run bar: starts, pauses and stops a run, and displays its progress."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QProgressBar, QPushButton, QToolTip, QVBoxLayout, QWidget

from app.core.run_state import RunState, RunStateMachine
from app.texts import tr
from app.theme.icons import IconName, icon
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    TranslatableWidget,
    card,
    label,
    move_focus,
    plain_tooltip,
    push_button,
    set_text_if_changed,
)
from app.window.commands import Menus

_PROGRESS_STEPS = 1000


class RunBar(TranslatableWidget):
    """Buttons of the run commands, and the state of a run. Which commands are possible is up to `Menus.display`."""

    show_reason_clicked = Signal()  # show what prevents a start

    def __init__(self, palette: Palette, commands: Menus) -> None:
        super().__init__()
        self._machine = RunStateMachine()
        self._blocked = ""
        self.start, self.queue = push_button("primary"), push_button("addToQueue")
        self.check, self.pause = push_button("check"), push_button("pause")
        self.resume, self.stop = push_button("resume"), push_button("stop")
        self.state_label, self.time_label = label("stateWord"), label("muted")
        self.status_label = ElidedLabel()
        self.status_label.setObjectName("muted")
        self.reason_label, self.show_reason_button = label("warnText", wrap=True), push_button("link")
        self._lower_row = QWidget()
        self.progress_bar = QProgressBar(textVisible=False, maximum=_PROGRESS_STEPS)
        self._build_layout()
        for name in ("start", "check", "pause", "resume", "stop"):
            commands.bind_button(name, getattr(self, name))
        self.queue.clicked.connect(commands.actions["add_to_queue"].trigger)
        self.show_reason_button.clicked.connect(self.show_reason_clicked)
        self.retheme(palette)
        self.retranslate()

    def _build_layout(self) -> None:
        top = QHBoxLayout()
        top.setSpacing(SPACING - 2)
        top.addWidget(self.state_label)
        top.addWidget(self.status_label, 1)
        for button in (self.start, self.queue, self.check, self.pause, self.resume, self.stop):
            top.addWidget(button)
        # Progress and reason share a row, so that the pages do not move while a wrong value is typed.
        bottom = QHBoxLayout(self._lower_row)
        bottom.setContentsMargins(0, 0, 0, 0)
        bottom.setSpacing(2 * SPACING)
        bottom.addWidget(self.progress_bar, 1)
        bottom.addWidget(self.time_label)
        bottom.addWidget(self.reason_label, 1)
        bottom.addWidget(self.show_reason_button)
        inner = QVBoxLayout()
        inner.setSpacing(SPACING - 2)
        inner.addLayout(top)
        inner.addWidget(self._lower_row)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(card(inner))

    # --- showing -------------------------------------------------------------------------------------

    def display(self, machine: RunStateMachine, blocked: str, *, checking: bool = False) -> None:
        """`blocked`: why a run cannot be started, or empty. `checking`: a check is running."""
        self._machine, self._blocked = machine, blocked
        if checking:
            move_focus(self.check, self.start)
        self.start.setToolTip(blocked)
        # Check and Pause share a place: they are never possible at the same time.
        self.check.setVisible(machine.can_start)
        self.pause.setVisible(not machine.can_start)
        set_text_if_changed(self.state_label, formatting.format_run_state(machine.state))
        set_text_if_changed(self.stop, tr("window.force_stop") if machine.next_stop_kills else tr("window.stop"))
        self.status_label.setText(self._format_status())
        set_text_if_changed(self.reason_label, tr("window.start_blocked", reason=blocked))
        set_text_if_changed(self.time_label, self._format_time())
        waiting = bool(blocked) and machine.can_start
        for widget in (self.reason_label, self.show_reason_button):
            widget.setVisible(waiting)
        self.progress_bar.setVisible(not waiting)
        self.time_label.setVisible(bool(self.time_label.text()) and not waiting)
        self._show_progress()
        self._update_reason_height()

    def _update_reason_height(self) -> None:
        """Keep the height of the lower row, unless the reason needs several lines."""
        self.show_reason_button.ensurePolished()  # before it is shown for the first time
        link = self.show_reason_button.sizeHint()
        room = self._lower_row.width() - link.width() - 2 * SPACING
        one_line = self.reason_label.fontMetrics().horizontalAdvance(self.reason_label.text()) <= room
        # Otherwise Qt guesses a height first, and the pages jump.
        self.reason_label.setFixedHeight(link.height() if one_line else self.reason_label.heightForWidth(room))
        self._lower_row.setMinimumHeight(link.height())

    def set_queue_enabled(self, blocked: str, *, possible: bool) -> None:
        """`blocked`: why the configuration cannot be queued, or empty. `possible`: this window has the queue."""
        self.queue.setEnabled(possible and not blocked)
        self.queue.setToolTip(blocked or tr("window.add_to_queue_hint"))

    def show_queue_message(self, text: str) -> None:
        """Show a message at the queue button for some seconds."""
        QToolTip.showText(self.queue.mapToGlobal(QPoint(0, self.queue.height() // 2)), plain_tooltip(text), self.queue)

    def _show_progress(self) -> None:
        progress = self._machine.progress
        unknown = progress is None and self._machine.is_active
        self.progress_bar.setMaximum(0 if unknown else _PROGRESS_STEPS)  # 0: busy indicator
        if not unknown:
            self.progress_bar.setValue(round((progress or 0.0) * _PROGRESS_STEPS))

    def _format_status(self) -> str:
        machine = self._machine
        match machine.state:
            case RunState.STOPPING:
                return self._format_countdown()
            case RunState.KILLING:
                return tr("window.killing_trainer")
            case RunState.STARTING:
                return tr("window.waiting_for_trainer")
            case RunState.PREPARING | RunState.COMPILING:
                return self._format_preparation()
        return self._format_position()

    def _format_countdown(self) -> str:
        left = self._machine.stop_deadline_s
        phase = self._machine.phase or "stopping"
        doing = tr("window.finishing_this_step") if phase == "training" else formatting.format_phase(phase)
        return doing if left is None else tr("window.force_stop_countdown", doing=doing, seconds=round(left))

    def _format_preparation(self) -> str:
        progress = self._machine.phase_progress
        doing = formatting.format_phase(self._machine.phase or "preparing")
        if progress is None:
            return doing
        return f"{doing}  ·  {formatting.format_progress(progress.done, progress.total, progress.unit)}"

    def _format_position(self) -> str:
        machine = self._machine
        parts = [formatting.format_position(machine)]
        if machine.pause_pending:
            parts.append(tr("window.pausing_after_this_step"))
        elif machine.state is RunState.PAUSED:
            parts.insert(0, formatting.format_pause_reason(machine.pause_reason or "", machine.pause_until))
        return "  ·  ".join(filter(None, parts))

    def _format_time(self) -> str:
        machine = self._machine
        if machine.state is RunState.IDLE:
            return ""
        parts = [tr("window.epoch", epoch=f"{machine.epoch:.2f}")] if machine.epoch else []
        parts.append(tr("window.elapsed", time=formatting.format_duration(machine.elapsed_s)))
        if machine.eta_s is not None:
            parts.append(tr("window.time_left", time=formatting.format_duration(machine.eta_s)))
        return "  ·  ".join(parts)

    # --- theme and texts -------------------------------------------------------------------------------

    def retheme(self, palette: Palette) -> None:
        icons: list[tuple[QPushButton, IconName, str]] = [
            (self.start, "start", palette.on_accent),
            (self.pause, "pause", palette.text),
            (self.resume, "resume", palette.text),
            (self.stop, "stop", palette.bad),
            (self.queue, "queue", palette.text),
        ]
        for button, name, colour in icons:
            button.setIcon(icon(name, colour, palette.muted))

    def retranslate(self) -> None:
        self.check.setText(tr("window.check"))
        self.check.setToolTip(tr("window.check_hint"))
        self.start.setText(tr("window.start"))
        self.queue.setAccessibleName(tr("window.add_to_queue"))
        self.pause.setText(tr("window.pause"))
        self.resume.setText(tr("window.resume"))
        self.stop.setText(tr("window.stop"))
        self._reserve_width(self.stop, tr("window.stop"), tr("window.force_stop"))
        for button in (self.check, self.pause):
            button.setMinimumWidth(max(self.check.sizeHint().width(), self.pause.sizeHint().width()))
        self.show_reason_button.setText(tr("window.show_setting"))
        self.progress_bar.setAccessibleName(tr("common.progress"))
        self.display(self._machine, self._blocked)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._update_reason_height()

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange:  # padding and font have changed
            self.retranslate()

    def _reserve_width(self, button: QPushButton, *texts: str) -> None:
        """Make a button as wide as the longest of its texts."""
        widths = []
        for text in texts:
            button.setText(text)
            widths.append(button.sizeHint().width())
        button.setMinimumWidth(max(widths))
