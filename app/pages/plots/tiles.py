"""Key figures of a run in large type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import ElidedLabel, TranslatableWidget, label

if TYPE_CHECKING:
    from app.core.metrics.metric_store import MetricStore


class Tiles(TranslatableWidget):
    """The newest loss, eval loss, throughput and memory, each with one line of context."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tiles = {name: Tile(name) for name in ("loss", "eval", "speed", "memory")}
        self._store: MetricStore | None = None
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACING)
        for tile in self._tiles.values():
            row.addWidget(tile, 1)
        self.retranslate()

    def display(self, store: MetricStore) -> None:
        self._store = store
        self._tiles["loss"].show_value(formatting.format_loss(store.last_value("train_loss")), self._step_note(store))
        self._tiles["eval"].show_value(formatting.format_loss(store.last_value("eval_loss")), self._best_note(store))
        self._tiles["speed"].show_value(formatting.format_rate(store.last_value("tokens_per_s")), self._mfu_note(store))
        self._tiles["memory"].show_value(*self._memory(store))

    def value(self, name: str) -> str:
        """The figure of a tile: loss, eval, speed or memory."""
        return self._tiles[name].value.text()

    def _step_note(self, store: MetricStore) -> str:
        x, _ = store.series("train_loss")
        return tr("common.step_step", step=formatting.format_count(float(x[-1]))) if len(x) else ""

    def _best_note(self, store: MetricStore) -> str:
        best = store.best_eval()
        if best is None:
            return ""
        text = tr("plots.best_loss_at_step_step")
        return text.format(loss=formatting.format_loss(best.value), step=formatting.format_count(best.step))

    def _mfu_note(self, store: MetricStore) -> str:
        mfu = store.last_value("mfu")
        return tr("plots.share_gpus_peak", share=f"{mfu:.0%}") if mfu is not None else ""

    def _memory(self, store: MetricStore) -> tuple[str, str]:
        if not store.gpu_indices():
            total = store.last_value("ram_total")
            note = tr("plots.total_in_this_machine", total=formatting.format_bytes(total)) if total else ""
            return formatting.format_bytes(store.last_value("rss")), note
        used = [told for gpu in store.gpu_indices() if (told := store.last_value(f"vram_used.{gpu}")) is not None]
        totals = [store.last_value(f"vram_total.{gpu}") for gpu in store.gpu_indices()]
        whole = sum(total for total in totals if total)
        return formatting.format_bytes(sum(used) if used else None), tr(
            "plots.of_total", total=formatting.format_bytes(whole)
        ) if whole else ""

    def retranslate(self) -> None:
        on_gpu = self._store is not None and bool(self._store.gpu_indices())
        self._tiles["loss"].title.setText(tr("plots.training_loss"))
        self._tiles["eval"].title.setText(tr("plots.eval_loss"))
        self._tiles["eval"].setToolTip(tr("plots.mean_loss_per_token_fixed"))
        self._tiles["speed"].title.setText(tr("plots.tokens_per_second"))
        self._tiles["speed"].setToolTip(tr("plots.tokens_that_loss_counts_conversations"))
        self._tiles["memory"].title.setText(tr("plots.vram") if on_gpu else tr("plots.trainers_memory"))
        if self._store is not None:
            self.display(self._store)


class Tile(QFrame):
    """One figure with a title above and a line of context below."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName("card")
        self.title, self.value, self._note = label("muted"), label("tileValue"), ElidedLabel()
        self.value.setAccessibleName(name)
        self._note.setObjectName("muted")
        self._note.setText(" ")  # reserves its height
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACING + 4, SPACING - 2, SPACING, SPACING - 2)
        layout.setSpacing(0)
        for line in (self.title, self.value, self._note):
            layout.addWidget(line)

    def show_value(self, value: str, note: str) -> None:
        if self.value.text() != value:
            self.value.setText(value)
        self._note.setText(note or " ")
