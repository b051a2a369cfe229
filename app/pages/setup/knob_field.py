"""Editor of one setting, created from its definition and validated while typing."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QSignalBlocker
from PySide6.QtWidgets import QCheckBox, QGridLayout, QLineEdit, QPlainTextEdit, QToolButton, QWidget

from app.knob_texts import knob_effect, knob_help, knob_label, knob_search_text, knob_unit_suffix, knob_value_label
from app.pages.setup.form import SetupForm, format_value
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    NoScrollComboBox,
    PathLineEdit,
    TranslatableWidget,
    horizontal_layout,
    label,
    set_error,
    set_object_name,
    set_text_if_changed,
    wrapped_tooltip,
)
from trainer_core.config import NEW_MODEL_KNOBS, Knob

_LIST_LINES: Final = 3  # of the editor of a list
_LABEL_WIDTH: Final = 138  # pixels, like the ones below
_UNIT_WIDTH: Final = 66
_EDITOR_WIDTH: Final = 168
_WIDE_EDITOR_WIDTH: Final = 400
_WIDE_STRETCH: Final = 100  # relative to the empty space, whose stretch is 1
_PATHS: Final = ("base_model", "tokenizer", "cache_dir")


class KnobField(TranslatableWidget):
    """Label, editor, unit, and the error of an invalid value.

    `full`: with help, the effect on memory and speed, and a button that resets a changed value.
    """

    def __init__(self, knob: Knob, form: SetupForm, *, full: bool, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.knob, self._form, self._full = knob, form, full
        self._label, self._unit = label(wrap=True), label("muted")
        self.error = label("fieldError", wrap=True, hidden=True)
        self.unused = label("warnText", wrap=True, hidden=True)  # why the editor is disabled
        self._help, self.effect = label("muted", wrap=True), label("muted", wrap=True)
        self._described = ""  # accessible description of the editor if there is no error
        self.reset = set_object_name(QToolButton(), "flat")
        self.reset.hide()
        self.reset.clicked.connect(lambda: form.reset(knob.name))
        self.editor = self._create_editor()
        self.editor.setObjectName(f"knob_{knob.name}")
        self.editor.installEventFilter(form.undo_key_filter)
        self._label.setBuddy(self.editor)
        self._arrange()
        form.knob_changed.connect(self._on_knob)
        self.retranslate()

    # --- building ----------------------------------------------------------------------------------

    def _create_editor(self) -> QWidget:
        name, set_text = self.knob.name, self._form.set_text
        match self.knob.kind:
            case "bool":
                check_box = QCheckBox()
                check_box.toggled.connect(lambda on: set_text(name, format_value(on)))
                return check_box
            case "choice":
                combo = NoScrollComboBox()
                combo.setMinimumWidth(64)  # long choices are elided; the list shows them whole
                for value in self.knob.choices:
                    combo.addItem(value, value)
                combo.currentIndexChanged.connect(lambda: set_text(name, combo.currentData()))
                return combo
            case "list":
                lines = QPlainTextEdit(tabChangesFocus=True)
                lines.setFixedHeight(lines.fontMetrics().lineSpacing() * _LIST_LINES + 2 * SPACING)
                lines.textChanged.connect(lambda: set_text(name, lines.toPlainText()))
                return lines
        line = PathLineEdit() if name in _PATHS else QLineEdit()
        line.setAcceptDrops(name in _PATHS)  # the window adds files that are dropped elsewhere to the data
        line.setMinimumWidth(64)
        line.textEdited.connect(lambda text: set_text(name, text))
        line.editingFinished.connect(self._form.end_typing)
        return line

    def _arrange(self) -> None:
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACING)
        grid.setVerticalSpacing(2)
        grid.setColumnMinimumWidth(0, _LABEL_WIDTH)
        grid.setColumnStretch(1, 1)
        grid.addWidget(self._label, 0, 0)
        if not self._full:
            self._unit.setFixedWidth(_UNIT_WIDTH)  # all numbers have the same width
            beside = [] if self.knob.kind == "choice" else [self._unit]
            grid.addLayout(horizontal_layout((self.editor, 1), *beside), 0, 1)
            grid.addWidget(self.error, 1, 0, 1, 2)
            return
        wide = self.knob.kind == "list" or self.knob.name in _PATHS
        self.editor.setMinimumWidth(_EDITOR_WIDTH)
        if wide or self.knob.kind in ("int", "float", "choice"):
            self.editor.setMaximumWidth(_WIDE_EDITOR_WIDTH if wide else _EDITOR_WIDTH)
        # A wide editor grows up to its maximum: a fixed width would push its help out of a small window.
        row = horizontal_layout((self.editor, _WIDE_STRETCH if wide else 0), self._unit, self.reset)
        row.addStretch(1)
        grid.addLayout(row, 0, 1)
        for place, widget in enumerate((self.error, self.unused, self._help, self.effect), 1):
            grid.addWidget(widget, place, 1)

    # --- showing -------------------------------------------------------------------------------------

    def retranslate(self) -> None:
        help_ = formatting.replace_flags_with_labels(knob_help(self.knob))
        effect = formatting.replace_flags_with_labels(knob_effect(self.knob))
        unit = knob_unit_suffix(self.knob)
        self._help.setText(help_)
        self.unused.setText(tr("setup.set_by_base_model"))
        self.effect.setText(effect)
        self.effect.setVisible(self._full and bool(effect))
        self._unit.setText(unit)
        self._unit.setVisible(bool(unit) or (not self._full and self.knob.kind != "choice"))
        self._described = " ".join(filter(None, (help_, effect)))
        tip = wrapped_tooltip("\n".join(filter(None, (help_, effect, self.knob.flag))))
        self._label.setToolTip("" if self._full else tip)
        self.editor.setToolTip(self.knob.flag if self._full else tip)
        self.editor.setAccessibleName(knob_label(self.knob))
        if isinstance(self.editor, NoScrollComboBox):
            for index, value in enumerate(self.knob.choices):
                self.editor.setItemText(index, knob_value_label(self.knob, value))
        self.reset.setAccessibleName(tr("setup.reset_hint"))
        self._show()

    def matches(self, search: str) -> bool:
        """Whether name, label, help or choices contain all words of `search`, in either language."""
        searched = knob_search_text(self.knob)
        return all(word in searched for word in search.lower().split())

    def _on_knob(self, name: str) -> None:
        if name in (self.knob.name, "base_model"):
            self._show()

    def _show(self) -> None:
        form, name = self._form, self.knob.name
        self._set_text(form.text(name))
        changed, base, error = form.is_changed(name), form.base_value(name), form.error(name)
        self._label.setText(knob_label(self.knob) + (" •" if changed else ""))
        font = self._label.font()
        font.setBold(changed and self._full)  # bold labels would not fit the narrow panel
        self._label.setFont(font)
        self.reset.setVisible(self._full and changed)
        text = format_value(base) if self.knob.kind == "list" else formatting.format_setting_value(name, base)
        self.reset.setText(tr("setup.reset_to_value", value=text or "–"))
        unused = self._full and name in NEW_MODEL_KNOBS and bool(form.base_model)
        self.editor.setDisabled(unused)
        self.unused.setVisible(unused)
        set_text_if_changed(self.error, error)
        self.error.setVisible(bool(error))
        set_error(self.editor, error, self._described)

    def _set_text(self, text: str) -> None:
        editor = self.editor
        with QSignalBlocker(editor):
            if isinstance(editor, QCheckBox):
                editor.setChecked(text == "true")
            elif isinstance(editor, NoScrollComboBox):
                editor.setCurrentIndex(editor.findData(text))
            elif isinstance(editor, QPlainTextEdit):
                if editor.toPlainText() != text:
                    editor.setPlainText(text)
            elif isinstance(editor, QLineEdit) and editor.text() != text:
                editor.setText(text)
