"""Queue page: runs that wait for their training, in their order, and the results of finished ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeySequence, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QCheckBox, QToolButton

from app.core.queue import QueueItem
from app.pages.page import Page, ShownRun
from app.pages.queue.table import QueueModel, QueueTable
from app.pages.queue.texts import format_details, format_progress, format_status
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    IconButton,
    card,
    horizontal_layout,
    label,
    push_button,
    set_object_name,
    set_text_if_changed,
    vertical_layout,
)
from app.widgets.table import bind_button

if TYPE_CHECKING:
    from app.pages.queue.queue_controller import QueueController

_SHORTCUTS: Final = {
    "up": "Alt+Up",
    "down": "Alt+Down",
    "remove": "Del",
    "duplicate": "Ctrl+D",
    "undo": "Ctrl+Z",  # while the table has the focus
    "open": "Alt+Return",
}
_MENU: Final = ("open", "resume", "put_back", "", "up", "down", "duplicate", "to_form", "remove", "", "undo", "clear")
_ACTION_TEXTS: Final = {
    "open": "queue.open",
    "resume": "queue.resume_hint",
    "put_back": "queue.requeue",
    "up": "queue.move_up",
    "down": "queue.move_down",
    "duplicate": "queue.duplicate",
    "to_form": "queue.copy_to_form",
    "remove": "queue.remove",
    "undo": "queue.undo_remove",
    "clear": "queue.clear_finished",
}
_MAX_COMPARED_RUNS: Final = 10  # limit of the plots


class QueuePage(Page):
    """Shows and edits the queue. `queue_actions` apply to the selected items."""

    open_requested = Signal(Path)
    resume_requested = Signal(Path)
    compare_requested = Signal(object)  # list[Path]

    _controller: QueueController

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._displayed: object = None  # state of the rows
        self.sentence = label("section", wrap=True)
        self.start_button = push_button("queueGo")  # pauses the queue while it runs
        self.pause_after_failure = set_object_name(QCheckBox(), "afterFailure")
        self.add, self.sweep = push_button("queueAdd"), push_button("queueSweep")
        self.compare = push_button("queueCompare")
        self.open, self.remove = push_button("queueOpen"), push_button("queueRemove")
        self.up, self.down = IconButton("up", "queueUp"), IconButton("down", "queueDown")
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

    def _arrange(self) -> None:
        bottom = horizontal_layout(self.pause_after_failure, self.add, self.sweep)
        bottom.insertStretch(1, 1)
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

    def connect_queue(self, controller: QueueController) -> None:
        self._controller, queue, actions = controller, controller.queue, self.queue_actions
        controller.changed.connect(self.refresh)
        controller.form.changed.connect(self.refresh)
        controller.items_added.connect(self._select)
        self.start_button.clicked.connect(self._start_or_pause)
        self.pause_after_failure.clicked.connect(self._set_after_failure)
        self.add.clicked.connect(controller.add)
        self.sweep.clicked.connect(self.open_sweep_dialog)
        self.compare.clicked.connect(self._compare)
        self.table.selection_changed.connect(self._show_selected)
        self.table.activated.connect(actions["open"].trigger)
        self.table.undo_requested.connect(actions["undo"].trigger)
        self.table.placed.connect(lambda ids, row: controller.apply(lambda: queue.move_before(ids, row)))
        keys, item = self.table.selected_keys, self._selected_item
        commands: dict[str, Callable[[], object]] = {
            "up": lambda: controller.apply(lambda: queue.move(keys(), -1)),
            "down": lambda: controller.apply(lambda: queue.move(keys(), 1)),
            "remove": lambda: controller.apply(lambda: queue.remove(keys())),
            "put_back": lambda: controller.apply(lambda: queue.requeue(keys(), controller.taken_names())),
            "undo": lambda: controller.apply(queue.undo),
            "clear": lambda: controller.apply(queue.clear_finished),
            "duplicate": lambda: controller.duplicate(keys()),
            "to_form": lambda: controller.load_into_form(item()),
            "open": lambda: self.open_requested.emit(Path(item().run_dir)),
            "resume": lambda: self.resume_requested.emit(Path(item().run_dir)),
        }
        for name, command in commands.items():
            actions[name].triggered.connect(partial(_call, command))
        self.retranslate()

    # --- actions ---------------------------------------------------------------------------------------

    def _selected_item(self) -> QueueItem:
        return self.table.selected_rows()[0]

    def _start_or_pause(self) -> None:
        if self._controller.hold_reason:
            self._controller.start_queue()
        else:
            self._controller.pause_queue()

    def _set_after_failure(self, pauses: bool) -> None:
        self._controller.queue.after_failure = "hold" if pauses else "go_on"
        self._controller.apply(self._controller.queue.save)

    def open_sweep_dialog(self) -> None:
        """Ask for the settings of a sweep and their values."""
        from app.pages.queue.sweep_dialog import SweepDialog

        controller = self._controller
        if controller.is_open and not controller.form.blocked_reason:
            dialog = SweepDialog(controller.form, controller.taken_names(), self.model.palette, self.window())
            dialog.added.connect(controller.add_sweep)
            dialog.open()

    def _comparable_runs(self) -> dict[Path, float]:
        """Run folders and best losses of the ended items: of the selected ones if there are several, else of all."""
        selected = self.table.selected_rows()
        items = selected if len(selected) > 1 else self.model.rows
        return {
            Path(item.run_dir): math.inf if item.best_loss is None else item.best_loss
            for item in items
            if item.run_dir and item.state != "running"
        }

    def _compare(self) -> None:
        """Show the runs in the plots, the best ones if there are too many."""
        losses = self._comparable_runs()
        best = sorted(losses, key=lambda path: losses[path])[:_MAX_COMPARED_RUNS]
        self.compare_requested.emit([path for path in losses if path in best])

    def _select(self, ids: list[str]) -> None:
        self.refresh()
        self.table.select(ids)

    # --- display ---------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Show the state of the queue; cheap if it has not changed."""
        controller, model = self._controller, self.model
        queue, run, blocked = controller.queue, controller.active_run, controller.form.blocked_reason
        model.progress = format_progress(run.machine) if queue.running else ""
        model.is_restarting = run.auto_restart.pending is not None
        state = (queue.revision, controller.is_busy, model.progress, model.is_restarting)
        if state != self._displayed:
            self._displayed = state
            self.model.set_rows(queue.items)
            self.table.empty.setVisible(not queue.items)
            self.pause_after_failure.setChecked(queue.after_failure == "hold")
            self._show_selected()
        set_text_if_changed(self.sentence, format_status(controller))
        starts = tr("queue.start_queue") if controller.hold_reason else tr("queue.pause_queue")
        set_text_if_changed(self.start_button, starts)
        self.start_button.setVisible(bool(queue.waiting) and controller.is_open)
        for button in (self.add, self.sweep):
            button.setEnabled(controller.is_open and not blocked)
            button.setToolTip(blocked)
        self.pause_after_failure.setEnabled(controller.is_open)

    def _show_selected(self) -> None:
        selected, items = self.table.selected_rows(), self.model.rows
        item = selected[0] if len(selected) == 1 else None
        enabled = {
            "open": item is not None and bool(item.run_dir),
            "resume": item is not None and item.can_resume and not self._controller.is_busy,
            "put_back": any(item.state not in ("waiting", "running") for item in selected),
            "up": bool(selected) and selected[0] is not items[0],
            "down": bool(selected) and selected[-1] is not items[-1],
            "duplicate": bool(selected),
            "to_form": item is not None,
            "remove": any(item.state != "running" for item in selected),
            "undo": self._controller.queue.can_undo,
            "clear": any(item.state == "done" for item in items),
        }
        for name, action in self.queue_actions.items():
            action.setEnabled(enabled[name])
        self.compare.setEnabled(len(self._comparable_runs()) > 1)
        self._details_card.setVisible(item is not None)
        set_text_if_changed(self.details, format_details(item) if item is not None else "")

    def show_run(self, run: ShownRun) -> None:
        if self.isVisible():
            self.refresh()  # progress of this window's run

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self._controller.open()  # another window may have closed the queue
        self.refresh()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self.table.hide_columns(event.size().width())

    def retheme(self, palette: Palette) -> None:
        self.model.palette = palette
        self.table.viewport().update()

    def retranslate(self) -> None:
        for name, key in _ACTION_TEXTS.items():
            self.queue_actions[name].setText(tr(key))
        for button, key in (
            (self.open, "queue.open"),
            (self.remove, "queue.remove"),
            (self.add, "queue.add_to_queue"),
            (self.sweep, "queue.sweep"),
            (self.compare, "queue.compare_all"),
            (self.pause_after_failure, "queue.pause_after_failure"),
            (self.table.empty, "queue.empty_page"),
        ):
            button.setText(tr(key))
        for name, tool in self._buttons.items():
            shortcut = QKeySequence(_SHORTCUTS[name]).toString(QKeySequence.SequenceFormat.NativeText)
            tool.setToolTip(f"{tr(_ACTION_TEXTS[name])} ({shortcut})")
            tool.setAccessibleName(tr(_ACTION_TEXTS[name]))
        self.more.setToolTip(tr("queue.more"))
        self.more.setAccessibleName(tr("queue.more"))
        self.compare.setToolTip(tr("queue.compare_hint"))
        self.table.retranslate()
        self._displayed = None
        self.refresh()


def _call(command: Callable[[], object], _checked: bool = False) -> None:
    command()
