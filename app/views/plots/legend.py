"""The legend in a chart's head: what each curve is, and its value, each at a place that never moves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from PySide6.QtCore import QPointF, QRect, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.theme.tokens import SPACE, Tokens
from app.views.widgets import plain_tip

_SIGNS: Final = {
    "line": "━",
    "faint": "━",
    "dots": "●",
    "beaded": "●",
    "dashed": "╌",
    "dotted": "┈",
    "area": "■",
    "best": "★",
    "checkpoint": "▲",
    "bad": "✕",
    "memory": "◆",
    "hot": "■",
    "restart": "┊",
}
_DASHES: Final = {"dashed": [2, 1], "dotted": [1, 1]}  # times the width
_DRAWN: Final = frozenset(
    {"line", "faint", "beaded", *_DASHES}
)  # as a line: a letter would be another colour at its edges
_LINE: Final = 12  # pixels of a line's length
_GAP: Final = SPACE // 2
_BEAD: Final = 3.5  # pixels from its middle to its edge


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a plot. `short`: its name where there is little room; `value`: None where it has none."""

    sign: str
    token: str
    words: str
    short: str = ""
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """Where an entry stands. `shared`: its value takes the place of its words while something is read."""

    area: QRect
    words: str
    shared: bool


class Legend(QWidget):
    """As much as there is room for: names and values, short names and values, one in place of the other; the whole
    is its tooltip. While nothing is `reading`, values are the newest."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._entries: list[Entry] = []
        self._cells: list[Cell] = []
        self._tokens: Tokens | None = None
        self._most = self._rows = 1
        self._widest = ""
        self._reading, self._named = False, True
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def display(
        self,
        entries: list[Entry],
        tokens: Tokens,
        *,
        most: int = 1,
        widest: str = "",
        reading: bool = False,
        named: bool = True,
    ) -> None:
        """Show these, in at most `most` rows; `widest`: as wide as a value may be; `reading`: values are those at the
        crosshair, not the newest; `named`: curves with their names, which otherwise stand elsewhere.

        Their places depend on the names alone, never on values."""
        shown = (self._entries, self._tokens, self._most, self._reading, self._named)
        moved = _names(entries) != _names(self._entries)
        moved = moved or (most, widest, named) != (self._most, self._widest, self._named)
        self._entries, self._tokens, self._reading = entries, tokens, reading
        self._most, self._widest, self._named = most, widest, named
        if moved:
            self._place()
        if shown != (entries, tokens, most, reading, named):
            self.update()
            if reading:  # what is read with the arrow keys is told to those who do not see it
                self.setAccessibleName(self.text())

    def text(self) -> str:
        """All of it in words."""
        return "; ".join(f"{entry.words} {entry.value or ''}".strip() for entry in self._entries)

    def values(self) -> list[str]:
        """The values that it shows."""
        return [entry.value for entry in self._entries if entry.value is not None]

    def sizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(0, self._rows * self._row_height())

    def minimumSizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return self.sizeHint()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._place()

    def _row_height(self) -> int:
        return self.fontMetrics().height() + 1

    # --- places ----------------------------------------------------------------------------------------

    def _place(self) -> None:
        metrics, rows = self.fontMetrics(), self._rows
        self._rows = 1
        cells = self._in_a_row(metrics)
        while cells is None and self._rows < self._most:
            self._rows += 1
            cells = self._in_columns(metrics)
        self._cells = self._as_many_as_fit(metrics) if cells is None else cells
        pairs = zip(self._entries, self._cells, strict=False)
        cut = any(cell.shared or cell.words != entry.words for entry, cell in pairs)
        self.setToolTip(plain_tip(self._told()) if cut or len(self._cells) < len(self._entries) else "")
        if rows != self._rows:
            self.updateGeometry()

    def _told(self) -> str:
        """What all of them are, line by line."""
        return "\n".join(f"{_SIGNS[entry.sign]} {entry.words}" for entry in self._entries if entry.words)

    def _name(self, entry: Entry, *, short: bool) -> str:
        if not self._named and entry.value is not None:
            return ""
        return (entry.short or entry.words) if short else entry.words

    def _in_a_row(self, metrics: QFontMetrics) -> list[Cell] | None:
        between = 2 * SPACE
        for short, shared in ((False, False), (True, False), (True, True)):
            names = [self._name(entry, short=short) for entry in self._entries]
            pairs = zip(self._entries, names, strict=True)
            widths = [self._width(metrics, entry, name, shared) for entry, name in pairs]
            if sum(widths) + between * (len(widths) - 1) <= self.width():
                return self._at(widths, names, between, shared=shared)
        return None

    def _in_columns(self, metrics: QFontMetrics) -> list[Cell] | None:
        """A grid of columns of one width, filled row by row; None where they are too narrow."""
        columns = max(1, -(-len(self._entries) // self._rows))
        width, height = self.width() // columns, self._row_height()
        room, sign = width - 2 * SPACE, _LINE + _GAP
        value = metrics.horizontalAdvance(self._widest) + _GAP
        names = [self._name(entry, short=True) for entry in self._entries]
        longest = max(map(metrics.horizontalAdvance, names), default=0)
        if room < sign + (max(value, longest) if self._rows < self._most else value):
            return None
        shared = room < sign + value + min(longest, 2 * value)
        for_name = room - sign - (0 if shared else value)
        return [
            Cell(
                QRect(place % columns * width, place // columns * height, room, height),
                whole if metrics.horizontalAdvance(whole := self._name(entry, short=False)) <= for_name else name,
                shared,
            )
            for place, (entry, name) in enumerate(zip(self._entries, names, strict=True))
        ]

    def _as_many_as_fit(self, metrics: QFontMetrics) -> list[Cell]:
        """The first ones, in columns from the right; values without names only whole."""
        least = _LINE + metrics.horizontalAdvance(self._widest) + 2 * _GAP
        if least > self.width() and not self._named:
            self._rows = 1
            return []
        columns = max(1, (self.width() + SPACE) // (least + SPACE))
        shown = self._entries[: columns * self._most]
        columns, self._rows = min(columns, len(shown)), -(-len(shown) // columns)
        names = [self._name(entry, short=True) for entry in shown]
        pairs = zip(shown, names, strict=True)
        widest = max((self._width(metrics, entry, name, True) for entry, name in pairs), default=0)
        width = min((self.width() + SPACE) // max(1, columns) - SPACE, widest)
        left, cells = self.width() - columns * (width + SPACE) + SPACE, []
        for place, name in enumerate(names):
            x, y = left + place % columns * (width + SPACE), place // columns * self._row_height()
            cells.append(Cell(QRect(x, y, width, self._row_height()), name, True))
        return cells

    def _at(self, widths: list[int], names: list[str], between: int, *, shared: bool) -> list[Cell]:
        left, cells = self.width() - sum(widths) - between * (len(widths) - 1), []
        for width, name in zip(widths, names, strict=True):
            cells.append(Cell(QRect(left, 0, width, self.height()), name, shared))
            left += width + between
        return cells

    def _width(self, metrics: QFontMetrics, entry: Entry, name: str, shared: bool) -> int:
        words = metrics.horizontalAdvance(name) + (_GAP if name else 0)
        value = metrics.horizontalAdvance(self._widest) + _GAP if entry.value is not None else 0
        sign = _sign_width(metrics, entry) + _GAP if entry.words else 0
        return sign + (max(words, value) if shared else words + value)

    # --- painting --------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        if self._tokens is None:
            return
        painter = QPainter(self)
        for entry, cell in zip(self._entries, self._cells, strict=False):
            self._paint_entry(painter, entry, cell, self._tokens)

    def _paint_entry(self, painter: QPainter, entry: Entry, cell: Cell, tokens: Tokens) -> None:
        area, metrics = QRect(cell.area), self.fontMetrics()
        middle = Qt.AlignmentFlag.AlignVCenter
        if entry.words:
            _paint_sign(painter, entry, area, QColor(getattr(tokens, entry.token)))
            area.setLeft(area.left() + _sign_width(metrics, entry) + _GAP)
        has_value = entry.value is not None and (not cell.shared or self._reading or not cell.words)
        if has_value:
            painter.setPen(QColor(tokens.text if self._reading else tokens.muted))
            side = Qt.AlignmentFlag.AlignLeft if entry.words and not cell.words else Qt.AlignmentFlag.AlignRight
            painter.drawText(area, int(middle | side), entry.value or "")
        if not (cell.shared and has_value):
            if entry.value is not None and not cell.shared:
                area.setRight(area.right() - metrics.horizontalAdvance(self._widest) - _GAP)
            painter.setPen(QColor(tokens.text))
            name = metrics.elidedText(cell.words, Qt.TextElideMode.ElideMiddle, area.width())
            painter.drawText(area, int(middle | Qt.AlignmentFlag.AlignLeft), name)


def _sign_width(metrics: QFontMetrics, entry: Entry) -> int:
    return _LINE if entry.sign in _DRAWN else metrics.horizontalAdvance(_SIGNS[entry.sign])


def _paint_sign(painter: QPainter, entry: Entry, area: QRect, colour: QColor) -> None:
    if entry.sign in _DRAWN:
        pen = QPen(colour, 2)
        pen.setCapStyle(Qt.PenCapStyle.FlatCap)
        if entry.sign in _DASHES:
            pen.setDashPattern(_DASHES[entry.sign])
        painter.setPen(pen)
        y = area.center().y() + 1
        painter.drawLine(area.left(), y, area.left() + _LINE, y)
        if entry.sign == "beaded":
            paint_beads(painter, [QPointF(area.left() + _LINE / 2, y)], colour)
    else:
        painter.setPen(colour)
        painter.drawText(area, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), _SIGNS[entry.sign])


def paint_beads(painter: QPainter, places: Iterable[QPointF], colour: QColor) -> None:
    """The second sign of a run, in its legend as on its curves."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(colour)
    for place in places:
        painter.drawEllipse(place, _BEAD, _BEAD)
    painter.restore()


def _names(entries: list[Entry]) -> list[Entry]:
    """What their places depend on."""
    return [replace(entry, value=None if entry.value is None else "") for entry in entries]
