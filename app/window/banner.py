"""Banners: errors and warnings with details."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QVBoxLayout, QWidget

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import (
    IconButton,
    TranslatableWidget,
    horizontal_layout,
    label,
    move_focus,
    push_button,
    set_object_name,
)

Level = Literal["warning", "error"]
_MAX_BANNERS = 3  # older ones are in the log
_MAX_DETAIL_LINES = 8


@dataclass(frozen=True, slots=True)
class BannerContent:
    """Content of a banner. `format_text` returns the text in the current language."""

    level: Level
    format_text: Callable[[], str]
    detail: str = ""
    key: str = ""  # a banner replaces another one with the same key


class BannerArea(TranslatableWidget):
    """Stack of banners, newest first."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._banners: list[_BannerWidget] = []
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(SPACING // 2)
        self.hide()

    @property
    def contents(self) -> list[BannerContent]:
        return [banner.content for banner in self._banners]

    def add(self, content: BannerContent) -> None:
        for replaced in [banner for banner in self._banners if content.key and banner.content.key == content.key]:
            self._remove(replaced)
        banner = _BannerWidget(content)
        banner.close_button.clicked.connect(lambda: self._remove(banner))
        self._banners.insert(0, banner)
        self._layout.insertWidget(0, banner)
        for extra in self._banners[_MAX_BANNERS:]:
            self._remove(extra)
        # Deferred: showing the area resizes everything below it.
        QTimer.singleShot(0, self, lambda: self.setVisible(bool(self._banners)))

    def clear(self) -> None:
        for banner in list(self._banners):
            self._remove(banner)

    def retranslate(self) -> None:
        for banner in self._banners:
            banner.retranslate()

    def _remove(self, banner: _BannerWidget) -> None:
        self._banners.remove(banner)
        self._layout.removeWidget(banner)
        move_focus(banner, self._banners[0].close_button if self._banners else self)
        banner.hide()
        banner.deleteLater()
        if self.window().focusWidget() is self:
            self.focusNextChild()
        self.setVisible(bool(self._banners))


class _BannerWidget(QFrame):
    def __init__(self, content: BannerContent) -> None:
        super().__init__()
        self.content = content
        self.setObjectName("banner")
        self.setProperty("level", content.level)
        self._level_label, self._text_label = label("section"), label(wrap=True)
        self._text_label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._details_button = push_button("flat", checkable=True)
        self.close_button = IconButton("close", "flat")
        widgets = (self._level_label, self._text_label, self._details_button, self.close_button)
        row = horizontal_layout()
        for widget in widgets:
            row.addWidget(widget, int(widget is self._text_label), Qt.AlignmentFlag.AlignTop)
        for text_label in widgets[:2]:
            text_label.setContentsMargins(0, SPACING // 2, 0, 0)  # aligns with the texts of the buttons
        detail = set_object_name(QPlainTextEdit(content.detail, readOnly=True), "log")
        lines = min(_MAX_DETAIL_LINES, detail.blockCount() + 1)  # one line for a scroll bar
        detail.setFixedHeight(detail.fontMetrics().lineSpacing() * lines)
        detail.hide()
        rows = QVBoxLayout(self)
        rows.setContentsMargins(SPACING + 4, SPACING, SPACING, SPACING)
        rows.addLayout(row)
        rows.addWidget(detail)
        self._details_button.toggled.connect(detail.setVisible)
        self._details_button.setVisible(bool(content.detail))
        self.retranslate()

    def retranslate(self) -> None:
        self._level_label.setText(tr("window.warning" if self.content.level == "warning" else "window.error"))
        self._text_label.setText(self.content.format_text())
        self._details_button.setText(tr("window.details"))
        self.close_button.setToolTip(tr("window.dismiss"))
        self.close_button.setAccessibleName(tr("window.dismiss"))
