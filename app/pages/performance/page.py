"""Performance page: tiles, step time, fast paths, FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QWidget

from app.pages.page import Page, ShownRun
from app.pages.performance import figures
from app.pages.performance.table_cards import TableCard, show_fast_paths, show_flops, show_step_time
from app.pages.plots.tiles import Tile
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import label, scroll_area, set_object_name, vertical_layout

if TYPE_CHECKING:
    from app.core.execution_info import ExecutionInfo
    from app.core.metrics.metric_store import MetricStore

_MIN_TILE_WIDTH = 140  # pixels


class PerformancePage(Page):
    """Displays the `ExecutionInfo` and step times of a run. Updates only what changed, and only while visible."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._metrics: MetricStore | None = None
        self._execution: ExecutionInfo | None = None
        self._displayed_version: object = None
        self.tiles = {name: Tile(name) for name in figures.TILES}
        self.step_time, self.fast_paths, self.flops = TableCard(), TableCard(), TableCard()
        self._placeholder = label("muted", wrap=True, centred=True)
        self._placeholder.setContentsMargins(10 * SPACING, 0, 10 * SPACING, 10 * SPACING)
        self._tiles = QGridLayout()
        self._build_layout()
        self.retranslate()

    def _build_layout(self) -> None:
        content = set_object_name(QWidget(), "scrolled")
        # Otherwise the scroll area keeps the width of the wide layout in a narrow window.
        content.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        column = vertical_layout()
        column.setContentsMargins(0, 0, SPACING // 2, 0)
        content.setLayout(column)
        self._tiles.setSpacing(SPACING)
        column.addLayout(self._tiles)
        for index, tile in enumerate(self.tiles.values()):
            tile.hide()
            self._tiles.addWidget(tile, 0, index)
        for card in (self.step_time, self.fast_paths, self.flops):
            column.addWidget(card)
        column.addStretch(1)
        self._area = scroll_area(content)
        layout = vertical_layout()
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.addWidget(self._area, 1)
        layout.addWidget(self._placeholder, 1)
        self.setLayout(layout)

    def show_run(self, run: ShownRun) -> None:
        self._metrics, self._execution = run.record.metrics, run.record.execution
        self._update()

    def _update(self) -> None:
        metrics, execution = self._metrics, self._execution
        if metrics is None or execution is None or not self.isVisible():
            return
        version = (id(metrics), metrics.version("time_forward"), id(execution), execution.version)
        if version == self._displayed_version:
            return
        self._displayed_version = version
        has_data = execution.version > 0 or len(metrics.series("train_loss")[0]) > 0
        self._area.setVisible(has_data)
        self._placeholder.setVisible(not has_data)
        contents = figures.tiles(metrics, execution)
        for name, tile in self.tiles.items():
            tile.setVisible(name in contents)
            if name in contents:
                tile.display(contents[name])
        self._place_tiles()
        show_step_time(self.step_time, metrics, execution, self._palette)
        show_fast_paths(self.fast_paths, execution, self._palette)
        show_flops(self.flops, execution.profile, self._palette)

    def _place_tiles(self) -> None:
        """Arrange the visible tiles in rows without gaps."""
        columns = min(len(self.tiles), max(1, self.width() // _MIN_TILE_WIDTH))
        for index, tile in enumerate(tile for tile in self.tiles.values() if not tile.isHidden()):
            self._tiles.addWidget(tile, *divmod(index, columns))
        for column in range(len(self.tiles)):
            self._tiles.setColumnStretch(column, 1 if column < columns else 0)

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self._redisplay()

    def retranslate(self) -> None:
        self._placeholder.setText(tr("performance.empty_page"))
        self._redisplay()

    def _redisplay(self) -> None:
        self._displayed_version = None
        self._update()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self._redisplay()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._place_tiles()
