"""The page of how a run computes: figures in large, where its time goes, the fast paths and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QVBoxLayout, QWidget

from app.theme.tokens import SPACE, Tokens
from app.views.performance import figures
from app.views.performance.paths_card import PathsCard
from app.views.performance.profile_card import ProfileCard
from app.views.performance.time_card import TimeCard
from app.views.plots.tiles import Tile
from app.views.widgets import Retranslating, label, named, scroll_area

if TYPE_CHECKING:
    from app.state.computing import Computing
    from app.state.measurements.metrics import MetricStore

_NARROW = 760  # pixels
_NARROW_ROW, _WIDE_ROW = 3, 4  # tiles side by side; on a wide page at least
_TILE = 190  # pixels: where three would be narrower, two stand side by side


class PerformancePage(Retranslating):
    """Shows a run's `Computing` and the times of its steps; repaints only what changed, and only while seen."""

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._metrics: MetricStore | None = None
        self._computing: Computing | None = None
        self._painted: object = None
        self._told: object = None
        self._narrow = False
        self.tiles = {name: Tile(name) for name in figures.TILES}
        self.time, self.paths, self.profile = TimeCard(tokens), PathsCard(), ProfileCard()
        self._empty = label("muted", wrap=True, centred=True)
        self._empty.setContentsMargins(10 * SPACE, 0, 10 * SPACE, 10 * SPACE)
        self._tiles = QGridLayout()
        self._arrange()
        self.retranslate()

    def _arrange(self) -> None:
        content = named(QWidget(), "scrolled")
        # As wide as there is room: the scroll area would keep the width that a wide layout needed.
        content.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        column = QVBoxLayout(content)
        column.setContentsMargins(0, 0, SPACE // 2, 0)
        column.setSpacing(SPACE)
        self._tiles.setSpacing(SPACE)
        column.addLayout(self._tiles)
        for place, tile in enumerate(self.tiles.values()):  # a tile without a parent would be shown as a window
            tile.hide()
            self._tiles.addWidget(tile, 0, place)
        for part in (self.time, self.paths, self.profile):
            column.addWidget(part)
        column.addStretch(1)
        self._area = scroll_area(content)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE, 0, 0)
        layout.addWidget(self._area, 1)
        layout.addWidget(self._empty, 1)

    # --- showing ----------------------------------------------------------------------------------------

    def display(self, metrics: MetricStore, computing: Computing) -> None:
        """Show this run as it is now; cheap where nothing has changed."""
        self._metrics, self._computing = metrics, computing
        if not self.isVisible():
            return
        known = computing.version > 0 or len(metrics.series("train_loss")[0]) > 0
        self._area.setVisible(known)
        self._empty.setVisible(not known)
        if not known:
            return
        told = (id(computing), computing.setup_version)
        if told != self._told:
            self._told = told
            self.paths.display(computing)
            self.profile.display(computing.profile)
        painted = (id(metrics), metrics.version("time_forward"), id(computing), computing.version)
        if painted != self._painted:
            self._painted = painted
            self._show_tiles(metrics, computing)
            self.time.setVisible(metrics.last("time_forward") is not None)  # not while the model compiles
            self.time.display(metrics, computing)

    def _show_tiles(self, metrics: MetricStore, computing: Computing) -> None:
        for name, tile in self.tiles.items():
            found = figures.tile(name, metrics, computing)
            tile.setVisible(found is not None)
            if found is not None:
                tile.show_value(*found)
                tile.setToolTip(figures.tile_tooltip(name, computing))
        self._place_tiles()

    def _place_tiles(self) -> None:
        """Side by side, without gaps where this machine does not tell a figure."""
        shown = [tile for tile in self.tiles.values() if not tile.isHidden()]
        narrow = _NARROW_ROW if self.width() >= _NARROW_ROW * _TILE else _NARROW_ROW - 1
        across = narrow if self._narrow else max(_WIDE_ROW, len(shown))
        for place, tile in enumerate(shown):
            self._tiles.addWidget(tile, *divmod(place, across))
        for column in range(len(self.tiles)):
            self._tiles.setColumnStretch(column, 1 if column < across else 0)

    # --- looks and words ----------------------------------------------------------------------------------

    def retheme(self, tokens: Tokens) -> None:
        self.time.retheme(tokens)
        self._show_again()

    def retranslate(self) -> None:
        for name, tile in self.tiles.items():
            tile.title.setText(figures.tile_title(name))
        self._empty.setText(
            self.tr(
                "Start a run, or open one, to see how it computes: the fast paths in use and why, where the time of "
                "a step goes, and how well the machine is used."
            )
        )
        self.time.retranslate()
        self._show_again()

    def _show_again(self) -> None:
        self._painted = self._told = None
        if self._metrics is not None and self._computing is not None:
            self.display(self._metrics, self._computing)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self._show_again()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        narrow = event.size().width() < _NARROW
        if narrow is not self._narrow:
            self._narrow = narrow
            self.time.fit(narrow=narrow)
            self.paths.fit(narrow=narrow)
        self._place_tiles()
