"""One model of the playground: choice of the checkpoint, generated texts, status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QSizePolicy, QVBoxLayout

from app.core.conversation import Conversation, RunOption, Turn
from app.pages.playground import texts
from app.pages.playground.transcript import Transcript
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    NoScrollComboBox,
    TranslatableWidget,
    horizontal_layout,
    plain_tooltip,
    push_button,
    restyle,
    set_object_name,
)
from trainer_core import protocol
from trainer_core.runs.checkpoint_dir import CheckpointInfo

_NARROW: Final = 380  # pixels; below, the two choices are stacked


@dataclass(frozen=True, slots=True)
class ColumnState:
    """State of a column."""

    runs: Sequence[RunOption]
    run: Path | None
    checkpoints: Sequence[CheckpointInfo]  # of the run, newest first
    checkpoint: Path | None  # None: the newest
    is_missing: bool  # the checkpoint was deleted from disk
    state: Literal["off", "loading", "writing", "ready", "failed"]
    loaded: protocol.ModelLoaded | None
    newer_step: int | None  # of a checkpoint that is newer than the loaded one
    failure: str
    conversation: Conversation


class ModelColumn(TranslatableWidget):
    """Displays a `ColumnState`; signals carry what was chosen."""

    run_chosen = Signal(Path)
    checkpoint_chosen = Signal(object)  # Path, or None for the newest
    copy_requested = Signal(str)

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._state: ColumnState | None = None
        self._listed: object = None  # content of the choices
        self.run = set_object_name(NoScrollComboBox(), "tryRun")
        self.checkpoint = set_object_name(NoScrollComboBox(), "tryCheckpoint")
        for combo in (self.run, self.checkpoint):
            combo.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
            combo.setMinimumContentsLength(6)
        self.transcript = Transcript(palette)
        self.status, self.copy = set_object_name(ElidedLabel(), "tryStatus"), push_button("tryCopy")
        self._choices = horizontal_layout((self.run, 2), (self.checkpoint, 3))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACING)
        layout.addLayout(self._choices)
        layout.addWidget(self.transcript, 1)
        layout.addLayout(horizontal_layout((self.status, 1), self.copy))
        self.run.activated.connect(lambda: self.run_chosen.emit(self.run.currentData()))
        self.checkpoint.activated.connect(lambda: self.checkpoint_chosen.emit(self.checkpoint.currentData()))
        self.copy.clicked.connect(lambda: self.copy_requested.emit(self.newest_text()))
        self.retranslate()

    def newest_text(self) -> str:
        """The newest answer, or the newest continuation with its prompt."""
        turn = self._newest_turn()
        if turn is None:
            return ""
        return turn.text if turn.chat else turn.prompt + turn.text

    def _newest_turn(self) -> Turn | None:
        turns = self._state.conversation.turns if self._state else []
        return turns[-1] if turns else None

    def display(self, state: ColumnState) -> None:
        self._state = state
        self._list_choices(state)
        self.transcript.display(state.conversation)
        turn = self._newest_turn()
        self.copy.setEnabled(turn is not None and bool(turn.text))
        text, level = _format_status(state, turn)
        self.status.setText(text)
        if self.status.property("level") != level:
            self.status.setProperty("level", level)
            restyle(self.status)

    def _list_choices(self, state: ColumnState) -> None:
        """Fill the combo boxes, unless they are up to date or open."""
        listed = (state.runs, state.run, list(state.checkpoints), state.checkpoint, state.is_missing)
        if listed == self._listed or self.run.view().isVisible() or self.checkpoint.view().isVisible():
            return
        self._listed = listed
        self.run.clear()
        for run in state.runs:
            name = run.path.name
            self.run.addItem(tr("playground.name_training", name=name) if run.is_training else name, run.path)
            self.run.setItemData(self.run.count() - 1, plain_tooltip(str(run.path)), Qt.ItemDataRole.ToolTipRole)
        self.run.setCurrentIndex(_index_of(self.run, state.run))
        self.checkpoint.clear()
        newest = state.checkpoints[0] if state.checkpoints else None
        self.checkpoint.addItem(texts.format_newest_checkpoint(newest), None)
        for info in state.checkpoints:
            self.checkpoint.addItem(texts.format_checkpoint(info), info.path)
        if state.is_missing and state.checkpoint is not None:
            self.checkpoint.addItem(state.checkpoint.name, state.checkpoint)
        self.checkpoint.setCurrentIndex(max(0, _index_of(self.checkpoint, state.checkpoint)))
        for combo in (self.run, self.checkpoint):
            combo.setEnabled(combo.count() > 0 and state.run is not None)
            combo.setToolTip(plain_tooltip(combo.currentText()))

    def retheme(self, palette: Palette) -> None:
        self.transcript.retheme(palette)

    def retranslate(self) -> None:
        self.run.setAccessibleName(tr("playground.run"))
        self.checkpoint.setAccessibleName(tr("playground.checkpoint"))
        self.transcript.setAccessibleName(tr("playground.what_the_model_wrote"))
        self.copy.setText(tr("playground.copy"))
        self.copy.setToolTip(tr("playground.copy_the_newest_text"))
        self.transcript.render_all()
        self._listed = None
        if self._state is not None:
            self.display(self._state)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        direction = QBoxLayout.Direction
        self._choices.setDirection(direction.TopToBottom if self.width() < _NARROW else direction.LeftToRight)


def _format_status(state: ColumnState, turn: Turn | None) -> tuple[str, str]:
    """Return the status and its level."""
    if state.failure:
        return state.failure, "bad"
    if state.is_missing:
        if state.loaded is not None:
            return tr("playground.no_longer_on_disk_stays"), "warn"
        return tr("playground.this_checkpoint_no_longer_on"), "bad"
    if state.state == "loading":
        return tr("playground.loading_the_model"), ""
    if state.newer_step is not None and state.state != "writing":
        return tr("playground.step_step_there_now_next", step=formatting.format_count(state.newer_step)), "warn"
    return (texts.format_speed(turn, state.loaded) if turn is not None and turn.tokens else ""), ""


def _index_of(combo: NoScrollComboBox, data: Path | None) -> int:
    # `findData` compares the QVariants of two paths by identity.
    return next((index for index in range(combo.count()) if combo.itemData(index) == data), -1)
