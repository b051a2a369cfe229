"""Text of models, in a monospace font."""

from __future__ import annotations

from typing import Final

from PySide6.QtGui import QColor, QFont, QFontMetricsF, QTextBlockFormat, QTextCharFormat
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit

from app.theme.style import monospace_families

_TAB_WIDTH: Final = 4  # characters
_LINE_HEIGHT_FACTOR: Final = 1.1  # relative to the font of the window


def char_format(color: str, *, bold: bool = False) -> QTextCharFormat:
    """Format in the font of the window."""
    style = QTextCharFormat()
    style.setForeground(QColor(color))
    if bold:
        style.setFontWeight(QFont.Weight.DemiBold)
    return style


def raw_char_format(color: str) -> QTextCharFormat:
    """Format in a monospace font."""
    style = char_format(color)
    style.setFontFamilies(monospace_families())
    return style


def line_block_format(edit: QTextEdit, *, top: int = 0) -> QTextBlockFormat:
    """Format with a constant line height, with and without Chinese. `top`: margin in pixels."""
    block = QTextBlockFormat()
    block.setTopMargin(top)
    height = _LINE_HEIGHT_FACTOR * QFontMetricsF(edit.font()).height()
    block.setLineHeight(round(height), QTextBlockFormat.LineHeightTypes.MinimumHeight.value)
    return block


def set_raw_text_font(edit: QTextEdit | QPlainTextEdit) -> None:
    """Set the tab width, and keep full-width characters wide in an English window too."""
    wide = QFont()  # without family and size: the style sheet sets them
    wide.setFeature(QFont.Tag("pwid"), 0)
    edit.setFont(wide)
    font = QFont(edit.font())
    font.setFamilies(monospace_families())
    edit.setTabStopDistance(_TAB_WIDTH * QFontMetricsF(font).horizontalAdvance(" "))
