"""Text as a model reads and writes it: in letters of one width, so that code keeps its shape."""

from __future__ import annotations

from typing import Final

from PySide6.QtGui import QColor, QFont, QFontMetricsF, QTextBlockFormat, QTextCharFormat
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit

from app.theme.style import fixed_families

_TAB: Final = 4  # letters
_LINE: Final = 1.1  # heights of a line of the window's own font


def raw_look(colour: str) -> QTextCharFormat:
    """How such text is written between words of the window."""
    look = QTextCharFormat()
    look.setForeground(QColor(colour))
    look.setFontFamilies(fixed_families())
    return look


def lines(edit: QTextEdit, *, top: int = 0) -> QTextBlockFormat:
    """Lines of one height, with Chinese in them or without; `top`: pixels above the paragraph."""
    made = QTextBlockFormat()
    made.setTopMargin(top)
    height = _LINE * QFontMetricsF(edit.font()).height()
    made.setLineHeight(round(height), QTextBlockFormat.LineHeightTypes.MinimumHeight.value)
    return made


def show_as_it_stands(edit: QTextEdit | QPlainTextEdit) -> None:
    """A tab is as wide as four letters of such text, and wide signs stay wide in an English window too."""
    wide = QFont()  # says nothing of families and sizes
    wide.setFeature(QFont.Tag("pwid"), 0)
    edit.setFont(wide)
    font = QFont(edit.font())
    font.setFamilies(fixed_families())
    edit.setTabStopDistance(_TAB * QFontMetricsF(font).horizontalAdvance(" "))
