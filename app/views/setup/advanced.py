"""The full form: every knob, generated from its definition, grouped, searchable."""

from __future__ import annotations

from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.i18n.knob_words import knob_words
from app.theme.tokens import SPACE
from app.views import words
from app.views.setup.form import SetupForm, form_knobs
from app.views.setup.knob_field import KnobField
from app.views.widgets import Retranslating, label, line, named, scroll_area
from trainer_core.config import knobs


class AdvancedForm(Retranslating):
    """All knobs. Its sixty editors are made when it is first shown: they would delay the first paint."""

    def __init__(self, form: SetupForm, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._form = form
        self._editable = True
        self.fields: list[KnobField] = []
        self._groups: dict[str, QLabel] = {}
        self.search = line("searchKnobs", clear=True)
        self.only_changed = named(QCheckBox(), "onlyChanged")
        self._nothing = label("muted", hidden=True, centred=True)
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
        for name in form_knobs():
            knob = knobs()[name]
            if knob.group not in self._groups:
                self._groups[knob.group] = label("section")
                self._column.addWidget(self._groups[knob.group])
            field = KnobField(knob, self._form, full=True)
            field.setEnabled(self._editable)
            self.fields.append(field)
            self._column.addWidget(field)
        self._column.addStretch(1)
        self.retranslate()
        self._filter()

    def display(self, *, editable: bool) -> None:
        """While a run is on, its settings stay as they were started."""
        self._editable = editable
        for field in self.fields:
            field.setEnabled(editable)

    def retranslate(self) -> None:
        self.search.setPlaceholderText(self.tr("Search all settings"))
        self.search.setAccessibleName(self.tr("Search all settings"))
        self.only_changed.setText(self.tr("Only changed"))
        self._nothing.setText(self.tr("No setting matches."))
        for group, heading in self._groups.items():
            heading.setText(knob_words(words.language()).group(group))

    def _filter(self) -> None:
        needle, only_changed = self.search.text(), self.only_changed.isChecked()
        found: set[str] = set()
        for field in self.fields:
            fits = field.matches(needle) and (not only_changed or self._form.is_changed(field.knob.name))
            field.setVisible(fits)
            if fits:
                found.add(field.knob.group)
        for group, heading in self._groups.items():
            heading.setVisible(group in found)
        self._nothing.setVisible(bool(self.fields) and not found)
