"""Base class of table models, common table options, and buttons bound to actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QAbstractButton, QAbstractItemView, QTableView, QWidget

from app.theme.palette import SPACING
from app.widgets.basic import move_focus

Index = QModelIndex | QPersistentModelIndex
Role = Qt.ItemDataRole
LEFT: Final = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
RIGHT: Final = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
RowT = TypeVar("RowT")


class TableModel(QAbstractTableModel, Generic[RowT]):
    """One item of `rows` per table row. Subclasses name the columns and implement `titles` and `data`."""

    columns: Sequence[str] = ()
    numeric_columns: Sequence[str] = ()  # right-aligned

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[RowT] = []

    def titles(self) -> dict[str, str]:
        """Translated header of each column."""
        raise NotImplementedError

    def alignment(self, column: str) -> Qt.AlignmentFlag:
        return RIGHT if column in self.numeric_columns else LEFT

    def set_rows(self, rows: Sequence[RowT]) -> None:
        self.beginResetModel()
        self.rows = list(rows)
        self.endResetModel()

    def retranslate(self) -> None:
        self.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(self.columns) - 1)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(self.columns)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        if orientation is not Qt.Orientation.Horizontal:
            return None
        column = self.columns[section]
        if role == Role.DisplayRole:
            return self.titles()[column]
        return self.alignment(column) if role == Role.TextAlignmentRole else None


def configure_table(table: QTableView, *, row_padding: int = SPACING + 2) -> None:
    """Select whole rows; no grid, no word wrap, no row numbers; Tab leaves the table."""
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    table.setShowGrid(False)
    table.setWordWrap(False)
    table.setTabKeyNavigation(False)
    table.verticalHeader().hide()
    table.verticalHeader().setDefaultSectionSize(table.fontMetrics().lineSpacing() + row_padding)
    table.horizontalHeader().setHighlightSections(False)
    table.horizontalHeader().setDefaultAlignment(LEFT)


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
