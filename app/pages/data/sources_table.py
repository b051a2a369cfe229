"""Table of the data sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView

from app.pages.data import figures
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from trainer_core.protocol import Source

_COLUMNS: Final = ("name", "format", "columns", "files", "size")
_WIDTHS: Final = {"format": 150, "columns": 250, "files": 60, "size": 84}
_NARROW: Final = {"format": 110, "columns": 150}
_NUMBERS: Final = ("files", "size")
_MAX_VISIBLE_ROWS: Final = 5
_Index = QModelIndex | QPersistentModelIndex


class SourcesTable(QTableView):
    """As high as its rows, up to a maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("sources")
        self.rows = SourcesModel()
        self.setModel(self.rows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.NoSelection)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setTabKeyNavigation(False)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().lineSpacing() + SPACING)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        for place, column in enumerate(_COLUMNS):
            if column in _WIDTHS:
                self.setColumnWidth(place, _WIDTHS[column])
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)

    def fit(self, *, narrow: bool) -> None:
        """Hide the number of files in a narrow table."""
        self.setColumnHidden(_COLUMNS.index("files"), narrow)
        for column in ("format", "columns"):
            self.setColumnWidth(_COLUMNS.index(column), _NARROW[column] if narrow else _WIDTHS[column])

    def display(self, sources: list[Source], validation: list[Source]) -> None:
        self.rows.show(sources, validation)
        shown = min(self.rows.rowCount(), _MAX_VISIBLE_ROWS)
        rows = self.verticalHeader().defaultSectionSize() * shown
        self.setFixedHeight(self.horizontalHeader().sizeHint().height() + rows + 4)

    def retranslate(self) -> None:
        self.setAccessibleName(tr("data.sources"))
        self.rows.titles = [
            tr("data.source"),
            tr("data.format"),
            tr("data.columns_in_use"),
            tr("data.files"),
            tr("data.size"),
        ]
        self.rows.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(_COLUMNS) - 1)
        self.viewport().update()


class SourcesModel(QAbstractTableModel):
    """Training sources, then validation sources."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[Source] = []
        self._training_count = 0  # number of training sources
        self.titles: list[str] = []

    def show(self, sources: list[Source], validation: list[Source]) -> None:
        self.beginResetModel()
        self.sources, self._training_count = [*sources, *validation], len(sources)
        self.endResetModel()

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(self.sources)

    def columnCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008, N802 - Qt's signature
        return 0 if parent.isValid() else len(_COLUMNS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return self.titles[section] if section < len(self.titles) else None
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.TextAlignmentRole:
            return _alignment(_COLUMNS[section])
        return None

    def data(self, index: _Index, role: int = 0) -> Any:
        source, column = self.sources[index.row()], _COLUMNS[index.column()]
        if role == Qt.ItemDataRole.DisplayRole and column == "name":
            split = source.split or ("validation" if index.row() >= self._training_count else "")
            return formatting.format_split(cell(source, column), split)
        if role == Qt.ItemDataRole.DisplayRole:
            return cell(source, column)
        if role == Qt.ItemDataRole.ToolTipRole:
            return _full_text(source, column)
        return _alignment(column) if role == Qt.ItemDataRole.TextAlignmentRole else None


def _alignment(column: str) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column in _NUMBERS else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter


def _full_text(source: Source, column: str) -> str:
    if column == "name":
        return formatting.format_data_source(source.path)
    return ", ".join(source.all_columns) if column == "columns" and source.all_columns else cell(source, column)


def cell(source: Source, column: str) -> str:
    match column:
        case "name":
            if source.path.startswith("builtin:"):
                return formatting.format_data_source(source.path)
            return Path(source.path).name or source.path
        case "format":
            return " · ".join(filter(None, (source.format, source.compression, source.encoding)))
        case "columns":
            return figures.used(source.column_roles, source.columns) or "–"
        case "files":
            return formatting.format_count(source.files)
        case _:
            return formatting.format_file_size(source.bytes)
