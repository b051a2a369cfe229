"""Table of the queue, and the texts of its items. Rows are reordered by keys or drag and drop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from PySide6.QtCore import QEvent, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QDropEvent, QKeyEvent, QKeySequence, QPainter
from PySide6.QtWidgets import QAbstractItemView, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from app.core.queue import QueueItem
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import placeholder_label, plain_tooltip
from app.widgets.table import Column, Index, Role, RowTable, TableModel
from trainer_core.config import knobs

if TYPE_CHECKING:
    from app.core.run_state import RunStateMachine

_CONTENT_WIDTHS: Final = {"name": (100, 210), "data": (100, 240)}  # minimum and maximum of columns that fit their texts
_NARROW_PAGE_WIDTH: Final = 620
_NARROW_WIDTHS: Final = {"name": 150, "result": 130}
_PROGRESS_ROLE: Final = Role.UserRole  # fraction 0..1 of a running item, else None
_PROGRESS_BAR_HEIGHT: Final = 3  # pixels
_MAX_SOURCES: Final = 4  # listed in the details


class QueueTable(RowTable[QueueItem]):
    """Shows the items of the queue; emits how to change them."""

    placed = Signal(list, int)  # ids of dragged items, row in front of which they were dropped
    undo_requested = Signal()

    def __init__(self, model: QueueModel) -> None:
        super().__init__(model, "queue")
        self.setItemDelegateForColumn(model.names.index("result"), _ProgressDelegate(model, self))
        self.setDragDropMode(QAbstractItemView.DragDropMode.InternalMove)
        self.setDragDropOverwriteMode(False)
        self.horizontalHeader().setMinimumSectionSize(56)
        self.set_page_width(_NARROW_PAGE_WIDTH)
        self.empty = placeholder_label(self)
        self.empty.setMargin(4 * SPACING)

    def set_page_width(self, page_width: int) -> None:
        """Size the columns; the settings column gets the remaining width."""
        self._page_width = page_width
        is_narrow = page_width < _NARROW_PAGE_WIDTH
        for section, (name, column) in enumerate(self.row_model.columns.items()):
            width = self._content_width(name) if name in _CONTENT_WIDTHS else column.width
            if width:
                self.setColumnWidth(section, min(width, _NARROW_WIDTHS.get(name, width)) if is_narrow else width)
        self.hide_columns(page_width)

    def _content_width(self, name: str) -> int:
        minimum, maximum = _CONTENT_WIDTHS[name]
        cells = map(self.row_model.columns[name].text, self.row_model.rows)
        widest = max(map(self.fontMetrics().horizontalAdvance, cells), default=maximum)
        return max(minimum, min(widest + 3 * SPACING, maximum))

    def display(self, items: Sequence[QueueItem]) -> None:
        """Show these items."""
        self.row_model.set_rows(items)
        self.set_page_width(self._page_width)
        self.empty.setVisible(not items)

    def dropEvent(self, event: QDropEvent) -> None:  # noqa: N802 - Qt's name
        """Emit `placed` instead of moving rows of the model: the queue is reordered and shown again."""
        position = event.position().toPoint()
        index = self.indexAt(position)
        row = index.row() if index.isValid() else len(self.row_model.rows)
        if index.isValid() and position.y() > self.visualRect(index).center().y():
            row += 1
        event.setDropAction(Qt.DropAction.IgnoreAction)
        event.accept()
        if event.source() is self and (items := self.selected_rows()):
            self.placed.emit([item.id for item in items], row)

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


class QueueModel(TableModel[QueueItem]):
    """Items of the queue, and the progress of the running one."""

    def __init__(self, palette: Palette) -> None:
        columns: dict[str, Column[QueueItem]] = {
            "name": Column("queue.name", lambda item: item.name, 210),
            "state": Column("queue.state", self._format_state, 92),
            "settings": Column("queue.settings", format_changes),
            "data": Column("common.data", lambda item: formatting.format_data_sources(item.data), 240, 760),
            "result": Column("queue.progress_and_result", self._format_result, 176),
        }
        super().__init__(columns, lambda item: item.id)
        self.palette = palette
        self._progress: tuple[str, float | None, bool] = ("", None, False)

    def show_progress(self, text: str, fraction: float | None, *, restarting: bool) -> None:
        """Set the progress of the running item."""
        if self._progress == (text, fraction, restarting):
            return
        self._progress = (text, fraction, restarting)
        self.emit_data_changed()

    def flags(self, index: Index) -> Qt.ItemFlag:
        flag = Qt.ItemFlag
        if not index.isValid():
            return flag.ItemIsDropEnabled  # between and below the rows
        return flag.ItemIsEnabled | flag.ItemIsSelectable | flag.ItemIsDragEnabled

    def supportedDropActions(self) -> Qt.DropAction:  # noqa: N802 - Qt's name
        return Qt.DropAction.MoveAction

    def data(self, index: Index, role: int = 0) -> Any:
        item, name = self.rows[index.row()], self.names[index.column()]
        match role:
            case Role.ToolTipRole:
                return plain_tooltip(format_details(item) if name == "name" else self.columns[name].text(item))
            case Role.ForegroundRole if name == "state":
                return self._state_color(item)
            case _ if role == _PROGRESS_ROLE:
                return self._progress[1] if item.state == "running" else None
        return super().data(index, role)

    def _format_state(self, item: QueueItem) -> str:
        if item.state == "waiting":
            return tr("queue.queued")
        if item.state == "running" and self._progress[2]:
            return tr("queue.restarting")
        return formatting.format_stored_run_state("finished" if item.state == "done" else item.state)

    def _format_result(self, item: QueueItem) -> str:
        return self._progress[0] if item.state == "running" else format_result(item)

    def _state_color(self, item: QueueItem) -> QColor:
        palette = self.palette
        colors = {
            "running": palette.accent,
            "done": palette.good,
            "failed": palette.bad,
            "interrupted": palette.warn,
            "stopped": palette.text,
        }
        return QColor(colors.get(item.state, palette.muted))


class _ProgressDelegate(QStyledItemDelegate):
    """Paints a thin progress bar below the text of the running item."""

    def __init__(self, model: QueueModel, parent: QWidget) -> None:
        super().__init__(parent)
        self._model = model

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        super().paint(painter, option, index)
        fraction = index.data(_PROGRESS_ROLE)
        if fraction is None:
            return
        cell = option.rect.adjusted(SPACING, 0, -SPACING, 0)
        bar = QRectF(cell.left(), cell.bottom() - _PROGRESS_BAR_HEIGHT, cell.width(), _PROGRESS_BAR_HEIGHT)
        painter.fillRect(bar, QColor(self._model.palette.hover))
        bar.setWidth(bar.width() * fraction)
        painter.fillRect(bar, QColor(self._model.palette.accent))


def format_changes(item: QueueItem) -> str:
    """Changed settings and the preset."""
    known = {name: value for name, value in item.changes.items() if name in knobs()}
    return f"{formatting.format_settings(known)}  ·  {item.preset}" if known else item.preset


def format_progress(machine: RunStateMachine) -> str:
    """Steps and remaining time of the running item."""
    if machine.total_steps and machine.step:
        parts = [f"{formatting.format_count(machine.step)} / {formatting.format_count(machine.total_steps)}"]
        if machine.eta_s is not None:
            parts.append(tr("queue.time_left", time=formatting.format_duration(machine.eta_s)))
        return "  ·  ".join(parts)
    return formatting.format_run_state(machine.state)


def format_result(item: QueueItem) -> str:
    if item.state == "failed":
        return format_failure(item)
    if item.best_loss is not None:
        return tr("queue.best_loss", loss=formatting.format_loss(item.best_loss))
    if item.steps:
        return tr("common.step_lower", step=formatting.format_count(item.steps))
    return "–"


def format_failure(item: QueueItem) -> str:
    """Error message of a failed item."""
    if item.error:
        return formatting.localized_message(item.error, item.params)
    code = "–" if item.exit_code is None else item.exit_code
    return tr("queue.trainer_exited", code=code)


def format_details(item: QueueItem) -> str:
    """All details of an item, in several lines."""
    lines = []
    if item.state == "failed":
        lines.append(format_failure(item))
    elif item.state == "interrupted":
        key = "queue.interrupted_resumable" if item.can_resume else "queue.interrupted_before_checkpoint"
        lines.append(tr(key, step=formatting.format_count(item.steps)))
    settings = tr("queue.settings_list", settings=format_changes(item))
    more = f", … (+{len(item.data) - _MAX_SOURCES})" if len(item.data) > _MAX_SOURCES else ""
    names = ", ".join(formatting.format_data_source(path) for path in item.data[:_MAX_SOURCES])
    data = tr("queue.data", data=names + more)
    times = [tr("queue.added_at", when=formatting.format_timestamp(item.added))]
    if item.started:
        times.append(tr("queue.started_at", when=formatting.format_timestamp(item.started)))
    if item.ended:
        times.append(tr("queue.ended_at", when=formatting.format_timestamp(item.ended)))
    return "\n".join([*lines, settings, data, "  ·  ".join(times)])
