"""Banners: errors and warnings with details."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QToolButton, QVBoxLayout, QWidget

from app.texts import tr
from app.theme.icons import icon
from app.theme.palette import SPACING, Palette
from app.widgets.basic import TranslatableWidget, label, move_focus, push_button, set_object_name

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
    offers_resume: bool = False


class BannerArea(TranslatableWidget):
    """Stack of banners, newest first."""

    resume_requested = Signal()

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
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
        banner = _BannerWidget(content, self._palette)
        banner.closed.connect(lambda: self._remove(banner))
        banner.resume_requested.connect(self.resume_requested)
        self._banners.insert(0, banner)
        self._layout.insertWidget(0, banner)
        for extra in self._banners[_MAX_BANNERS:]:
            self._remove(extra)
        # Deferred: showing the area resizes everything below it.
        QTimer.singleShot(0, self, lambda: self.setVisible(bool(self._banners)))

    def clear(self) -> None:
        for banner in list(self._banners):
            self._remove(banner)

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        for banner in self._banners:
            banner.retheme(palette)

    def retranslate(self) -> None:
        for banner in self._banners:
            banner.retranslate()

    def _remove(self, banner: _BannerWidget) -> None:
        if banner in self._banners:
            self._banners.remove(banner)
            self._layout.removeWidget(banner)
            move_focus(banner, self._banners[0].close_button if self._banners else self)
            banner.hide()
            banner.deleteLater()
        if self.window().focusWidget() is self:
            self.focusNextChild()
        self.setVisible(bool(self._banners))


class _BannerWidget(QFrame):
    closed = Signal()
    resume_requested = Signal()

    def __init__(self, content: BannerContent, palette: Palette) -> None:
        super().__init__()
        self.content = content
        self.setObjectName("banner")
        self.setProperty("level", content.level)
        self._level_label, self._text_label = label("section"), label(wrap=True)
        self._text_label.setTextFormat(Qt.TextFormat.PlainText)
        self._text_label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._details_button = push_button("flat", checkable=True)
        self._details_button.setVisible(bool(content.detail))
        self._resume_button = push_button("bannerResume")
        self._resume_button.setVisible(content.offers_resume)
        self.close_button = set_object_name(QToolButton(), "flat")
        self._detail: QPlainTextEdit | None = None  # built when it is opened
        self._details_button.toggled.connect(self._show_detail)
        self._resume_button.clicked.connect(self.resume_requested)
        self.close_button.clicked.connect(self.closed)
        self._build_layout()
        self.retheme(palette)
        self.retranslate()

    def _build_layout(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(SPACING)
        for text_label in (self._level_label, self._text_label):
            text_label.setContentsMargins(0, SPACING // 2, 0, 0)  # aligns with the texts of the buttons
        row.addWidget(self._level_label, 0, Qt.AlignmentFlag.AlignTop)
        row.addWidget(self._text_label, 1, Qt.AlignmentFlag.AlignTop)
        for widget in (self._resume_button, self._details_button, self.close_button):
            row.addWidget(widget, 0, Qt.AlignmentFlag.AlignTop)
        self._rows = QVBoxLayout(self)
        self._rows.setContentsMargins(SPACING + 4, SPACING, SPACING, SPACING)
        self._rows.addLayout(row)

    def _show_detail(self, shown: bool) -> None:
        if self._detail is None:
            self._detail = set_object_name(QPlainTextEdit(self.content.detail), "log")
            self._detail.setReadOnly(True)
            lines = min(_MAX_DETAIL_LINES, self._detail.blockCount() + 1)  # one line for a scroll bar
            self._detail.setFixedHeight(self._detail.fontMetrics().lineSpacing() * lines)
            self._rows.addWidget(self._detail)
        self._detail.setVisible(shown)

    def retheme(self, palette: Palette) -> None:
        self.close_button.setIcon(icon("close", palette.text, palette.muted))

    def retranslate(self) -> None:
        self._level_label.setText(tr("window.warning" if self.content.level == "warning" else "window.error"))
        self._text_label.setText(self.content.format_text())
        self._details_button.setText(tr("window.details"))
        self._resume_button.setText(tr("window.resume"))
        self.close_button.setToolTip(tr("window.dismiss"))
        self.close_button.setAccessibleName(tr("window.dismiss"))
