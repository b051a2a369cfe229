"""Result of the verification of an export: a table of checks, and both renderings of a conversation."""

from __future__ import annotations

from itertools import takewhile
from typing import Any, Final

from PySide6.QtGui import QColor, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QSizePolicy

from app.texts import current_language, tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    TranslatableWidget,
    horizontal_layout,
    label,
    placeholder_label,
    plain_tooltip,
    restyle,
    set_object_name,
    vertical_layout,
)
from app.widgets.raw_text import raw_char_format, set_raw_text_font
from app.widgets.table import Column, Index, Role, RowTable, TableModel
from trainer_core import verification_texts
from trainer_core.protocol import Verification, VerificationCheck

_ROWS: Final = 6  # visible without scrolling
_TWIN_HEIGHT: Final = 110  # pixels, at least
_MAX_DIFFERENCE: Final = 200  # characters in a tooltip


class ChecksModel(TableModel[VerificationCheck]):
    """Checks of a verification."""

    def __init__(self, palette: Palette) -> None:
        columns: dict[str, Column[VerificationCheck]] = {
            "check": Column(
                "verification.head.check", lambda one: verification_texts.check_name(one, current_language()), 140
            ),
            "result": Column(
                "verification.head.result", lambda one: verification_texts.check_status(one, current_language()), 130
            ),
            "figures": Column("verification.head.figures", _format_figures),
        }
        super().__init__(columns, lambda one: one.name)
        self.palette = palette

    def data(self, index: Index, role: int = 0) -> Any:
        check, name = self.rows[index.row()], self.names[index.column()]
        if role == Role.ToolTipRole:
            difference = verification_texts.first_difference(check, current_language(), _MAX_DIFFERENCE)
            return plain_tooltip(difference or self.columns[name].text(check))
        if role == Role.ForegroundRole and name == "result":
            return QColor(self.palette.good if check.passed else self.palette.bad)
        return super().data(index, role)


class VerificationView(TranslatableWidget):
    """Displays a `Verification`; None: a hint."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._event: Verification | None = None
        self._palette = palette
        self.verdict = label("verdict", wrap=True)
        self.model = ChecksModel(palette)
        self.table = RowTable(self.model, "checks", row_padding=SPACING // 2)
        self.table.setSelectionMode(RowTable.SelectionMode.SingleSelection)
        row_height = self.table.verticalHeader().defaultSectionSize()
        self.table.setMinimumHeight(self.table.horizontalHeader().sizeHint().height() + _ROWS * row_height + SPACING)
        self.empty = placeholder_label(self.table)
        self.notes = label("muted", wrap=True, hidden=True)
        self.titles = (label("section"), label("section"))
        self.prompts = (_prompt_view("expectedPrompt"), _prompt_view("foundPrompt"))
        columns = horizontal_layout(spacing=2 * SPACING)
        for title, prompt in zip(self.titles, self.prompts, strict=True):
            column = vertical_layout(spacing=SPACING // 2)
            column.addWidget(title)
            column.addWidget(prompt, 1)
            columns.addLayout(column, 1)
        layout = vertical_layout()
        layout.addWidget(self.verdict)
        layout.addWidget(self.table, 1)
        layout.addWidget(self.notes)
        layout.addLayout(columns, 4)
        self.setLayout(layout)
        self.retranslate()

    def display(self, event: Verification | None) -> None:
        """Show the result of an export."""
        if event is not self._event:
            self._event = event
            self._render()

    def _render(self) -> None:
        event, language = self._event, current_language()
        self.model.set_rows(event.checks if event else [])
        self.table.retranslate()
        self.empty.setVisible(event is None or not event.checks)
        self.verdict.setVisible(event is not None)
        notes = verification_texts.limitations(event, language) if event else []
        self.notes.setText("\n".join(notes))
        self.notes.setVisible(bool(notes))
        if event is not None:
            self.verdict.setText(verification_texts.verdict(event, language))
            self.verdict.setProperty("level", {True: "good", False: "bad", None: "warn"}[event.passed])
            restyle(self.verdict)
        has_prompt = event is not None and bool(event.expected_prompt)
        for widget in (*self.titles, *self.prompts):
            widget.setVisible(has_prompt)
        if event is not None and has_prompt:
            self.titles[1].setText(tr("export.prompt_of", program=event.program))
            self._show_prompts(event.expected_prompt, event.found_prompt)

    def _show_prompts(self, expected: str, found: str) -> None:
        """Both texts; from the first difference on, in the colors of a difference."""
        equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(expected, found, strict=False)))
        colors = (self._palette.good, self._palette.bad)
        for view, text, color in zip(self.prompts, (expected, found), colors, strict=True):
            view.clear()
            cursor = QTextCursor(view.document())
            cursor.insertText(text[:equal], raw_char_format(self._palette.text))
            cursor.insertText(text[equal:], raw_char_format(color))
            view.moveCursor(QTextCursor.MoveOperation.Start)

    def retheme(self, palette: Palette) -> None:
        self._palette = self.model.palette = palette
        self._render()

    def retranslate(self) -> None:
        self.empty.setText(tr("export.no_verification"))
        self.table.setAccessibleName(tr("verification.title"))
        self.titles[0].setText(tr("export.prompt_in_training"))
        for view, key in zip(self.prompts, ("export.prompt_in_training", "export.prompt_of_program"), strict=True):
            view.setAccessibleName(tr(key))
        self._render()


def _prompt_view(name: str) -> QPlainTextEdit:
    view = set_object_name(QPlainTextEdit(readOnly=True), name)
    view.setMinimumHeight(_TWIN_HEIGHT)
    view.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
    view.setTabChangesFocus(True)
    set_raw_text_font(view)
    return view


def _format_figures(check: VerificationCheck) -> str:
    difference = verification_texts.first_difference(check, current_language())
    return difference or verification_texts.check_figures(check, current_language())
