"""The figures one looks at first, in large."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.theme.tokens import SPACE
from app.views import words
from app.views.widgets import ElidedLabel, Retranslating, label

if TYPE_CHECKING:
    from app.state.measurements.metrics import MetricStore


class Tiles(Retranslating):
    """Loss, eval loss, throughput, memory: the newest of each, with one line of context."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tiles = {name: Tile(name) for name in ("loss", "eval", "speed", "memory")}
        self._store: MetricStore | None = None
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE)
        for tile in self._tiles.values():
            row.addWidget(tile, 1)
        self.retranslate()

    def display(self, store: MetricStore) -> None:
        self._store = store
        self._tiles["loss"].show_value(words.loss(store.last("train_loss")), self._step_note(store))
        self._tiles["eval"].show_value(words.loss(store.last("eval_loss")), self._best_note(store))
        self._tiles["speed"].show_value(words.rate(store.last("tokens_per_s")), self._mfu_note(store))
        self._tiles["memory"].show_value(*self._memory(store))

    def value(self, name: str) -> str:
        """The figure on a tile: loss, eval, speed or memory."""
        return self._tiles[name].value.text()

    def _step_note(self, store: MetricStore) -> str:
        x, _ = store.series("train_loss")
        return self.tr("step {step}").format(step=words.count(float(x[-1]))) if len(x) else ""

    def _best_note(self, store: MetricStore) -> str:
        best = store.best_eval()
        if best is None:
            return ""
        text = self.tr("best {loss} at step {step}")
        return text.format(loss=words.loss(best.value), step=words.count(best.step))

    def _mfu_note(self, store: MetricStore) -> str:
        mfu = store.last("mfu")
        return self.tr("{share} of the GPU's peak").format(share=f"{mfu:.0%}") if mfu is not None else ""

    def _memory(self, store: MetricStore) -> tuple[str, str]:
        if not store.gpus():
            total = store.last("ram_total")
            note = self.tr("of {total} in this machine").format(total=words.size(total)) if total else ""
            return words.size(store.last("rss")), note
        used = [told for gpu in store.gpus() if (told := store.last(f"vram_used.{gpu}")) is not None]
        totals = [store.last(f"vram_total.{gpu}") for gpu in store.gpus()]
        whole = sum(total for total in totals if total)
        return words.size(sum(used) if used else None), self.tr("of {total}").format(
            total=words.size(whole)
        ) if whole else ""

    def retranslate(self) -> None:
        on_gpu = self._store is not None and bool(self._store.gpus())
        self._tiles["loss"].title.setText(self.tr("Training loss"))
        self._tiles["eval"].title.setText(self.tr("Eval loss"))
        self._tiles["eval"].setToolTip(
            self.tr("Mean loss per token of a fixed sample of all held-out data, the same at every evaluation.")
        )
        self._tiles["speed"].title.setText(self.tr("Tokens per second"))
        self._tiles["speed"].setToolTip(
            self.tr("Tokens that the loss counts: of conversations the answers only, without prompts and padding.")
        )
        self._tiles["memory"].title.setText(self.tr("VRAM") if on_gpu else self.tr("Trainer's memory"))
        if self._store is not None:
            self.display(self._store)


class Tile(QFrame):
    """One figure in large, with its title above and a line of context below."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName("card")
        self.title, self.value, self._note = label("muted"), label("tileValue"), ElidedLabel()
        self.value.setAccessibleName(name)
        self._note.setObjectName("muted")
        self._note.setText(" ")  # its height also before there is something to say
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE + 4, SPACE - 2, SPACE, SPACE - 2)
        layout.setSpacing(0)
        for line in (self.title, self.value, self._note):
            layout.addWidget(line)

    def show_value(self, value: str, note: str) -> None:
        if self.value.text() != value:
            self.value.setText(value)
        self._note.setText(note or " ")
