"""Table of the data sources."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHeaderView, QTableWidget, QTableWidgetItem

from app.texts import current_language, tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.table import configure_table
from trainer_core.data_report_texts import format_columns, format_file_kind, source_name
from trainer_core.protocol import Source

_FILES: Final = 3
_WIDTHS: Final = {1: 150, 2: 250, _FILES: 60, 4: 84}  # pixels, by column
_NARROW_WIDTHS: Final = {1: 110, 2: 150}
_MAX_VISIBLE_ROWS: Final = 5


class SourcesTable(QTableWidget):
    """Training sources, then validation sources. As high as its rows, up to a maximum."""

    def __init__(self) -> None:
        super().__init__(0, 5)
        self.setObjectName("sources")
        configure_table(self, row_padding=SPACING)
        self.setSelectionMode(QTableWidget.SelectionMode.NoSelection)
        self.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self.set_narrow(False)

    def set_narrow(self, narrow: bool) -> None:
        """Hide the number of files in a narrow table."""
        self.setColumnHidden(_FILES, narrow)
        for column, width in (_WIDTHS | (_NARROW_WIDTHS if narrow else {})).items():
            self.setColumnWidth(column, width)

    def display(self, sources: list[Source], validation: list[Source]) -> None:
        self.setAccessibleName(tr("data.sources"))
        titles = ("data.source", "data.format", "data.columns_in_use", "data.files", "data.size")
        for column, title in enumerate(titles):
            self.setHorizontalHeaderItem(column, _build_item(tr(title), "", right=column >= _FILES))
        rows = [_format_row(source, source.split) for source in sources]
        rows += [_format_row(source, source.split or "validation") for source in validation]
        self.setRowCount(len(rows))
        for row, cells in enumerate(rows):
            for column, (text, tooltip) in enumerate(cells):
                self.setItem(row, column, _build_item(text, tooltip, right=column >= _FILES))
        height = self.verticalHeader().defaultSectionSize() * min(len(rows), _MAX_VISIBLE_ROWS)
        self.setFixedHeight(self.horizontalHeader().sizeHint().height() + height + 4)


def _format_row(source: Source, split: str) -> list[tuple[str, str]]:
    """Text and tooltip of each cell."""
    path = formatting.format_data_source(source.path)
    name = path if source.path.startswith("builtin:") else source_name(source)
    columns = format_columns(source, current_language()) or "–"
    return [
        (formatting.format_split(name, split), path),
        (format_file_kind(source), ""),
        (columns, ", ".join(source.all_columns)),
        (formatting.format_count(source.files), ""),
        (formatting.format_file_size(source.bytes), ""),
    ]


def _build_item(text: str, tooltip: str, *, right: bool) -> QTableWidgetItem:
    item = QTableWidgetItem(text)
    item.setToolTip(tooltip or text)
    side = Qt.AlignmentFlag.AlignRight if right else Qt.AlignmentFlag.AlignLeft
    item.setTextAlignment(side | Qt.AlignmentFlag.AlignVCenter)
    return item
