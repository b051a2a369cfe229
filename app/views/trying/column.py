"""One model: which checkpoint it is, what it wrote, and how it is doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from app.state.trying import Exchange, RunItem, Talk
from app.theme.tokens import SPACE, Tokens
from app.views.trying import trying_words
from app.views.trying.transcript import Transcript
from app.views.widgets import ElidedLabel, QuietCombo, Retranslating, button, named, plain_tip, restyle
from trainer_core import protocol
from trainer_core.runs.checkpoint_dir import CheckpointInfo

_NARROW: Final = 380  # below this, the choices stand below each other


@dataclass(frozen=True, slots=True)
class ColumnState:
    """Everything a column shows."""

    items: Sequence[RunItem]
    run: Path | None
    infos: Sequence[CheckpointInfo]  # of the run, newest first
    checkpoint: Path | None  # that was chosen; None: the newest
    gone: bool  # from disk
    state: Literal["off", "loading", "writing", "ready", "failed"]
    loaded: protocol.Loaded | None
    newer: int | None  # step of a checkpoint that came after the one that is loaded
    failure: str  # why there is no model
    talk: Talk


class Column(Retranslating):
    """Signals carry what was chosen."""

    run_chosen = Signal(Path)
    checkpoint_chosen = Signal(object)  # Path, or None for the newest
    copy_asked = Signal(str)

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state: ColumnState | None = None
        self._listed: object = None  # what the choices hold
        self.run, self.checkpoint = named(QuietCombo(), "tryRun"), named(QuietCombo(), "tryCheckpoint")
        for combo in (self.run, self.checkpoint):
            combo.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
            combo.setMinimumContentsLength(6)
        self.transcript = Transcript(tokens)
        self.status = named(ElidedLabel(), "tryStatus")
        self.copy = button("tryCopy")
        self._choices = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._arrange()
        self.run.activated.connect(lambda: self.run_chosen.emit(self.run.currentData()))
        self.checkpoint.activated.connect(self._on_checkpoint)
        self.copy.clicked.connect(lambda: self.copy_asked.emit(self.newest_text()))
        self.retranslate()

    def _arrange(self) -> None:
        self._choices.setSpacing(SPACE)
        self._choices.addWidget(self.run, 2)
        self._choices.addWidget(self.checkpoint, 3)
        below = QHBoxLayout()
        below.setSpacing(SPACE)
        below.addWidget(self.status, 1)
        below.addWidget(self.copy)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE)
        layout.addLayout(self._choices)
        layout.addWidget(self.transcript, 1)
        layout.addLayout(below)

    def _on_checkpoint(self) -> None:
        chosen = self.checkpoint.currentData()
        self.checkpoint_chosen.emit(chosen if isinstance(chosen, Path) else None)

    def newest_text(self) -> str:
        """What was written last: an answer by itself, a text with its beginning."""
        exchange = self._newest()
        if exchange is None:
            return ""
        return exchange.text if exchange.chat else exchange.prompt + exchange.text

    def _newest(self) -> Exchange | None:
        exchanges = self._state.talk.exchanges if self._state else []
        return exchanges[-1] if exchanges else None

    # --- showing ------------------------------------------------------------------------------------------

    def display(self, state: ColumnState) -> None:
        self._state = state
        self._list(state)
        self.transcript.display(state.talk)
        exchange = self._newest()
        self.copy.setEnabled(exchange is not None and bool(exchange.text))
        text, level = self._told(state, exchange)
        self.status.setText(text)
        if self.status.property("level") != level:
            self.status.setProperty("level", level)
            restyle(self.status)

    def _list(self, state: ColumnState) -> None:
        """Fill the choices in, where they are not what they were: a list that is open stays as it is."""
        listed = (state.items, state.run, list(state.infos), state.checkpoint, state.gone)
        if listed == self._listed or self.run.view().isVisible() or self.checkpoint.view().isVisible():
            return
        self._listed = listed
        self.run.clear()
        for item in state.items:
            name = item.path.name
            self.run.addItem(self.tr("{name} (training)").format(name=name) if item.training else name, item.path)
            self.run.setItemData(self.run.count() - 1, plain_tip(str(item.path)), Qt.ItemDataRole.ToolTipRole)
        self.run.setCurrentIndex(_place(self.run, state.run))
        self.checkpoint.clear()
        self.checkpoint.addItem(trying_words.newest(state.infos[0] if state.infos else None), None)
        for info in state.infos:
            self.checkpoint.addItem(trying_words.checkpoint(info), info.path)
        if state.gone and state.checkpoint is not None:
            self.checkpoint.addItem(state.checkpoint.name, state.checkpoint)
        self.checkpoint.setCurrentIndex(max(0, _place(self.checkpoint, state.checkpoint)))
        for combo in (self.run, self.checkpoint):
            combo.setEnabled(combo.count() > 0 and state.run is not None)
            combo.setToolTip(plain_tip(combo.currentText()))

    def _told(self, state: ColumnState, exchange: Exchange | None) -> tuple[str, str]:
        """The line below the text, and how much it matters."""
        if state.failure:
            return state.failure, "bad"
        if state.gone:
            in_use = state.loaded is not None
            return trying_words.gone(in_use=in_use), "warn" if in_use else "bad"
        if state.state == "loading":
            return self.tr("Loading the model…"), ""
        if state.newer is not None and state.state != "writing":
            return trying_words.newer(state.newer), "warn"
        if exchange is not None and exchange.tokens:
            return trying_words.speed(exchange, state.loaded), ""
        return "", ""

    def retheme(self, tokens: Tokens) -> None:
        self.transcript.retheme(tokens)

    def retranslate(self) -> None:
        self.run.setAccessibleName(self.tr("Run"))
        self.checkpoint.setAccessibleName(self.tr("Checkpoint"))
        self.transcript.setAccessibleName(self.tr("What the model wrote"))
        self.copy.setText(self.tr("Copy"))
        self.copy.setToolTip(self.tr("Copy the newest text"))
        self.transcript.rewrite()
        self._listed = None
        if self._state is not None:
            self.display(self._state)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        narrow = self.width() < _NARROW
        direction = QBoxLayout.Direction.TopToBottom if narrow else QBoxLayout.Direction.LeftToRight
        if direction != self._choices.direction():
            self._choices.setDirection(direction)


def _place(combo: QuietCombo, wanted: Path | None) -> int:
    return next((place for place in range(combo.count()) if combo.itemData(place) == wanted), -1)
