"""Table of the queue. Rows are reordered by keys or drag and drop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from PySide6.QtCore import QEvent, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QDropEvent, QKeyEvent, QKeySequence, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from app.core.queue import QueueItem
from app.pages.queue import texts
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import placeholder_label, plain_tooltip
from app.widgets.table import Index, Role, TableModel, configure_table

COLUMNS: Final = ("name", "state", "settings", "data", "result")
_WIDTHS: Final = {"state": 92, "result": 176}  # pixels
_CONTENT_WIDTHS: Final = {"name": (100, 210), "data": (100, 240)}  # minimum and maximum of columns that fit their texts
_DATA_MIN_PAGE_WIDTH: Final = 760  # below, the data column is hidden
_NARROW_PAGE_WIDTH: Final = 620
_NARROW_WIDTHS: Final = {"name": 150, "result": 130}
_PROGRESS_ROLE: Final = Role.UserRole  # fraction 0..1 of a running item, else None
_PROGRESS_BAR_HEIGHT: Final = 3  # pixels


class QueueTable(QTableView):
    """Shows the items of the queue; emits how to change them."""

    placed = Signal(list, int)  # ids of dragged items, row in front of which they were dropped
    undo_requested = Signal()

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("queue")
        self.rows = QueueModel(palette)
        self.setModel(self.rows)
        self.setItemDelegateForColumn(COLUMNS.index("result"), _ProgressDelegate(self.rows, self))
        configure_table(self)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setDragDropMode(QAbstractItemView.DragDropMode.InternalMove)
        self.setDragDropOverwriteMode(False)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        self.horizontalHeader().setMinimumSectionSize(56)
        self.horizontalHeader().setSectionResizeMode(COLUMNS.index("settings"), QHeaderView.ResizeMode.Stretch)
        self.set_page_width(_NARROW_PAGE_WIDTH)
        self.empty = placeholder_label(self)
        self.empty.setMargin(4 * SPACING)

    def set_page_width(self, page_width: int) -> None:
        """Size the columns; the settings column gets the remaining width."""
        self._page_width = page_width
        widths = _WIDTHS | {column: self._content_width(column) for column in _CONTENT_WIDTHS}
        for column, width in widths.items():
            limit = _NARROW_WIDTHS.get(column, width) if page_width < _NARROW_PAGE_WIDTH else width
            self.setColumnWidth(COLUMNS.index(column), min(width, limit))
        self.setColumnHidden(COLUMNS.index("data"), page_width < _DATA_MIN_PAGE_WIDTH)

    def _content_width(self, column: str) -> int:
        minimum, maximum = _CONTENT_WIDTHS[column]
        cells = (self.rows.format_cell(item, column) for item in self.rows.rows)
        widest = max(map(self.fontMetrics().horizontalAdvance, cells), default=maximum)
        return max(minimum, min(widest + 3 * SPACING, maximum))

    def selected_items(self) -> list[QueueItem]:
        """The selected items, top to bottom."""
        rows = sorted(index.row() for index in self.selectionModel().selectedRows())
        return [self.rows.rows[row] for row in rows]

    def select(self, ids: Collection[str]) -> None:
        """Select exactly these items and scroll to the first one."""
        model, flags = self.selectionModel(), self.selectionModel().SelectionFlag
        model.clearSelection()
        rows = [row for row, item in enumerate(self.rows.rows) if item.id in ids]
        for row in rows:
            model.select(self.rows.index(row, 0), flags.Select | flags.Rows)
        if rows:
            model.setCurrentIndex(self.rows.index(rows[0], 0), flags.NoUpdate)
            self.scrollTo(self.rows.index(rows[0], 0))

    def display(self, items: Sequence[QueueItem]) -> None:
        """Show these items. Selection and scroll position stay."""
        selected = [item.id for item in self.selected_items()]
        scroll_position, row = self.verticalScrollBar().value(), self.currentIndex().row()
        self.rows.set_rows(items)
        self.set_page_width(self._page_width)
        self.select(selected)
        if row >= 0 and items and not self.currentIndex().isValid():  # keyboard navigation continues at a removed row
            index = self.rows.index(min(row, len(items) - 1), 0)
            self.selectionModel().setCurrentIndex(index, self.selectionModel().SelectionFlag.NoUpdate)
        self.verticalScrollBar().setValue(scroll_position)
        self.empty.setVisible(not items)

    def dropEvent(self, event: QDropEvent) -> None:  # noqa: N802 - Qt's name
        """Emit `placed` instead of moving rows of the model: the queue is reordered and shown again."""
        position = event.position().toPoint()
        index = self.indexAt(position)
        row = index.row() if index.isValid() else len(self.rows.rows)
        if index.isValid() and position.y() > self.visualRect(index).center().y():
            row += 1
        event.setDropAction(Qt.DropAction.IgnoreAction)
        event.accept()
        if event.source() is self and (items := self.selected_items()):
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
        self.setAccessibleName(tr("queue.queue"))
        self.rows.retranslate()
        self.viewport().update()


def _is_undo(event: QEvent) -> bool:
    return isinstance(event, QKeyEvent) and event.matches(QKeySequence.StandardKey.Undo)


class QueueModel(TableModel[QueueItem]):
    """Items of the queue. Texts are formatted when they are painted."""

    columns = COLUMNS

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self.palette = palette
        self._progress: tuple[str, float | None, bool] = ("", None, False)

    def titles(self) -> dict[str, str]:
        return {
            "name": tr("queue.name"),
            "state": tr("queue.state"),
            "settings": tr("queue.settings"),
            "data": tr("common.data"),
            "result": tr("queue.progress_and_result"),
        }

    def show_progress(self, text: str, fraction: float | None, *, restarting: bool) -> None:
        """Set the progress of the running item."""
        if self._progress == (text, fraction, restarting):
            return
        self._progress = (text, fraction, restarting)
        for row, item in enumerate(self.rows):
            if item.state == "running":
                self.dataChanged.emit(self.index(row, 0), self.index(row, len(COLUMNS) - 1))

    def flags(self, index: Index) -> Qt.ItemFlag:
        flag = Qt.ItemFlag
        if not index.isValid():
            return flag.ItemIsDropEnabled  # between and below the rows
        return flag.ItemIsEnabled | flag.ItemIsSelectable | flag.ItemIsDragEnabled

    def supportedDropActions(self) -> Qt.DropAction:  # noqa: N802 - Qt's name
        return Qt.DropAction.MoveAction

    def data(self, index: Index, role: int = 0) -> Any:
        item, column = self.rows[index.row()], COLUMNS[index.column()]
        match role:
            case Role.DisplayRole:
                return self.format_cell(item, column)
            case Role.ToolTipRole:
                return plain_tooltip(texts.format_details(item) if column == "name" else self.format_cell(item, column))
            case Role.ForegroundRole if column == "state":
                return self._state_colour(item)
            case _ if role == _PROGRESS_ROLE and item.state == "running":
                return self._progress[1]
        return None

    def format_cell(self, item: QueueItem, column: str) -> str:
        match column:
            case "name":
                return item.name
            case "state":
                return texts.format_state(item, restarting=self._progress[2])
            case "settings":
                return texts.format_changes(item)
            case "data":
                return formatting.format_data_sources(item.data)
            case _:
                return self._progress[0] if item.state == "running" else texts.format_result(item)

    def _state_colour(self, item: QueueItem) -> QColor:
        palette = self.palette
        colours = {
            "running": palette.accent,
            "done": palette.good,
            "failed": palette.bad,
            "interrupted": palette.warn,
            "stopped": palette.text,
        }
        return QColor(colours.get(item.state, palette.muted))


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
