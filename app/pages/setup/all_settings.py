"""Page of all settings: generated from their definitions, grouped, searchable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Self, get_args

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QCheckBox, QLabel, QVBoxLayout, QWidget

from app.core.idle_task import IdleTask
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

_SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "optimizer": (
        "optimizer", "muon_momentum", "weight_decay", "beta1", "beta2", "adam_epsilon", "grad_clip",
    ),
    "bad_steps": ("on_bad_step", "spike_factor", "bad_step_limit"),
    "fast_paths": (
        "compile", "cuda_graphs", "attention", "chunked_loss", "tf32", "activation_checkpointing",
        "activation_memory_budget",
    ),
    "loading": ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "low_memory"),
}  # fmt: skip
"""Subsections: they follow the other settings of their group."""

_INITIAL_FIELDS: Final = 5  # visible at first


class AllSettingsPage(Page):
    """All settings. The fields are created when the page is first shown: they would delay the first paint."""

    def __init__(self, form: SetupForm, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._form = form
        self.fields: list[KnobField] = []
        self._steps: Iterator[None] | None = None  # each creates a field
        self._build_task = IdleTask(self)
        self._build_task.finished.connect(self._filter)
        self._headings: dict[str, QLabel] = {}  # by section
        self.search = line_edit("searchKnobs", clear=True)
        self.only_changed = set_object_name(QCheckBox(), "onlyChanged")
        self._count_label, self.reset_all = label("muted"), push_button("resetAll")
        self._empty_label = label("muted", hidden=True, centred=True)
        self._next_run_note = label("muted", hidden=True)
        self._inner = set_object_name(QWidget(), "scrolled")
        self._column = QVBoxLayout(self._inner)
        self._column.setContentsMargins(0, 0, SPACING, 2 * SPACING)
        self._column.setSpacing(SPACING + 4)
        self._arrange()
        self.search.textChanged.connect(self._on_searched)
        self.only_changed.toggled.connect(self._filter)
        self.reset_all.clicked.connect(lambda: form.reset())
        self.reset_all.setEnabled(False)
        form.changed.connect(self._on_changed)
        self.retranslate()

    def _arrange(self) -> None:
        bar = horizontal_layout(
            (self.search, 1),
            self._count_label,
            self.only_changed,
            self._next_run_note,
            self.reset_all,
            spacing=2 * SPACING,
        )
        bar.setContentsMargins(0, SPACING, 0, 0)
        self._scroll = scroll_area(self._inner)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its fields take the focus
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACING)
        layout.addLayout(bar)
        layout.addWidget(self._empty_label)
        layout.addWidget(self._scroll, 1)

    @classmethod
    def construct(cls, palette: Palette, form: SetupForm) -> Self:
        return cls(form)

    @property
    def is_built(self) -> bool:
        return len(self.fields) == len(form_knobs())

    def build(self) -> None:
        """Create the fields: the first ones immediately, the others in an idle task."""
        if self._steps is None:
            self._column.addStretch(1)
            self._steps = self._create_fields()
            for _ in range(_INITIAL_FIELDS):
                next(self._steps)
            self._build_task.start(self._steps)

    def _create_fields(self) -> Iterator[None]:
        for name in sort_by_section(form_knobs()):
            knob, section = knobs()[name], section_of(name)
            if section not in self._headings:
                self._headings[section] = label("section" if section == knob.group else "subsection")
                self._headings[section].setText(knob_group_title(section))
                self._add(self._headings[section])
            field = KnobField(knob, self._form, full=True, parent=self._inner)
            self.fields.append(field)
            field.move(0, self._inner.height())  # not visible until it is laid out
            field.setVisible(self._is_match(field))
            self._add(field)
            yield

    def _add(self, widget: QWidget) -> None:
        self._column.insertWidget(self._column.count() - 1, widget)

    def show_run(self, run: ShownRun) -> None:
        self._next_run_note.setVisible(run.is_training)  # changes apply to the next run

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.build()

    def reveal(self, name: str) -> None:
        """Focus the field of a setting. Creates all fields first: they would move it."""
        self.build()
        for _ in self._steps or ():
            pass
        field = next(field for field in self.fields if field.knob.name == name)
        if field.isHidden():
            self.search.clear()
            self.only_changed.setChecked(False)
        ensure_widget_visible(self._scroll, field)
        focus_by_keyboard(field.editor)

    def retranslate(self) -> None:
        self.search.setPlaceholderText(tr("setup.search_all_settings"))
        self.search.setAccessibleName(tr("setup.search_all_settings"))
        self.only_changed.setText(tr("setup.only_changed"))
        self.reset_all.setText(tr("setup.reset_all"))
        self.reset_all.setToolTip(tr("setup.all_settings_back_those_preset"))
        self._empty_label.setText(tr("setup.no_setting_matches"))
        self._next_run_note.setText(tr("setup.for_the_next_run"))
        for section, heading in self._headings.items():
            heading.setText(knob_group_title(section))
        if self.is_built:
            self._filter()

    def _on_changed(self) -> None:
        self.reset_all.setEnabled(any(map(self._form.is_changed, form_knobs())))
        if self.only_changed.isChecked():
            self._filter()

    def _on_searched(self) -> None:
        self._filter()
        self._scroll.verticalScrollBar().setValue(0)  # shows the first match

    def _filter(self) -> None:
        visible: set[str] = set()
        count = 0
        for field in self.fields:
            is_match = self._is_match(field)
            count += is_match
            if field.isHidden() is is_match:
                field.setVisible(is_match)
            if is_match:
                visible |= {field.knob.group, section_of(field.knob.name)}
        for section, heading in self._headings.items():
            heading.setVisible(section in visible)
        self._empty_label.setVisible(bool(self.fields) and not visible)
        total = len(form_knobs())
        key = "setup.all_settings_2" if count == total else "setup.shown_of_all"
        self._count_label.setText(tr(key, shown=count, all=total))

    def _is_match(self, field: KnobField) -> bool:
        """Whether the field is shown. A field with the focus counts as changed."""
        is_included = (
            not self.only_changed.isChecked() or self._form.is_changed(field.knob.name) or field.editor.hasFocus()
        )
        return is_included and field.matches(self.search.text())


def section_of(name: str) -> str:
    """Subsection of a setting, or its group."""
    return next((section for section, names in _SECTIONS.items() if name in names), knobs()[name].group)


def sort_by_section(names: Sequence[str]) -> list[str]:
    """Sort settings by group, within it by subsection; those without a subsection come first."""
    groups, sections = list(get_args(KnobGroup)), ["", *_SECTIONS]

    def sort_key(name: str) -> tuple[int, int]:
        group, section = knobs()[name].group, section_of(name)
        return groups.index(group), sections.index("" if section == group else section)

    return sorted(names, key=sort_key)
