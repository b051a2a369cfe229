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
from app.views.setup.form import SetupForm, as_text
from app.views.widgets import QuietCombo, label, named, restyle
from trainer_core.config import Knob

_LINES = 3  # of the editor of a list
LABEL_WIDTH = 138
_WIDE_FIRST = 100  # of the stretch beside it, which is 1
_UNIT_WIDTH = 66
_PATHS = ("tokenizer", "cache_dir")


class KnobField(QWidget):
    """Label, editor, unit; the allowed range under it while the text is wrong.

    `full`: with help, a mark and a reset button for a changed value, as in the full form.
    """

    def __init__(self, knob: Knob, form: SetupForm, *, full: bool, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.knob, self._form, self._full = knob, form, full
        self._label = label()
        self._label.setWordWrap(True)
        self._unit = label("muted")
        self._error = label("fieldError", wrap=True, hidden=True)
        self._help = label("muted", wrap=True)
        self.reset = named(QToolButton(), "flat")
        self.reset.hide()
        self.reset.clicked.connect(lambda: form.reset(knob.name))
        self.editor = self._make_editor()
        self.editor.setObjectName(f"knob_{knob.name}")
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
        choice.addItems(list(self.knob.choices))
        choice.currentTextChanged.connect(lambda text: self._form.set_text(self.knob.name, text))
        return choice

    def _make_lines(self) -> QWidget:
        lines = QPlainTextEdit(tabChangesFocus=True)
        lines.setFixedHeight(lines.fontMetrics().lineSpacing() * _LINES + 2 * SPACE)
        lines.textChanged.connect(lambda: self._form.set_text(self.knob.name, lines.toPlainText()))
        return lines

    def _make_line(self) -> QWidget:
        line = QLineEdit()
        line.setMinimumWidth(64)
        line.textEdited.connect(lambda text: self._form.set_text(self.knob.name, text))
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
        grid.addWidget(self._error, 1, 1)
        if self._full:
            grid.addWidget(self._help, 2, 1)

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
        self._help.setText(table.help(self.knob))
        self._unit.setText(table.unit(self.knob))
        self._unit.setVisible(bool(self.knob.unit) or not self._full)
        self._label.setToolTip("" if self._full else f"{table.help(self.knob)}\n{self.knob.flag}")
        self.editor.setToolTip(self.knob.flag if self._full else f"{table.help(self.knob)}\n{self.knob.flag}")
        self.editor.setAccessibleName(table.label(self.knob))
        self.editor.setAccessibleDescription(table.help(self.knob))
        self._show()

    @property
    def error_text(self) -> str:
        """What is shown under the editor; empty while the value is allowed."""
        return "" if self._error.isHidden() else self._error.text()

    def matches(self, needle: str) -> bool:
        """Whether a search finds this knob: by label, name or help, in either language."""
        known = [self.knob.name, self.knob.flag, self.knob.help]
        for language in ("en", "zh"):
            table = knob_words(language)
            known += [table.label(self.knob), table.help(self.knob)]
        return all(any(part in text.lower() for text in known) for part in needle.lower().split())

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
        base = as_text(self._form.base_value(self.knob.name)) or "–"
        self.reset.setText(QCoreApplication.translate("KnobField", "Reset to {value}").format(value=base))
        self._show_error(not self._form.is_valid(self.knob.name))

    def _show_error(self, wrong: bool) -> None:
        text = QCoreApplication.translate("KnobField", "Allowed: {range}").format(range=words.allowed(self.knob))
        self._error.setText(text)
        self._error.setVisible(wrong)
        if bool(self.editor.property("wrong")) != wrong:
            self.editor.setProperty("wrong", wrong)
            restyle(self.editor)

    def _put_text(self, text: str) -> None:
        editor = self.editor
        editor.blockSignals(True)
        if isinstance(editor, QCheckBox):
            editor.setChecked(text == "true")
        elif isinstance(editor, QuietCombo):
            editor.setCurrentText(text)
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
