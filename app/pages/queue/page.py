"""Queue page: runs that wait for their training, in their order, and the results of finished ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeySequence, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QToolButton, QWidget

from app.core.queue import AfterFailure, RunQueue
from app.core.run_state import RunStateMachine
from app.pages.page import Page
from app.pages.queue.table import QueueModel, QueueTable, format_details, format_progress
from app.texts import tr
from app.theme.icons import icon
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    IconButton,
    NoScrollComboBox,
    card,
    horizontal_layout,
    label,
    push_button,
    set_object_name,
    set_text_if_changed,
    vertical_layout,
)
from app.widgets.table import bind_button
from trainer_core.messages import TraindeckError

_POLICIES: Final[tuple[AfterFailure, ...]] = ("go_on", "hold")
_SHORTCUTS: Final = {
    "up": "Alt+Up",
    "down": "Alt+Down",
    "remove": "Del",
    "duplicate": "Ctrl+D",
    "undo": "Ctrl+Z",  # while the table has the focus
    "open": "Alt+Return",
}
_MENU: Final = ("open", "resume", "put_back", "", "up", "down", "duplicate", "to_form", "remove", "", "undo", "clear")


@dataclass(frozen=True, slots=True)
class QueueState:
    """State of a `QueuePage`."""

    queue: RunQueue
    hold: str  # `queue_controller.HoldReason`
    is_busy: bool  # this window trains a run
    machine: RunStateMachine | None  # of the running item
    is_restarting: bool  # the running item waits for its automatic restart
    blocked: str  # why the form cannot be added
    is_open: bool
    owner: int | None  # process id of the window that has opened the queue
    error: TraindeckError | None  # why the queue cannot be opened


class QueuePage(Page):
    """Displays the queue. `QueueController` connects `queue_actions`, which apply to the selected items."""

    shown = Signal()

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state: QueueState | None = None
        self._displayed: object = None  # state of the rows
        self.sentence = label("section", wrap=True)
        self.start_button = push_button("queueGo")  # pauses the queue while it runs
        self._policy_label, self.policy = label("muted"), set_object_name(NoScrollComboBox(), "afterFailure")
        self.add, self.sweep = push_button("queueAdd"), push_button("queueSweep")
        self.compare = push_button("queueCompare")
        self.open, self.remove = push_button("queueOpen"), push_button("queueRemove")
        self.up, self.down = set_object_name(QToolButton(), "queueUp"), set_object_name(QToolButton(), "queueDown")
        self._buttons = {"open": self.open, "up": self.up, "down": self.down, "remove": self.remove}
        self.more = IconButton("unfold", "queueMore")
        self.model = QueueModel(palette)
        self.table = QueueTable(self.model)
        self.queue_actions = self.table.create_actions(_MENU, _SHORTCUTS)
        self.details = label(wrap=True)
        self.details.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        for name, button in self._buttons.items():
            bind_button(button, self.queue_actions[name], self.table)
        self.more.setMenu(self.table.menu)
        self.more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._arrange()
        self.table.activated.connect(self.queue_actions["open"].trigger)
        self.table.selection_changed.connect(self._show_selected)
        self.retheme(palette)
        self.retranslate()

    def _arrange(self) -> None:
        bottom = horizontal_layout(self._policy_label, self.policy, self.add, self.sweep)
        bottom.insertStretch(2, 1)
        buttons = horizontal_layout(*self._buttons.values(), self.more, self.compare, spacing=SPACING // 2)
        buttons.insertStretch(buttons.count() - 1, 1)
        header, details = vertical_layout(spacing=SPACING - 2), vertical_layout()
        header.addLayout(horizontal_layout((self.sentence, 1), self.start_button))
        header.addLayout(bottom)
        details.addWidget(self.details)
        self._details_card = card(details)
        layout = vertical_layout()
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.addWidget(card(header))
        layout.addLayout(buttons)
        layout.addWidget(self.table, 1)
        layout.addWidget(self._details_card)
        self.setLayout(layout)

    @property
    def is_started(self) -> bool:
        """Whether queued runs start automatically."""
        return self._state is not None and not self._state.hold

    def display(self, state: QueueState) -> None:
        """Show `state`; cheap if it has not changed."""
        self._state = state
        queue, machine = state.queue, state.machine
        if machine is not None:
            self.model.show_progress(format_progress(machine), machine.progress, restarting=state.is_restarting)
        if self._displayed != (queue.revision, state.is_busy):
            self._displayed = (queue.revision, state.is_busy)
            self.table.display(queue.items)
            self.policy.setCurrentIndex(_POLICIES.index(queue.after_failure))
            self._show_selected()
        set_text_if_changed(self.sentence, _format_status(state))
        set_text_if_changed(self.start_button, tr("queue.start_queue") if state.hold else tr("queue.pause_queue"))
        self.start_button.setVisible(bool(queue.waiting) and state.is_open)
        for button in (self.add, self.sweep):
            button.setEnabled(state.is_open and not state.blocked)
            if button.toolTip() != state.blocked:
                button.setToolTip(state.blocked)
        self.policy.setEnabled(state.is_open)
        self.compare.setEnabled(len(self.comparable_runs()) > 1)

    def select(self, ids: list[str]) -> None:
        """Update the table and select these items."""
        if self._state is not None:
            self.display(self._state)
        self.table.select(ids)

    def _show_selected(self) -> None:
        selected, items = self.table.selected_rows(), self.model.rows
        item = selected[0] if len(selected) == 1 else None
        busy = self._state is not None and self._state.is_busy
        enabled = {
            "open": item is not None and bool(item.run_dir),
            "resume": item is not None and item.can_resume and not busy,
            "put_back": any(item.state not in ("waiting", "running") for item in selected),
            "up": bool(selected) and selected[0] is not items[0],
            "down": bool(selected) and selected[-1] is not items[-1],
            "duplicate": bool(selected),
            "to_form": item is not None,
            "remove": any(item.state != "running" for item in selected),
            "undo": self._state is not None and self._state.queue.can_undo,
            "clear": any(item.state == "done" for item in items),
        }
        for name, action in self.queue_actions.items():
            action.setEnabled(enabled[name])
        self._details_card.setVisible(item is not None)
        set_text_if_changed(self.details, format_details(item) if item is not None else "")

    def selected_ids(self) -> list[str]:
        return self.table.selected_keys()

    def selected_run(self) -> Path:
        """Run folder of the selected item."""
        return Path(self.table.selected_rows()[0].run_dir)

    def comparable_runs(self) -> list[Path]:
        """Run folders of the ended items: of the selected ones if there are several, else of all."""
        selected = self.table.selected_rows()
        items = selected if len(selected) > 1 else self.model.rows
        return [Path(item.run_dir) for item in items if item.run_dir and item.state != "running"]

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.shown.emit()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self.table.set_page_width(event.size().width())

    def retheme(self, palette: Palette) -> None:
        self.model.palette = palette
        self.table.viewport().update()
        self.up.setIcon(icon("up", palette.text, palette.muted))
        self.down.setIcon(icon("down", palette.text, palette.muted))

    def retranslate(self) -> None:
        names = {
            "open": tr("queue.open"),
            "resume": tr("queue.resume_hint"),
            "put_back": tr("queue.requeue"),
            "up": tr("queue.move_up"),
            "down": tr("queue.move_down"),
            "duplicate": tr("queue.duplicate"),
            "to_form": tr("queue.copy_to_form"),
            "remove": tr("queue.remove"),
            "undo": tr("queue.undo_remove"),
            "clear": tr("queue.clear_finished"),
        }
        for name, text in names.items():
            self.queue_actions[name].setText(text)
        self.open.setText(names["open"])
        self.remove.setText(names["remove"])
        for name, button in self._buttons.items():
            shortcut = QKeySequence(_SHORTCUTS[name]).toString(QKeySequence.SequenceFormat.NativeText)
            button.setToolTip(f"{names[name]} ({shortcut})")
            button.setAccessibleName(names[name])
        self.more.setToolTip(tr("queue.more"))
        self.more.setAccessibleName(tr("queue.more"))
        self.add.setText(tr("queue.add_to_queue"))
        self.sweep.setText(tr("queue.sweep"))
        self.compare.setText(tr("queue.compare_all"))
        self.compare.setToolTip(tr("queue.compare_hint"))
        self._policy_label.setText(tr("queue.after_a_failure"))
        self.policy.setAccessibleName(tr("queue.after_a_failure"))
        index = max(0, self.policy.currentIndex())
        self.policy.clear()
        self.policy.addItems([tr("queue.continue_after_failure"), tr("queue.pause_after_failure")])
        self.policy.setCurrentIndex(index)
        self.table.empty.setText(tr("queue.empty_page"))
        self.table.retranslate()
        self._displayed = None
        self._show_selected()
        if self._state is not None:
            self.display(self._state)


def _format_status(state: QueueState) -> str:
    """Which run starts next and when, or why none does."""
    waiting = state.queue.waiting
    if state.owner is not None:
        return tr("queue.used_by_other_window", pid=state.owner)
    if state.error is not None:
        return formatting.localized_message(state.error.code, state.error.params)
    if state.queue.damaged_backup is not None and state.hold in ("", "opened"):
        return tr("queue.file_damaged", path=state.queue.damaged_backup)
    if not waiting:
        return tr("queue.nothing_queued")
    match state.hold:
        case "":
            key = "queue.added_starts_next" if state.is_busy else "queue.added_starts_now"
        case "opened":
            key = "queue.paused_at_launch"
        case "stopped":
            key = "queue.paused_after_stop"
        case "failed":
            key = "queue.paused_after_failure"
        case _:
            key = "queue.paused_next"
    return tr(key, name=waiting[0].name)
