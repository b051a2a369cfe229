"""The full form: every knob, generated from its definition, grouped, searchable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.i18n.knob_words import knob_words
from app.slices import Slices
from app.theme.tokens import SPACE
from app.views import words
from app.views.setup.form import SetupForm, form_knobs
from app.views.setup.knob_field import KnobField
from app.views.widgets import Retranslating, button, focus, label, line, named, scroll_area, scroll_to
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


_AT_ONCE: Final = 5  # editors; the first that one sees


class AdvancedForm(Retranslating):
    """All knobs. Its sixty editors are made when it is first shown: they would delay the first paint."""

    def __init__(self, form: SetupForm, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._form = form
        self.fields: list[KnobField] = []
        self._begun = False
        self._wanted = ""  # the knob to show once it is there
        self._revealed: KnobField | None = None  # the last one that was
        self._slices = Slices(self)
        self._slices.ended.connect(self._on_built)
        self._groups: dict[str, QLabel] = {}
        self.search = line("searchKnobs", clear=True)
        self.only_changed = named(QCheckBox(), "onlyChanged")
        self._count, self.reset_all = label("muted"), button("resetAll")
        self._nothing = label("muted", hidden=True, centred=True)
        self._next = label("muted", hidden=True)
        self._inner = named(QWidget(), "scrolled")
        self._column = QVBoxLayout(self._inner)
        self._column.setContentsMargins(0, 0, SPACE, 2 * SPACE)
        self._column.setSpacing(SPACE + 4)
        self._arrange()
        self.search.textChanged.connect(self._on_searched)
        self.only_changed.toggled.connect(self._filter)
        self.reset_all.clicked.connect(lambda: form.reset())
        self.reset_all.setEnabled(False)
        form.changed.connect(self._on_changed)
        self.retranslate()

    def _arrange(self) -> None:
        bar = QHBoxLayout()
        bar.setContentsMargins(0, SPACE, 0, 0)
        bar.setSpacing(2 * SPACE)
        bar.addWidget(self.search, 1)
        for part in (self._count, self.only_changed, self._next, self.reset_all):
            bar.addWidget(part)
        self._scroll = scroll_area(self._inner)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its fields have it, and scroll it
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE)
        layout.addLayout(bar)
        layout.addWidget(self._nothing)
        layout.addWidget(self._scroll, 1)

    @property
    def is_built(self) -> bool:
        return len(self.fields) == len(form_knobs())

    def build(self) -> None:
        """Make the editors, once: the first at once, the others some milliseconds at a time, from above."""
        if not self._begun:
            self._begun = True
            self._column.addStretch(1)
            steps = self._making()
            for _ in range(_AT_ONCE):
                next(steps)
            self._slices.start(steps)

    def _making(self) -> Iterator[None]:
        for name in in_sections(form_knobs()):
            knob, section = knobs()[name], section_of(name)
            if section not in self._groups:
                self._groups[section] = label("section" if section == knob.group else "subsection")
                self._groups[section].setText(knob_words(words.language()).group(section))
                self._add(self._groups[section])
            field = KnobField(knob, self._form, full=True, parent=self._inner)
            self.fields.append(field)
            field.move(0, self._inner.height())  # out of sight until it is laid out
            field.setVisible(self._fits(field))
            self._add(field)
            yield

    def _add(self, widget: QWidget) -> None:
        self._column.insertWidget(self._column.count() - 1, widget)

    def _on_built(self) -> None:
        self._filter()
        held, field = self.window().focusWidget(), self._revealed
        if self._wanted:
            self.reveal(self._wanted)
        elif field is not None and held is not None and field.isAncestorOf(held):  # nobody went elsewhere meanwhile
            scroll_to(self._scroll, field)

    def display(self, *, training: bool) -> None:
        """While a run is on, its settings stay as they were started: what is set here is for the next."""
        self._next.setVisible(training)

    def reveal(self, name: str) -> None:
        """Put the cursor into a knob's editor, whatever is being searched for, as soon as it is there. Once all are, it
        is scrolled to again: those below move it, and may be needed to scroll as far as that."""
        self.build()
        field = next((field for field in self.fields if field.knob.name == name), None)
        self._wanted, self._revealed = "" if field else name, field
        if field is None:
            return
        if field.isHidden():
            self.search.clear()
            self.only_changed.setChecked(False)
        scroll_to(self._scroll, field)
        focus(field.editor)

    def retranslate(self) -> None:
        self.search.setPlaceholderText(self.tr("Search all settings"))
        self.search.setAccessibleName(self.tr("Search all settings"))
        self.only_changed.setText(self.tr("Only changed"))
        self.reset_all.setText(self.tr("Reset all"))
        self.reset_all.setToolTip(self.tr("All settings back to those of the preset"))
        self._nothing.setText(self.tr("No setting matches."))
        self._next.setText(self.tr("for the next run"))
        for group, heading in self._groups.items():
            heading.setText(knob_words(words.language()).group(group))
        if self.is_built:
            self._filter()  # what is searched for is found in the language's own words

    def _on_changed(self) -> None:
        self.reset_all.setEnabled(any(map(self._form.is_changed, form_knobs())))
        if self.only_changed.isChecked():
            self._filter()

    def _on_searched(self) -> None:
        self._filter()
        self._scroll.verticalScrollBar().setValue(0)  # where the first hit is

    def _filter(self) -> None:
        found: set[str] = set()
        shown = 0
        for field in self.fields:
            fits = self._fits(field)
            shown += fits
            if field.isHidden() is fits:
                field.setVisible(fits)
            if fits:
                found |= {field.knob.group, section_of(field.knob.name)}
        for group, heading in self._groups.items():
            heading.setVisible(group in found)
        self._nothing.setVisible(bool(self.fields) and not found)
        every = len(form_knobs())
        text = self.tr("{all} settings") if shown == every else self.tr("{shown} of {all}")
        self._count.setText(text.format(shown=shown, all=every))

    def _fits(self, field: KnobField) -> bool:
        """What is being typed in stays, also once it is the preset's value again."""
        wanted = not self.only_changed.isChecked() or self._form.is_changed(field.knob.name) or field.editor.hasFocus()
        return wanted and field.matches(self.search.text())


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
