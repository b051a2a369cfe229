"""Table of the data sources."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView

from app.texts import current_language, tr
from app.theme.palette import SPACING
from app.widgets import formatting
from trainer_core.data_report_texts import format_columns, format_file_kind, source_name
from trainer_core.protocol import Source

_FORMAT, _COLUMNS, _FILES, _SIZE = 1, 2, 3, 4
_WIDTHS: Final = {_FORMAT: 150, _COLUMNS: 250, _FILES: 60, _SIZE: 84}  # pixels
_NARROW_WIDTHS: Final = {_FORMAT: 110, _COLUMNS: 150}
_MAX_VISIBLE_ROWS: Final = 5


class SourcesTable(QTableView):
    """Training sources, then validation sources. As high as its rows, up to a maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("sources")
        self._sources: tuple[list[Source], list[Source]] = ([], [])
        self.rows = QStandardItemModel(0, 5, self)
        self.setModel(self.rows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.NoSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setTabKeyNavigation(False)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(self.fontMetrics().lineSpacing() + SPACING)
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self.set_narrow(False)

    def set_narrow(self, narrow: bool) -> None:
        """Hide the number of files in a narrow table."""
        self.setColumnHidden(_FILES, narrow)
        for column, width in (_WIDTHS | (_NARROW_WIDTHS if narrow else {})).items():
            self.setColumnWidth(column, width)

    def display(self, sources: list[Source], validation: list[Source]) -> None:
        self._sources = (sources, validation)
        self.rows.setRowCount(0)
        for source in sources:
            self.rows.appendRow(_build_row(source, source.split))
        for source in validation:
            self.rows.appendRow(_build_row(source, source.split or "validation"))
        rows = self.verticalHeader().defaultSectionSize() * min(self.rows.rowCount(), _MAX_VISIBLE_ROWS)
        self.setFixedHeight(self.horizontalHeader().sizeHint().height() + rows + 4)

    def retranslate(self) -> None:
        self.setAccessibleName(tr("data.sources"))
        titles = ("data.source", "data.format", "data.columns_in_use", "data.files", "data.size")
        for column, title in enumerate(titles):
            self.rows.setHorizontalHeaderItem(column, _build_item(tr(title), right=column in (_FILES, _SIZE)))
        self.display(*self._sources)


def _build_row(source: Source, split: str) -> list[QStandardItem]:
    path = formatting.format_data_source(source.path)
    name = path if source.path.startswith("builtin:") else source_name(source)
    columns = format_columns(source, current_language()) or "–"
    return [
        _build_item(formatting.format_split(name, split), path),
        _build_item(format_file_kind(source)),
        _build_item(columns, ", ".join(source.all_columns) or columns),
        _build_item(formatting.format_count(source.files), right=True),
        _build_item(formatting.format_file_size(source.bytes), right=True),
    ]


def _build_item(text: str, tooltip: str = "", *, right: bool = False) -> QStandardItem:
    item = QStandardItem(text)
    item.setToolTip(tooltip or text)
    side = Qt.AlignmentFlag.AlignRight if right else Qt.AlignmentFlag.AlignLeft
    item.setTextAlignment(side | Qt.AlignmentFlag.AlignVCenter)
    return item
