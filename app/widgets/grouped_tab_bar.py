"""Tab bar whose tabs are in groups with captions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QFont, QFontMetrics, QPainter, QPaintEvent, QPalette
from PySide6.QtWidgets import QStyle, QStyleOptionTab, QStylePainter, QTabBar

_GAP: Final = 12  # pixels between two groups
_PADDING: Final = 5  # left of a caption; that of `QTabBar::tab` in the style sheet
_CAPTION_SCALE: Final = 0.9  # of the font size


class GroupedTabBar(QTabBar):
    """Above the tabs of each group are its caption and a line of its width. That of the current tab is highlighted."""

    def __init__(self) -> None:
        super().__init__()
        self.captions: list[str] = []
        """Caption of the group of each tab. Adjacent tabs with the same caption are a group."""

    def set_titles(self, titles: Sequence[str], captions: Sequence[str]) -> None:
        """Set the titles of all tabs, and the captions of their groups, which are also part of the accessible names."""
        self.captions = list(captions)
        for index, (title, caption) in enumerate(zip(titles, captions, strict=True)):
            self.setTabText(index, title)
            self.setAccessibleTabName(index, f"{title}, {caption}")

    def tabSizeHint(self, index: int) -> QSize:  # noqa: N802 - Qt's name
        size = super().tabSizeHint(index)
        return QSize(size.width() + self._gap(index), size.height() + self._caption_height)

    def paintEvent(self, _event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        painter, top = QStylePainter(self), self._caption_height
        for index in range(self.count()):
            option, rect, gap = QStyleOptionTab(), self.tabRect(index), self._gap(index)
            self.initStyleOption(option, index)
            option.rect = rect.adjusted(gap, top, 0, 0)
            painter.drawControl(QStyle.ControlElement.CE_TabBarTabShape, option)
            option.rect = rect
            painter.translate(gap / 2, top / 2)  # with a style sheet, the label is in `tabRect` whatever the option
            painter.drawControl(QStyle.ControlElement.CE_TabBarTabLabel, option)
            painter.resetTransform()
        for caption, indices in groupby(range(self.count()), self.captions.__getitem__):
            self._paint_caption(painter, caption, [*indices])

    def _paint_caption(self, painter: QPainter, caption: str, indices: Sequence[int]) -> None:
        is_current, font, role = self.currentIndex() in indices, self._caption_font, QPalette.ColorRole
        font.setBold(is_current)
        left = self.tabRect(indices[0]).left() + self._gap(indices[0]) + _PADDING
        area = QRect(left, 0, self.tabRect(indices[-1]).right() - _PADDING - left, self._caption_height)
        painter.setFont(font)
        painter.setPen(self.palette().color(role.WindowText if is_current else role.PlaceholderText))
        text = QFontMetrics(font).elidedText(caption, Qt.TextElideMode.ElideRight, area.width())
        painter.drawText(area, Qt.AlignmentFlag.AlignVCenter, text)
        painter.setPen(self.palette().color(role.Highlight if is_current else role.Mid))
        left, y = left + QFontMetrics(font).horizontalAdvance(text) + _PADDING, area.center().y() + 1
        if left < area.right():
            painter.drawLine(left, y, area.right(), y)

    def _gap(self, index: int) -> int:
        """Space left of a tab that begins a group, in pixels."""
        return _GAP if 0 < index < len(self.captions) and self.captions[index - 1] != self.captions[index] else 0

    @property
    def _caption_font(self) -> QFont:
        font = QFont(self.font())
        font.setPointSizeF(_CAPTION_SCALE * font.pointSizeF())
        return font

    @property
    def _caption_height(self) -> int:
        return QFontMetrics(self._caption_font).height()
