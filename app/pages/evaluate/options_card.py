"""What to evaluate, and how: checkpoint, data, judge, comparison with the base model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QCheckBox, QDoubleSpinBox, QFileDialog, QGridLayout, QLabel, QWidget

from app.core.evaluations import EvaluationOptions
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import (
    PathLineEdit,
    TranslatableWidget,
    horizontal_layout,
    label,
    line_edit,
    push_button,
    set_object_name,
)
from app.widgets.checkpoint_choice import CheckpointChoice, narrow_combo
from trainer_core.runs.run_dir import RunDir, read_yaml

_LABELS: Final = {
    "run": "export.run",
    "checkpoint": "export.checkpoint",
    "data": "common.data",
    "rows": "evaluate.rows",
    "judge": "evaluate.judge",
    "examples": "evaluate.examples",
    "system": "evaluate.system",
}
_JUDGES: Final = {"": "evaluate.judge_none", "regex": "evaluate.judge_regex", "json-schema": "evaluate.judge_schema"}
_JUDGE_HINTS: Final = {"": "", "regex": "evaluate.regex_hint", "json-schema": "evaluate.schema_hint"}
_MAX_ROWS, _MAX_EXAMPLES = 1_000_000, 100
_EXAMPLES_WIDTH: Final = 56  # pixels


class EvaluationOptionsCard(TranslatableWidget):
    """Form of an evaluation."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.choice = CheckpointChoice("evaluate", self)
        self.data, self.browse = set_object_name(PathLineEdit(), "evaluateData"), push_button("evaluateBrowse")
        self.rows = _number_field("evaluateRows", EvaluationOptions().rows, _MAX_ROWS)
        self.rows.setSingleStep(100)
        self.judge, self.rule = narrow_combo("evaluateJudge"), line_edit("evaluateRule")
        self.compare = set_object_name(QCheckBox(), "evaluateCompare")
        self.compare.setChecked(True)
        self.examples = _number_field("evaluateExamples", 0, _MAX_EXAMPLES)
        self.system = line_edit("evaluateSystem")
        for kind in _JUDGES:
            self.judge.addItem("", kind)
        self._has_base = False
        self._labels: dict[str, QLabel] = {}
        self._arrange()
        self.choice.changed.connect(self._on_choice)
        self.browse.clicked.connect(self._browse)
        self.judge.currentIndexChanged.connect(self._update)
        self.compare.toggled.connect(self._update)
        for field in (self.data, self.rule):
            field.textChanged.connect(self._update)
        self.retranslate()

    def _arrange(self) -> None:
        grid = QGridLayout()
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setSpacing(SPACING)
        grid.setColumnStretch(1, 3)
        grid.setColumnStretch(3, 4)
        judge = horizontal_layout((self.judge, 2), (self.rule, 3))
        system = horizontal_layout((self.system, 1), self._add_label("examples", self.examples), self.examples)
        self.examples.setFixedWidth(_EXAMPLES_WIDTH)
        for row, column, name, field, span in (
            (0, 0, "run", self.choice.run, 1), (0, 2, "checkpoint", self.choice.checkpoint, 2),
            (1, 0, "data", self.data, 3), (2, 0, "rows", self.rows, 1),
        ):  # fmt: skip
            grid.addWidget(self._add_label(name, field), row, column)
            grid.addWidget(field, row, column + 1, 1, span)
        grid.addWidget(self.browse, 1, 4)
        grid.addWidget(self._add_label("judge", self.judge), 2, 2)
        grid.addLayout(judge, 2, 3, 1, 2)
        grid.addWidget(self.compare, 3, 0, 1, 2)
        grid.addWidget(self._add_label("system", self.system), 3, 2)
        grid.addLayout(system, 3, 3, 1, 2)
        self.setLayout(grid)

    def _add_label(self, name: str, field: QWidget) -> QLabel:
        self._labels[name] = label()
        self._labels[name].setBuddy(field)
        return self._labels[name]

    # --- values ---------------------------------------------------------------------------------------------

    @property
    def options(self) -> EvaluationOptions:
        kind = self.judge.currentData()
        return EvaluationOptions(
            data=self.data.text().strip(),
            rows=int(self.rows.value()),
            judge=f"{kind}:{self.rule.text()}" if kind else "",
            compare=self._compares,
            system=self.system.text().strip(),
            examples=int(self.examples.value()),
        )

    @property
    def _compares(self) -> bool:
        return self.choice.is_base_model or (self._has_base and self.compare.isChecked())

    @property
    def blocked_reason(self) -> str:
        """Why no evaluation can be started; empty if one can."""
        if self.choice.selected_checkpoint is None and not self.choice.is_base_model:
            return tr("disabled.no_checkpoints")
        if (data := self.data.text().strip()) and not (Path(data).is_absolute() and os.path.exists(data)):  # noqa: PTH110 - never raises
            return tr("evaluate.no_data_file", path=data)
        return tr("evaluate.no_rule") if self.judge.currentData() and not self.rule.text() else ""

    def _on_choice(self) -> None:
        run = self.choice.selected_run
        settings = read_yaml(RunDir(run).config) if run is not None and not self.choice.is_base_model else {}
        self._has_base = bool(settings.get("base_model"))
        self._update()

    def _browse(self) -> None:
        file, _ = QFileDialog.getOpenFileName(self, tr("evaluate.choose_data"), self.data.text())
        if file:
            self.data.setText(str(Path(file)))

    # --- display --------------------------------------------------------------------------------------------

    def _update(self) -> None:
        is_base_model = self.choice.is_base_model
        untuned = tr("evaluate.not_tuned") if is_base_model else ""
        self.choice.checkpoint.setEnabled(not is_base_model)
        self.choice.checkpoint.setToolTip(untuned)
        self.data.setPlaceholderText(tr("evaluate.would_hold_out" if is_base_model else "evaluate.held_out"))
        self.compare.setEnabled(self._has_base)
        self.compare.setToolTip("" if self._has_base else untuned or tr("evaluate.no_base_model"))
        for field in (self.examples, self.system):
            field.setEnabled(self._compares)
            field.setToolTip("" if self._compares else tr("evaluate.only_compared"))
        kind = self.judge.currentData()
        self.rule.setVisible(bool(kind))
        self.rule.setPlaceholderText(tr(_JUDGE_HINTS[kind]) if kind else "")
        self.changed.emit()

    def retranslate(self) -> None:
        for name, widget in self._labels.items():
            widget.setText(tr(_LABELS[name]))
        for index, key in enumerate(_JUDGES.values()):
            self.judge.setItemText(index, tr(key))
        self.browse.setText(tr("export.browse"))
        self.rows.setSpecialValueText(tr("evaluate.all_rows"))
        self.rule.setAccessibleName(tr("evaluate.rule"))
        self.compare.setText(tr("evaluate.compare"))
        self.choice.retranslate()
        self._update()


def _number_field(name: str, value: int, maximum: int) -> QDoubleSpinBox:
    field = set_object_name(QDoubleSpinBox(decimals=0, maximum=maximum, value=value), name)
    field.lineEdit().setTextMargins(6, 0, 6, 0)  # as the padding of other fields
    return field
