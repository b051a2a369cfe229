"""One model of the playground: choice of the checkpoint, generated texts, status."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QColor, QResizeEvent, QTextBlockFormat, QTextCursor, QTextFrameFormat
from PySide6.QtWidgets import QBoxLayout, QSizePolicy, QTextEdit, QVBoxLayout

from app.core.conversation import Conversation, GenerationStatus, Turn
from app.pages.performance import execution_texts
from app.services.generation_session import GenerationSession
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    NoScrollComboBox,
    TranslatableWidget,
    horizontal_layout,
    placeholder_label,
    plain_tooltip,
    push_button,
    restyle,
    set_object_name,
)
from app.widgets.raw_text import char_format, line_block_format, raw_char_format, set_raw_text_font
from trainer_core import protocol
from trainer_core.runs.checkpoint_dir import CheckpointInfo

_NARROW: Final = 380  # pixels; below, the two choices are stacked


class ModelColumn(TranslatableWidget):
    """Displays a `GenerationSession`; signals carry what was chosen."""

    run_chosen = Signal(Path)
    checkpoint_chosen = Signal(object)  # Path, or None for the newest
    copy_requested = Signal(str)

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._session: GenerationSession | None = None
        self._runs: Sequence[Path] = ()
        self._training_run: Path | None = None
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
        turns = self._session.conversation.turns if self._session else []
        return turns[-1] if turns else None

    def display(self, session: GenerationSession, runs: Sequence[Path], training_run: Path | None) -> None:
        """Show a session. `runs`: that can be selected."""
        self._session, self._runs, self._training_run = session, runs, training_run
        self._list_choices(session)
        self.transcript.display(session.conversation)
        turn = self._newest_turn()
        self.copy.setEnabled(turn is not None and bool(turn.text))
        text, level = _format_status(session, turn)
        self.status.setText(text)
        if self.status.property("level") != level:
            self.status.setProperty("level", level)
            restyle(self.status)

    def _list_choices(self, session: GenerationSession) -> None:
        """Fill the combo boxes, unless they are up to date or open."""
        chosen = session.selection
        listed = (
            self._runs, self._training_run, chosen.run, chosen.checkpoints, chosen.checkpoint, chosen.is_missing,
        )  # fmt: skip
        if listed == self._listed or self.run.view().isVisible() or self.checkpoint.view().isVisible():
            return
        self._listed = listed
        self.run.clear()
        for path in self._runs:
            is_training = path == self._training_run
            self.run.addItem(tr("playground.run_training", name=path.name) if is_training else path.name, path)
            self.run.setItemData(self.run.count() - 1, plain_tooltip(str(path)), Qt.ItemDataRole.ToolTipRole)
        self.run.setCurrentIndex(_index_of(self.run, chosen.run))
        self.checkpoint.clear()
        newest = tr("playground.newest_none")
        if chosen.checkpoints:
            newest = tr("playground.newest_checkpoint", checkpoint=_format_checkpoint(chosen.checkpoints[0]))
        self.checkpoint.addItem(newest, None)
        for info in chosen.checkpoints:
            self.checkpoint.addItem(_format_checkpoint(info), info.path)
        if chosen.is_missing and chosen.checkpoint is not None:
            self.checkpoint.addItem(chosen.checkpoint.name, chosen.checkpoint)
        self.checkpoint.setCurrentIndex(max(0, _index_of(self.checkpoint, chosen.checkpoint)))
        for combo in (self.run, self.checkpoint):
            combo.setEnabled(combo.count() > 0 and chosen.run is not None)
            combo.setToolTip(plain_tooltip(combo.currentText()))

    def retheme(self, palette: Palette) -> None:
        self.transcript.retheme(palette)

    def retranslate(self) -> None:
        self.run.setAccessibleName(tr("playground.run"))
        self.checkpoint.setAccessibleName(tr("playground.checkpoint"))
        self.transcript.setAccessibleName(tr("playground.transcript"))
        self.copy.setText(tr("playground.copy"))
        self.copy.setToolTip(tr("playground.copy_hint"))
        self.transcript.render_all()
        self._listed = None
        if self._session is not None:
            self.display(self._session, self._runs, self._training_run)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        direction = QBoxLayout.Direction
        self._choices.setDirection(direction.TopToBottom if self.width() < _NARROW else direction.LeftToRight)


class Transcript(QTextEdit):
    """Prompts and generated texts, oldest first. New tokens are appended; other changes render everything anew."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._conversation = Conversation()
        self._rendered: list[tuple[Turn, int | None, bool, GenerationStatus]] = []
        self._rendered_length = 0  # characters of the newest text
        self.setObjectName("transcript")
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.document().setDocumentMargin(SPACING)
        set_raw_text_font(self)
        self.note = placeholder_label(self)

    def display(self, conversation: Conversation) -> None:
        """Update the text. Follow its end if the view is there, or if a turn was added."""
        self._conversation = conversation
        turns = conversation.turns
        self.note.setVisible(not turns)
        state = [(turn, turn.step, turn.chat, turn.status) for turn in turns]
        bar = self.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 4 or len(state) > len(self._rendered)
        if state != self._rendered:
            self._render()
            self._rendered = state
        elif turns and len(turns[-1].text) > self._rendered_length:
            cursor = QTextCursor(self.document())
            cursor.movePosition(QTextCursor.MoveOperation.End)
            cursor.insertText(turns[-1].text[self._rendered_length :], raw_char_format(self._palette.text))
        else:
            return
        self._rendered_length = len(turns[-1].text) if turns else 0
        if at_end:
            bar.setValue(bar.maximum())

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self.render_all()

    def render_all(self) -> None:
        """Render everything anew, after a change of colors or language."""
        self._rendered = []
        self.display(self._conversation)

    def _render(self) -> None:
        self.clear()
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        for index, turn in enumerate(self._conversation.turns):
            if turn.chat:
                self._render_question(cursor, turn, first=index == 0)
            else:
                self._start_block(cursor, top=2 * SPACING if index else 0, first=index == 0)
            cursor.insertText(_format_heading(turn), char_format(self._palette.muted, bold=True))
            self._start_block(cursor)
            if not turn.chat:
                cursor.insertText(turn.prompt, raw_char_format(self._palette.accent))
            cursor.insertText(turn.text, raw_char_format(self._palette.text))
            for text, color in (
                (_format_error(turn), self._palette.bad),
                (_format_ending(turn), self._palette.muted),
            ):
                if text:
                    self._start_block(cursor)
                    cursor.insertText(text, char_format(color))
        cursor.endEditBlock()

    def _render_question(self, cursor: QTextCursor, turn: Turn, *, first: bool) -> None:
        """Render a question in a separate frame, and begin the block of the answer."""
        self._start_block(cursor, first=first, height=1 if first else 2 * SPACING)
        surface = QTextFrameFormat()
        surface.setBackground(QColor(self._palette.note_surface))
        surface.setPadding(SPACING)
        surface.setBottomMargin(SPACING)
        frame = cursor.insertFrame(surface)
        cursor.insertText(turn.prompt, raw_char_format(self._palette.text))
        cursor.setPosition(frame.lastPosition() + 1)
        self._start_block(cursor, top=SPACING, first=True)

    def _start_block(self, cursor: QTextCursor, *, top: int = 0, first: bool = False, height: int = 0) -> None:
        """Begin a block; `first`: use the current one. `height`: fixed, in pixels, for an empty block."""
        block = line_block_format(self, top=top)
        if height:
            block.setLineHeight(height, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
        if first:
            cursor.setBlockFormat(block)
        else:
            cursor.insertBlock(block)


def _format_heading(turn: Turn) -> str:
    """Step of the model and seed of a text."""
    if turn.step is None:
        return tr("playground.seed_seed", seed=turn.sampling.seed)
    return tr("playground.step_and_seed", step=formatting.format_count(turn.step), seed=turn.sampling.seed)


def _format_ending(turn: Turn) -> str:
    """Why a text ended before the model ended it, or empty."""
    return {
        "length": tr("playground.max_tokens_reached"),
        "interrupted": tr("playground.stopped"),
    }.get(turn.status, "")


def _format_error(turn: Turn) -> str:
    """Why a text could not be generated, or empty."""
    return formatting.localized_message(*turn.error) if turn.status == "failed" and turn.error else ""


def _format_status(session: GenerationSession, turn: Turn | None) -> tuple[str, str]:
    """Return the status and its level."""
    if failure := session.format_failure():
        return failure, "bad"
    if session.selection.is_missing:
        if session.loaded is not None:
            return tr("playground.checkpoint_deleted_loaded"), "warn"
        return tr("playground.checkpoint_deleted"), "bad"
    if session.state == "loading":
        return tr("playground.loading_the_model"), ""
    if session.newer_step is not None and session.state != "writing":
        step = formatting.format_count(session.newer_step)
        return tr("playground.newer_checkpoint", step=step), "warn"
    return (_format_speed(turn, session.loaded) if turn is not None and turn.tokens else ""), ""


def _format_speed(turn: Turn, loaded: protocol.ModelLoaded | None) -> str:
    """Tokens, speed, device, and whether the context was truncated."""
    count, rate = formatting.format_count, formatting.format_rate(turn.tokens_per_s)
    parts = [tr("playground.speed", tokens=count(turn.tokens), rate=rate)]
    if loaded is not None:
        parts.append(execution_texts.format_device(loaded.device))
        if turn.prompt_tokens >= loaded.max_seq_len:
            seen, given = count(loaded.max_seq_len - 1), count(turn.prompt_tokens)
            parts.append(tr("playground.context_truncated", seen=seen, given=given))
    return " · ".join(parts)


def _format_checkpoint(info: CheckpointInfo) -> str:
    """`Step 400 · final · loss 3.402`."""
    kinds = {
        "regular": "",
        "best": tr("playground.best"),
        "final": tr("playground.final"),
        "emergency": tr("playground.emergency"),
    }
    parts = [tr("common.step", step=formatting.format_count(info.step)), kinds.get(info.kind, info.kind)]
    if info.eval_loss is not None:
        parts.append(tr("playground.loss", loss=formatting.format_loss(info.eval_loss)))
    return " · ".join(filter(None, parts))


def _index_of(combo: NoScrollComboBox, data: Path | None) -> int:
    # `findData` compares the QVariants of two paths by identity.
    return next((index for index in range(combo.count()) if combo.itemData(index) == data), -1)
