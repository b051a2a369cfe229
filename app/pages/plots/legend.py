"""The legend of a plot: the symbol, name and value of each curve, as one line of rich text."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from app.theme.palette import SPACING, Palette
from app.widgets.basic import plain_tooltip

_SYMBOLS: Final = {
    "line": "━",
    "faint": "━",
    "dots": "●",
    "dashed": "╍",
    "dotted": "┅",
    "area": "■",
    "best": "★",
    "checkpoint": "▲",
    "bad": "✕",
    "memory": "◆",
    "hot": "■",
    "resume": "┊",
}
_FIGURE_SPACE: Final = "\u2007"  # as wide as a digit, so that values stay in place
_MAX_NAME_WIDTH: Final = 280  # pixels


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One item of a plot. `short_label`: its name where space is limited; `value`: None for an item without values."""

    symbol: str
    color: str
    label: str
    short_label: str = ""
    value: str | None = None


class Legend(QLabel):
    """Shows as much as fits in `max_rows`: names and values, short names and values, or values only.

    The tooltip has all names.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTextFormat(Qt.TextFormat.RichText)
        self.setWordWrap(True)
        self.setAlignment(Qt.AlignmentFlag.AlignTop)  # rows that do not fit are cut off
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.entries: list[LegendEntry] = []
        self._palette: Palette | None = None
        self._max_rows, self._widest_value = 1, ""
        self._at_crosshair, self._show_names = False, True

    def display(
        self,
        entries: list[LegendEntry],
        palette: Palette,
        *,
        max_rows: int = 1,
        widest_value: str = "",
        at_crosshair: bool = False,
        show_names: bool = True,
    ) -> None:
        """Replace the entries. `at_crosshair`: values are those at the crosshair, else the newest; `show_names`: False
        if the names of curves are above all plots."""
        self.entries, self._palette = entries, palette
        self._max_rows, self._widest_value = max_rows, widest_value
        self._at_crosshair, self._show_names = at_crosshair, show_names
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
        row_height, elide = self.fontMetrics().height() + 1, self.fontMetrics().elidedText
        width = self._max_rows * self.width() // max(1, len(self.entries)) - 4 * SPACING  # of each entry
        full = [elide(entry.label, Qt.TextElideMode.ElideMiddle, _MAX_NAME_WIDTH) for entry in self.entries]
        short = [elide(entry.short_label or entry.label, Qt.TextElideMode.ElideMiddle, width) for entry in self.entries]
        no_names = [name if entry.value is None else "" for entry, name in zip(self.entries, short, strict=True)]
        for names in (full, short, no_names) if self._show_names else (no_names,):
            self.setText(("&nbsp;" * 2 + " ").join(map(self._html, self.entries, names)))
            height = self.heightForWidth(self.width())
            if height <= self._max_rows * row_height:
                break
        self.setFixedHeight(min(self._max_rows, max(1, round(height / row_height))) * row_height)
        lines = [f"{_SYMBOLS[entry.symbol]} {entry.label}" for entry in self.entries if entry.label]
        complete = names == [entry.label for entry in self.entries]
        self.setToolTip("" if complete else plain_tooltip("\n".join(lines)))

    def _html(self, entry: LegendEntry, name: str) -> str:
        """Return one entry, without line breaks."""
        assert self._palette is not None
        value = "" if entry.value is None else entry.value.rjust(len(self._widest_value), _FIGURE_SPACE)
        spans = [
            f'<span style="color: {color}">{escape(text).replace(" ", "&nbsp;")}</span>'
            for text, color in (
                (_SYMBOLS[entry.symbol] if entry.label else "", getattr(self._palette, entry.color)),
                (name, self._palette.text),
                (value, self._palette.text if self._at_crosshair else self._palette.muted),
            )
            if text
        ]
        return "&nbsp;".join(spans)
