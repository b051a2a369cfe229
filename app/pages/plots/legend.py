"""The legend of a plot: the symbol, name and value of each curve, as one line of rich text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

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
_Form = Literal["full", "short", "names", "values", "elided"]


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One item of a plot. `short_label`: its name where space is limited; `value`: None for an item without values."""

    symbol: str
    color: str
    label: str
    short_label: str = ""
    value: str | None = None


class Legend(QLabel):
    """Shows as much as fits in `max_rows`: names and values, short names and values, or one of the two.

    The tooltip has all names.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTextFormat(Qt.TextFormat.RichText)
        self.setWordWrap(True)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.entries: list[LegendEntry] = []
        self.visible_count = 0
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
        parts, rows = self._fit()
        self.visible_count = len(parts)
        self.setFixedHeight(rows * (self.fontMetrics().height() + 1))
        complete = len(parts) == len(self.entries) and all(
            entry.label in name for entry, (name, _) in zip(self.entries, parts, strict=True)
        )
        names = [f"{_SYMBOLS[entry.symbol]} {entry.label}" for entry in self.entries if entry.label]
        self.setToolTip("" if complete else plain_tooltip("\n".join(names)))
        gap = "&nbsp;" * 2 + " "
        self.setText(gap.join(self._html(entry, *part) for entry, part in zip(self.entries, parts, strict=False)))

    def _fit(self) -> tuple[list[tuple[str, str]], int]:
        """Return (name, value) of the first entries, as many as fit, and the number of rows."""
        forms: Sequence[_Form] = ("full", "short", "names")
        if self._at_crosshair or not self._show_names:
            forms = ("full", "short", "values")
        if not self.values():
            forms = ("full", "elided")
        for form in forms:
            parts = [self._part(entry, form) for entry in self.entries]
            rows, count = self._count_rows(parts)
            if count == len(parts):
                break
        return parts[:count], rows

    def _part(self, entry: LegendEntry, form: _Form) -> tuple[str, str]:
        """Return the name and the value of an entry."""
        name, value, width = entry.label, "", _MAX_NAME_WIDTH
        if form == "elided":
            width = self._max_rows * self.width() // max(1, len(self.entries)) - 4 * SPACING
        elif form != "full":
            name = entry.short_label or name
        if entry.value is not None:
            if form == "values" or not self._show_names:
                name = ""
            if form != "names":
                value = entry.value.rjust(len(self._widest_value), _FIGURE_SPACE)
        return self.fontMetrics().elidedText(name, Qt.TextElideMode.ElideMiddle, width), value

    def _count_rows(self, parts: list[tuple[str, str]]) -> tuple[int, int]:
        """Return how many rows the parts take, at most `max_rows`, and how many of them fit."""
        metrics, rows, x = self.fontMetrics(), 1, 0
        gap = metrics.horizontalAdvance("   ")
        for index, (entry, part) in enumerate(zip(self.entries, parts, strict=True)):
            width = metrics.horizontalAdvance(" ".join(filter(None, (_SYMBOLS[entry.symbol], *part)))) + 2
            if x and x + width > self.width():
                rows, x = rows + 1, 0
                if rows > self._max_rows:
                    return self._max_rows, index
            x += width + gap
        return rows, len(parts)

    def _html(self, entry: LegendEntry, name: str, value: str) -> str:
        """Return one entry, without line breaks."""
        assert self._palette is not None
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
