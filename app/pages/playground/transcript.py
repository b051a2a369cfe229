"""Transcript of a conversation with a model."""

from __future__ import annotations

from PySide6.QtGui import QColor, QTextBlockFormat, QTextCursor, QTextFrameFormat
from PySide6.QtWidgets import QTextEdit

from app.core.conversation import Conversation, GenerationStatus, Turn
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import placeholder_label
from app.widgets.raw_text import char_format, line_block_format, raw_char_format, set_raw_text_font


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
        """Render a question in a frame of its own, and begin the block of the answer."""
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
    return tr("playground.step_step_seed_seed", step=formatting.format_count(turn.step), seed=turn.sampling.seed)


def _format_ending(turn: Turn) -> str:
    """Why a text ended before the model ended it, or empty."""
    return {
        "length": tr("playground.set_length_reached"),
        "interrupted": tr("playground.stopped"),
    }.get(turn.status, "")


def _format_error(turn: Turn) -> str:
    """Why a text could not be generated, or empty."""
    return formatting.localized_message(*turn.error) if turn.status == "failed" and turn.error else ""
