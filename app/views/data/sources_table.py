"""What was found at each path: format, encoding, the columns in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QWidget

from app.theme.tokens import SPACE
from app.views import words
from app.views.data import figures
from trainer_core.protocol import Source

_COLUMNS: Final = ("name", "format", "columns", "files", "size")
_WIDTHS: Final = {"format": 150, "columns": 250, "files": 60, "size": 84}
_NARROW: Final = {"format": 110, "columns": 150}
_NUMBERS: Final = ("files", "size")
_MOST_ROWS: Final = 5  # without scrolling
_Index = QModelIndex | QPersistentModelIndex


class SourcesTable(QTableView):
    """As high as it has rows, up to a few."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
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
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().lineSpacing() + SPACE)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        for place, column in enumerate(_COLUMNS):
            if column in _WIDTHS:
                self.setColumnWidth(place, _WIDTHS[column])
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)

    def fit(self, *, narrow: bool) -> None:
        """A narrow table leaves out the number of files and gives its names more room."""
        self.setColumnHidden(_COLUMNS.index("files"), narrow)
        for column in ("format", "columns"):
            self.setColumnWidth(_COLUMNS.index(column), _NARROW[column] if narrow else _WIDTHS[column])

    def display(self, sources: list[Source], validation: list[Source]) -> None:
        """Those to train on, then those to evaluate."""
        self.rows.show(sources, validation)
        shown = min(self.rows.rowCount(), _MOST_ROWS)
        rows = self.verticalHeader().defaultSectionSize() * shown
        self.setFixedHeight(self.horizontalHeader().sizeHint().height() + rows + 4)

    def retranslate(self) -> None:
        self.setAccessibleName(self.tr("Sources"))
        self.rows.titles = [
            self.tr("Source"),
            self.tr("Format"),
            self.tr("Columns in use"),
            self.tr("Files"),
            self.tr("Size"),
        ]
        self.rows.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, len(_COLUMNS) - 1)
        self.viewport().update()


class SourcesModel(QAbstractTableModel):
    """Sources as a table."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[Source] = []
        self._trained = 0  # of them, the first ones
        self.titles: list[str] = []

    def show(self, sources: list[Source], validation: list[Source]) -> None:
        self.beginResetModel()
        self.sources, self._trained = [*sources, *validation], len(sources)
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
            split = source.split or ("validation" if index.row() >= self._trained else "")
            return words.of_split(cell(source, column), split)
        if role == Qt.ItemDataRole.DisplayRole:
            return cell(source, column)
        if role == Qt.ItemDataRole.ToolTipRole:
            return _whole(source, column)
        return _alignment(column) if role == Qt.ItemDataRole.TextAlignmentRole else None


def _alignment(column: str) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column in _NUMBERS else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter


def _whole(source: Source, column: str) -> str:
    if column == "name":
        return words.data_name(source.path)
    return ", ".join(source.found) if column == "columns" and source.found else cell(source, column)


def cell(source: Source, column: str) -> str:
    """The text of one cell."""
    match column:
        case "name":
            if source.path.startswith("builtin:"):
                return words.data_name(source.path)
            return Path(source.path).name or source.path
        case "format":
            return " · ".join(filter(None, (source.format, source.compression, source.encoding)))
        case "columns":
            return figures.used(source.used, source.columns) or "–"
        case "files":
            return words.count(source.files)
        case _:
            return words.small_size(source.bytes)
