"""Dialog that creates the runs of a sweep over one or two settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QDialog, QListWidget, QListWidgetItem, QWidget

from app.core import sweep
from app.core.sweep import PlannedRun
from app.knob_texts import knob_label
from app.pages.setup.form import SetupForm, format_value
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    FitContentScrollArea,
    NoScrollComboBox,
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
from trainer_core.runs.run_dir import safe_name

_DEFAULT_KNOB: Final = "learning_rate"
_MAX_NAME_CHARS: Final = 50
_MIN_FORM_HEIGHT: Final = 120  # pixels; a lower screen scrolls the form
_MAX_VISIBLE_KNOBS: Final = 20
_MAX_QUOTED: Final = 3  # invalid values that an error lists


class SweepParameterEditor(QWidget):
    """A setting and its values, separated by commas."""

    changed = Signal()

    def __init__(self, number: int, values: Mapping[str, Any], *, optional: bool) -> None:
        super().__init__()
        self._current_values = values
        self.values: list[Any] = []  # empty if any is invalid
        self.names = ["", *sweep.sweepable_keys()] if optional else sweep.sweepable_keys()
        self.knob = set_object_name(NoScrollComboBox(), f"sweepKnob{number}")
        self.knob.addItems(
            [knob_label(knobs()[name]) if name else tr("queue.no_second_setting") for name in self.names]
        )
        self.knob.setAccessibleName(tr("queue.setting"))
        self.knob.setMaxVisibleItems(_MAX_VISIBLE_KNOBS)
        self.knob.setCurrentIndex(0 if optional else self.names.index(_DEFAULT_KNOB))
        self.typed, self.error = line_edit(f"sweepValues{number}"), label("fieldError", wrap=True)
        self.typed.setAccessibleName(tr("queue.values"))
        self.typed.setPlaceholderText(self.typed.accessibleName())
        layout = vertical_layout(spacing=SPACING // 2)
        for widget in (self.knob, self.typed, self.error):
            layout.addWidget(widget)
        self.setLayout(layout)
        self._suggest_values()
        self.knob.activated.connect(self._suggest_values)
        self.typed.textEdited.connect(self.changed)

    def selected_knob(self) -> Knob | None:
        name = self.names[self.knob.currentIndex()]
        return knobs()[name] if name else None

    def _suggest_values(self) -> None:
        """Suggest values around the current number, or all choices."""
        knob = self.selected_knob()
        self.typed.setVisible(knob is not None)
        if knob is not None:
            values = sweep.suggest_values(knob, self._current_values.get(knob.name, knob.default))
            self.typed.setText(", ".join(map(format_value, values)))
            self.typed.setToolTip(formatting.format_allowed_values(knob))
        self.changed.emit()

    def update_values(self) -> None:
        """Read `values`, and show why they are invalid."""
        knob, error = self.selected_knob(), ""
        self.values = []
        if knob is not None:
            values, invalid = sweep.parse_values(knob, self.typed.text())
            if invalid:
                quoted = tr("common.list_separator").join(f"“{value}”" for value in invalid[:_MAX_QUOTED])
                quoted += "…" if len(invalid) > _MAX_QUOTED else ""
                error = tr("queue.values_not_allowed", values=quoted, range=formatting.format_allowed_values(knob))
            elif not values:
                error = tr("queue.value_required")
            else:
                self.values = values
        set_text_if_changed(self.error, error)
        self.error.setVisible(bool(error))
        set_error(self.typed, error)


class SweepDialog(QDialog):
    """Creates the runs of a sweep from the form. It does not block."""

    added = Signal(object)  # list[PlannedRun]

    def __init__(self, form: SetupForm, taken_names: set[str], palette: Palette, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self.setWindowTitle(tr("queue.sweep_title"))
        self._preset_values, self._changes = form.preset.knobs, form.changes()
        self._taken_names, self._palette = taken_names, palette
        values = {**self._preset_values, **self._changes}
        self.editors = [SweepParameterEditor(1, values, optional=False), SweepParameterEditor(2, values, optional=True)]
        self.base = line_edit("sweepBase")
        self.base.setMaxLength(_MAX_NAME_CHARS)
        self.base.setText(safe_name(form.run_name or form.preset.name)[:_MAX_NAME_CHARS])
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
        parameters, base = dict(selected), safe_name(self.base.text())
        total = math.prod(map(len, parameters.values()))
        duplicate = tr("queue.two_settings_required") if len(parameters) < len(selected) else ""
        unnamed = "" if base else tr("queue.name_required")
        excess = (
            tr("queue.too_many_runs", count=formatting.format_count(total), limit=sweep.MAX_RUNS)
            if total > sweep.MAX_RUNS
            else ""
        )
        error, runs = duplicate or unnamed or excess, list[PlannedRun]()
        if not error:
            runs = sweep.plan_runs(base, self._preset_values, self._changes, parameters, self._taken_names)
        self._valid_runs = [run for run in runs if run.error is None]
        count, invalid = len(self._valid_runs), len(runs) - len(self._valid_runs)
        planned = tr("queue.run_count_with_invalid", count=count, wrong=invalid) if invalid else ""
        set_text_if_changed(self.count, error or planned or tr("queue.run_count", count=count))
        set_error(self.editors[1].knob, duplicate)
        set_error(self.base, unnamed)
        set_text_if_changed(self.add_button, tr("queue.add_count", count=count))
        self.add_button.setEnabled(count > 0)
        self._list_runs(runs)

    def _list_runs(self, runs: list[PlannedRun]) -> None:
        self.list.clear()
        for run in runs:
            text = formatting.format_settings(run.swept_values)
            if run.error is not None:
                text = formatting.localized_message(run.error.code, run.error.params)
            item = QListWidgetItem(f"{run.name}  ·  {text}", self.list)
            item.setToolTip(plain_tooltip(item.text()))
            if run.error is not None:
                item.setForeground(QColor(self._palette.bad))

    def _add(self) -> None:
        self.added.emit(self._valid_runs)
        self.accept()
