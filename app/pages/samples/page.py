"""Samples page: texts that the model generated during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent, QTextCursor
from PySide6.QtWidgets import QSizePolicy, QTextEdit, QVBoxLayout

from app.pages.page import Page, ShownRun
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    NoScrollComboBox,
    horizontal_layout,
    line_edit,
    placeholder_label,
    push_button,
    set_object_name,
)
from app.widgets.raw_text import char_format, line_block_format, raw_char_format, set_raw_text_font
from trainer_core.protocol import Sample

_MAX_SAMPLES: Final = 200  # displayed; events.jsonl has all
_MAX_TITLE_LENGTH: Final = 60  # characters


class SamplesPage(Page):
    """Samples by step or by prompt, and a line to request one."""

    sample_requested = Signal(str)  # prompt
    prompt_settings_requested = Signal()

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._samples: Sequence[Sample] = ()
        self._rendered_state: tuple[int, int] | None = None
        self._prompts: list[str] | None = None  # that the filter contains
        self.prompt, self.generate_button = line_edit("samplePrompt"), push_button("sampleNow")
        self.order = set_object_name(NoScrollComboBox(), "sampleOrder")
        self.filter = set_object_name(NoScrollComboBox(), "sampleFilter")
        self.filter.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.set_prompts_button = push_button("setPrompts")
        self.text = set_object_name(QTextEdit(), "samples")
        self.text.setReadOnly(True)
        self.text.setUndoRedoEnabled(False)
        self.text.document().setDocumentMargin(SPACING)
        set_raw_text_font(self.text)
        self._placeholder = placeholder_label(self.text)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.setSpacing(SPACING)
        layout.addLayout(horizontal_layout((self.prompt, 1), self.generate_button))
        layout.addLayout(horizontal_layout(self.order, (self.filter, 1), self.set_prompts_button))
        layout.addWidget(self.text, 1)
        self.generate_button.clicked.connect(lambda: self.sample_requested.emit(self.prompt.text()))
        self.prompt.returnPressed.connect(self.generate_button.click)
        self.order.activated.connect(self._render)
        self.filter.activated.connect(self._render)
        self.set_prompts_button.clicked.connect(self.prompt_settings_requested)
        self.retranslate()

    def show_run(self, run: ShownRun) -> None:
        self.display(run.record.samples, can_request=run.can_sample)

    def display(self, samples: Sequence[Sample], *, can_request: bool) -> None:
        """`can_request`: whether a sample can be requested."""
        self.generate_button.setEnabled(can_request)
        self._samples = samples
        state = (id(samples), len(samples))
        if self.isVisible() and state != self._rendered_state:
            self._rendered_state = state
            self._update_filter()
            self._render()

    def _update_filter(self) -> None:
        """List the prompts of all samples, and keep the selection."""
        prompts = list(dict.fromkeys(sample.prompt for sample in self._samples))
        if prompts == self._prompts:
            return
        self._prompts, selected = prompts, self.filter.currentData()
        self.filter.clear()
        self.filter.addItem(tr("samples.all_prompts"), None)
        for prompt in prompts:
            self.filter.addItem(_format_title(prompt), prompt)
        self.filter.setCurrentIndex(prompts.index(selected) + 1 if selected in prompts else 0)

    # --- rendering ------------------------------------------------------------------------------------------

    def _render(self) -> None:
        """Render all samples, and keep the distance to the end of the text where the view is scrolled down."""
        bar = self.text.verticalScrollBar()
        from_end = self._document_height() - bar.value() if bar.value() else None
        self.text.clear()
        self._placeholder.setVisible(not self._samples)
        prompt = self.filter.currentData()
        samples = [sample for sample in reversed(self._samples) if prompt in (None, sample.prompt)][:_MAX_SAMPLES]
        cursor = QTextCursor(self.text.document())
        cursor.beginEditBlock()
        if self.order.currentData() == "prompt":
            for title in self._prompts or ():
                if group := [sample for sample in samples if sample.prompt == title]:
                    self._render_group(cursor, title, group)
        else:
            for sample in samples:
                self._render_sample(cursor, sample)
        cursor.endEditBlock()
        if from_end is not None:
            bar.setValue(round(self._document_height() - from_end))

    def _document_height(self) -> float:
        return self.text.document().documentLayout().documentSize().height()

    def _render_group(self, cursor: QTextCursor, prompt: str, samples: Sequence[Sample]) -> None:
        newest, oldest = formatting.format_count(samples[0].step), formatting.format_count(samples[-1].step)
        steps = tr("common.step_lower", step=newest)
        if newest != oldest:
            count = formatting.format_count(len(samples))
            steps = tr("samples.summary", count=count, oldest=oldest, newest=newest)
        cursor.setBlockFormat(line_block_format(self.text, top=2 * SPACING if cursor.position() else 0))
        cursor.insertText(_format_title(prompt), char_format(self._palette.text, bold=True))
        cursor.insertText(f"  {steps}", char_format(self._palette.muted))
        cursor.insertBlock(line_block_format(self.text))
        for sample in samples:
            self._render_sample(cursor, sample)

    def _render_sample(self, cursor: QTextCursor, sample: Sample) -> None:
        palette, block = self._palette, line_block_format(self.text)
        cursor.setBlockFormat(line_block_format(self.text, top=SPACING if cursor.position() else 0))
        step = tr("common.step", step=formatting.format_count(sample.step))
        cursor.insertText(step, char_format(palette.muted, bold=True))
        cursor.insertBlock(block)
        cursor.insertText(sample.prompt, raw_char_format(palette.accent))
        if sample.expected is not None:  # an answer; otherwise a continuation of the prompt
            cursor.insertBlock(block)
        cursor.insertText(sample.text, raw_char_format(palette.text))
        if sample.expected is not None:
            cursor.insertBlock(block)
            if sample.expected.strip() == sample.text.strip():
                cursor.insertText(tr("samples.matches_expected"), char_format(palette.good))
            else:
                expected = tr("samples.expected_answer", answer=sample.expected)
                cursor.insertText(expected, char_format(palette.warn))
        cursor.insertBlock(block)

    # --- theme and texts ------------------------------------------------------------------------------------

    def retheme(self, palette: Palette) -> None:
        self._palette, self._rendered_state = palette, None
        self._render()

    def retranslate(self) -> None:
        self.prompt.setPlaceholderText(tr("samples.prompt_hint"))
        self.prompt.setAccessibleName(tr("samples.prompt"))
        self.generate_button.setText(tr("samples.generate_now"))
        self.set_prompts_button.setText(tr("samples.set_prompts"))
        self.set_prompts_button.setToolTip(tr("samples.set_prompts_hint"))
        self.text.setAccessibleName(tr("samples.samples"))
        self.order.setAccessibleName(tr("samples.order"))
        self.filter.setAccessibleName(tr("samples.prompt_filter"))
        selected = self.order.currentIndex()
        self.order.clear()
        self.order.addItem(tr("samples.newest_first"), "newest")
        self.order.addItem(tr("samples.by_prompt"), "prompt")
        self.order.setCurrentIndex(max(0, selected))
        self._placeholder.setText(tr("samples.empty_page"))
        self._rendered_state = self._prompts = None
        self._update_filter()
        self._render()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.display(self._samples, can_request=self.generate_button.isEnabled())


def _format_title(prompt: str) -> str:
    """Return a prompt in one line."""
    title = " ".join(prompt.split()) if prompt.strip() else prompt.replace("\n", "↵")
    return title if len(title) <= _MAX_TITLE_LENGTH else f"{title[:_MAX_TITLE_LENGTH]}…"
