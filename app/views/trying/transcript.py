"""What was asked and written, oldest first: a text that grows while one reads it."""

from __future__ import annotations

from PySide6.QtGui import QColor, QFont, QTextBlockFormat, QTextCharFormat, QTextCursor, QTextFrameFormat
from PySide6.QtWidgets import QTextEdit

from app.state.trying import Ending, Exchange, Talk
from app.theme.tokens import SPACE, Tokens
from app.views.raw_text import lines, raw_look, show_as_it_stands
from app.views.trying import trying_words
from app.views.widgets import empty_note


class Transcript(QTextEdit):
    """Read only. Pieces are appended; everything is written anew only where something else has changed."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens = tokens
        self._talk = Talk()
        self._written: list[tuple[Exchange, int | None, bool, Ending]] = []  # as they stand there
        self._length = 0  # characters of the last text that stand there
        self.setObjectName("transcript")
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.document().setDocumentMargin(SPACE)
        show_as_it_stands(self)
        self.note = empty_note(self)

    def display(self, talk: Talk) -> None:
        """Show this talk as it is now; stay at the end where the reader is there."""
        self._talk = talk
        self.note.setVisible(not talk.exchanges)
        now = [(one, one.step, one.chat, one.ending) for one in talk.exchanges]
        bar = self.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 4
        if now != self._written:
            asked = len(now) > len(self._written)  # whoever asks wants to see the answer
            self._write()
            self._written = now
            at_end = at_end or asked
        elif talk.exchanges and len(talk.exchanges[-1].text) > self._length:
            self._append(talk.exchanges[-1].text[self._length :])
        else:
            return
        self._length = len(talk.exchanges[-1].text) if talk.exchanges else 0
        if at_end:
            bar.setValue(bar.maximum())

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.rewrite()

    def rewrite(self) -> None:
        """Write everything anew, in the colours and words of the moment."""
        self._written = []
        self.display(self._talk)

    def _append(self, piece: str) -> None:
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(piece, raw_look(self._tokens.text))

    def _write(self) -> None:
        self.clear()
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        for place, exchange in enumerate(self._talk.exchanges):
            if exchange.chat:
                self._write_turns(cursor, exchange, first=place == 0)
            else:
                self._write_text(cursor, exchange, first=place == 0)
        cursor.endEditBlock()

    def _write_turns(self, cursor: QTextCursor, exchange: Exchange, *, first: bool) -> None:
        """A question on a surface of its own, and the answer below it."""
        self._block(cursor, first=first, height=1 if first else 2 * SPACE)
        surface = QTextFrameFormat()
        surface.setBackground(QColor(self._tokens.note_surface))
        surface.setPadding(SPACE)
        surface.setBottomMargin(SPACE)
        frame = cursor.insertFrame(surface)
        cursor.insertText(exchange.prompt, raw_look(self._tokens.text))
        cursor.setPosition(frame.lastPosition() + 1)
        self._block(cursor, top=SPACE, first=True)
        cursor.insertText(trying_words.heading(exchange), self._look("muted", bold=True))
        self._end(cursor, exchange)

    def _write_text(self, cursor: QTextCursor, exchange: Exchange, *, first: bool) -> None:
        """A beginning, and how the model went on."""
        self._block(cursor, top=0 if first else 2 * SPACE, first=first)
        cursor.insertText(trying_words.heading(exchange), self._look("muted", bold=True))
        self._block(cursor)
        cursor.insertText(exchange.prompt, raw_look(self._tokens.accent))
        self._end(cursor, exchange, same_block=True)

    def _end(self, cursor: QTextCursor, exchange: Exchange, *, same_block: bool = False) -> None:
        problem, ending = trying_words.problem(exchange), trying_words.ending(exchange)
        if not same_block:
            self._block(cursor)
        cursor.insertText(exchange.text, raw_look(self._tokens.text))
        for words_, token in ((problem, "bad"), (ending, "muted")):
            if words_:
                self._block(cursor)
                cursor.insertText(words_, self._look(token))

    def _block(self, cursor: QTextCursor, *, top: int = 0, first: bool = False, height: int = 0) -> None:
        """A new paragraph, or the one that is there (`first`); `height`: empty, so many pixels high."""
        look = lines(self, top=top)
        if height:
            look.setLineHeight(height, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
        if first:
            cursor.setBlockFormat(look)
        else:
            cursor.insertBlock(look)

    def _look(self, token: str, *, bold: bool = False) -> QTextCharFormat:
        look = QTextCharFormat()
        look.setForeground(QColor(getattr(self._tokens, token)))
        if bold:
            look.setFontWeight(QFont.Weight.DemiBold)
        return look
