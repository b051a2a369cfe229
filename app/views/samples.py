"""Text that the model wrote, the newest first: one sees it learn."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtGui import QColor, QFont, QShowEvent, QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QPushButton, QTextEdit, QVBoxLayout, QWidget

from app.theme.tokens import SPACE, Tokens
from app.views import words
from app.views.widgets import Retranslating, empty_note, named
from trainer_core.protocol import Sample

_MOST = 200  # samples shown; all are in the run's events.jsonl


class SamplesPage(Retranslating):
    """Samples by step, and a line to ask for one now."""

    sample_asked = Signal(str)

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._samples: Sequence[Sample] = ()
        self._painted: tuple[int, int] | None = None
        self.prompt, self.ask = named(QLineEdit(), "samplePrompt"), named(QPushButton(), "sampleNow")
        self.text = named(QTextEdit(), "samples")
        self.text.setReadOnly(True)
        self._empty = empty_note(self.text)
        bar = QHBoxLayout()
        bar.setSpacing(SPACE)
        bar.addWidget(self.prompt, 1)
        bar.addWidget(self.ask)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE, 0, 0)
        layout.setSpacing(SPACE)
        layout.addLayout(bar)
        layout.addWidget(self.text, 1)
        self.ask.clicked.connect(lambda: self.sample_asked.emit(self.prompt.text()))
        self.prompt.returnPressed.connect(self.ask.click)
        self.retranslate()

    def display(self, samples: Sequence[Sample], *, can_ask: bool) -> None:
        """Show these samples; `can_ask`: whether a trainer is there to write one now."""
        self.ask.setEnabled(can_ask)
        if samples is not self._samples:
            self._samples, self._painted = samples, None
        state = (id(samples), len(samples))
        if self.isVisible() and state != self._painted:
            self._painted = state
            self._write()

    def retheme(self, tokens: Tokens) -> None:
        self._tokens, self._painted = tokens, None
        self._write()

    def _write(self) -> None:
        self.text.clear()
        self._empty.setVisible(not self._samples)
        cursor = QTextCursor(self.text.document())
        cursor.beginEditBlock()
        for sample in list(self._samples)[: -_MOST - 1 : -1]:
            self._write_one(cursor, sample)
        cursor.endEditBlock()
        self.text.moveCursor(QTextCursor.MoveOperation.Start)

    def _write_one(self, cursor: QTextCursor, sample: Sample) -> None:
        heading, prompt, plain = (self._look(name) for name in ("muted", "accent", "text"))
        heading.setFontWeight(QFont.Weight.DemiBold)
        block = QTextBlockFormat()
        block.setTopMargin(SPACE)
        block.setLineHeight(125, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        cursor.setBlockFormat(block)
        cursor.insertText(self.tr("Step {step}").format(step=words.count(sample.step)), heading)
        cursor.insertBlock(QTextBlockFormat())
        cursor.insertText(sample.prompt, prompt)
        cursor.insertText(sample.text, plain)
        if sample.expected is not None:
            cursor.insertBlock(QTextBlockFormat())
            right = sample.expected.strip() == sample.text.strip()
            words_ = self.tr("as expected") if right else self.tr("expected: {answer}").format(answer=sample.expected)
            cursor.insertText(words_, self._look("good" if right else "warn"))
        cursor.insertBlock(QTextBlockFormat())

    def _look(self, token: str) -> QTextCharFormat:
        look = QTextCharFormat()
        look.setForeground(QColor(getattr(self._tokens, token)))
        return look

    def retranslate(self) -> None:
        self.prompt.setPlaceholderText(self.tr("Beginning of a text for the model to go on from"))
        self.prompt.setAccessibleName(self.tr("Prompt"))
        self.ask.setText(self.tr("Write now"))
        self.text.setAccessibleName(self.tr("Samples"))
        self._empty.setText(self.tr("Nothing written yet. Samples appear here while the model learns."))
        self._painted = None
        self._write()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.display(self._samples, can_ask=self.ask.isEnabled())
