"""The editor of one knob: made from its definition, checked as it is typed."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QGridLayout,
    QHBoxLayout,
    QLineEdit,
    QPlainTextEdit,
    QToolButton,
    QWidget,
)

from app.i18n.knob_words import knob_words
from app.theme.tokens import SPACE
from app.views import words
from app.views.setup import typed_words
from app.views.setup.form import SetupForm, as_text
from app.views.widgets import PathLine, QuietCombo, describe_error, label, named, put, wrapped_tip
from trainer_core.config import Knob
from trainer_core.messages import Language

_LINES = 3  # of the editor of a list
LABEL_WIDTH = 138
_WIDE_FIRST = 100  # of the stretch beside it, which is 1
_UNIT_WIDTH = 66
_LANGUAGES: tuple[Language, ...] = ("en", "zh")
_PATHS = ("tokenizer", "cache_dir")


class KnobField(QWidget):
    """Label, editor, unit; under it what is wrong, while it is.

    `full`: with help, what the knob does to memory and speed, and a reset button for a changed value.
    """

    def __init__(self, knob: Knob, form: SetupForm, *, full: bool, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.knob, self._form, self._full = knob, form, full
        self._label = label()
        self._label.setWordWrap(True)
        self._unit = label("muted")
        self._error = label("fieldError", wrap=True, hidden=True)
        self._help, self._effect = label("muted", wrap=True), label("muted", wrap=True)
        self._described = ""  # the accessible description of the editor without an error
        self.reset = named(QToolButton(), "flat")
        self.reset.hide()
        self.reset.clicked.connect(lambda: form.reset(knob.name))
        self.editor = self._make_editor()
        self.editor.setObjectName(f"knob_{knob.name}")
        self.editor.installEventFilter(form.undo_keys)
        self._label.setBuddy(self.editor)
        self._arrange()
        form.knob_changed.connect(self._on_knob)
        self.retranslate()

    # --- building ----------------------------------------------------------------------------------

    def _make_editor(self) -> QWidget:
        make: dict[str, Callable[[], QWidget]] = {
            "bool": self._make_switch,
            "choice": self._make_choice,
            "list": self._make_lines,
        }
        return make.get(self.knob.kind, self._make_line)()

    def _make_switch(self) -> QWidget:
        switch = QCheckBox()
        switch.toggled.connect(lambda on: self._form.set_text(self.knob.name, as_text(on)))
        return switch

    def _make_choice(self) -> QWidget:
        choice = QuietCombo()
        for value in self.knob.choices:
            choice.addItem(value, value)
        choice.currentIndexChanged.connect(lambda: self._form.set_text(self.knob.name, choice.currentData()))
        return choice

    def _make_lines(self) -> QWidget:
        lines = QPlainTextEdit(tabChangesFocus=True)
        lines.setFixedHeight(lines.fontMetrics().lineSpacing() * _LINES + 2 * SPACE)
        lines.textChanged.connect(lambda: self._form.set_text(self.knob.name, lines.toPlainText()))
        return lines

    def _make_line(self) -> QWidget:
        line = PathLine() if self.knob.name in _PATHS else QLineEdit()
        line.setAcceptDrops(self.knob.name in _PATHS)  # elsewhere a dropped file is data
        line.setMinimumWidth(64)
        line.textEdited.connect(lambda text: self._form.set_text(self.knob.name, text))
        line.editingFinished.connect(self._form.settle)
        return line

    def _arrange(self) -> None:
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACE)
        grid.setVerticalSpacing(2)
        grid.setColumnMinimumWidth(0, LABEL_WIDTH)
        grid.setColumnStretch(1, 1)
        grid.addWidget(self._label, 0, 0)
        grid.addLayout(self._editor_row(), 0, 1)
        # In the narrow panel a sentence has the whole width.
        grid.addWidget(self._error, 1, 1 if self._full else 0, 1, 1 if self._full else 2)
        if self._full:
            grid.addWidget(self._help, 2, 1)
            grid.addWidget(self._effect, 3, 1)

    def _editor_row(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(SPACE)
        wide = self._full and (self.knob.kind == "list" or self.knob.name in _PATHS)
        # A wide one takes what there is, up to its limit: a fixed width would push its help out of a small window.
        row.addWidget(self.editor, _WIDE_FIRST if wide else 0 if self._full else 1)
        row.addWidget(self._unit)
        if not self._full:
            self._unit.setFixedWidth(_UNIT_WIDTH)  # editors of one width, with a unit or without
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
        table = knob_words(words.language())
        help_, effect = words.with_fields(table.help(self.knob)), words.with_fields(table.effect(self.knob))
        self._help.setText(help_)
        self._effect.setText(effect)
        self._described = " ".join(filter(None, (help_, effect)))
        self._effect.setVisible(self._full and bool(effect))
        unit = table.unit_beside(self.knob)
        self._unit.setText(unit)
        self._unit.setVisible(bool(unit) or not self._full)
        tip = "\n".join(filter(None, (help_, effect, self.knob.flag)))
        self._label.setToolTip("" if self._full else wrapped_tip(tip))
        self.editor.setToolTip(self.knob.flag if self._full else wrapped_tip(tip))
        self.editor.setAccessibleName(table.label(self.knob))
        if isinstance(self.editor, QuietCombo):
            for place, value in enumerate(self.knob.choices):
                self.editor.setItemText(place, table.value(self.knob, value))
        self.reset.setAccessibleName(QCoreApplication.translate("KnobField", "Reset to the preset's value"))
        self._show()

    @property
    def error_text(self) -> str:
        """What is shown under the editor; empty while the value is allowed."""
        return "" if self._error.isHidden() else self._error.text()

    @property
    def effect_text(self) -> str:
        """What is said of memory and speed; empty where nothing is."""
        return "" if self._effect.isHidden() else self._effect.text()

    def matches(self, needle: str) -> bool:
        """Whether a search finds this knob: by label, name or help, in either language."""
        if not needle.strip():
            return True
        known = [
            self.knob.name,
            self.knob.flag,
            *self.knob.choices,
            *(knob_words(language).searched(self.knob) for language in _LANGUAGES),
        ]
        return all(any(part in text for text in known) for part in needle.lower().split())

    def _on_knob(self, name: str) -> None:
        if name == self.knob.name:
            self._show()

    def _show(self) -> None:
        self._put_text(self._form.text(self.knob.name))
        changed = self._form.is_changed(self.knob.name)
        label = knob_words(words.language()).label(self.knob)
        self._label.setText(f"{label} •" if changed else label)
        font = self._label.font()
        font.setBold(changed and self._full)  # in the narrow panel, bold would push the editors aside
        self._label.setFont(font)
        self.reset.setVisible(self._full and changed)
        base = self._form.base_value(self.knob.name)
        shown = as_text(base) if isinstance(base, list | tuple) else words.setting(self.knob.name, base)
        self.reset.setText(QCoreApplication.translate("KnobField", "Reset to {value}").format(value=shown or "–"))
        self._show_error()

    def _show_error(self) -> None:
        form, name = self._form, self.knob.name
        conflict = form.conflict() if name in form.blamed() else None
        text = "" if form.is_valid(name) else typed_words.problem(self.knob, form.text(name))
        if form.is_gone(name):
            text = typed_words.gone()
        if conflict is not None:
            text = words.message(conflict.code, conflict.params)
        shown = "" if conflict is not None and not form.tells(name) else text
        put(self._error, shown)
        self._error.setVisible(bool(shown))
        describe_error(self.editor, text, self._described)

    def _put_text(self, text: str) -> None:
        editor = self.editor
        editor.blockSignals(True)
        if isinstance(editor, QCheckBox):
            editor.setChecked(text == "true")
        elif isinstance(editor, QuietCombo):
            editor.setCurrentIndex(editor.findData(text))
        elif isinstance(editor, QPlainTextEdit):
            if editor.toPlainText() != text:
                editor.setPlainText(text)
        elif isinstance(editor, QLineEdit) and editor.text() != text:
            editor.setText(text)
        editor.blockSignals(False)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
        super().changeEvent(event)
