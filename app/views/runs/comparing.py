"""Two or more runs side by side: what they reached, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QCoreApplication, QSize, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QHBoxLayout,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.i18n.knob_words import knob_words
from app.state.runs.run_difference import Difference, as_tsv
from app.theme.tokens import SPACE
from app.views import words
from app.views.widgets import button, label, named, resize_within_screen
from trainer_core.config import Knob
from trainer_core.runs.run_dir import RunSummary

_NAME_WIDTH = 210
_RUN_WIDTH = 190


class Comparison(QDialog):
    """A table: one column a run. It stays open beside the window until it is closed."""

    copied = Signal(str)  # the table, divided by tabs

    def __init__(self, runs: Sequence[RunSummary], found: Sequence[Difference], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setObjectName("comparison")
        self.rows = [[self.tr("Name"), *(run.name for run in runs)], *self._reached(runs), *_settings(found)]
        self.table = named(QTableWidget(len(self.rows) - 1, len(runs) + 1), "comparing")
        self.note = label("muted", wrap=True)
        self.copy, self.leave = button("copyComparison"), button("closeComparison")
        self._fill()
        self._arrange()
        self.note.setVisible(not found)
        self.note.setText(self.tr("Their settings are the same."))
        self.setWindowTitle(self.tr("Comparison of {count} runs").format(count=len(runs)))
        self.copy.setText(self.tr("Copy as table"))
        self.copy.setToolTip(self.tr("Divided by tabs, to paste into a spreadsheet."))
        self.leave.setText(self.tr("Close"))
        self.table.setAccessibleName(self.tr("Where the runs differ"))
        self.copy.clicked.connect(lambda: self.copied.emit(as_tsv(self.rows)))
        self.leave.clicked.connect(self.close)
        QShortcut(QKeySequence.StandardKey.Copy, self.table, self.copy.click)
        columns = _NAME_WIDTH + len(runs) * _RUN_WIDTH
        usual = QSize(min(1100, max(480, columns + 6 * SPACE)), min(640, 120 + 30 * len(self.rows)))
        resize_within_screen(self, usual)

    def _reached(self, runs: Sequence[RunSummary]) -> list[list[str]]:
        return [
            [self.tr("State"), *(words.disk_state(run.state) for run in runs)],
            [self.tr("Steps"), *(words.count(run.step) for run in runs)],
            [self.tr("Best loss"), *(words.loss(run.best_loss) for run in runs)],
            [self.tr("Tokens/s"), *(words.rate(run.tokens_per_s) for run in runs)],
            [self.tr("Trained for"), *(words.duration(run.seconds or None) for run in runs)],
        ]

    def _fill(self) -> None:
        self.table.setHorizontalHeaderLabels(self.rows[0])
        for row, (name, *values) in enumerate(self.rows[1:]):
            title = QTableWidgetItem(name)
            title.setToolTip(name)
            self.table.setItem(row, 0, title)
            for column, text in enumerate(values, 1):
                item = QTableWidgetItem(text)
                item.setToolTip(text)
                self.table.setItem(row, column, item)
        for column, name in enumerate(self.rows[0]):
            header_item = self.table.horizontalHeaderItem(column)
            if header_item is not None:
                header_item.setToolTip(name)

    def _arrange(self) -> None:
        table = self.table
        table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setTabKeyNavigation(False)
        table.setShowGrid(False)
        table.setAlternatingRowColors(True)
        table.setWordWrap(False)
        table.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        table.verticalHeader().hide()
        table.verticalHeader().setDefaultSectionSize(table.fontMetrics().lineSpacing() + SPACE)
        header = table.horizontalHeader()
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        table.setColumnWidth(0, _NAME_WIDTH)
        for column in range(1, table.columnCount()):
            table.setColumnWidth(column, _RUN_WIDTH)
        if table.columnCount() <= 6:  # else it scrolls
            for column in range(1, table.columnCount()):
                header.setSectionResizeMode(column, QHeaderView.ResizeMode.Stretch)
        buttons = QHBoxLayout()
        buttons.setSpacing(SPACE)
        buttons.addWidget(self.copy)
        buttons.addStretch(1)
        buttons.addWidget(self.leave)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(2 * SPACE, 2 * SPACE, 2 * SPACE, 2 * SPACE)
        layout.setSpacing(SPACE)
        layout.addWidget(table, 1)
        layout.addWidget(self.note)
        layout.addLayout(buttons)


def _settings(found: Sequence[Difference]) -> list[list[str]]:
    return [
        [_title(difference.knob), *(_value(difference.knob.name, value) for value in difference.values)]
        for difference in found
    ]


def _title(knob: Knob) -> str:
    """With the unit of its values, where its name does not say it."""
    table = knob_words(words.language())
    unit = table.unit_beside(knob)
    titled = QCoreApplication.translate("Settings", "{setting} ({unit})")
    return titled.format(setting=table.label(knob), unit=unit) if unit else table.label(knob)


def _value(name: str, value: Any) -> str:
    if name in ("data", "validation_data") and isinstance(value, list):
        return ", ".join(words.data_name(str(path)) for path in value) or "–"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return words.setting(name, value) if value not in (None, "") else "–"
