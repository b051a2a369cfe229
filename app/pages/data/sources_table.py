"""Table of the data sources."""

from __future__ import annotations

from typing import Final, NamedTuple

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHeaderView, QTableWidget, QTableWidgetItem

from app.texts import current_language, tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.table import configure_table
from trainer_core.data_report_texts import format_columns, format_file_kind, source_name
from trainer_core.protocol import Source


class _Column(NamedTuple):
    title: str  # key of the text
    width: int = 0  # pixels; 0: the rest of the table
    narrow_width: int = 0  # in a narrow table; 0: hidden there
    align_right: bool = False


_COLUMNS: Final = (
    _Column("data.source"),
    _Column("data.format", 150, 110),
    _Column("data.columns_in_use", 250, 150),
    _Column("data.files", 60, align_right=True),
    _Column("data.size", 84, 84, align_right=True),
)
_MAX_VISIBLE_ROWS: Final = 5
_FRAME: Final = 4  # pixels above and below the rows together


class SourcesTable(QTableWidget):
    """Training sources, then validation sources. As high as its rows, up to a maximum."""

    def __init__(self) -> None:
        super().__init__(0, len(_COLUMNS))
        self.setObjectName("sources")
        configure_table(self, row_padding=SPACING)
        self.setSelectionMode(QTableWidget.SelectionMode.NoSelection)
        self.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self.set_narrow(False)

    def set_narrow(self, narrow: bool) -> None:
        """Set the widths of the columns for a narrow or a wide table. A narrow one hides the number of files."""
        for index, column in enumerate(_COLUMNS):
            width = column.narrow_width if narrow else column.width
            if column.width:
                self.setColumnHidden(index, not width)
            if width:
                self.setColumnWidth(index, width)

    def display(self, sources: list[Source], validation_sources: list[Source]) -> None:
        """Replace the rows. Validation sources without a split of their own are marked as validation."""
        self.setAccessibleName(tr("data.sources"))
        for index, column in enumerate(_COLUMNS):
            self.setHorizontalHeaderItem(index, _build_item(tr(column.title), "", align_right=column.align_right))
        rows = [_format_row(source, source.split) for source in sources]
        rows += [_format_row(source, source.split or tr("data.validation")) for source in validation_sources]
        self.setRowCount(len(rows))
        for row, cells in enumerate(rows):
            for index, (text, tooltip) in enumerate(cells):
                self.setItem(row, index, _build_item(text, tooltip, align_right=_COLUMNS[index].align_right))
        height = self.verticalHeader().defaultSectionSize() * min(len(rows), _MAX_VISIBLE_ROWS)
        self.setFixedHeight(self.horizontalHeader().sizeHint().height() + height + _FRAME)


def _format_row(source: Source, split: str) -> list[tuple[str, str]]:
    """Return text and tooltip of each cell, in the order of `_COLUMNS`."""
    full_name = formatting.format_data_source(source.path)  # a path, or the title of built-in data
    name = full_name if source.path.startswith("builtin:") else source_name(source)
    columns_in_use = format_columns(source, current_language()) or "–"
    return [
        (formatting.append_split(name, split), full_name),
        (format_file_kind(source), ""),
        (columns_in_use, ", ".join(source.all_columns)),
        (formatting.format_count(source.files), ""),
        (formatting.format_file_size(source.bytes), ""),
    ]


def _build_item(text: str, tooltip: str, *, align_right: bool) -> QTableWidgetItem:
    """An empty tooltip is replaced by the text, which the column may cut off."""
    item = QTableWidgetItem(text)
    item.setToolTip(tooltip or text)
    side = Qt.AlignmentFlag.AlignRight if align_right else Qt.AlignmentFlag.AlignLeft
    item.setTextAlignment(side | Qt.AlignmentFlag.AlignVCenter)
    return item
