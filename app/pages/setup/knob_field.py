"""Editor of one setting, created from its definition and validated while typing."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSignalBlocker
from PySide6.QtWidgets import (
    QCheckBox,
    QGridLayout,
    QHBoxLayout,
    QLineEdit,
    QPlainTextEdit,
    QToolButton,
    QWidget,
)

from app.knob_texts import (
    knob_effect,
    knob_help,
    knob_label,
    knob_search_text,
    knob_unit_suffix,
    knob_value_label,
)
from app.pages.setup.form import SetupForm, format_value
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    NoScrollComboBox,
    PathLineEdit,
    label,
    set_error,
    set_object_name,
    set_text_if_changed,
    wrapped_tooltip,
)
from trainer_core.config import Knob

_LIST_LINES = 3  # of the editor of a list
LABEL_WIDTH = 138
_WIDE_STRETCH = 100  # relative to the empty space, whose stretch is 1
_UNIT_WIDTH = 66
_PATHS = ("tokenizer", "cache_dir")


class KnobField(QWidget):
    """Label, editor, unit, and the error of an invalid value.

    `full`: with help, the effect on memory and speed, and a button that resets a changed value.
    """

    def __init__(self, knob: Knob, form: SetupForm, *, full: bool, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.knob, self._form, self._full = knob, form, full
        self._label = label()
        self._label.setWordWrap(True)
        self._unit = label("muted")
        self._error = label("fieldError", wrap=True, hidden=True)
        self._help, self._effect = label("muted", wrap=True), label("muted", wrap=True)
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
                for value in self.knob.choices:
                    combo.addItem(value, value)
                combo.currentIndexChanged.connect(lambda: set_text(name, combo.currentData()))
                return combo
            case "list":
                lines = QPlainTextEdit(tabChangesFocus=True)
                lines.setFixedHeight(lines.fontMetrics().lineSpacing() * _LIST_LINES + 2 * SPACING)
                lines.textChanged.connect(lambda: set_text(name, lines.toPlainText()))
                return lines
        return self._create_line_edit()

    def _create_line_edit(self) -> QWidget:
        line = PathLineEdit() if self.knob.name in _PATHS else QLineEdit()
        line.setAcceptDrops(self.knob.name in _PATHS)  # the window adds files that are dropped elsewhere to the data
        line.setMinimumWidth(64)
        line.textEdited.connect(lambda text: self._form.set_text(self.knob.name, text))
        line.editingFinished.connect(self._form.end_typing)
        return line

    def _arrange(self) -> None:
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACING)
        grid.setVerticalSpacing(2)
        grid.setColumnMinimumWidth(0, LABEL_WIDTH)
        grid.setColumnStretch(1, 1)
        grid.addWidget(self._label, 0, 0)
        grid.addLayout(self._editor_row(), 0, 1)
        grid.addWidget(self._error, 1, 1 if self._full else 0, 1, 1 if self._full else 2)
        if self._full:
            grid.addWidget(self._help, 2, 1)
            grid.addWidget(self._effect, 3, 1)

    def _editor_row(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(SPACING)
        wide = self._full and (self.knob.kind == "list" or self.knob.name in _PATHS)
        # A wide editor grows up to its maximum: a fixed width would push its help out of a small window.
        row.addWidget(self.editor, _WIDE_STRETCH if wide else 0 if self._full else 1)
        row.addWidget(self._unit)
        if not self._full:
            self._unit.setFixedWidth(_UNIT_WIDTH)  # all editors have the same width
        if self._full:
            self.editor.setMinimumWidth(168)
            if wide:
                self.editor.setMaximumWidth(400)
            elif self.knob.kind in ("int", "float", "choice"):
                self.editor.setMaximumWidth(168)
            row.addWidget(self.reset)
            row.addStretch(1)
        return row

    # --- showing -------------------------------------------------------------------------------------

    def retranslate(self) -> None:
        help_ = formatting.replace_flags_with_labels(knob_help(self.knob))
        effect = formatting.replace_flags_with_labels(knob_effect(self.knob))
        self._help.setText(help_)
        self._effect.setText(effect)
        self._described = " ".join(filter(None, (help_, effect)))
        self._effect.setVisible(self._full and bool(effect))
        unit = knob_unit_suffix(self.knob)
        self._unit.setText(unit)
        self._unit.setVisible(bool(unit) or not self._full)
        tip = "\n".join(filter(None, (help_, effect, self.knob.flag)))
        self._label.setToolTip("" if self._full else wrapped_tooltip(tip))
        self.editor.setToolTip(self.knob.flag if self._full else wrapped_tooltip(tip))
        self.editor.setAccessibleName(knob_label(self.knob))
        if isinstance(self.editor, NoScrollComboBox):
            for index, value in enumerate(self.knob.choices):
                self.editor.setItemText(index, knob_value_label(self.knob, value))
        self.reset.setAccessibleName(tr("setup.reset_hint"))
        self._show()

    @property
    def error_text(self) -> str:
        """The error below the editor; empty if the value is valid."""
        return "" if self._error.isHidden() else self._error.text()

    @property
    def effect_text(self) -> str:
        """The effect on memory and speed; empty if there is none."""
        return "" if self._effect.isHidden() else self._effect.text()

    def matches(self, search: str) -> bool:
        """Whether name, label, help or choices contain all words of `search`, in either language."""
        searched = knob_search_text(self.knob)
        return all(word in searched for word in search.lower().split())

    def _on_knob(self, name: str) -> None:
        if name == self.knob.name:
            self._show()

    def _show(self) -> None:
        self._set_text(self._form.text(self.knob.name))
        changed = self._form.is_changed(self.knob.name)
        self._label.setText(knob_label(self.knob) + (" •" if changed else ""))
        font = self._label.font()
        font.setBold(changed and self._full)  # bold labels would not fit the narrow panel
        self._label.setFont(font)
        self.reset.setVisible(self._full and changed)
        base = self._form.base_value(self.knob.name)
        is_list = isinstance(base, list | tuple)
        text = format_value(base) if is_list else formatting.format_setting_value(self.knob.name, base)
        self.reset.setText(tr("setup.reset_to_value", value=text or "–"))
        self._show_error()

    def _show_error(self) -> None:
        text = self._form.error(self.knob.name)
        set_text_if_changed(self._error, text)
        self._error.setVisible(bool(text))
        set_error(self.editor, text, self._described)

    def _set_text(self, text: str) -> None:
        editor = self.editor
        blocker = QSignalBlocker(editor)
        if isinstance(editor, QCheckBox):
            editor.setChecked(text == "true")
        elif isinstance(editor, NoScrollComboBox):
            editor.setCurrentIndex(editor.findData(text))
        elif isinstance(editor, QPlainTextEdit):
            if editor.toPlainText() != text:
                editor.setPlainText(text)
        elif isinstance(editor, QLineEdit) and editor.text() != text:
            editor.setText(text)
        blocker.unblock()

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
        super().changeEvent(event)
