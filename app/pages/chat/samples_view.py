"""Samples of the chat page: texts that the model generated during training, and answers from which it learned."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent, QTextCursor

from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    NoScrollComboBox,
    TranslatableWidget,
    horizontal_layout,
    line_edit,
    push_button,
    set_object_name,
    vertical_layout,
)
from app.widgets.generated_text import GeneratedTextView
from app.widgets.raw_text import char_format, raw_char_format
from trainer_core.protocol import RewardedAnswer, Rollouts, Sample

_MAX_SAMPLES: Final = 200  # displayed; events.jsonl has all
_MAX_TITLE_LENGTH: Final = 60  # characters


class SamplesView(TranslatableWidget):
    """Samples by step or by prompt, and a line to request one."""

    sample_requested = Signal(str)  # prompt
    prompt_settings_requested = Signal()

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._samples: Sequence[Sample] = ()
        self._rollouts: Sequence[Rollouts] = ()
        self._rendered_state: tuple[object, ...] | None = None
        self.prompt, self.generate_button = line_edit("samplePrompt"), push_button("sampleNow")
        self.order = set_object_name(NoScrollComboBox(), "sampleOrder")
        self.order.addItems([""] * 2)
        self.set_prompts_button = push_button("setPrompts")
        self.text = GeneratedTextView(palette, "samples")
        options = horizontal_layout(self.order, self.set_prompts_button)
        options.insertStretch(1, 1)
        layout = vertical_layout()
        layout.addLayout(horizontal_layout((self.prompt, 1), self.generate_button))
        layout.addLayout(options)
        layout.addWidget(self.text, 1)
        self.setLayout(layout)
        self.generate_button.clicked.connect(lambda: self.sample_requested.emit(self.prompt.text()))
        self.prompt.returnPressed.connect(self.generate_button.click)
        self.order.activated.connect(self._render)
        self.set_prompts_button.clicked.connect(self.prompt_settings_requested)
        self.retranslate()

    def display(self, samples: Sequence[Sample], rollouts: Sequence[Rollouts] = (), *, can_request: bool) -> None:
        """`can_request`: whether a sample can be requested."""
        self.generate_button.setEnabled(can_request)
        self._samples, self._rollouts = samples, rollouts
        state = (samples, len(samples), rollouts, len(rollouts), rollouts[-1].step if rollouts else 0)
        if self.isVisible() and state != self._rendered_state:
            self._rendered_state = state
            self._render()

    def _render(self) -> None:
        """Render all samples, and keep the distance to the end of the text where the view is scrolled down."""
        bar = self.text.verticalScrollBar()
        from_end = self._document_height() - bar.value() if bar.value() else None
        self.text.placeholder.setVisible(not self._samples and not self._rollouts)
        cursor, samples = self.text.begin(), self._samples[: -_MAX_SAMPLES - 1 : -1]
        if self.order.currentIndex() == 0:
            events: list[Sample | Rollouts] = [*samples, *self._rollouts]
            events.sort(key=lambda event: event.step, reverse=True)
            for event in events:
                if isinstance(event, Sample):
                    self._append(cursor, event)
                else:
                    self._append_rewarded(cursor, event)
        else:
            for prompt in dict.fromkeys(sample.prompt for sample in self._samples):
                self._append_group(cursor, prompt, [sample for sample in samples if sample.prompt == prompt])
            for event in reversed(self._rollouts):
                self._append_rewarded(cursor, event)
        cursor.endEditBlock()
        if from_end is not None:
            bar.setValue(round(self._document_height() - from_end))

    def _document_height(self) -> float:
        return self.text.document().documentLayout().documentSize().height()

    def _append_group(self, cursor: QTextCursor, prompt: str, samples: Sequence[Sample]) -> None:
        if not samples:
            return
        newest, oldest = formatting.format_count(samples[0].step), formatting.format_count(samples[-1].step)
        steps = tr("common.step_lower", step=newest)
        if newest != oldest:
            steps = tr("samples.summary", count=formatting.format_count(len(samples)), oldest=oldest, newest=newest)
        self.text.start_line(cursor, top=3 * SPACING)
        cursor.insertText(_format_title(prompt), char_format(self.text.colors.text, bold=True))
        cursor.insertText(f"  {steps}", char_format(self.text.colors.muted))
        for sample in samples:
            self._append(cursor, sample)

    def _append(self, cursor: QTextCursor, sample: Sample) -> None:
        expected = sample.expected
        self.text.append_text(
            cursor, _format_step(sample.step), sample.prompt, sample.text, is_answer=expected is not None
        )
        if expected is None:
            return
        if expected.strip() == sample.text.strip():
            self.text.append_note(cursor, tr("samples.matches_expected"), self.text.colors.good)
        else:
            self.text.append_note(cursor, tr("samples.expected_answer", answer=expected), self.text.colors.warn)

    def _append_rewarded(self, cursor: QTextCursor, event: Rollouts) -> None:
        """Append the answers to each prompt, the best first."""
        for prompt, answers in groupby(event.samples, key=lambda answer: answer.prompt):
            ordered = sorted(answers, key=lambda answer: answer.reward, reverse=True)
            heading = tr("samples.rewarded", step=_format_step(event.step))
            self.text.append_text(cursor, heading, prompt.strip(), "", is_answer=False)
            self.text.append_note(
                cursor, tr("samples.expected_answer", answer=ordered[0].reference), self.text.colors.muted
            )
            for answer in ordered:
                self._append_answer(cursor, answer, self._reward_color(answer, ordered))

    def _append_answer(self, cursor: QTextCursor, answer: RewardedAnswer, color: str) -> None:
        self.text.append_note(cursor, f"{answer.reward:.2f}  ", color)
        cursor.insertText(answer.text, raw_char_format(self.text.colors.text))

    def _reward_color(self, answer: RewardedAnswer, ordered: Sequence[RewardedAnswer]) -> str:
        """Equal rewards have no effect."""
        colors, best, worst = self.text.colors, ordered[0].reward, ordered[-1].reward
        if best == worst:
            return colors.muted
        return colors.good if 2 * answer.reward > best + worst else colors.warn

    def retheme(self, palette: Palette) -> None:
        self.text.colors = palette
        self._render()

    def retranslate(self) -> None:
        self.prompt.setPlaceholderText(tr("samples.prompt_hint"))
        self.prompt.setAccessibleName(tr("samples.prompt"))
        self.generate_button.setText(tr("samples.generate_now"))
        self.set_prompts_button.setText(tr("samples.set_prompts"))
        self.set_prompts_button.setToolTip(tr("samples.set_prompts_hint"))
        self.text.setAccessibleName(tr("samples.samples"))
        self.text.placeholder.setText(tr("samples.empty_page"))
        self.order.setAccessibleName(tr("samples.order"))
        for place, text in enumerate((tr("samples.newest_first"), tr("samples.by_prompt"))):
            self.order.setItemText(place, text)
        self._render()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.display(self._samples, self._rollouts, can_request=self.generate_button.isEnabled())


def _format_step(step: int) -> str:
    return tr("common.step", step=formatting.format_count(step))


def _format_title(prompt: str) -> str:
    """Return a prompt in one line."""
    title = " ".join(prompt.split()) if prompt.strip() else prompt.replace("\n", "↵")
    return title if len(title) <= _MAX_TITLE_LENGTH else f"{title[:_MAX_TITLE_LENGTH]}…"
