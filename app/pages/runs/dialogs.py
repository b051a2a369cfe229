"""Dialogs of the runs page. None of them blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QMessageBox,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from app.core.history.run_files import config_differences
from app.core.history.run_list import RunRow
from app.knob_texts import knob_label, knob_unit_suffix
from app.pages.runs.table import RUN_COLUMNS
from app.services import desktop_shell
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    horizontal_layout,
    label,
    plain_tooltip,
    push_button,
    resize_within_screen,
    set_object_name,
    vertical_layout,
)
from app.widgets.table import configure_table
from trainer_core.config import Knob
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir

_MAX_NAMES: Final = 8  # in the question before runs are deleted
_COLUMN_WIDTH: Final = 200  # pixels


class DeleteDialog(QMessageBox):
    """Asks whether to move runs to the recycle bin or, if there is none, to delete them permanently."""

    def __init__(self, runs: list[Path], parent: QWidget, *, permanently: bool) -> None:
        super().__init__(parent)
        self.setIcon(QMessageBox.Icon.Warning if permanently else QMessageBox.Icon.Question)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(tr("runs.delete_runs"))
        if len(runs) == 1:
            key = "runs.delete_one" if permanently else "runs.recycle_one"
        else:
            key = "runs.delete_many" if permanently else "runs.recycle_many"
        self.setText(tr(key, count=len(runs)))
        accept = tr("runs.delete_permanently") if permanently else tr("runs.recycle")
        self.delete_button = self.addButton(accept, QMessageBox.ButtonRole.DestructiveRole)
        self.delete_button.setObjectName("deleteRuns")
        cancel = self.addButton(tr("common.cancel"), QMessageBox.ButtonRole.RejectRole)
        self.setDefaultButton(cancel if permanently else self.delete_button)
        self.setEscapeButton(cancel)
        names = [run.name for run in runs[:_MAX_NAMES]] + ["…"] * (len(runs) > _MAX_NAMES)
        self.setInformativeText("\n".join(names))


class ComparisonDialog(QDialog):
    """Results of runs and the settings in which they differ, one column per run."""

    def __init__(self, runs: Sequence[RunRow], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setObjectName("comparison")
        self.setWindowTitle(tr("runs.comparison", count=len(runs)))
        columns = [RUN_COLUMNS[name] for name in ("name", "state", "step", "loss", "speed", "time")]
        differences = config_differences([run_dir.read_yaml(RunDir(row.path).config) for row in runs])
        self.rows = [
            *([tr(column.title), *map(column.text, runs)] for column in columns),
            *([_format_title(knob), *(_format_value(knob, value) for value in values)] for knob, values in differences),
        ]
        self.table = set_object_name(QTableWidget(len(self.rows) - 1, len(runs) + 1), "comparing")
        self._fill_table()
        note = label("muted", wrap=True, hidden=bool(differences))
        note.setText(tr("runs.no_differences"))
        self.copy_button, close = push_button("copyComparison"), push_button("closeComparison")
        self.copy_button.setText(tr("runs.copy_as_table"))
        self.copy_button.setToolTip(tr("runs.copy_as_table_hint"))
        self.copy_button.clicked.connect(lambda: desktop_shell.copy_text(self._format_tsv()))
        QShortcut(QKeySequence.StandardKey.Copy, self.table, self.copy_button.click)
        close.setText(tr("common.close"))
        close.clicked.connect(self.close)
        buttons = horizontal_layout(self.copy_button, close)
        buttons.insertStretch(1, 1)
        layout = vertical_layout(margin=2 * SPACING)
        self.setLayout(layout)
        layout.addWidget(self.table, 1)
        layout.addWidget(note)
        layout.addLayout(buttons)
        width = (len(runs) + 1) * _COLUMN_WIDTH + 6 * SPACING
        resize_within_screen(self, QSize(min(1100, width), min(640, 120 + 30 * len(self.rows))))

    def _format_tsv(self) -> str:
        """Tab-separated values for spreadsheets."""
        return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in self.rows)

    def _fill_table(self) -> None:
        table = self.table
        configure_table(table, row_padding=SPACING)
        table.setAccessibleName(tr("runs.differences"))
        table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        table.setAlternatingRowColors(True)
        table.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        table.horizontalHeader().setTextElideMode(Qt.TextElideMode.ElideMiddle)
        for row, texts in enumerate(self.rows):
            for column, text in enumerate(texts):
                item = QTableWidgetItem(text)
                item.setToolTip(plain_tooltip(text))
                if row == 0:
                    table.setHorizontalHeaderItem(column, item)
                else:
                    table.setItem(row - 1, column, item)
        table.horizontalHeader().setDefaultSectionSize(_COLUMN_WIDTH)
        table.horizontalHeader().setStretchLastSection(True)


def _format_title(knob: Knob) -> str:
    """Label of a setting, with its unit."""
    unit, label = knob_unit_suffix(knob), knob_label(knob)
    return tr("runs.setting_unit", setting=label, unit=unit) if unit else label


def _format_value(knob: Knob, value: Any) -> str:
    if isinstance(value, list):
        is_data = knob.name in ("data", "validation_data")
        return ", ".join(formatting.format_data_source(str(v)) if is_data else str(v) for v in value) or "–"
    return formatting.format_setting_value(knob.name, value) if value not in (None, "") else "–"
