"""The panel at the left: preset, data, run name, the knobs that matter most."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QPushButton, QVBoxLayout, QWidget

from app.state.length import Length
from app.theme.tokens import SPACE, Tokens
from app.views import words
from app.views.setup import length_words
from app.views.setup.data_list import DataList
from app.views.setup.form import VALIDATION, SetupForm, form_knobs
from app.views.setup.kept_notice import KeptNotice
from app.views.setup.knob_field import KnobField
from app.views.setup.path import PathStrip
from app.views.setup.preset_chooser import PresetChooser
from app.views.setup.validation_list import ValidationList
from app.views.widgets import (
    ElidedLabel,
    Retranslating,
    describe_error,
    focus,
    heading,
    label,
    line,
    named,
    put,
    scroll_area,
    scroll_to,
)
from trainer_core.config import knobs


class SetupPanel(Retranslating):
    """Everything that is usually set before Start."""

    all_settings_asked = Signal()

    def __init__(self, form: SetupForm, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("page")
        self._form = form
        self.path = PathStrip(tokens)
        self._headings = {name: label("section") for name in ("preset", "data", "validation", "name", "knobs")}
        self.presets = PresetChooser()
        self.kept = KeptNotice(form, self.presets.choice)
        self.data, self.validation = DataList(), ValidationList()
        self.run_name = line("runName")
        self.run_name.setMaxLength(80)
        self.run_name.setAcceptDrops(False)  # a dropped file is data, wherever it falls
        self._conflict = label("fieldError", wrap=True, hidden=True)
        self.length = named(ElidedLabel(), "muted")  # when a run of these settings ends
        self._length: Length | None = None
        self._all = named(QPushButton(), "allSettings")
        self._next = ElidedLabel()  # while a run is on: what is changed does not change it
        self.fields = [KnobField(knobs()[name], form, full=False) for name in form_knobs() if knobs()[name].main]
        self._places: dict[str, QWidget] = {
            "preset": self.presets.choice,
            "data": self.data.list,
            VALIDATION: self.validation.list,
            "name": self.run_name,
        }
        self._arrange()
        self._connect()
        self.retranslate()

    def _arrange(self) -> None:
        inner = named(QWidget(), "scrolled")
        column = QVBoxLayout(inner)
        column.setContentsMargins(SPACE + 4, SPACE, SPACE, SPACE + 4)
        column.setSpacing(SPACE - 2)
        for name, widgets in (
            ("preset", [self.presets, self.kept]),
            ("data", [self.data]),
            ("validation", [self.validation]),
            ("name", [self.run_name]),
            ("knobs", [*self.fields, self._conflict, self._all]),
        ):
            if name == "preset":
                column.addLayout(heading(self._headings[name], self._next))
            else:
                column.addWidget(self._headings[name])
            for widget in widgets:
                column.addWidget(widget)
                if isinstance(widget, KnobField) and widget.knob.name == "max_steps":
                    column.addWidget(self.length)
            column.addSpacing(SPACE // 2)
        column.addStretch(1)
        self._scroll = scroll_area(inner)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its fields have it, and scroll it
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.setSpacing(0)
        outer.addWidget(self.path)
        outer.addWidget(self._scroll)

    def _connect(self) -> None:
        form = self._form
        self.presets.chosen.connect(form.choose_preset)
        self.data.added.connect(form.add_data)
        self.data.removed.connect(form.remove_data)
        self.validation.added.connect(form.add_validation_data)
        self.validation.removed.connect(form.remove_validation_data)
        self.run_name.textEdited.connect(form.set_run_name)
        self.run_name.editingFinished.connect(form.settle)
        self.run_name.installEventFilter(form.undo_keys)
        form.name_changed.connect(lambda: self.run_name.setText(form.run_name))
        self._all.clicked.connect(self.all_settings_asked)
        form.preset_changed.connect(lambda: self.presets.display(form.preset))
        form.data_changed.connect(lambda: self.data.display(form.data))
        form.knob_changed.connect(self._on_knob)
        form.changed.connect(self._show_conflict)

    def _on_knob(self, name: str) -> None:
        form = self._form
        if name in (VALIDATION, "validation_fraction"):
            fraction = form.value("validation_fraction") if form.is_valid("validation_fraction") else 0.0
            self.validation.display(form.validation_data, form.data, fraction)

    def display(self, *, training: bool) -> None:
        """While a run is on, its settings stay as they were started: what is set here is for the next."""
        self._next.setText(self.tr("for the next run") if training else "")

    def show_length(self, length: Length | None) -> None:
        """Say when a run ends; None: what is typed tells it not."""
        if length != self._length:
            self._length = length
            self._say_length()

    def _say_length(self) -> None:
        self.length.setText(length_words.sentence(self._length) if self._length else "")

    def show_blocked(self, place: str, reason: str) -> None:
        """Mark the field that makes Start impossible if it is one of `_places`; others show their own errors."""
        for name, field in self._places.items():
            describe_error(field, reason if name == place else "")

    def reveal(self, place: str) -> bool:
        """Put the cursor into a field: `preset`, `data`, `name` or a knob; whether it is here."""
        found = self._places.get(place) or next((each.editor for each in self.fields if each.knob.name == place), None)
        if found is None:
            return False
        scroll_to(self._scroll, found)
        focus(found)
        return True

    def retheme(self, tokens: Tokens) -> None:
        self.path.retheme(tokens)

    def retranslate(self) -> None:
        titles = {
            "preset": self.tr("Preset"),
            "data": self.tr("Data"),
            "validation": self.tr("Validation data"),
            "name": self.tr("Run name"),
            "knobs": self.tr("Main settings"),
        }
        for name, title in titles.items():
            self._headings[name].setText(title)
        self.run_name.setPlaceholderText(self.tr("chosen from preset and time"))
        self.run_name.setAccessibleName(titles["name"])
        self._all.setText(self.tr("All settings…"))
        self._show_conflict()
        self._say_length()

    def _show_conflict(self) -> None:
        """Where none of the fields here tells it, it is told below them."""
        conflict = self._form.conflict()
        elsewhere = conflict is not None and not any(self._form.tells(field.knob.name) for field in self.fields)
        self._conflict.setVisible(elsewhere)
        if conflict:
            put(self._conflict, words.message(conflict.code, conflict.params))
