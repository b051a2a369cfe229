"""Prompts and generated texts of one model."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtGui import QColor, QResizeEvent, QTextCharFormat, QTextCursor, QTextFormat
from PySide6.QtWidgets import QTextEdit

from app.core.conversation import Turn
from app.core.text_difference import differing_spans
from app.texts import tr
from app.theme.palette import Palette
from app.widgets import formatting
from app.widgets.generated_text import GeneratedTextView
from app.widgets.raw_text import raw_char_format


class Transcript(GeneratedTextView):
    """Turns, oldest first. New tokens are appended; other changes render everything anew.

    Parts of a finished text that the other model's text lacks are marked.
    """

    def __init__(self, palette: Palette) -> None:
        super().__init__(palette, "transcript")
        flags = Qt.TextInteractionFlag
        self.setTextInteractionFlags(flags.TextSelectableByMouse | flags.TextSelectableByKeyboard)
        self._turns: Sequence[Turn] = ()
        self._others: Sequence[Turn] = ()  # of the other model
        self._rendered: list[tuple[object, ...]] = []
        self._rendered_length = 0  # characters of the newest text
        self._starts: list[int] = []  # position of each turn
        self._differences: list[tuple[int, int]] = []  # positions
        self.cursorPositionChanged.connect(self._mark)

    @property
    def selected(self) -> Turn | None:
        """The turn with the text cursor: the newest one, unless the user moved the cursor."""
        if not self._turns:
            return None
        return self._turns[max(0, bisect_right(self._starts, self.textCursor().position()) - 1)]

    def display(self, turns: Sequence[Turn], others: Sequence[Turn] = ()) -> None:
        """Update the text. Follow its end if the view is there, or if a turn was added.

        `others`: turns of the other model.
        """
        self._turns, self._others = turns, others
        self.placeholder.setVisible(not turns)
        state: list[tuple[object, ...]] = [
            (turn, turn.step, turn.chat, turn.status, _correction(turn), other and (other, other.text))
            for turn, other in self._pairs()
        ]
        bar = self.verticalScrollBar()
        position, at_end = bar.value(), bar.value() >= bar.maximum() - 4 or len(state) > len(self._rendered)
        if state != self._rendered:
            with QSignalBlocker(self):  # positions are incomplete until the end
                self._render()
            self._mark()
            self._rendered = state
            bar.setValue(position)
        elif turns and len(turns[-1].text) > self._rendered_length:
            cursor = QTextCursor(self.document())
            cursor.movePosition(QTextCursor.MoveOperation.End)
            cursor.insertText(turns[-1].text[self._rendered_length :], raw_char_format(self.colors.text))
        else:
            return
        self._rendered_length = len(turns[-1].text) if turns else 0
        if at_end:
            bar.setValue(bar.maximum())

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        bar = self.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 4
        super().resizeEvent(event)
        if at_end:
            bar.setValue(bar.maximum())

    def render_all(self) -> None:
        """Render everything anew, after a change of colors or language."""
        self._rendered = []
        self.display(self._turns, self._others)

    def _pairs(self) -> Iterator[tuple[Turn, Turn | None]]:
        """Each turn with the finished one of the other model for the same prompt. The newest turns belong together."""
        offset = len(self._others) - len(self._turns)
        for place, turn in enumerate(self._turns, offset):
            other = self._others[place] if 0 <= place < len(self._others) else None
            is_pair = turn.is_finished and other is not None and other.is_finished and other.prompt == turn.prompt
            yield turn, other if is_pair else None

    def _render(self) -> None:
        self._starts, self._differences = [], []
        cursor = self.begin()
        for turn, other in self._pairs():
            self._starts.append(cursor.position() + bool(cursor.position()))
            position = self.append_text(cursor, _format_heading(turn), turn.prompt, turn.text, is_answer=turn.chat)
            if turn.generated is not None:
                self.append_note(cursor, tr("chat.corrected"), self.colors.good)
            elif note := _format_ending(turn):
                self.append_note(cursor, note, self.colors.bad if turn.status == "failed" else self.colors.muted)
            if other is not None:
                self._compare(cursor, turn.text, other.text, position)
        cursor.endEditBlock()

    def _compare(self, cursor: QTextCursor, text: str, other: str, position: int) -> None:
        """Append whether two texts differ, and remember where. `position`: of `text`."""
        if text == other:
            self.append_note(cursor, tr("chat.same_text"), self.colors.good)
            return
        self.append_note(cursor, tr("chat.different_text"), self.colors.warn)
        text, other = text.replace("\r\n", "\n"), other.replace("\r\n", "\n")  # one block separator in Qt
        for begin, end in differing_spans(text, other)[0]:
            start = position + _qt_length(text[:begin])
            self._differences.append((start, start + _qt_length(text[begin:end])))

    def _mark(self) -> None:
        """Mark differences, and the heading of the selected turn unless it is the newest."""
        marks = [self._selection(*span, self.colors.warn_surface) for span in self._differences]
        if self._turns and self.selected is not self._turns[-1]:
            start = self._starts[self._turns.index(self.selected)]
            marks.append(self._selection(start, start, self.colors.note_surface))
        self.setExtraSelections(marks)

    def _selection(self, begin: int, end: int, color: str) -> QTextEdit.ExtraSelection:
        """Background of some characters, or of the whole line at `begin` if there are none."""
        mark, char_format = QTextEdit.ExtraSelection(), QTextCharFormat()
        char_format.setBackground(QColor(color))
        if begin == end:
            char_format.setProperty(QTextFormat.Property.FullWidthSelection.value, True)
        cursor = QTextCursor(self.document())
        cursor.setPosition(begin)
        cursor.setPosition(end, QTextCursor.MoveMode.KeepAnchor)
        mark.cursor, mark.format = cursor, char_format
        return mark


def _qt_length(text: str) -> int:
    """Number of UTF-16 code units, which Qt counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _format_heading(turn: Turn) -> str:
    """Model and seed of a text."""
    seed = turn.sampling["seed"]
    if turn.model:
        return tr("chat.model_and_seed", model=turn.model, seed=seed)
    if turn.step is None:
        return tr("chat.seed_seed", seed=seed)
    return tr("chat.step_and_seed", step=formatting.format_count(turn.step), seed=seed)


def _format_ending(turn: Turn) -> str:
    """Why a text could not be generated or ended before the model ended it, or empty."""
    match turn.status:
        case "length":
            return tr("chat.max_tokens_reached")
        case "interrupted":
            return tr("chat.stopped")
        case "failed" if turn.error:
            return formatting.localized_message(*turn.error)
    return ""


def _correction(turn: Turn) -> str | None:
    """The text that the user wrote instead of the generated one."""
    return None if turn.generated is None else turn.text
