"""View of generated texts with their prompts."""

from __future__ import annotations

from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QTextEdit

from app.theme.palette import SPACING, Palette
from app.widgets.basic import placeholder_label
from app.widgets.raw_text import char_format, line_block_format, raw_char_format, set_raw_text_font


class GeneratedTextView(QTextEdit):
    """Read-only. Between `cursor = begin()` and `cursor.endEditBlock()`, append the texts."""

    def __init__(self, palette: Palette, name: str) -> None:
        super().__init__()
        self.colors = palette
        self.setObjectName(name)
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.document().setDocumentMargin(SPACING)
        set_raw_text_font(self)
        self.placeholder = placeholder_label(self)

    def begin(self) -> QTextCursor:
        """Clear the view."""
        self.clear()
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        return cursor

    def start_line(self, cursor: QTextCursor, top: int = 0) -> None:
        """Begin a line `top` pixels below the last one."""
        if cursor.position():
            cursor.insertBlock(line_block_format(self, top=top))
        else:
            cursor.setBlockFormat(line_block_format(self))

    def append_text(self, cursor: QTextCursor, heading: str, prompt: str, text: str, *, is_answer: bool) -> int:
        """Append a text and return its position. `is_answer`: it answers the prompt; otherwise it continues it."""
        self.start_line(cursor, top=2 * SPACING)
        cursor.insertText(heading, char_format(self.colors.muted, bold=True))
        self.start_line(cursor)
        cursor.insertText(prompt, raw_char_format(self.colors.accent))
        if is_answer:
            self.start_line(cursor)
        position = cursor.position()
        cursor.insertText(text, raw_char_format(self.colors.text))
        return position

    def append_note(self, cursor: QTextCursor, note: str, color: str) -> None:
        """Append a line about the last text."""
        self.start_line(cursor)
        cursor.insertText(note, char_format(color))
