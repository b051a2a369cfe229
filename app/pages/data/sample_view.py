"""Card of the first samples, with their tokens and loss mask."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QFrame, QLabel, QSizePolicy, QTextEdit, QVBoxLayout

from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import ElidedLabel, IconButton, TranslatableWidget, horizontal_layout, set_object_name
from app.widgets.raw_text import char_format, set_raw_text_font
from trainer_core.protocol import SampleView, Token

_HEIGHT = 190


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
        self.text = set_object_name(QTextEdit(), "sampleText")
        self.text.setReadOnly(True)
        self.text.setUndoRedoEnabled(False)
        self.text.setFixedHeight(_HEIGHT)
        set_raw_text_font(self.text)
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        self._build_layout()
        self.back.clicked.connect(lambda: self._go(-1))
        self.next.clicked.connect(lambda: self._go(1))
        self.retranslate()

    def _build_layout(self) -> None:
        head = horizontal_layout(self._title, (self._position, 1), self._legend, self.back, self.next)
        frame = set_object_name(QFrame(), "card")
        inner = QVBoxLayout(frame)
        inner.setContentsMargins(SPACING + 4, SPACING, SPACING + 4, SPACING)
        inner.addLayout(head)
        inner.addWidget(self.text)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)

    def display(self, samples: Sequence[SampleView]) -> None:
        self._samples, self._index = samples, 0
        self._render()

    def _go(self, by: int) -> None:
        self._index = min(max(0, self._index + by), max(0, len(self._samples) - 1))
        self._render()

    def _render(self) -> None:
        self.text.clear()
        self.back.setEnabled(self._index > 0)
        self.next.setEnabled(self._index + 1 < len(self._samples))
        self.setVisible(bool(self._samples))
        if not self._samples:
            return
        sample = self._samples[self._index]
        number, tokens = self._index + 1, formatting.format_count(sample.length)
        self._position.setText(tr("data.sample_position", number=number, count=len(self._samples), tokens=tokens))
        cursor = self.text.textCursor()
        block = QTextBlockFormat()
        block.setLineHeight(140, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        cursor.setBlockFormat(block)
        cursor.beginEditBlock()  # one layout in total instead of one per token
        self._render_tokens(cursor, sample)
        cursor.endEditBlock()
        self.text.moveCursor(QTextCursor.MoveOperation.Start)

    def _render_tokens(self, cursor: QTextCursor, sample: SampleView) -> None:
        document = sample.tokens[0].document if sample.tokens else 0
        for index, token in enumerate(sample.tokens):
            if token.document != document:
                document = token.document
                cursor.insertBlock()
                heading = tr("data.document_number", number=document + 1)
                cursor.insertText(f"{heading}\n", char_format(self._palette.muted))
            cursor.insertText(visible_text(token), self._format(token, index))
        hidden = sample.length - len(sample.tokens)
        if hidden > 0:
            more = tr("data.more_tokens", count=formatting.format_count(hidden))
            cursor.insertText(f"  {more}", char_format(self._palette.muted))

    def _format(self, token: Token, index: int) -> QTextCharFormat:
        kind, shade = "loss_token" if token.in_loss else "context_token", "ab"[index % 2]
        look = char_format(self._palette.text if token.in_loss else self._palette.muted)
        look.setBackground(QColor(getattr(self._palette, f"{kind}_{shade}")))
        if token.special:
            look.setForeground(QColor(self._palette.accent))
            look.setFontWeight(QFont.Weight.DemiBold)
        look.setToolTip(tr("data.token_id", id=token.id))
        return look

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self.retranslate()

    def retranslate(self) -> None:
        self._title.setText(tr("data.first_samples"))
        self.text.setAccessibleName(tr("data.first_samples"))
        self.back.setAccessibleName(tr("data.previous_sample"))
        self.next.setAccessibleName(tr("data.next_sample"))
        colours, space = self._palette, "&nbsp;"
        entries = (
            (colours.loss_token_b, colours.text, tr("data.in_loss")),
            (colours.context_token_b, colours.muted, tr("data.tokenizer_given")),
        )
        self._legend.setText(
            (2 * space).join(
                f'<span style="background-color:{back}; color:{fore}">{space}{text}{space}</span>'
                for back, fore, text in entries
            )
        )
        self._render()


def visible_text(token: Token) -> str:
    """Return the text of a token with visible line ends and tabs."""
    return token.text.replace("\r", "␍").replace("\n", "↵\n").replace("\t", "→\t")
