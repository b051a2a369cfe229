"""The names and colors of the compared runs, once for all plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QHBoxLayout, QWidget

from app.pages.plots.legend import Legend, LegendEntry
from app.pages.plots.plot_specs import OWN_COLOR, Overlay
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import TranslatableWidget, push_button

_MAX_ROWS: Final = 3


class ComparisonBar(TranslatableWidget):
    """Visible while other runs are overlaid."""

    remove_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.names, self.remove_button = Legend(), push_button("removeOverlays")
        row = QHBoxLayout(self)
        row.setContentsMargins(SPACING // 2, 0, 0, 0)
        row.setSpacing(2 * SPACING)
        row.addWidget(self.names, 1)
        row.addWidget(self.remove_button, 0, Qt.AlignmentFlag.AlignTop)
        self.remove_button.clicked.connect(self.remove_requested)
        self.hide()
        self.retranslate()

    def display(self, own_name: str | None, overlays: Sequence[Overlay], palette: Palette) -> None:
        """Show the displayed run, if any, and the overlaid runs; hide without overlays."""
        self.names.display(_entries(own_name, overlays), palette, max_rows=_MAX_ROWS)
        self.setVisible(bool(overlays))

    def retranslate(self) -> None:
        self.remove_button.setText(tr("plots.remove_overlays"))
        self.remove_button.setToolTip(tr("plots.remove_overlays_hint"))


def add_run_names(picture: QPixmap, own_name: str | None, overlays: Sequence[Overlay], palette: Palette) -> QPixmap:
    """Return the picture of a plot with the names of the runs above it."""
    ratio, width = picture.devicePixelRatio(), round(picture.deviceIndependentSize().width())
    names = Legend()
    names.setFixedWidth(width - 2 * SPACING)
    names.display(_entries(own_name, overlays), palette, max_rows=len(overlays) + 1)
    top = names.height() + 2 * SPACING
    result = QPixmap(picture.width(), picture.height() + round(top * ratio))
    result.setDevicePixelRatio(ratio)
    result.fill(palette.surface)
    names.render(result, QPoint(SPACING, SPACING), renderFlags=QWidget.RenderFlag.DrawChildren)
    painter = QPainter(result)
    painter.drawPixmap(0, top, picture)
    painter.end()
    return result


def _entries(own_name: str | None, overlays: Sequence[Overlay]) -> list[LegendEntry]:
    own = [] if own_name is None else [LegendEntry("line", OWN_COLOR, own_name)]
    return own + [LegendEntry(run.style, run.color, run.name) for run in overlays]
