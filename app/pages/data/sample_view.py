"""Card of the first samples, with their tokens and loss mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QFrame, QLabel, QSizePolicy, QTextEdit, QVBoxLayout

from app.texts import tr
from app.theme.palette import Palette
from app.widgets import formatting
from app.widgets.basic import ElidedLabel, IconButton, TranslatableWidget, card, horizontal_layout, set_object_name
from app.widgets.raw_text import char_format, set_raw_text_font
from trainer_core.protocol import SampleView, Token

_HEIGHT: Final = 190  # pixels


class SamplesCard(TranslatableWidget):
    """One sample at a time, with buttons to the others."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._samples: Sequence[SampleView] = ()
        self._index = 0
        self._title, self._position = set_object_name(ElidedLabel(), "section"), set_object_name(ElidedLabel(), "muted")
        self._title.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self._legend = QLabel(textFormat=Qt.TextFormat.RichText)
        self.back, self.next = IconButton("back", "sampleBack"), IconButton("forward", "sampleNext")
        self.text = set_object_name(QTextEdit(readOnly=True, undoRedoEnabled=False), "sampleText")
        self.text.setFixedHeight(_HEIGHT)
        set_raw_text_font(self.text)
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        inner = QVBoxLayout()
        inner.addLayout(horizontal_layout(self._title, (self._position, 1), self._legend, self.back, self.next))
        inner.addWidget(self.text)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(card(inner))
        self.back.clicked.connect(lambda: self._show_sample(self._index - 1))
        self.next.clicked.connect(lambda: self._show_sample(self._index + 1))
        self.retranslate()

    def display(self, samples: Sequence[SampleView]) -> None:
        self._samples = samples
        self._show_sample(0)

    def _show_sample(self, index: int) -> None:
        self._index = index
        self.text.clear()
        self.back.setEnabled(index > 0)
        self.next.setEnabled(index + 1 < len(self._samples))
        self.setVisible(bool(self._samples))
        if not self._samples:
            return
        sample, tokens = self._samples[index], formatting.format_count(self._samples[index].length)
        self._position.setText(tr("data.sample_position", number=index + 1, count=len(self._samples), tokens=tokens))
        cursor, block = self.text.textCursor(), QTextBlockFormat()
        block.setLineHeight(140, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        cursor.setBlockFormat(block)
        cursor.beginEditBlock()  # one layout in total instead of one per token
        self._insert_tokens(cursor, sample)
        cursor.endEditBlock()
        self.text.moveCursor(QTextCursor.MoveOperation.Start)

    def _insert_tokens(self, cursor: QTextCursor, sample: SampleView) -> None:
        document = sample.tokens[0].document if sample.tokens else 0
        for index, token in enumerate(sample.tokens):
            if token.document != document:
                document = token.document
                cursor.insertBlock()
                heading = tr("data.document_number", number=document + 1)
                cursor.insertText(f"{heading}\n", char_format(self._palette.muted))
            # Line ends and tabs are visible.
            text = token.text.replace("\r", "␍").replace("\n", "↵\n").replace("\t", "→\t")
            cursor.insertText(text, self._token_format(token, index))
        hidden = sample.length - len(sample.tokens)
        if hidden > 0:
            more = tr("data.more_tokens", count=formatting.format_count(hidden))
            cursor.insertText(f"  {more}", char_format(self._palette.muted))

    def _token_format(self, token: Token, index: int) -> QTextCharFormat:
        kind, shade = "loss_token" if token.in_loss else "context_token", "ab"[index % 2]
        style = char_format(self._palette.text if token.in_loss else self._palette.muted)
        style.setBackground(QColor(getattr(self._palette, f"{kind}_{shade}")))
        if token.special:
            style.setForeground(QColor(self._palette.accent))
            style.setFontWeight(QFont.Weight.DemiBold)
        style.setToolTip(tr("data.token_id", id=token.id))
        return style

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self.retranslate()

    def retranslate(self) -> None:
        self._title.setText(tr("data.first_samples"))
        self.text.setAccessibleName(tr("data.first_samples"))
        self.back.setAccessibleName(tr("data.previous_sample"))
        self.next.setAccessibleName(tr("data.next_sample"))
        palette, space = self._palette, "&nbsp;"
        entries = (
            (palette.loss_token_b, palette.text, tr("data.in_loss")),
            (palette.context_token_b, palette.muted, tr("data.tokenizer_given")),
        )
        self._legend.setText(
            (2 * space).join(
                f'<span style="background-color:{back}; color:{fore}">{space}{text}{space}</span>'
                for back, fore, text in entries
            )
        )
        self._show_sample(self._index)
