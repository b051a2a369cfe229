"""Performance page: tiles, step time, fast paths, FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QVBoxLayout, QWidget

from app.pages.page import Page, ShownRun
from app.pages.performance import figures
from app.pages.performance.step_time_card import StepTimeCard
from app.pages.performance.table_cards import TableCard, show_fast_paths, show_flops
from app.pages.plots.tiles import Tile
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import label, scroll_area, set_object_name

if TYPE_CHECKING:
    from app.core.execution_info import ExecutionInfo
    from app.core.metrics.metric_store import MetricStore

_NARROW = 760  # pixels
_NARROW_COLUMNS, _MIN_WIDE_COLUMNS = 3, 4  # of tiles
_MIN_TILE_WIDTH = 190  # pixels


class PerformancePage(Page):
    """Displays the `ExecutionInfo` and step times of a run. Updates only what changed, and only while visible."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._metrics: MetricStore | None = None
        self._execution: ExecutionInfo | None = None
        self._displayed_metrics: object = None
        self._displayed_setup: object = None
        self._narrow = False
        self.tiles = {name: Tile(name) for name in figures.TILES}
        self.step_time, self.fast_paths, self.flops = StepTimeCard(palette), TableCard(), TableCard()
        self._placeholder = label("muted", wrap=True, centred=True)
        self._placeholder.setContentsMargins(10 * SPACING, 0, 10 * SPACING, 10 * SPACING)
        self._tiles = QGridLayout()
        self._build_layout()
        self.retranslate()

    def _build_layout(self) -> None:
        content = set_object_name(QWidget(), "scrolled")
        # Otherwise the scroll area keeps the width of the wide layout in a narrow window.
        content.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        column = QVBoxLayout(content)
        column.setContentsMargins(0, 0, SPACING // 2, 0)
        column.setSpacing(SPACING)
        self._tiles.setSpacing(SPACING)
        column.addLayout(self._tiles)
        for index, tile in enumerate(self.tiles.values()):
            tile.hide()
            self._tiles.addWidget(tile, 0, index)
        for card in (self.step_time, self.fast_paths, self.flops):
            column.addWidget(card)
        column.addStretch(1)
        self._area = scroll_area(content)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.addWidget(self._area, 1)
        layout.addWidget(self._placeholder, 1)

    def show_run(self, run: ShownRun) -> None:
        self.display(run.record.metrics, run.record.execution)

    def display(self, metrics: MetricStore, execution: ExecutionInfo) -> None:
        self._metrics, self._execution = metrics, execution
        if not self.isVisible():
            return
        has_data = execution.version > 0 or len(metrics.series("train_loss")[0]) > 0
        self._area.setVisible(has_data)
        self._placeholder.setVisible(not has_data)
        if not has_data:
            return
        setup = (id(execution), execution.setup_version)
        if setup != self._displayed_setup:
            self._displayed_setup = setup
            show_fast_paths(self.fast_paths, execution, self._palette)
            show_flops(self.flops, execution.profile, self._palette)
        version = (id(metrics), metrics.version("time_forward"), id(execution), execution.version)
        if version != self._displayed_metrics:
            self._displayed_metrics = version
            self._show_tiles(metrics, execution)
            self.step_time.setVisible(metrics.last_value("time_forward") is not None)  # None while the model compiles
            self.step_time.display(metrics, execution)

    def _show_tiles(self, metrics: MetricStore, execution: ExecutionInfo) -> None:
        contents = figures.tiles(metrics, execution)
        for name, tile in self.tiles.items():
            tile.setVisible(name in contents)
            if name in contents:
                tile.display(contents[name])
        self._place_tiles()

    def _place_tiles(self) -> None:
        """Arrange the visible tiles in rows without gaps."""
        visible = [tile for tile in self.tiles.values() if not tile.isHidden()]
        columns = max(_MIN_WIDE_COLUMNS, len(visible))
        if self._narrow:
            columns = _NARROW_COLUMNS - (self.width() < _NARROW_COLUMNS * _MIN_TILE_WIDTH)
        for index, tile in enumerate(visible):
            self._tiles.addWidget(tile, *divmod(index, columns))
        for column in range(len(self.tiles)):
            self._tiles.setColumnStretch(column, 1 if column < columns else 0)

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self.step_time.retheme(palette)
        self._redisplay()

    def retranslate(self) -> None:
        self._placeholder.setText(tr("performance.empty_page"))
        self.step_time.retranslate()
        self._redisplay()

    def _redisplay(self) -> None:
        self._displayed_metrics = self._displayed_setup = None
        if self._metrics is not None and self._execution is not None:
            self.display(self._metrics, self._execution)

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self._redisplay()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        narrow = event.size().width() < _NARROW
        if narrow is not self._narrow:
            self._narrow = narrow
            self.step_time.set_narrow(narrow)
        self._place_tiles()
