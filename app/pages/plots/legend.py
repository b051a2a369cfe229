"""The legend of a plot: the sign, name and value of each curve, as one line of rich text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from app.theme.palette import SPACING, Palette
from app.widgets.basic import plain_tooltip

_SIGNS: Final = {
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
    "restart": "┊",
}
_FIGURE_SPACE: Final = "\u2007"  # as wide as a digit, so that values stay in place
_MAX_NAME_WIDTH: Final = 280  # pixels


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of a plot. `short`: its name where space is limited; `value`: None for an item without values."""

    sign: str
    token: str
    words: str
    short: str = ""
    value: str | None = None


class Legend(QLabel):
    """Shows as much as fits in `most` rows: names and values, short names and values, or one of the two.

    The tooltip holds all names. The values are the newest unless `reading`.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTextFormat(Qt.TextFormat.RichText)
        self.setWordWrap(True)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.entries: list[Entry] = []
        self.visible_count = 0
        self._palette: Palette | None = None
        self._most, self._widest, self._reading, self._named = 1, "", False, True

    def display(
        self,
        entries: list[Entry],
        palette: Palette,
        *,
        most: int = 1,
        widest: str = "",
        reading: bool = False,
        named: bool = True,
    ) -> None:
        """Replace the entries. `widest`: the longest value; `reading`: values are those at the crosshair; `named`:
        False if the names of curves stand elsewhere."""
        self.entries, self._palette = entries, palette
        self._most, self._widest, self._reading, self._named = most, widest, reading, named
        self._update_text()
        if reading:
            self.setAccessibleName(self.summary())

    def summary(self) -> str:
        """All entries as plain text."""
        return "; ".join(f"{entry.words} {entry.value or ''}".strip() for entry in self.entries)

    def values(self) -> list[str]:
        return [entry.value for entry in self.entries if entry.value is not None]

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._update_text()

    def _update_text(self) -> None:
        if self._palette is None:
            return
        parts, rows = self._fitting_parts()
        self.visible_count = len(parts)
        row_height = self.fontMetrics().height() + 1
        self.setFixedHeight(rows * row_height)
        names = [f"{_SIGNS[entry.sign]} {entry.words}" for entry in self.entries if entry.words]
        complete = len(parts) == len(self.entries) and all(
            entry.words in name for entry, (_, name, _) in zip(self.entries, parts, strict=True)
        )
        self.setToolTip("" if complete else plain_tooltip("\n".join(names)))
        gap = "&nbsp;" * 2 + " "
        self.setText(gap.join(self._html(*part) for part in parts))

    def _fitting_parts(self) -> tuple[list[tuple[Entry, str, str]], int]:
        """(entry, name, value) of what is shown, and the number of rows."""
        metrics = self.fontMetrics()

        def full(entry: Entry) -> tuple[str, str]:
            return self._name(entry, entry.words), self._value(entry)

        def short(entry: Entry) -> tuple[str, str]:
            return self._name(entry, entry.short or entry.words), self._value(entry)

        def values_only(entry: Entry) -> tuple[str, str]:
            return ("", self._value(entry)) if entry.value is not None else (entry.short or entry.words, "")

        def names_only(entry: Entry) -> tuple[str, str]:
            return self._name(entry, entry.short or entry.words), ""

        def elided(entry: Entry) -> tuple[str, str]:
            share = self._most * self.width() // max(1, len(self.entries)) - 4 * SPACING
            return metrics.elidedText(entry.words, Qt.TextElideMode.ElideMiddle, share), ""

        last = values_only if self._reading or not self._named else names_only
        forms: list[Callable[[Entry], tuple[str, str]]] = [full, short, last]
        if all(entry.value is None for entry in self.entries):
            forms = [full, elided]
        for form in forms:
            parts = [(entry, *form(entry)) for entry in self.entries]
            rows, fitting = self._count_rows(parts)
            if fitting == len(parts):
                break
        return parts[:fitting], rows

    def _count_rows(self, parts: list[tuple[Entry, str, str]]) -> tuple[int, int]:
        """How many rows the parts take, at most `most`, and how many of them fit."""
        metrics, rows, left = self.fontMetrics(), 1, 0
        gap = metrics.horizontalAdvance("   ")
        for place, (entry, name, value) in enumerate(parts):
            width = metrics.horizontalAdvance(" ".join(filter(None, (_SIGNS[entry.sign], name, value)))) + 2
            if left and left + width > self.width():
                rows, left = rows + 1, 0
                if rows > self._most:
                    return self._most, place
            left += width + gap
        return rows, len(parts)

    def _name(self, entry: Entry, words: str) -> str:
        if not self._named and entry.value is not None:
            return ""
        return self.fontMetrics().elidedText(words, Qt.TextElideMode.ElideMiddle, _MAX_NAME_WIDTH)

    def _value(self, entry: Entry) -> str:
        return "" if entry.value is None else entry.value.rjust(len(self._widest), _FIGURE_SPACE)

    def _html(self, entry: Entry, name: str, value: str) -> str:
        """One entry, without line breaks."""
        assert self._palette is not None
        value_colour = self._palette.text if self._reading else self._palette.muted
        spans = [
            f'<span style="color: {colour}">{escape(text).replace(" ", "&nbsp;")}</span>'
            for text, colour in (
                (_SIGNS[entry.sign] if entry.words else "", getattr(self._palette, entry.token)),
                (name, self._palette.text),
                (value, value_colour),
            )
            if text
        ]
        return "&nbsp;".join(spans)
