"""Tables with one row per item: columns, item model, view, and the actions of a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from PySide6.QtCore import (
    QAbstractProxyModel,
    QAbstractTableModel,
    QItemSelection,
    QModelIndex,
    QPersistentModelIndex,
    Qt,
    Signal,
)
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QAbstractButton, QAbstractItemView, QHeaderView, QMenu, QTableView, QWidget

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import move_focus

Index = QModelIndex | QPersistentModelIndex
Role = Qt.ItemDataRole
ROW_ROLE: Final = Role.UserRole + 1
"""The item of a row, also through a proxy model."""
_LEFT: Final = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_RIGHT: Final = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """A column of a table."""

    title: str  # key of its header
    text: Callable[[RowT], str]
    width: int = 0  # pixels; 0: the remaining width
    min_table_width: int = 0  # pixels; hidden in a narrower table
    alignment: Qt.AlignmentFlag = _LEFT


def number_column(title: str, text: Callable[[RowT], str], width: int, min_table_width: int = 0) -> Column[RowT]:
    """A right-aligned column."""
    return Column(title, text, width, min_table_width, _RIGHT)


class TableModel(QAbstractTableModel, Generic[RowT]):
    """One item of `rows` per table row. Texts are formatted when they are painted. `key` identifies an item."""

    def __init__(self, columns: Mapping[str, Column[RowT]], key: Callable[[RowT], Hashable]) -> None:
        super().__init__()
        self.columns, self.key = columns, key
        self.names = list(columns)
        self.rows: list[RowT] = []

    def set_rows(self, rows: Sequence[RowT]) -> None:
        """Replace all items. Selection, current cell and scroll position follow the items that remain."""
        places = {self.key(row): place for place, row in enumerate(rows)}
        for place in reversed(range(len(self.rows))):
            if self.key(self.rows[place]) not in places:
                self.beginRemoveRows(QModelIndex(), place, place)
                del self.rows[place]
                self.endRemoveRows()
        if list(places) == list(map(self.key, self.rows)):
            self.rows = list(rows)
            self.emit_data_changed()
            return
        self.layoutAboutToBeChanged.emit()
        indexes = self.persistentIndexList()
        cells = [(places[self.key(self.rows[index.row()])], index.column()) for index in indexes]
        self.rows = list(rows)
        self.changePersistentIndexList(indexes, [self.index(*cell) for cell in cells])
        self.layoutChanged.emit()

    def emit_data_changed(self) -> None:
        """Paint all items again."""
        if self.rows:
            self.dataChanged.emit(self.index(0, 0), self.index(len(self.rows) - 1, len(self.names) - 1))

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(self.names)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        if orientation is not Qt.Orientation.Horizontal:
            return None
        column = self.columns[self.names[section]]
        if role == Role.DisplayRole:
            return tr(column.title)
        return column.alignment if role == Role.TextAlignmentRole else None

    def data(self, index: Index, role: int = 0) -> Any:
        column = self.columns[self.names[index.column()]]
        if role == ROW_ROLE:
            return self.rows[index.row()]
        if role == Role.DisplayRole:
            return column.text(self.rows[index.row()])
        return column.alignment if role == Role.TextAlignmentRole else None


class RowTable(QTableView, Generic[RowT]):
    """Selects whole rows. `proxy`: sorts and filters the model."""

    selection_changed = Signal()

    def __init__(
        self,
        model: TableModel[RowT],
        name: str,
        *,
        row_padding: int = SPACING + 2,
        proxy: QAbstractProxyModel | None = None,
    ) -> None:
        super().__init__()
        self.row_model = model
        self.key_column = 0  # that the keyboard search searches
        self.menu = QMenu(self)
        self.setObjectName(name)
        self.setModel(proxy or model)
        configure_table(self, row_padding=row_padding)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        for section, column in enumerate(model.columns.values()):
            self.setColumnWidth(section, column.width)
            if not column.width:
                self.horizontalHeader().setSectionResizeMode(section, QHeaderView.ResizeMode.Stretch)
        self.selectionModel().selectionChanged.connect(self.selection_changed)

    def hide_columns(self, table_width: int) -> None:
        """Hide the less important columns of a narrow table, so that it does not scroll horizontally."""
        for section, column in enumerate(self.row_model.columns.values()):
            self.setColumnHidden(section, table_width < column.min_table_width)

    def shown_rows(self) -> list[RowT]:
        """The items in the order of the table, without those that the proxy hides."""
        return [self.model().index(place, 0).data(ROW_ROLE) for place in range(self.model().rowCount())]

    def selected_rows(self) -> list[RowT]:
        """The selected items, top to bottom."""
        # `selectedRows` asks for the flags of every cell, which takes 0.1 s for thousands of rows.
        selection = self.selectionModel().selection()
        ranges = map(selection.at, range(selection.size()))
        places = {place for part in ranges for place in range(part.top(), part.bottom() + 1)}
        return [self.model().index(place, 0).data(ROW_ROLE) for place in sorted(places)]

    def selected_keys(self) -> list[Any]:
        return list(map(self.row_model.key, self.selected_rows()))

    def select(self, keys: Collection[Any]) -> None:
        """Select exactly these items, and scroll to the first of them."""
        model, selection = self.selectionModel(), QItemSelection()
        flags = model.SelectionFlag
        for place, row in enumerate(self.shown_rows()):
            if self.row_model.key(row) in keys:
                index = self.model().index(place, self.key_column)
                if selection.isEmpty():
                    model.setCurrentIndex(index, flags.NoUpdate)
                    self.scrollTo(index)
                selection.select(index, index)
        model.select(selection, flags.ClearAndSelect | flags.Rows)

    def create_actions(self, names: Sequence[str], shortcuts: Mapping[str, str]) -> dict[str, QAction]:
        """Create actions for the context menu and `menu`; an empty name is a separator.

        Shortcuts work while the table has the focus.
        """
        actions: dict[str, QAction] = {}
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        for name in names:
            action = QAction(self)
            action.setSeparator(not name)
            if name in shortcuts:
                action.setShortcut(QKeySequence(shortcuts[name]))
                action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
            if name:
                actions[name] = action
            self.addAction(action)
        self.menu.addActions(self.actions())
        return actions

    def retranslate(self) -> None:
        self.row_model.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(self.row_model.names) - 1)
        self.viewport().update()


def configure_table(table: QTableView, *, row_padding: int) -> None:
    """Select whole rows; no grid, no word wrap, no row numbers; Tab leaves the table."""
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    table.setShowGrid(False)
    table.setWordWrap(False)
    table.setTabKeyNavigation(False)
    table.verticalHeader().hide()
    table.verticalHeader().setDefaultSectionSize(table.fontMetrics().lineSpacing() + row_padding)
    table.horizontalHeader().setHighlightSections(False)
    table.horizontalHeader().setDefaultAlignment(_LEFT)


def bind_button(button: QAbstractButton, action: QAction, focus_fallback: QWidget) -> None:
    """Trigger `action` by `button`, which is enabled whenever the action is.

    `focus_fallback` takes the focus of the button before it is disabled.
    """

    def set_enabled(enabled: bool) -> None:
        if not enabled:
            move_focus(button, focus_fallback)
        button.setEnabled(enabled)

    button.clicked.connect(action.trigger)
    action.enabledChanged.connect(set_enabled)
    button.setEnabled(action.isEnabled())
