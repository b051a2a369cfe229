"""Card of the first samples: tokens with the loss mask, or the answers of preferences and their differences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QBoxLayout, QFrame, QLabel, QSizePolicy, QTextEdit, QVBoxLayout

from app.core.text_difference import differing_spans
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    IconButton,
    TranslatableWidget,
    card,
    horizontal_layout,
    set_object_name,
    vertical_layout,
)
from app.widgets.raw_text import char_format, set_raw_text_font
from trainer_core.protocol import SampleView, Token

_HEIGHT: Final = 190  # pixels


def _text_view() -> QTextEdit:
    text = set_object_name(QTextEdit(readOnly=True, undoRedoEnabled=False), "sampleText")
    text.setFixedHeight(_HEIGHT)
    set_raw_text_font(text)
    text.setFrameShape(QFrame.Shape.NoFrame)
    return text


class SamplesCard(TranslatableWidget):
    """One sample at a time, with buttons to the others. The two answers of a pair are side by side."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._samples: Sequence[SampleView] = ()
        self._index = 0
        self._title, self._position = set_object_name(ElidedLabel(), "section"), set_object_name(ElidedLabel(), "muted")
        self._title.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self._legend = QLabel(textFormat=Qt.TextFormat.RichText)
        self.back, self.next = IconButton("back", "sampleBack"), IconButton("forward", "sampleNext")
        self.headings = [QLabel(textFormat=Qt.TextFormat.RichText) for _ in range(2)]
        self.texts = [_text_view() for _ in range(2)]
        self.text = self.texts[0]
        self._sides = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        self._sides.setSpacing(2 * SPACING)
        for heading, text in zip(self.headings, self.texts, strict=True):
            side = vertical_layout(spacing=SPACING // 2)
            side.addWidget(heading)
            side.addWidget(text)
            self._sides.addLayout(side, 1)
        inner = QVBoxLayout()
        inner.addLayout(horizontal_layout(self._title, (self._position, 1), self._legend, self.back, self.next))
        inner.addLayout(self._sides)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(card(inner))
        self.back.clicked.connect(lambda: self._show_sample(self._index - 1))
        self.next.clicked.connect(lambda: self._show_sample(self._index + 1))
        self.retranslate()

    def display(self, samples: Sequence[SampleView]) -> None:
        self._samples = samples
        self._show_sample(0)

    def set_narrow(self, narrow: bool) -> None:
        """Stack the answers of a pair."""
        direction = QBoxLayout.Direction
        self._sides.setDirection(direction.TopToBottom if narrow else direction.LeftToRight)

    def _show_sample(self, index: int) -> None:
        self._index = index
        self.back.setEnabled(index > 0)
        self.next.setEnabled(index + 1 < len(self._samples))
        self.setVisible(bool(self._samples))
        if not self._samples:
            self.text.clear()
            return
        sample, tokens = self._samples[index], formatting.format_count(self._samples[index].length)
        self._position.setText(tr("data.sample_position", number=index + 1, count=len(self._samples), tokens=tokens))
        self._legend.setText(_format_legend(len(sample.answers), self._palette))
        for place, (heading, text) in enumerate(zip(self.headings, self.texts, strict=True)):
            heading.setVisible(place < len(sample.answers))
            text.setVisible(place < max(1, len(sample.answers)))
        self._sides.setStretch(1, int(len(sample.answers) > 1))  # else it takes half of the width while it is hidden
        if sample.answers:
            self._show_answers(sample)
        else:
            self.text.setAccessibleName(tr("data.first_samples"))
            _write_tokens(self.text, sample, self._palette)

    def _show_answers(self, sample: SampleView) -> None:
        for place, (answer, marks) in enumerate(zip(sample.answers, _mark_differences(sample), strict=True)):
            kind = tr("data.chosen_title" if answer.chosen else "data.rejected_title")
            title = tr("data.answer_heading", kind=f"<b>{kind}</b>", tokens=formatting.format_count(answer.length))
            color = self._palette.good if answer.chosen else self._palette.bad
            self.headings[place].setText(f'<span style="color:{color}">{title}</span>')
            self.texts[place].setAccessibleName(kind)
            _write_answer(self.texts[place], sample, place, marks, self._palette)

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self.retranslate()

    def retranslate(self) -> None:
        self._title.setText(tr("data.first_samples"))
        self.text.setAccessibleName(tr("data.first_samples"))
        self.back.setAccessibleName(tr("data.previous_sample"))
        self.next.setAccessibleName(tr("data.next_sample"))
        self._show_sample(self._index)


def _format_legend(answers: int, palette: Palette) -> str:
    """Meaning of the colors of a sample with so many answers."""
    entries = [
        (palette.loss_token_b, palette.text, tr("data.in_loss")),
        (palette.context_token_b, palette.muted, tr("data.tokenizer_given")),
    ]
    if answers:
        entries = [
            (palette.loss_token_b, palette.text, tr("data.only_chosen")),
            (palette.rejected_token, palette.text, tr("data.only_rejected")),
        ]
    space = "&nbsp;"
    return (2 * space).join(
        f'<span style="background-color:{back}; color:{fore}">{space}{text}{space}</span>'
        for back, fore, text in (entries if answers != 1 else ())
    )


# --- text ------------------------------------------------------------------------------------------


def _begin(text: QTextEdit) -> QTextCursor:
    """Clear a text. Returns a cursor with an open edit block: one layout in total instead of one per token."""
    text.clear()
    cursor, block = text.textCursor(), QTextBlockFormat()
    block.setLineHeight(140, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
    cursor.setBlockFormat(block)
    cursor.beginEditBlock()
    return cursor


def _end(text: QTextEdit, cursor: QTextCursor, hidden: int, palette: Palette) -> None:
    """Append the number of tokens that are not shown, and scroll to the top."""
    if hidden > 0:
        more = tr("data.more_tokens", count=formatting.format_count(hidden))
        cursor.insertText(f"  {more}", char_format(palette.muted))
    cursor.endEditBlock()
    text.moveCursor(QTextCursor.MoveOperation.Start)


def _write_tokens(text: QTextEdit, sample: SampleView, palette: Palette) -> None:
    cursor = _begin(text)
    document = sample.tokens[0].document if sample.tokens else 0
    for index, token in enumerate(sample.tokens):
        if token.document != document:
            document = token.document
            cursor.insertBlock()
            heading = tr("data.document_number", number=document + 1)
            cursor.insertText(f"{heading}\n", char_format(palette.muted))
        style = _token_format(token, palette)
        kind, shade = "loss_token" if token.in_loss else "context_token", "ab"[index % 2]
        style.setBackground(QColor(getattr(palette, f"{kind}_{shade}")))
        cursor.insertText(_visible(token.text), style)
    _end(text, cursor, sample.length - len(sample.tokens), palette)


def _token_format(token: Token, palette: Palette) -> QTextCharFormat:
    style = char_format(palette.text if token.in_loss else palette.muted)
    if token.special:
        style.setForeground(QColor(palette.accent))
        style.setFontWeight(QFont.Weight.DemiBold)
    style.setToolTip(tr("data.token_id", id=token.id))
    return style


def _visible(text: str) -> str:
    """The text with visible line ends and tabs."""
    return text.replace("\r", "␍").replace("\n", "↵\n").replace("\t", "→\t")


# --- answers ---------------------------------------------------------------------------------------


def _answer_tokens(sample: SampleView, place: int) -> list[Token]:
    return [token for token in sample.tokens if token.document == place]


def _mark_differences(sample: SampleView) -> list[list[bool]]:
    """For each character of each answer, whether the other answer lacks it."""
    answers = [
        "".join(token.text for token in _answer_tokens(sample, place) if token.in_loss)
        for place in range(len(sample.answers))
    ]
    marks = [[False] * len(answer) for answer in answers]
    if len(answers) == 2:
        for marked, spans in zip(marks, differing_spans(*answers), strict=True):
            for start, stop in spans:
                marked[start:stop] = [True] * (stop - start)
    return marks


def _write_answer(text: QTextEdit, sample: SampleView, place: int, marks: Sequence[bool], palette: Palette) -> None:
    answer, tokens = sample.answers[place], _answer_tokens(sample, place)
    mark, position = QColor(palette.loss_token_b if answer.chosen else palette.rejected_token), 0
    cursor = _begin(text)
    if answer.skipped:
        cursor.insertText("… ", char_format(palette.muted))
    for token in tokens:
        style, length = _token_format(token, palette), len(token.text) if token.in_loss else 0
        plain, marked = QTextCharFormat(style), QTextCharFormat(style)
        marked.setBackground(mark)
        if not length:
            cursor.insertText(_visible(token.text), plain)
        characters = zip(token.text, marks[position : position + length], strict=False)
        for is_marked, group in groupby(characters, itemgetter(1)):
            part = "".join(character for character, _ in group)
            cursor.insertText(_visible(part), marked if is_marked else plain)
        position += length
    _end(text, cursor, answer.length - answer.skipped - len(tokens), palette)
