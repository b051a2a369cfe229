"""The message area: errors and warnings in words, each with its detail, each to be closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QPlainTextEdit,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.theme.icons import icon
from app.theme.tokens import SPACE, Tokens
from app.views.widgets import Retranslating, button, hand_over, label, named

Level = Literal["warning", "error"]
_MOST = 3  # at once; older ones stay in the log
_DETAIL_LINES = 8


@dataclass(frozen=True, slots=True)
class BannerText:
    """What one banner says. `words` gives the sentence in the current language each time it is asked."""

    level: Level
    words: Callable[[], str]
    detail: str = ""
    key: str = ""  # a later banner of the same key replaces this one
    offers_resume: bool = False


class BannerArea(Retranslating):
    """Banners under one another, the newest first."""

    resume_pressed = Signal()

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._banners: list[_Banner] = []
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(SPACE // 2)
        self.hide()

    @property
    def texts(self) -> list[str]:
        return [banner.text.words() for banner in self._banners]

    @property
    def newest(self) -> BannerText | None:
        return self._banners[0].text if self._banners else None

    def add(self, text: BannerText) -> None:
        for known in [banner for banner in self._banners if text.key and banner.text.key == text.key]:
            self._remove(known)
        banner = _Banner(text, self._tokens)
        banner.closed.connect(lambda: self._remove(banner))
        banner.resume_pressed.connect(self.resume_pressed)
        self._banners.insert(0, banner)
        self._layout.insertWidget(0, banner)
        for extra in self._banners[_MOST:]:
            self._remove(extra)
        # In a turn of its own: all below it gets another size and is painted anew, which is enough for one.
        QTimer.singleShot(0, self, lambda: self.setVisible(bool(self._banners)))

    def clear(self) -> None:
        for banner in list(self._banners):
            self._remove(banner)

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        for banner in self._banners:
            banner.retheme(tokens)

    def retranslate(self) -> None:
        for banner in self._banners:
            banner.retranslate()

    def _remove(self, banner: _Banner) -> None:
        if banner in self._banners:
            self._banners.remove(banner)
            self._layout.removeWidget(banner)
            hand_over(banner, self._banners[0].close_button if self._banners else self)
            banner.hide()
            banner.deleteLater()
        if self.window().focusWidget() is self:
            self.focusNextChild()  # of what is there already: below
        self.setVisible(bool(self._banners))


class _Banner(QFrame):
    closed = Signal()
    resume_pressed = Signal()

    def __init__(self, text: BannerText, tokens: Tokens) -> None:
        super().__init__()
        self.text = text
        self.setObjectName("banner")
        self.setProperty("level", text.level)
        self._kind, self._words = label("section"), label(wrap=True)
        self._words.setTextFormat(Qt.TextFormat.PlainText)
        self._words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._more = button("flat", checkable=True)
        self._more.setVisible(bool(text.detail))
        self._resume = button("bannerResume")
        self._resume.setVisible(text.offers_resume)
        self.close_button = named(QToolButton(), "flat")
        self._detail: QPlainTextEdit | None = None  # made when it is asked for: most never are, and it takes long
        self._more.toggled.connect(self._show_detail)
        self._resume.clicked.connect(self.resume_pressed)
        self.close_button.clicked.connect(self.closed)
        self._arrange()
        self.retheme(tokens)
        self.retranslate()

    def _arrange(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(SPACE)
        for words in (self._kind, self._words):
            words.setContentsMargins(0, SPACE // 2, 0, 0)  # on a line with the buttons' texts
        row.addWidget(self._kind, 0, Qt.AlignmentFlag.AlignTop)
        row.addWidget(self._words, 1, Qt.AlignmentFlag.AlignTop)
        for widget in (self._resume, self._more, self.close_button):
            row.addWidget(widget, 0, Qt.AlignmentFlag.AlignTop)
        self._rows = QVBoxLayout(self)
        self._rows.setContentsMargins(SPACE + 4, SPACE, SPACE, SPACE)
        self._rows.addLayout(row)

    def _show_detail(self, shown: bool) -> None:
        if self._detail is None:
            self._detail = named(QPlainTextEdit(self.text.detail), "log")
            self._detail.setReadOnly(True)
            lines = min(_DETAIL_LINES, self._detail.blockCount() + 1)  # one for a scroll bar
            self._detail.setFixedHeight(self._detail.fontMetrics().lineSpacing() * lines)
            self._rows.addWidget(self._detail)
        self._detail.setVisible(shown)

    def retheme(self, tokens: Tokens) -> None:
        self.close_button.setIcon(icon("close", tokens.text, tokens.muted))

    def retranslate(self) -> None:
        kinds = {"warning": self.tr("Warning"), "error": self.tr("Error")}
        self._kind.setText(kinds[self.text.level])
        self._words.setText(self.text.words())
        self._more.setText(self.tr("Details"))
        self._resume.setText(self.tr("Resume"))
        self.close_button.setToolTip(self.tr("Dismiss"))
        self.close_button.setAccessibleName(self.tr("Dismiss"))
