"""Key figures of a run in large type."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtWidgets import QFrame, QVBoxLayout, QWidget

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import ElidedLabel, TranslatableWidget, horizontal_layout, label, set_text_if_changed

if TYPE_CHECKING:
    from app.core.metrics.metric_store import MetricStore


class Tiles(TranslatableWidget):
    """The newest loss, eval loss, throughput and memory, each with one line of context."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.tiles = {name: Tile(name) for name in ("loss", "eval", "speed", "memory")}
        self._store: MetricStore | None = None
        self.setLayout(horizontal_layout(*((tile, 1) for tile in self.tiles.values())))
        self.retranslate()

    def display(self, store: MetricStore) -> None:
        self._store = store
        steps, _ = store.series("train_loss")
        step = tr("common.step_lower", step=formatting.format_count(float(steps[-1]))) if len(steps) else ""
        best, mfu = store.best_eval(), store.last_value("mfu")
        share = "" if mfu is None else tr("plots.share_of_peak", share=f"{mfu:.0%}")
        caption, exact_match = "", store.last_value("exact_match")
        if best is not None:
            at, loss = formatting.format_count(best[0]), formatting.format_loss(best[1])
            caption = tr("plots.best_at_step", loss=loss, step=at)
            if exact_match is not None:
                caption = tr("plots.exact_match_and_best", share=f"{exact_match:.0%}", loss=loss)
        self._display("loss", formatting.format_loss(store.last_value("train_loss")), step)
        self._display("eval", formatting.format_loss(store.last_value("eval_loss")), caption)
        self._display("speed", formatting.format_rate(store.last_value("tokens_per_s")), share)
        self._display("memory", *_format_memory(store))

    def _display(self, name: str, value: str = "", caption: str = "") -> None:
        on_gpu = self._store is not None and bool(self._store.gpu_indices())
        title, tooltip = {
            "loss": (tr("plots.training_loss"), ""),
            "eval": (tr("plots.eval_loss"), tr("plots.eval_loss_hint")),
            "speed": (tr("plots.tokens_per_second"), tr("plots.loss_tokens_hint")),
            "memory": (tr("plots.vram") if on_gpu else tr("plots.trainer_memory"), ""),
        }[name]
        self.tiles[name].display(TileContent(title, value, caption, tooltip))

    def retranslate(self) -> None:
        if self._store is not None:
            self.display(self._store)
        else:
            for name in self.tiles:
                self._display(name)


def _format_memory(store: MetricStore) -> tuple[str, str]:
    """Return the memory in use and a caption with the total: VRAM of all GPUs, or RAM of the trainer."""
    if not store.gpu_indices():
        total = store.last_value("ram_total")
        caption = tr("plots.of_total_ram", total=formatting.format_bytes(total)) if total else ""
        return formatting.format_bytes(store.last_value("rss")), caption
    used, total = (_sum_gpus(store, name) for name in ("vram_used", "vram_total"))
    caption = tr("plots.of_total", total=formatting.format_bytes(total)) if total else ""
    return formatting.format_bytes(used), caption


def _sum_gpus(store: MetricStore, name: str) -> float | None:
    """Return the sum of the newest values; None if no GPU reports them."""
    values = [store.last_value(f"{name}.{gpu}") for gpu in store.gpu_indices()]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class TileContent(NamedTuple):
    title: str
    value: str
    caption: str
    tooltip: str = ""


class Tile(QFrame):
    """One figure with a title above and a caption below."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName("card")
        self.title, self.value, self.caption = label("muted"), label("tileValue"), ElidedLabel()
        self.value.setAccessibleName(name)
        self.caption.setObjectName("muted")
        self.caption.setText(" ")  # reserves its height
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACING + 4, SPACING - 2, SPACING, SPACING - 2)
        layout.setSpacing(0)
        for widget in (self.title, self.value, self.caption):
            layout.addWidget(widget)

    def display(self, content: TileContent) -> None:
        set_text_if_changed(self.title, content.title)
        set_text_if_changed(self.value, content.value)
        self.caption.setText(content.caption or " ")
        self.setToolTip(content.tooltip)
