"""A plot with its title and legend; calm words while there is nothing to show."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QStackedLayout, QVBoxLayout, QWidget

from app.theme.tokens import SPACE, Tokens
from app.views.widgets import label

if TYPE_CHECKING:
    from app.views.plots.canvas import Canvas

_SIGNS = {"line": "━", "faint": "━", "dots": "●", "dashed": "╌", "best": "★", "checkpoint": "▲", "bad": "✕"}

LegendEntry = tuple[str, str, str]
"""(sign, colour token, words)"""


class Chart(QFrame):
    """One card on the plots page. The canvas comes later (`take_canvas`); the words are there at once."""

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("card")
        self.name = name
        self.canvas: Canvas | None = None
        self._title, self._legend = label("section"), QLabel(textFormat=Qt.TextFormat.RichText)
        self._empty = label("muted", wrap=True, centred=True)
        self._body = QStackedLayout()
        self._body.addWidget(self._empty)
        head = QHBoxLayout()
        head.setSpacing(2 * SPACE)
        head.addWidget(self._title)
        head.addStretch(1)
        head.addWidget(self._legend)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE, SPACE - 2, SPACE, SPACE // 2)
        layout.setSpacing(2)
        layout.addLayout(head)
        layout.addLayout(self._body, 1)

    def take_canvas(self, canvas: Canvas) -> None:
        self.canvas = canvas
        self._body.addWidget(canvas)

    def show_data(self, there: bool) -> None:
        """The plot where there is data, the words where there is none."""
        if self.canvas is not None:
            self._body.setCurrentIndex(1 if there else 0)

    def set_words(self, title: str, empty: str) -> None:
        self._title.setText(title)
        self._empty.setText(empty)
        self.setAccessibleName(title)

    def set_legend(self, entries: list[LegendEntry], tokens: Tokens) -> None:
        parts = [_entry(sign, getattr(tokens, token), text) for sign, token, text in entries]
        self._legend.setText("&nbsp;&nbsp;&nbsp;".join(parts))


def _entry(sign: str, colour: str, text: str) -> str:
    return f'<span style="color:{colour}">{_SIGNS[sign]}</span>&nbsp;{html.escape(text).replace(" ", "&nbsp;")}'
