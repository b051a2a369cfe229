"""Text that the model wrote, the newest first or prompt by prompt: one sees it learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from PySide6.QtCore import Signal
from PySide6.QtGui import QColor, QFont, QShowEvent, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QTextEdit, QVBoxLayout, QWidget

from app.theme.tokens import SPACE, Tokens
from app.views import words
from app.views.raw_text import lines, raw_look, show_as_it_stands
from app.views.widgets import QuietCombo, Retranslating, button, empty_note, line, named
from trainer_core.protocol import Sample

_MOST: Final = 200  # samples shown; all are in the run's events.jsonl
_LONGEST_NAME: Final = 60  # characters of a prompt where it stands for its texts
Order = Literal["newest", "prompt"]


class SamplesPage(Retranslating):
    """Samples by step, or each prompt's own through the steps; a line to ask for one now."""

    sample_asked = Signal(str)
    prompts_asked = Signal()

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._samples: Sequence[Sample] = ()
        self._painted: tuple[int, int] | None = None
        self.prompt, self.ask = line("samplePrompt"), button("sampleNow")
        self.order, self.filter = named(QuietCombo(), "sampleOrder"), named(QuietCombo(), "sampleFilter")
        self.filter.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.set_prompts = button("setPrompts")
        self._listed: list[str] | None = None  # prompts that the filter offers
        self.text = named(QTextEdit(), "samples")
        self.text.setReadOnly(True)
        self.text.setUndoRedoEnabled(False)
        self.text.document().setDocumentMargin(SPACE)
        show_as_it_stands(self.text)
        self._empty = empty_note(self.text)
        self._arrange()
        self.ask.clicked.connect(lambda: self.sample_asked.emit(self.prompt.text()))
        self.prompt.returnPressed.connect(self.ask.click)
        self.order.activated.connect(self._write)
        self.filter.activated.connect(self._write)
        self.set_prompts.clicked.connect(self.prompts_asked)
        self.retranslate()

    def _arrange(self) -> None:
        asking, showing = QHBoxLayout(), QHBoxLayout()
        for bar in (asking, showing):
            bar.setSpacing(SPACE)
        asking.addWidget(self.prompt, 1)
        asking.addWidget(self.ask)
        showing.addWidget(self.order)
        showing.addWidget(self.filter, 1)
        showing.addWidget(self.set_prompts)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE, 0, 0)
        layout.setSpacing(SPACE)
        layout.addLayout(asking)
        layout.addLayout(showing)
        layout.addWidget(self.text, 1)

    def display(self, samples: Sequence[Sample], *, can_ask: bool) -> None:
        """Show these samples; `can_ask`: whether a trainer is there to write one now."""
        self.ask.setEnabled(can_ask)
        if samples is not self._samples:
            self._samples, self._painted = samples, None
        state = (id(samples), len(samples))
        if self.isVisible() and state != self._painted:
            self._painted = state
            self._list()
            self._write()

    def retheme(self, tokens: Tokens) -> None:
        self._tokens, self._painted = tokens, None
        self._write()

    # --- which ----------------------------------------------------------------------------------------------

    def _list(self) -> None:
        """Offer every prompt there is; the one that is chosen stays."""
        prompts = list(dict.fromkeys(sample.prompt for sample in self._samples))
        if prompts == self._listed:
            return
        self._listed, chosen = prompts, self.filter.currentData()
        self.filter.clear()
        self.filter.addItem(self.tr("All prompts"), None)
        for prompt in prompts:
            self.filter.addItem(name_of(prompt), prompt)
        self.filter.setCurrentIndex(prompts.index(chosen) + 1 if chosen in prompts else 0)

    def _chosen(self) -> list[Sample]:
        """The samples that the filter lets through, newest first."""
        wanted = self.filter.currentData()
        return [one for one in reversed(self._samples) if wanted is None or one.prompt == wanted][:_MOST]

    # --- writing --------------------------------------------------------------------------------------------

    def _write(self) -> None:
        bar = self.text.verticalScrollBar()
        from_end = self._height() - bar.value() if bar.value() else None  # who reads an older one goes on reading it
        self.text.clear()
        self._empty.setVisible(not self._samples)
        cursor = QTextCursor(self.text.document())
        cursor.beginEditBlock()
        samples = self._chosen()
        if self.order.currentData() == "prompt":
            self._write_prompts(cursor, samples)
        else:
            for sample in samples:
                self._write_one(cursor, sample)
        cursor.endEditBlock()
        if from_end is not None:
            bar.setValue(round(self._height() - from_end))

    def _height(self) -> float:
        """Of all that is written, in pixels; lays it out."""
        return self.text.document().documentLayout().documentSize().height()

    def _write_prompts(self, cursor: QTextCursor, samples: Sequence[Sample]) -> None:
        """Each prompt once, its newest text on top and its older ones below."""
        groups: dict[str, list[Sample]] = {prompt: [] for prompt in self._listed or ()}
        for sample in samples:
            groups.setdefault(sample.prompt, []).append(sample)
        for prompt, texts in groups.items():
            if not texts:
                continue
            title = self._look("text")
            title.setFontWeight(QFont.Weight.Bold)
            cursor.setBlockFormat(lines(self.text, top=2 * SPACE if cursor.position() else 0))
            cursor.insertText(name_of(prompt), title)
            cursor.insertText(f"  {self._how_many(texts)}", self._look("muted"))
            cursor.insertBlock(lines(self.text))
            for sample in texts:
                self._write_one(cursor, sample)

    def _how_many(self, texts: Sequence[Sample]) -> str:
        newest, oldest = texts[0].step, texts[-1].step
        if newest == oldest:
            return self.tr("step {step}").format(step=words.count(newest))
        text = self.tr("{count} texts, steps {oldest} to {newest}")
        return text.format(count=words.count(len(texts)), oldest=words.count(oldest), newest=words.count(newest))

    def _write_one(self, cursor: QTextCursor, sample: Sample) -> None:
        heading = self._look("muted")
        heading.setFontWeight(QFont.Weight.DemiBold)
        cursor.setBlockFormat(lines(self.text, top=SPACE if cursor.position() else 0))
        cursor.insertText(self.tr("Step {step}").format(step=words.count(sample.step)), heading)
        cursor.insertBlock(lines(self.text))
        cursor.insertText(sample.prompt, raw_look(self._tokens.accent))
        if sample.expected is not None:  # an answer, which does not go on from its question
            cursor.insertBlock(lines(self.text))
        cursor.insertText(sample.text, raw_look(self._tokens.text))
        if sample.expected is not None:
            cursor.insertBlock(lines(self.text))
            right = sample.expected.strip() == sample.text.strip()
            words_ = self.tr("as expected") if right else self.tr("expected: {answer}").format(answer=sample.expected)
            cursor.insertText(words_, self._look("good" if right else "warn"))
        cursor.insertBlock(lines(self.text))

    def _look(self, token: str) -> QTextCharFormat:
        look = QTextCharFormat()
        look.setForeground(QColor(getattr(self._tokens, token)))
        return look

    # --- words ----------------------------------------------------------------------------------------------

    def retranslate(self) -> None:
        self.prompt.setPlaceholderText(self.tr("Beginning of a text for the model to go on from"))
        self.prompt.setAccessibleName(self.tr("Prompt"))
        self.ask.setText(self.tr("Write now"))
        self.set_prompts.setText(self.tr("Set prompts…"))
        self.set_prompts.setToolTip(self.tr("Which prompts the model writes from while it learns"))
        self.text.setAccessibleName(self.tr("Samples"))
        self.order.setAccessibleName(self.tr("Order of the samples"))
        self.filter.setAccessibleName(self.tr("Samples of which prompt"))
        chosen = self.order.currentIndex()
        self.order.clear()
        self.order.addItem(self.tr("Newest first"), "newest")
        self.order.addItem(self.tr("By prompt"), "prompt")
        self.order.setCurrentIndex(max(0, chosen))
        self._empty.setText(self.tr("Nothing written yet. Samples appear here while the model learns."))
        self._painted = self._listed = None
        self._list()
        self._write()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.display(self._samples, can_ask=self.ask.isEnabled())


def name_of(prompt: str) -> str:
    """A prompt in one line, where it stands for its texts."""
    shown = " ".join(prompt.split()) if prompt.strip() else prompt.replace("\n", "↵")
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[:_LONGEST_NAME]}…"
