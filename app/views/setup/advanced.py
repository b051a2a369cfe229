"""The full form: every knob, generated from its definition, grouped, searchable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.i18n.knob_words import knob_words
from app.theme.tokens import SPACE
from app.views import words
from app.views.setup.form import SetupForm, form_knobs
from app.views.setup.knob_field import KnobField
from app.views.widgets import Retranslating, label, line, named, scroll_area
from trainer_core.config import knobs

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
"""Knobs of a group that stand together under a heading of their own, below the group's others."""


class AdvancedForm(Retranslating):
    """All knobs. Its sixty editors are made when it is first shown: they would delay the first paint."""

    def __init__(self, form: SetupForm, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._form = form
        self.fields: list[KnobField] = []
        self._groups: dict[str, QLabel] = {}
        self.search = line("searchKnobs", clear=True)
        self.only_changed = named(QCheckBox(), "onlyChanged")
        self._nothing = label("muted", hidden=True, centred=True)
        self._next = label("muted", hidden=True)
        self._inner = named(QWidget(), "scrolled")
        self._column = QVBoxLayout(self._inner)
        self._column.setContentsMargins(SPACE, 0, SPACE, 2 * SPACE)
        self._column.setSpacing(SPACE + 4)
        self._arrange()
        self.search.textChanged.connect(self._filter)
        self.only_changed.toggled.connect(self._filter)
        self.retranslate()

    def _arrange(self) -> None:
        bar = QHBoxLayout()
        bar.setContentsMargins(SPACE, SPACE, SPACE, 0)
        bar.setSpacing(2 * SPACE)
        bar.addWidget(self.search, 1)
        bar.addWidget(self.only_changed)
        bar.addWidget(self._next)
        scroll = scroll_area(self._inner)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE)
        layout.addLayout(bar)
        layout.addWidget(self._nothing)
        layout.addWidget(scroll, 1)

    def build(self) -> None:
        """Make the editors, once."""
        if self.fields:
            return
        for name in in_sections(form_knobs()):
            knob, section = knobs()[name], section_of(name)
            if section not in self._groups:
                self._groups[section] = label("section" if section == knob.group else "subsection")
                self._column.addWidget(self._groups[section])
            field = KnobField(knob, self._form, full=True)
            self.fields.append(field)
            self._column.addWidget(field)
        self._column.addStretch(1)
        self.retranslate()
        self._filter()

    def display(self, *, training: bool) -> None:
        """While a run is on, its settings stay as they were started: what is set here is for the next."""
        self._next.setVisible(training)

    def retranslate(self) -> None:
        self.search.setPlaceholderText(self.tr("Search all settings"))
        self.search.setAccessibleName(self.tr("Search all settings"))
        self.only_changed.setText(self.tr("Only changed"))
        self._nothing.setText(self.tr("No setting matches."))
        self._next.setText(self.tr("for the next run"))
        for group, heading in self._groups.items():
            heading.setText(knob_words(words.language()).group(group))

    def _filter(self) -> None:
        needle, only_changed = self.search.text(), self.only_changed.isChecked()
        found: set[str] = set()
        for field in self.fields:
            fits = field.matches(needle) and (not only_changed or self._form.is_changed(field.knob.name))
            field.setVisible(fits)
            if fits:
                found |= {field.knob.group, section_of(field.knob.name)}
        for group, heading in self._groups.items():
            heading.setVisible(group in found)
        self._nothing.setVisible(bool(self.fields) and not found)


def section_of(name: str) -> str:
    """The section that a knob stands in: its group, or a part of it."""
    return next((section for section, names in _SECTIONS.items() if name in names), knobs()[name].group)


def in_sections(names: Sequence[str]) -> list[str]:
    """In the order of the form: by group, within it what has no section of its own first."""
    groups = list(dict.fromkeys(knobs()[name].group for name in names))
    sections = list(_SECTIONS)

    def place(name: str) -> tuple[int, int]:
        section = section_of(name)
        return groups.index(knobs()[name].group), sections.index(section) + 1 if section in sections else 0

    return sorted(names, key=place)
