"""The first samples as the model gets them: each token on its colour, those that the loss counts and the others."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFont, QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QSizePolicy, QTextEdit, QVBoxLayout, QWidget

from app.theme.tokens import SPACE, Tokens
from app.views import words
from app.views.raw_text import show_as_it_stands
from app.views.widgets import ElidedLabel, Retranslating, SignButton, named
from trainer_core.protocol import SampleView, Token

_HEIGHT = 190


class SamplesCard(Retranslating):
    """One sample at a time, with buttons to the others."""

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._samples: Sequence[SampleView] = ()
        self._place = 0
        self._title, self._where = named(ElidedLabel(), "section"), named(ElidedLabel(), "muted")
        self._title.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self._legend = QLabel(textFormat=Qt.TextFormat.RichText)
        self.back, self.next = SignButton("back", "sampleBack"), SignButton("forward", "sampleNext")
        self.text = named(QTextEdit(), "sampleText")
        self.text.setReadOnly(True)
        self.text.setUndoRedoEnabled(False)
        self.text.setFixedHeight(_HEIGHT)
        show_as_it_stands(self.text)
        self.text.setFrameShape(QFrame.Shape.NoFrame)
        self._arrange()
        self.back.clicked.connect(lambda: self._go(-1))
        self.next.clicked.connect(lambda: self._go(1))
        self.retranslate()

    def _arrange(self) -> None:
        head = QHBoxLayout()
        head.setSpacing(SPACE)
        head.addWidget(self._title)
        head.addWidget(self._where, 1)
        for widget in (self._legend, self.back, self.next):
            head.addWidget(widget)
        frame = named(QFrame(), "card")
        inner = QVBoxLayout(frame)
        inner.setContentsMargins(SPACE + 4, SPACE, SPACE + 4, SPACE)
        inner.addLayout(head)
        inner.addWidget(self.text)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)

    def display(self, samples: Sequence[SampleView]) -> None:
        """Show these samples, from the first on."""
        self._samples, self._place = samples, 0
        self._write()

    def _go(self, by: int) -> None:
        self._place = min(max(0, self._place + by), max(0, len(self._samples) - 1))
        self._write()

    def _write(self) -> None:
        self.text.clear()
        self.back.setEnabled(self._place > 0)
        self.next.setEnabled(self._place + 1 < len(self._samples))
        self.setVisible(bool(self._samples))
        if not self._samples:
            return
        sample = self._samples[self._place]
        where = self.tr("{number} of {count}, {tokens} tokens")
        self._where.setText(
            where.format(number=self._place + 1, count=len(self._samples), tokens=words.count(sample.length))
        )
        cursor = self.text.textCursor()
        block = QTextBlockFormat()
        block.setLineHeight(140, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        cursor.setBlockFormat(block)
        cursor.beginEditBlock()  # lays everything out once instead of after each token
        self._write_tokens(cursor, sample)
        cursor.endEditBlock()
        self.text.moveCursor(QTextCursor.MoveOperation.Start)

    def _write_tokens(self, cursor: QTextCursor, sample: SampleView) -> None:
        document = sample.tokens[0].document if sample.tokens else 0
        for place, token in enumerate(sample.tokens):
            if token.document != document:
                document = token.document
                cursor.insertBlock()
                heading = self.tr("Document {number}").format(number=document + 1)
                cursor.insertText(f"{heading}\n", self._plain())
            cursor.insertText(shown(token), self._look(token, place))
        hidden = sample.length - len(sample.tokens)
        if hidden > 0:
            more = self.tr("… and {count} more tokens").format(count=words.count(hidden))
            cursor.insertText(f"  {more}", self._plain())

    def _plain(self) -> QTextCharFormat:
        look = QTextCharFormat()
        look.setForeground(QColor(self._tokens.muted))
        return look

    def _look(self, token: Token, place: int) -> QTextCharFormat:
        kind, turn = "learned" if token.learned else "given", "ab"[place % 2]
        look = QTextCharFormat()
        look.setBackground(QColor(getattr(self._tokens, f"{kind}_{turn}")))
        look.setForeground(QColor(self._tokens.text if token.learned else self._tokens.muted))
        if token.special:
            look.setForeground(QColor(self._tokens.accent))
            look.setFontWeight(QFont.Weight.DemiBold)
        look.setToolTip(self.tr("Token {id}").format(id=token.id))
        return look

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.retranslate()

    def retranslate(self) -> None:
        self._title.setText(self.tr("First samples, as the model gets them"))
        self.text.setAccessibleName(self.tr("First samples, as the model gets them"))
        self.back.setAccessibleName(self.tr("Previous sample"))
        self.next.setAccessibleName(self.tr("Next sample"))
        colours, space = self._tokens, "&nbsp;"
        entries = (
            (colours.learned_b, colours.text, self.tr("learned")),
            (colours.given_b, colours.muted, self.tr("given")),
        )
        self._legend.setText(
            (2 * space).join(
                f'<span style="background-color:{back}; color:{fore}">{space}{words_}{space}</span>'
                for back, fore, words_ in entries
            )
        )
        self._write()


def shown(token: Token) -> str:
    """A token's text with its line ends to be seen."""
    return token.text.replace("\r", "␍").replace("\n", "↵\n").replace("\t", "→\t")
