"""Page of all settings: generated from their definitions, grouped, searchable."""

from __future__ import annotations

from typing import Self, get_args

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QCheckBox, QLabel, QVBoxLayout, QWidget

from app.knob_texts import knob_group_title
from app.pages.page import Page, ShownRun
from app.pages.setup.form import SetupForm, form_knobs
from app.pages.setup.knob_field import KnobField
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    ensure_widget_visible,
    focus_by_keyboard,
    horizontal_layout,
    label,
    line_edit,
    push_button,
    scroll_area,
    set_object_name,
)
from trainer_core.config import KnobGroup, knobs


class AllSettingsPage(Page):
    """All settings. The fields are created when the page is first shown: they would delay the first paint."""

    def __init__(self, form: SetupForm) -> None:
        super().__init__()
        self._form = form
        self.fields: list[KnobField] = []
        self._headings: dict[str, QLabel] = {}  # by group
        self.search = line_edit("searchKnobs", clear=True)
        self.only_changed = set_object_name(QCheckBox(), "onlyChanged")
        self._count_label, self.reset_all = label("muted"), push_button("resetAll")
        self._empty_label = label("muted", hidden=True, centred=True)
        self._next_run_note = label("muted", hidden=True)
        self._inner = set_object_name(QWidget(), "scrolled")
        self._column = QVBoxLayout(self._inner)
        self._column.setContentsMargins(0, 0, SPACING, 2 * SPACING)
        self._column.setSpacing(SPACING + 4)
        bar = horizontal_layout(
            (self.search, 1), self._count_label, self.only_changed, self._next_run_note, self.reset_all,
            spacing=2 * SPACING,
        )  # fmt: skip
        bar.setContentsMargins(0, SPACING, 0, 0)
        self._scroll = scroll_area(self._inner)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its fields take the focus
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACING)
        layout.addLayout(bar)
        layout.addWidget(self._empty_label)
        layout.addWidget(self._scroll, 1)
        self.search.textChanged.connect(self._on_searched)
        self.only_changed.toggled.connect(self._filter)
        self.reset_all.clicked.connect(lambda: form.reset())
        form.changed.connect(self._on_changed)
        self.retranslate()

    @classmethod
    def construct(cls, palette: Palette, form: SetupForm) -> Self:
        return cls(form)

    def build(self) -> None:
        """Create the fields."""
        if self.fields:
            return
        for group in get_args(KnobGroup):
            self._headings[group] = label("section")
            self._column.addWidget(self._headings[group])
            for knob in (knobs()[name] for name in form_knobs()):
                if knob.group == group:
                    self.fields.append(KnobField(knob, self._form, full=True, parent=self._inner))
                    self._column.addWidget(self.fields[-1])
        self._column.addStretch(1)
        self.retranslate()

    def show_run(self, run: ShownRun) -> None:
        self._next_run_note.setVisible(run.window_is_training)  # changes apply to the next run

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.build()

    def reveal(self, name: str) -> None:
        """Focus the field of a setting."""
        self.build()
        field = next(field for field in self.fields if field.knob.name == name)
        if field.isHidden():
            self.search.clear()
            self.only_changed.setChecked(False)
        ensure_widget_visible(self._scroll, field)
        focus_by_keyboard(field.editor)

    def retranslate(self) -> None:
        self.search.setPlaceholderText(tr("setup.search"))
        self.search.setAccessibleName(tr("setup.search"))
        self.only_changed.setText(tr("setup.only_changed"))
        self.reset_all.setText(tr("setup.reset_all"))
        self.reset_all.setToolTip(tr("setup.reset_all_hint"))
        self._empty_label.setText(tr("setup.no_matches"))
        self._next_run_note.setText(tr("setup.next_run"))
        for group, heading in self._headings.items():
            heading.setText(knob_group_title(group))
        self._on_changed()
        self._filter()

    def _on_changed(self) -> None:
        self.reset_all.setEnabled(any(map(self._form.is_changed, form_knobs())))
        if self.only_changed.isChecked():
            self._filter()

    def _on_searched(self) -> None:
        self._filter()
        self._scroll.verticalScrollBar().setValue(0)  # shows the first match

    def _filter(self) -> None:
        matches = [field for field in self.fields if self._is_match(field)]
        for field in self.fields:
            field.setVisible(field in matches)
        groups = {field.knob.group for field in matches}
        for group, heading in self._headings.items():
            heading.setVisible(group in groups)
        self._empty_label.setVisible(bool(self.fields) and not matches)
        total = len(form_knobs())
        key = "setup.setting_count" if len(matches) == total else "setup.shown_count"
        self._count_label.setText(tr(key, shown=len(matches), all=total))

    def _is_match(self, field: KnobField) -> bool:
        """Whether the field is shown. A field with the focus counts as changed."""
        is_changed = self._form.is_changed(field.knob.name) or field.editor.hasFocus()
        return (is_changed or not self.only_changed.isChecked()) and field.matches(self.search.text())
