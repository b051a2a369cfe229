"""The items of the queue as a table, to be put in another order by keys or by dragging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from PySide6.QtCore import QAbstractTableModel, QEvent, QModelIndex, QPersistentModelIndex, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QDropEvent, QKeyEvent, QKeySequence, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from app.state.queue import Item
from app.theme.tokens import SPACE, Tokens
from app.views import words
from app.views.queue import queue_words
from app.views.widgets import empty_note, plain_tip

COLUMNS: Final = ("name", "state", "settings", "data", "result")
_WIDTHS: Final = {"state": 92, "result": 176}
_BETWEEN: Final = {"name": (100, 210), "data": (100, 240)}  # as wide as what they hold
_NEEDED: Final = {"data": 760}  # width of the page from which a column is shown
_NARROW: Final = 620
_NARROW_WIDTHS: Final = {"name": 150, "result": 130}
_SHARE: Final = Qt.ItemDataRole.UserRole  # of a run that is done, 0..1; None: it is not being trained
_BAR: Final = 3  # pixels
_Index = QModelIndex | QPersistentModelIndex


class QueueTable(QTableView):
    """Emits what a person wants; shows what `display` is given."""

    placed = Signal(list, int)  # ids, in front of which row
    undo_asked = Signal()

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("queue")
        self.rows = QueueModel(tokens)
        self.setModel(self.rows)
        self.setItemDelegateForColumn(COLUMNS.index("result"), _ProgressDelegate(self.rows, self))
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setDragDropMode(QAbstractItemView.DragDropMode.InternalMove)
        self.setDragDropOverwriteMode(False)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setTabKeyNavigation(False)
        self.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().lineSpacing() + SPACE + 2)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.setMinimumSectionSize(56)
        header.setSectionResizeMode(COLUMNS.index("settings"), QHeaderView.ResizeMode.Stretch)
        self.fit(_NARROW)
        self.empty = empty_note(self)
        self.empty.setMargin(4 * SPACE)

    def fit(self, width: int) -> None:
        """A narrow table leaves out the data, which the line below it tells."""
        self._width = width
        widths = _WIDTHS | {column: self._held(column) for column in _BETWEEN}
        for column, usual in widths.items():
            most = _NARROW_WIDTHS.get(column, usual) if width < _NARROW else usual
            self.setColumnWidth(COLUMNS.index(column), min(usual, most))
        for column, needed in _NEEDED.items():
            self.setColumnHidden(COLUMNS.index(column), width < needed)

    def _held(self, column: str) -> int:
        """How wide a column is to be for its texts, in pixels; what is left belongs to the settings."""
        least, most = _BETWEEN[column]
        texts = (self.rows.cell(item, column) for item in self.rows.items)
        widest = max(map(self.fontMetrics().horizontalAdvance, texts), default=most)
        return max(least, min(widest + 3 * SPACE, most))

    # --- what is chosen ------------------------------------------------------------------------------------

    def chosen(self) -> list[Item]:
        """The selected items, in their order."""
        rows = sorted(index.row() for index in self.selectionModel().selectedRows())
        return [self.rows.items[row] for row in rows if row < len(self.rows.items)]

    def select(self, ids: Sequence[str]) -> None:
        """Select these, and have the first in sight."""
        model, flags = self.selectionModel(), self.selectionModel().SelectionFlag
        model.clearSelection()
        found = [row for row, item in enumerate(self.rows.items) if item.id in ids]
        for row in found:
            model.select(self.rows.index(row, 0), flags.Select | flags.Rows)
        if found:
            model.setCurrentIndex(self.rows.index(found[0], 0), flags.NoUpdate)
            self.scrollTo(self.rows.index(found[0], 0))

    def display(self, items: Sequence[Item]) -> None:
        """Show these in place of those that there are; what is selected stays so."""
        chosen = [item.id for item in self.chosen()]
        place, row = self.verticalScrollBar().value(), self.currentIndex().row()
        self.rows.show(items)
        self.fit(self._width)
        self.select(chosen)
        if row >= 0 and items and not self.currentIndex().isValid():  # what was there is gone: keys go on from there
            near = self.rows.index(min(row, len(items) - 1), 0)
            self.selectionModel().setCurrentIndex(near, self.selectionModel().SelectionFlag.NoUpdate)
        self.verticalScrollBar().setValue(place)
        self.empty.setVisible(not items)

    # --- dragging ------------------------------------------------------------------------------------------

    def dropEvent(self, event: QDropEvent) -> None:  # noqa: N802 - Qt's name
        """The queue itself is put in order, and shown again: Qt is not to move rows of its own."""
        place = event.position().toPoint()
        index = self.indexAt(place)
        row = index.row() if index.isValid() else len(self.rows.items)
        if index.isValid() and place.y() > self.visualRect(index).center().y():
            row += 1
        event.setDropAction(Qt.DropAction.IgnoreAction)
        event.accept()
        if event.source() is self and self.chosen():
            self.placed.emit([item.id for item in self.chosen()], row)

    # --- taking back ---------------------------------------------------------------------------------------

    def event(self, event: QEvent) -> bool:
        """While the table has the focus, its own Ctrl+Z comes before the form's."""
        if event.type() == QEvent.Type.ShortcutOverride and _is_undo(event):
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        if _is_undo(event):
            self.undo_asked.emit()
        else:
            super().keyPressEvent(event)

    def retranslate(self) -> None:
        self.setAccessibleName(self.tr("Queue"))
        titles = {
            "name": self.tr("Name"),
            "state": self.tr("State"),
            "settings": self.tr("Settings"),
            "data": self.tr("Data"),
            "result": self.tr("Progress and result"),
        }
        self.rows.titles = [titles[column] for column in COLUMNS]
        self.rows.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(COLUMNS) - 1)
        self.viewport().update()


def _is_undo(event: QEvent) -> bool:
    return isinstance(event, QKeyEvent) and event.matches(QKeySequence.StandardKey.Undo)


class QueueModel(QAbstractTableModel):
    """Texts are made when they are painted."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self.items: list[Item] = []
        self.titles: list[str] = []
        self.tokens = tokens
        self._progress: tuple[str, float | None, bool] = ("", None, False)

    def show(self, items: Sequence[Item]) -> None:
        self.beginResetModel()
        self.items = list(items)
        self.endResetModel()

    def show_progress(self, text: str, share: float | None, *, restarting: bool) -> None:
        """How far the run is that is being trained; paints its row only, and only when that changed."""
        if self._progress == (text, share, restarting):
            return
        self._progress = (text, share, restarting)
        for row, item in enumerate(self.items):
            if item.state == "running":
                self.dataChanged.emit(self.index(row, 0), self.index(row, len(COLUMNS) - 1))

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(self.items)

    def columnCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(COLUMNS)

    def flags(self, index: _Index) -> Qt.ItemFlag:
        flag = Qt.ItemFlag
        if not index.isValid():
            return flag.ItemIsDropEnabled  # between rows, and below them
        return flag.ItemIsEnabled | flag.ItemIsSelectable | flag.ItemIsDragEnabled

    def supportedDropActions(self) -> Qt.DropAction:  # noqa: N802 - Qt's name
        return Qt.DropAction.MoveAction

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return self.titles[section] if section < len(self.titles) else None
        return None

    def data(self, index: _Index, role: int = 0) -> Any:
        item, column = self.items[index.row()], COLUMNS[index.column()]
        match role:
            case Qt.ItemDataRole.DisplayRole:
                return self.cell(item, column)
            case Qt.ItemDataRole.ToolTipRole:
                return plain_tip(queue_words.details(item) if column == "name" else self.cell(item, column))
            case Qt.ItemDataRole.ForegroundRole:
                return self._colour(item, column)
            case _ if role == _SHARE:
                return self._progress[1] if item.state == "running" else None
        return None

    def cell(self, item: Item, column: str) -> str:
        """What stands there."""
        match column:
            case "name":
                return item.name
            case "state":
                return queue_words.state(item, restarting=self._progress[2])
            case "settings":
                return queue_words.difference(item)
            case "data":
                return words.data_names(item.data)
            case _:
                return self._progress[0] if item.state == "running" else queue_words.result(item)

    def _colour(self, item: Item, column: str) -> QColor | None:
        if column != "state":
            return None
        tokens = self.tokens
        named = {"running": tokens.accent, "done": tokens.good, "failed": tokens.bad, "interrupted": tokens.warn}
        return QColor(named.get(item.state, tokens.text if item.state == "stopped" else tokens.muted))


class _ProgressDelegate(QStyledItemDelegate):
    """A thin bar below the text of the run that is being trained."""

    def __init__(self, model: QueueModel, parent: QWidget) -> None:
        super().__init__(parent)
        self._model = model

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        super().paint(painter, option, index)
        share = index.data(_SHARE)
        if share is None:
            return
        box = option.rect.adjusted(SPACE, 0, -SPACE, 0)
        whole = QRectF(box.left(), box.bottom() - _BAR, box.width(), _BAR)
        painter.fillRect(whole, QColor(self._model.tokens.hover))
        whole.setWidth(whole.width() * share)
        painter.fillRect(whole, QColor(self._model.tokens.accent))
