"""Which runs the plots compare: their names and colours once for the whole page, above all plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import QRect, Qt, Signal
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QHBoxLayout, QWidget

from app.theme.tokens import SPACE, Tokens
from app.views.plots.legend import Cell, Entry, Legend
from app.views.plots.overlays import OWN, Overlay, look
from app.views.widgets import Retranslating, button, plain_tip

_LONGEST: Final = 280  # pixels of a name, where there is room
_MOST: Final = 3  # rows


class RunNames(Legend):
    """Names in rows, each as wide as it is; where these would be too many, in columns, shortened in the middle."""

    def _place(self) -> None:
        metrics, rows = self.fontMetrics(), self._rows
        widths = [min(_LONGEST, self._width(metrics, entry, entry.words, False)) for entry in self._entries]
        areas = self._flow(widths)
        if areas and areas[-1].bottom() > self._most * self._row_height():
            columns = -(-len(widths) // self._most)
            areas = self._flow([max(1, (self.width() + 2 * SPACE) // columns - 2 * SPACE)] * len(widths))
        self._cells = [Cell(area, entry.words, False) for area, entry in zip(areas, self._entries, strict=True)]
        self._rows = 1 + (areas[-1].top() // self._row_height() if areas else 0)
        pairs = zip(self._entries, self._cells, strict=True)
        cut = any(cell.area.width() < self._width(metrics, entry, entry.words, False) for entry, cell in pairs)
        self.setToolTip(plain_tip(self._told()) if cut else "")
        if rows != self._rows:
            self.updateGeometry()

    def _flow(self, widths: Sequence[int]) -> list[QRect]:
        left, top, areas = 0, 0, []
        for width in widths:
            if left and left + width > self.width():
                left, top = 0, top + self._row_height()
            areas.append(QRect(left, top, min(width, self.width()), self._row_height()))
            left += width + 2 * SPACE
        return areas


class Compared(Retranslating):
    """A strip that is there while other runs lie over the plots."""

    removed = Signal()  # by the person: the run on show alone again

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.names, self.remove = RunNames(), button("removeOverlays")
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACE // 2, 0, 0, 0)
        row.setSpacing(2 * SPACE)
        row.addWidget(self.names, 1)
        row.addWidget(self.remove, 0, Qt.AlignmentFlag.AlignTop)
        self.remove.clicked.connect(self.removed)
        self.hide()
        self.retranslate()

    def display(self, own: str | None, runs: Sequence[Overlay], tokens: Tokens) -> None:
        """The run on show, where there is one, and those beside it; without any, nothing."""
        self.names.display(_entries(own, runs), tokens, most=_MOST)
        self.setVisible(bool(runs))

    def retranslate(self) -> None:
        self.remove.setText(self.tr("Remove overlays"))
        self.remove.setToolTip(self.tr("Show this run alone again"))


def above(picture: QPixmap, own: str | None, runs: Sequence[Overlay], tokens: Tokens) -> QPixmap:
    """The picture of a plot with the names of the runs above it."""
    scale, width = picture.devicePixelRatio(), round(picture.deviceIndependentSize().width())
    names = RunNames()
    names.resize(width - 2 * SPACE, 0)
    names.display(_entries(own, runs), tokens, most=len(runs) + 1)
    height = names.sizeHint().height()
    names.resize(width - 2 * SPACE, height)
    top = height + 2 * SPACE
    made = QPixmap(picture.width(), picture.height() + round(top * scale))
    made.setDevicePixelRatio(scale)
    made.fill(tokens.surface)
    painter = QPainter(made)
    painter.drawPixmap(SPACE, SPACE, _painted(names, scale))
    painter.drawPixmap(0, top, picture)
    painter.end()
    return made


def _painted(widget: QWidget, scale: float) -> QPixmap:
    made = QPixmap(round(widget.width() * scale), round(widget.height() * scale))
    made.setDevicePixelRatio(scale)
    made.fill(Qt.GlobalColor.transparent)
    widget.setAttribute(Qt.WidgetAttribute.WA_TranslucentBackground)
    widget.render(made)
    return made


def _entries(own: str | None, runs: Sequence[Overlay]) -> list[Entry]:
    made = [] if own is None else [Entry("line", OWN, own)]
    return made + [Entry(look(run), run.token, run.name) for run in runs]
