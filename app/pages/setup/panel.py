"""Setup panel: preset, model, data, run name and main settings."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QVBoxLayout, QWidget

from app.pages.setup.form import VALIDATION, SetupForm, StartBlocker, form_knobs
from app.pages.setup.knob_field import KnobField
from app.pages.setup.model_section import ModelSection
from app.pages.setup.onboarding_bar import OnboardingBar
from app.pages.setup.preset_chooser import KeptChangesNotice, PresetChooser
from app.pages.setup.source_lists import SourceEditor
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    ElidedLabel,
    NoScrollComboBox,
    TranslatableWidget,
    card_header,
    ensure_widget_visible,
    focus_by_keyboard,
    label,
    line_edit,
    scroll_area,
    set_error,
    set_object_name,
)
from trainer_core.config import NEW_MODEL_KNOBS, knobs

_HEADINGS: Final = (
    "setup.preset", "setup.model", "common.data", "setup.validation_data", "setup.run_name", "setup.main_settings",
)  # fmt: skip


class SetupPanel(TranslatableWidget):
    """The settings that most runs need; all others are on the settings page."""

    def __init__(self, form: SetupForm, palette: Palette) -> None:
        super().__init__()
        self.setObjectName("page")
        self._form = form
        self.onboarding = OnboardingBar(palette)
        self._headings = {key: label("section") for key in _HEADINGS}
        self.presets = PresetChooser(form)
        self.kept_notice = KeptChangesNotice(form, self.presets.combo_box)
        self.model = ModelSection(form)
        self.data, self.validation = SourceEditor(form, "training"), SourceEditor(form, "validation")
        self.run_name = line_edit("runName")
        self.run_name.setMaxLength(80)
        self.run_name.setAcceptDrops(False)  # the window adds dropped files to the data
        self.machine_title, self.machine = label("section"), set_object_name(NoScrollComboBox(), "machine")
        self.length = set_object_name(ElidedLabel(), "muted")
        self.all_settings = set_object_name(QPushButton(), "allSettings")
        self._next_run_note = ElidedLabel()  # while a run is trained, which changes do not affect
        in_section = {"base_model", *(field.knob.name for field in self.model.fields)}
        main = [knobs()[name] for name in form_knobs() if knobs()[name].main and name not in in_section]
        self._main_fields = [KnobField(knob, form, full=False) for knob in main]
        self.fields = [*self.model.fields, *self._main_fields]
        self._fields_by_name: dict[str, QWidget] = {
            "preset": self.presets.combo_box,
            "data": self.data.list,
            VALIDATION: self.validation.list,
            "name": self.run_name,
        }
        self._arrange()
        self.run_name.textEdited.connect(form.set_run_name)
        self.run_name.editingFinished.connect(form.end_typing)
        self.run_name.installEventFilter(form.undo_key_filter)
        form.name_changed.connect(self._show_name)
        form.changed.connect(self._show_fields)
        self._show_fields()
        self.retranslate()

    def _arrange(self) -> None:
        inner = set_object_name(QWidget(), "scrolled")
        column = QVBoxLayout(inner)
        column.setContentsMargins(SPACING + 4, SPACING, SPACING, SPACING + 4)
        column.setSpacing(SPACING - 2)
        fields: list[QWidget] = [*self._main_fields]
        fields.insert([field.knob.name for field in self._main_fields].index("max_steps") + 1, self.length)
        preset, model, data, validation, name, settings = self._headings.values()
        column.addLayout(card_header(preset, self._next_run_note))
        for widgets in (
            [self.presets, self.kept_notice],
            [model, self.model],
            [data, self.data],
            [validation, self.validation],
            [name, self.run_name, self.machine_title, self.machine],
            [settings, *fields, self.all_settings],
        ):
            for widget in widgets:
                column.addWidget(widget)
            column.addSpacing(SPACING // 2)
        column.addStretch(1)
        self._scroll = scroll_area(inner)
        self._scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # its fields take the focus
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.setSpacing(0)
        outer.addWidget(self.onboarding)
        outer.addWidget(self._scroll)

    def _show_name(self) -> None:
        if self.run_name.text().strip() != self._form.run_name:  # not while it is typed
            self.run_name.setText(self._form.run_name)

    def _show_fields(self) -> None:
        unused = set(NEW_MODEL_KNOBS) if self._form.base_model else set()
        if self._form.text("objective") != "grpo":
            unused.add("rewards")
        for field in self._main_fields:
            field.setVisible(field.knob.name not in unused)

    def display(self, *, training: bool) -> None:
        """`training`: changes apply to the next run."""
        self._next_run_note.setText(tr("setup.next_run") if training else "")

    def show_blocker(self, blocker: StartBlocker | None) -> None:
        """Mark the field that prevents the start; fields of settings show their own errors."""
        for name, field in self._fields_by_name.items():
            set_error(field, blocker.text if blocker and blocker.field == name else "")

    def reveal(self, name: str) -> bool:
        """Focus a field: `preset`, `data`, `name` or a setting. Returns whether this panel shows it."""
        editors = {field.knob.name: field.editor for field in self.fields if not field.isHidden()}
        editor = {**editors, "base_model": self.model.editor, **self._fields_by_name}.get(name)
        if editor is None:
            return False
        ensure_widget_visible(self._scroll, editor)
        focus_by_keyboard(editor)
        return True

    def retheme(self, palette: Palette) -> None:
        self.onboarding.retheme(palette)

    def retranslate(self) -> None:
        for key, heading in self._headings.items():
            heading.setText(tr(key))
        self.run_name.setPlaceholderText(tr("setup.run_name_default"))
        self.run_name.setAccessibleName(tr("setup.run_name"))
        self.machine_title.setText(tr("setup.train_on"))
        self.machine.setAccessibleName(tr("setup.train_on"))
        self.all_settings.setText(tr("setup.all_settings"))
