"""The legend of a plot: the symbol, name and value of each curve, as rich text."""

from __future__ import annotations

from html import escape
from itertools import repeat
from typing import Final, NamedTuple

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from app.theme.palette import SPACING, Palette
from app.widgets.basic import plain_tooltip

_SYMBOLS: Final = {
    "line": "━",
    "dots": "●",
    "dashed": "╍",
    "dotted": "┅",
    "area": "■",
    "best": "★",
    "checkpoint": "▲",
    "bad_step": "✕",
    "oom_recovery": "◆",
    "thermal_throttling": "■",
    "resume": "┃",
}
_WORD_JOINER: Final = "\u2060"  # prevents the line breaks that Chinese text allows after each character
_PADDING: Final = "\u00a0"  # narrower than a digit; Qt would break lines at U+2007, which is as wide as one
_VALUE_CHARS: Final = 5
_MAX_NAME_WIDTH: Final = 280  # pixels


class LegendEntry(NamedTuple):
    """One item of a plot. `value`: None for an item without values."""

    symbol: str
    color: str
    label: str
    value: str | None = None


class Legend(QLabel):
    """Shows names and values or, if they do not fit in `max_rows`, values only. The tooltip has the names."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTextFormat(Qt.TextFormat.RichText)
        self.setWordWrap(True)
        self.setAlignment(Qt.AlignmentFlag.AlignTop)  # rows that do not fit are cut off
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.entries: list[LegendEntry] = []
        self._palette: Palette | None = None
        self._max_rows, self._at_crosshair, self._show_names = 1, False, True

    def display(
        self,
        entries: list[LegendEntry],
        palette: Palette,
        *,
        max_rows: int = 1,
        at_crosshair: bool = False,
        show_names: bool = True,
    ) -> None:
        """Replace the entries. `at_crosshair`: values are those at the crosshair, else the newest; `show_names`: False
        if the names of curves are above all plots."""
        self.entries, self._palette = entries, palette
        self._max_rows, self._at_crosshair, self._show_names = max_rows, at_crosshair, show_names
        self._update_text()
        if at_crosshair:
            self.setAccessibleName(self.summary())

    def summary(self) -> str:
        """Return all entries as plain text."""
        return "; ".join(f"{entry.label} {entry.value or ''}".strip() for entry in self.entries)

    def values(self) -> list[str]:
        return [entry.value for entry in self.entries if entry.value is not None]

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._update_text()

    def _update_text(self) -> None:
        if self._palette is None:
            return
        row_height = self.fontMetrics().height() + 1
        room = self._max_rows * self.width() // max(1, len(self.entries)) - 4 * SPACING  # for each name
        for show_names in (True, False) if self._show_names else (False,):
            width = _MAX_NAME_WIDTH if show_names else min(room, _MAX_NAME_WIDTH)
            names = [entry.label if show_names or entry.value is None else "" for entry in self.entries]
            names = [self.fontMetrics().elidedText(name, Qt.TextElideMode.ElideMiddle, width) for name in names]
            texts = map(self._html, self.entries, names, repeat(self._palette))
            self.setText(("&nbsp;" * 2 + " ").join(texts))
            rows = max(1, round(self.heightForWidth(self.width()) / row_height))
            if rows <= self._max_rows:
                break
        self.setFixedHeight(min(self._max_rows, rows) * row_height)
        lines = [f"{_SYMBOLS[entry.symbol]} {entry.label}" for entry in self.entries if entry.label]
        self.setToolTip("" if show_names else plain_tooltip("\n".join(lines)))

    def _html(self, entry: LegendEntry, name: str, palette: Palette) -> str:
        """Return one entry, without line breaks."""
        value = entry.value or ""
        value = _PADDING * (_VALUE_CHARS - len(value)) + value if value else ""
        parts = (
            (_SYMBOLS[entry.symbol] if entry.label else "", getattr(palette, entry.color)),
            (name if name.isascii() else _WORD_JOINER.join(name), palette.text),
            (value, palette.text if self._at_crosshair else palette.muted),
        )
        return "&nbsp;".join(
            f'<span style="color: {color}">{escape(text).replace(" ", "&nbsp;")}</span>'
            for text, color in parts
            if text
        )
