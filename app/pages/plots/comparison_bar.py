"""The names and colours of the compared runs, once for all plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QHBoxLayout, QWidget

from app.pages.plots.legend import Entry, Legend
from app.pages.plots.overlays import OWN, Overlay, look
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import TranslatableWidget, push_button

_MAX_ROWS: Final = 3


class Compared(TranslatableWidget):
    """A strip that is visible while other runs are overlaid."""

    removed = Signal()  # by the person: show the run alone again

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.names, self.remove = Legend(), push_button("removeOverlays")
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACING // 2, 0, 0, 0)
        row.setSpacing(2 * SPACING)
        row.addWidget(self.names, 1)
        row.addWidget(self.remove, 0, Qt.AlignmentFlag.AlignTop)
        self.remove.clicked.connect(self.removed)
        self.hide()
        self.retranslate()

    def display(self, own: str | None, runs: Sequence[Overlay], tokens: Palette) -> None:
        """Show the run on show, if any, and the runs beside it; hide without overlays."""
        self.names.display(_entries(own, runs), tokens, most=_MAX_ROWS)
        self.setVisible(bool(runs))

    def retranslate(self) -> None:
        self.remove.setText(tr("plots.remove_overlays"))
        self.remove.setToolTip(tr("plots.show_this_run_alone_again"))


def add_run_names(picture: QPixmap, own: str | None, runs: Sequence[Overlay], tokens: Palette) -> QPixmap:
    """The picture of a plot with the names of the runs above it."""
    scale, width = picture.devicePixelRatio(), round(picture.deviceIndependentSize().width())
    names = Legend()
    names.setFixedWidth(width - 2 * SPACING)
    names.display(_entries(own, runs), tokens, most=len(runs) + 1)
    top = names.height() + 2 * SPACING
    made = QPixmap(picture.width(), picture.height() + round(top * scale))
    made.setDevicePixelRatio(scale)
    made.fill(tokens.surface)
    names.render(made, QPoint(SPACING, SPACING), renderFlags=QWidget.RenderFlag.DrawChildren)
    painter = QPainter(made)
    painter.drawPixmap(0, top, picture)
    painter.end()
    return made


def _entries(own: str | None, runs: Sequence[Overlay]) -> list[Entry]:
    made = [] if own is None else [Entry("line", OWN, own)]
    return made + [Entry(look(run), run.token, run.name) for run in runs]
