"""Dialog that creates the runs of a sweep over one or two settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import (
    QCheckBox,
    QDialog,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QStackedWidget,
    QWidget,
)

from app.core import sweep
from app.core.number_input import normalize_number
from app.core.sweep import PlannedRun
from app.knob_texts import knob_label, knob_value_label
from app.pages.setup.form import format_value
from app.pages.setup.texts import format_input_error
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    FitContentScrollArea,
    NoScrollComboBox,
    clear_layout,
    horizontal_layout,
    label,
    line_edit,
    plain_tooltip,
    push_button,
    resize_within_screen,
    set_error,
    set_object_name,
    set_text_if_changed,
    vertical_layout,
)
from trainer_core.config import Knob, knobs
from trainer_core.presets import Preset
from trainer_core.runs.run_dir import safe_name

_DEFAULT_KNOB: Final = "learning_rate"
_VALUES, _LINEAR, _LOG = range(3)  # entries of the mode combo box
_DEFAULT_COUNT: Final = "5"
_MAX_NAME_CHARS: Final = 50
_MIN_FORM_HEIGHT: Final = 120  # pixels; a lower screen scrolls the form
_MAX_VISIBLE_KNOBS: Final = 20
_MAX_QUOTED: Final = 3  # invalid values that an error lists


class SweepParameterEditor(QWidget):
    """A setting and its values: check boxes for choices; a list or an evenly spaced range for numbers."""

    changed = Signal()

    def __init__(self, number: int, values: Mapping[str, Any], *, optional: bool) -> None:
        super().__init__()
        self._current_values = values
        self.values: list[Any] = []  # selected ones; empty if any is invalid
        self.names = ["", *sweep.sweepable_keys()] if optional else sweep.sweepable_keys()
        self.knob = set_object_name(NoScrollComboBox(), f"sweepKnob{number}")
        self.mode = set_object_name(NoScrollComboBox(), f"sweepMode{number}")
        self.typed = line_edit(f"sweepValues{number}")
        self.low, self.high, self.steps = (line_edit(f"sweep{name}{number}") for name in ("From", "To", "Steps"))
        self._line_edits = (self.typed, self.low, self.high, self.steps)
        self.check_boxes: list[QCheckBox] = []
        self._check_box_row = horizontal_layout()
        self.error = label("fieldError", wrap=True)
        self._stack = QStackedWidget()
        self._arrange()
        self.knob.setCurrentIndex(0 if optional else self.names.index(_DEFAULT_KNOB))
        self._on_knob_selected()
        self.knob.activated.connect(self._on_knob_selected)
        self.mode.activated.connect(self._on_mode_selected)
        for edit in self._line_edits:
            edit.textEdited.connect(self.changed)

    def _arrange(self) -> None:
        none = tr("queue.no_second_setting")
        self.knob.addItems([knob_label(knobs()[name]) if name else none for name in self.names])
        self.knob.setAccessibleName(tr("queue.setting"))
        self.knob.setMaxVisibleItems(_MAX_VISIBLE_KNOBS)
        self.mode.addItems([tr("queue.listed_values"), tr("queue.linear_scale"), tr("queue.log_scale")])
        self.mode.setAccessibleName(tr("queue.spacing"))
        self.typed.setAccessibleName(tr("queue.values"))
        self.typed.setPlaceholderText(self.typed.accessibleName())
        values, range_ = horizontal_layout(self.typed), horizontal_layout()
        names = tr("queue.from"), tr("queue.to"), tr("queue.number_of_values")
        for text, edit in zip(names, (self.low, self.high, self.steps), strict=True):
            name = label("muted")
            name.setText(text)
            name.setBuddy(edit)
            edit.setAccessibleName(text)
            range_.addWidget(name)
            range_.addWidget(edit, 1)
        for page_layout in (values, range_, self._check_box_row):
            page = QWidget()
            page.setLayout(page_layout)
            self._stack.addWidget(page)
        layout = vertical_layout(spacing=SPACING // 2)
        layout.addLayout(horizontal_layout((self.knob, 1), self.mode))
        layout.addWidget(self._stack)
        layout.addWidget(self.error)
        self.setLayout(layout)

    def selected_knob(self) -> Knob | None:
        name = self.names[self.knob.currentIndex()]
        return knobs()[name] if name else None

    def _on_knob_selected(self) -> None:
        """Suggest values around the current one."""
        knob = self.selected_knob()
        clear_layout(self._check_box_row)
        self.check_boxes = []
        is_number = knob is not None and knob.kind in ("int", "float")
        self.mode.setVisible(is_number)
        self._stack.setVisible(knob is not None)
        if knob is not None and is_number:
            values = _suggest_values(knob, self._current_values.get(knob.name, knob.default))
            self.typed.setText(", ".join(map(format_value, values)))
            self.low.setText(format_value(values[0]))
            self.high.setText(format_value(values[-1]))
            self.steps.setText(_DEFAULT_COUNT)
            self.typed.setToolTip(formatting.format_allowed_values(knob))
        elif knob is not None:
            self._add_check_boxes(knob)
        self._on_mode_selected()

    def _add_check_boxes(self, knob: Knob) -> None:
        choices = {value: knob_value_label(knob, value) for value in knob.choices}
        for value, text in (choices or {"true": tr("common.on"), "false": tr("common.off")}).items():
            check_box = QCheckBox(text)
            check_box.setProperty("value", value)
            check_box.setChecked(True)
            check_box.toggled.connect(self.changed)
            self.check_boxes.append(check_box)
            self._check_box_row.addWidget(check_box)
        self._check_box_row.addStretch(1)

    def _on_mode_selected(self) -> None:
        self._stack.setCurrentIndex(2 if self.check_boxes else 0 if self.mode.currentIndex() == _VALUES else 1)
        self.changed.emit()

    def update_values(self) -> None:
        """Read `values`, and mark the first invalid field."""
        knob = self.selected_knob()
        self.values, field, error = self._read_values(knob) if knob is not None else ([], None, "")
        set_text_if_changed(self.error, error)
        self.error.setVisible(bool(error))
        for edit in self._line_edits:
            set_error(edit, error if edit is field else "")
        for check_box in self.check_boxes:
            set_error(check_box, error)

    def _read_values(self, knob: Knob) -> tuple[list[Any], QLineEdit | None, str]:
        """The values; the first invalid field and its error, which is empty if all are valid."""
        mode = self.mode.currentIndex()
        if self.check_boxes:
            checked = ",".join(box.property("value") for box in self.check_boxes if box.isChecked())
            return sweep.parse_values(knob, checked)[0], None, "" if checked else tr("queue.value_required")
        if mode == _VALUES:
            values, error = _parse_values(knob, self.typed.text())
            return values, self.typed, error
        limits: list[Any] = []
        for edit in (self.low, self.high):
            values, error = _parse_limit(knob, edit.text(), log_scale=mode == _LOG)
            if error:
                return [], edit, error
            limits += values
        count, error = _parse_count(self.steps.text())
        if error:
            return [], self.steps, error
        return sweep.spaced_values(knob, limits[0], limits[1], count, log_scale=mode == _LOG), None, ""


class SweepDialog(QDialog):
    """Creates the runs of a sweep. It does not block."""

    added = Signal(object)  # list[PlannedRun]

    def __init__(
        self,
        base: str,
        preset: Preset,
        changes: Mapping[str, Any],
        taken: set[str],
        palette: Palette,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self.setWindowTitle(tr("queue.sweep_title"))
        self._preset, self._changes, self._taken_names, self._palette = preset, changes, taken, palette
        values = {**preset.knobs, **changes}
        self.editors = [SweepParameterEditor(1, values, optional=False), SweepParameterEditor(2, values, optional=True)]
        self.base = line_edit("sweepBase")
        self.base.setMaxLength(_MAX_NAME_CHARS)
        self.base.setText(safe_name(base)[:_MAX_NAME_CHARS])
        self.count, self.list = label("section"), set_object_name(QListWidget(), "sweepRuns")
        self.list.setAccessibleName(tr("queue.new_runs"))
        self.list.setSelectionMode(QListWidget.SelectionMode.NoSelection)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setTextElideMode(Qt.TextElideMode.ElideMiddle)  # names differ at the end
        self.add_button = push_button("primary")
        self.add_button.setDefault(True)
        self.add_button.clicked.connect(self._add)
        self._valid_runs: list[PlannedRun] = []
        self._arrange()
        for editor in self.editors:
            editor.changed.connect(self._update_plan)
        self.base.textEdited.connect(self._update_plan)
        self._update_plan()

    def _arrange(self) -> None:
        intro, base_label, cancel = label("muted", wrap=True), label(), push_button("sweepCancel")
        intro.setText(tr("queue.sweep_note"))
        base_label.setText(tr("queue.name_prefix"))
        base_label.setBuddy(self.base)
        self.base.setAccessibleName(base_label.text())
        cancel.setText(tr("common.cancel"))
        cancel.clicked.connect(self.reject)
        buttons = horizontal_layout(cancel, self.add_button)
        buttons.insertStretch(0, 1)
        content, form = set_object_name(QWidget(), "scrolled"), vertical_layout(spacing=SPACING + 4)
        for widget in (intro, *self.editors):
            form.addWidget(widget)
        form.addLayout(horizontal_layout(base_label, (self.base, 1)))
        content.setLayout(form)
        layout = vertical_layout(spacing=SPACING + 4, margin=2 * SPACING)
        layout.addWidget(FitContentScrollArea(content, _MIN_FORM_HEIGHT))
        layout.addWidget(self.count)
        layout.addWidget(self.list, 1)
        layout.addLayout(buttons)
        self.setLayout(layout)
        resize_within_screen(self, QSize(520, 560))

    def _update_plan(self) -> None:
        """Show the runs that would be added, and those that cannot be trained."""
        for editor in self.editors:
            editor.update_values()
        selected = [(knob.name, editor.values) for editor in self.editors if (knob := editor.selected_knob())]
        parameters = dict(selected)
        is_duplicate = len(parameters) < len(selected)
        total = math.prod(map(len, parameters.values()))
        base = safe_name(self.base.text())
        runs: list[PlannedRun] = []
        if base and not is_duplicate and 0 < total <= sweep.MAX_RUNS:
            runs = sweep.plan_runs(base, self._preset.knobs, self._changes, parameters, self._taken_names)
        self._valid_runs = [run for run in runs if run.error is None]
        if is_duplicate:
            text = tr("queue.two_settings_required")
        elif not base:
            text = tr("queue.name_required")
        elif total > sweep.MAX_RUNS:
            text = tr("queue.too_many_runs", count=formatting.format_count(total), limit=sweep.MAX_RUNS)
        elif len(self._valid_runs) < len(runs):
            invalid = len(runs) - len(self._valid_runs)
            text = tr("queue.run_count_with_invalid", count=len(self._valid_runs), wrong=invalid)
        else:
            text = tr("queue.run_count", count=len(self._valid_runs))
        set_text_if_changed(self.count, text)
        set_error(self.editors[1].knob, text if is_duplicate else "")
        set_error(self.base, "" if base or is_duplicate else text)
        set_text_if_changed(self.add_button, tr("queue.add_count", count=len(self._valid_runs)))
        self.add_button.setEnabled(bool(self._valid_runs))
        self._list_runs(runs)

    def _list_runs(self, runs: list[PlannedRun]) -> None:
        self.list.clear()
        for run in runs:
            text = formatting.format_settings(run.swept_values)
            if run.error is not None:
                text = formatting.localized_message(run.error.code, run.error.params)
            item = QListWidgetItem(f"{run.name}  ·  {text}")
            item.setToolTip(plain_tooltip(item.text()))
            if run.error is not None:
                item.setForeground(QColor(self._palette.bad))
            self.list.addItem(item)

    def _add(self) -> None:
        self.added.emit(self._valid_runs)
        self.accept()


def _suggest_values(knob: Knob, value: Any) -> list[Any]:
    """Half, the same, and twice the value, as far as they are valid."""
    factors = [value * factor for factor in (0.5, 1, 2)]
    rounded = [round(number) if knob.kind == "int" else float(f"{number:.6g}") for number in factors]
    return sweep.parse_values(knob, " ".join(map(format_value, rounded)))[0] or [value]


def _parse_values(knob: Knob, text: str) -> tuple[list[Any], str]:
    """Values separated by commas, and their error, which is empty if all are valid."""
    values, invalid = sweep.parse_values(knob, text)
    if invalid:
        return [], _format_invalid(knob, invalid)
    if not values:
        return [], tr("queue.value_required")
    if len(values) > sweep.MAX_VALUES:
        return [], tr("queue.max_values", count=sweep.MAX_VALUES)
    return values, ""


def _parse_limit(knob: Knob, text: str, *, log_scale: bool) -> tuple[list[Any], str]:
    """The first or last value of a range, and its error."""
    values, invalid = sweep.parse_values(knob, text)
    if invalid:
        return [], _format_invalid(knob, invalid)
    if len(values) != 1:
        return [], tr("queue.field_required")
    if log_scale and values[0] <= 0:
        return [], tr("queue.invalid_log_bound", value=text.strip())
    return values, ""


def _parse_count(text: str) -> tuple[int, str]:
    """The number of values, and its error."""
    try:
        count = int(normalize_number(text))
    except ValueError:
        count = 0
    if count > sweep.MAX_VALUES:
        return 0, tr("queue.max_values", count=sweep.MAX_VALUES)
    return count, "" if count >= 1 else tr("queue.invalid_count", value=text.strip(), count=sweep.MAX_VALUES)


def _format_invalid(knob: Knob, invalid: list[str]) -> str:
    quoted = tr("common.list_separator").join(f"“{value}”" for value in invalid[:_MAX_QUOTED])
    if len(invalid) > _MAX_QUOTED:
        quoted += "…"
    if len(invalid) > 1:
        return tr("queue.values_not_allowed", values=quoted, range=formatting.format_allowed_values(knob))
    reason = format_input_error(knob, invalid[0])
    if invalid[0] in reason.split("”")[0]:  # quoted already
        return reason
    return tr("queue.value_invalid", value=quoted, why=reason)
