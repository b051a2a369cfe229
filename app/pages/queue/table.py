"""Table of the queue. Rows are reordered by keys or drag and drop."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QColor, QDropEvent, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QAbstractItemView

from app.core.queue import QueueItem
from app.pages.queue.texts import format_changes, format_details, format_item_state, format_result
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import placeholder_label, plain_tooltip
from app.widgets.table import Column, Index, Role, RowTable, TableModel


def _format_name(item: QueueItem) -> str:
    return formatting.format_run_name(item.name, item.machine.host if item.machine else "")


class QueueModel(TableModel[QueueItem]):
    """Items of the queue, and the progress of the running one."""

    def __init__(self, palette: Palette) -> None:
        columns: dict[str, Column[QueueItem]] = {
            "name": Column("queue.name", _format_name, 160),
            "state": Column("queue.state", lambda item: format_item_state(item, restarting=self.is_restarting), 92),
            "settings": Column("queue.settings", format_changes),
            "data": Column("common.data", lambda item: formatting.format_data_sources(item.data), 230, 760),
            "result": Column(
                "queue.progress_and_result",
                lambda item: self.progress if item.state == "running" else format_result(item),
                160,
            ),
        }
        super().__init__(columns, lambda item: item.id)
        self.palette = palette
        self.progress, self.is_restarting = "", False  # of the running item

    def flags(self, index: Index) -> Qt.ItemFlag:
        flag = Qt.ItemFlag
        if not index.isValid():
            return flag.ItemIsDropEnabled  # between and below the rows
        return flag.ItemIsEnabled | flag.ItemIsSelectable | flag.ItemIsDragEnabled

    def supportedDropActions(self) -> Qt.DropAction:  # noqa: N802 - Qt's name
        return Qt.DropAction.MoveAction

    def data(self, index: Index, role: int = 0) -> Any:
        item, name, palette = self.rows[index.row()], self.names[index.column()], self.palette
        if role == Role.ToolTipRole:
            return plain_tooltip(format_details(item) if name == "name" else self.columns[name].text(item))
        if role == Role.ForegroundRole and name == "state":
            colors = {
                "running": palette.accent,
                "done": palette.good,
                "failed": palette.bad,
                "interrupted": palette.warn,
                "stopped": palette.text,
            }
            return QColor(colors.get(item.state, palette.muted))
        return super().data(index, role)


class QueueTable(RowTable[QueueItem]):
    """Shows the items of the queue; emits how to change them."""

    placed = Signal(list, int)  # ids of dragged items, row in front of which they were dropped
    undo_requested = Signal()

    def __init__(self, model: QueueModel) -> None:
        super().__init__(model, "queue")
        self.setDragDropMode(QAbstractItemView.DragDropMode.InternalMove)
        self.setDragDropOverwriteMode(False)
        self.horizontalHeader().setMinimumSectionSize(56)
        self.empty = placeholder_label(self)
        self.empty.setMargin(4 * SPACING)

    def dropEvent(self, event: QDropEvent) -> None:  # noqa: N802 - Qt's name
        """Emit `placed` instead of moving rows of the model: the queue is reordered and shown again."""
        position = event.position().toPoint()
        index = self.indexAt(position)
        row = index.row() if index.isValid() else len(self.row_model.rows)
        if index.isValid() and position.y() > self.visualRect(index).center().y():
            row += 1
        event.setDropAction(Qt.DropAction.IgnoreAction)
        event.accept()
        if event.source() is self and (ids := self.selected_keys()):
            self.placed.emit(ids, row)

    def event(self, event: QEvent) -> bool:
        """Undo in the focused table takes precedence over the undo of the form."""
        if event.type() == QEvent.Type.ShortcutOverride and _is_undo(event):
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        if _is_undo(event):
            self.undo_requested.emit()
        else:
            super().keyPressEvent(event)

    def retranslate(self) -> None:
        super().retranslate()
        self.setAccessibleName(tr("queue.queue"))


def _is_undo(event: QEvent) -> bool:
    return isinstance(event, QKeyEvent) and event.matches(QKeySequence.StandardKey.Undo)
