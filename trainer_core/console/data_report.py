"""A data report for a terminal: figures, a histogram, and samples with the tokens in the loss marked.

Without colors, brackets mark the tokens in the loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainer_core.console.events import escape_control_characters
from trainer_core.data_report_texts import (
    format_columns,
    format_file_kind,
    format_read_state,
    key_figures,
    source_name,
    table_rows,
)
from trainer_core.messages import Language
from trainer_core.messages.amounts import format_bytes
from trainer_core.messages.data import translate_params
from trainer_core.protocol import DataReport, SampleView, Source, Token
from trainer_core.texts import get

_BAR_WIDTH: Final = 40  # columns of the longest bar
_MAX_SAMPLE_CHARS: Final = 500  # characters shown of a sample
_PROMPT_TOKENS: Final = 40  # shown at each end of a text that is not in the loss
_START, _END = "[[", "]]"  # around tokens in the loss, without colors
_STYLES: Final = {"heading": "bold", "learned": "green", "given": "dim", "over": "yellow"}


@dataclass(frozen=True, slots=True)
class TerminalStyle:
    """Language and capabilities of a terminal."""

    language: Language
    colour: bool = True

    def text(self, key: str, **values: object) -> str:
        return get(key, self.language, **values)


def format_data_report(report: DataReport, style: TerminalStyle) -> Iterator[Text]:
    """Yield the lines of the report."""
    yield Text(format_read_state(report, style.language))
    for source in report.sources:
        yield Text("  " + escape_control_characters(_format_source(source, style)))
    for source in report.validation_sources:
        line = style.text("data_report.validation_source", source=_format_source(source, style))
        yield Text("  " + escape_control_characters(line))
    yield Text()
    figures = key_figures(report, style.language).values()
    rows = [(one.title, f"{'≈ ' if one.estimated else ''}{one.value:,}   {one.caption}") for one in figures]
    if report.batch_is_default:
        rows.append(("", style.text("data_report.default_batch")))
    yield from _table([*rows, *table_rows(report, style.language)])
    if bad := report.first_bad:
        row = translate_params({"position": bad.position, "reason": bad.reason}, style.language)
        line = style.text("data_report.first_bad", path=Path(bad.path).name, **row)
        yield Text(escape_control_characters(line))
    if report.lengths:
        yield Text()
        yield from _histogram(report, style)
    if report.samples:
        yield Text()
        yield _samples_heading(style)
        for number, sample in enumerate(report.samples, 1):
            yield _sample(number, sample, style)


def _format_source(source: Source, style: TerminalStyle) -> str:
    facts = [
        "" if source.files == 1 else style.text("data_report.files", count=source.files),
        format_file_kind(source),
        format_columns(source, style.language),
        format_bytes(source.bytes),
        style.text("data_report.skipped_files", count=source.skipped) if source.skipped else "",
    ]
    split = f" ({source.split})" if source.split else ""
    return f"{source_name(source)}{split}: " + " · ".join(filter(None, facts))


def _table(rows: Sequence[tuple[str, str]]) -> Iterator[Text]:
    width = max(cell_len(name) for name, _ in rows)
    for name, value in rows:
        yield Text.assemble((name, _STYLES["heading"]), " " * (width - cell_len(name) + 2), value)


# --- the histogram ---------------------------------------------------------------------------------


def _histogram(report: DataReport, style: TerminalStyle) -> Iterator[Text]:
    facts = [
        style.text("data.longest_count", count=f"{report.longest:,}"),
        style.text("data.sequence_length_count", count=f"{report.max_seq_len:,}"),
    ]
    heading = style.text("data.document_length")
    yield Text.assemble((heading, _STYLES["heading"]), f"  ({', '.join(facts)})")
    longest = max(one.documents for one in report.lengths)
    width = max(len(f"{one.start:,}") for one in report.lengths)
    for one in report.lengths:
        bar = "█" * math.ceil(_BAR_WIDTH * one.documents / max(1, longest))
        bar_style = _STYLES["over"] if one.start >= report.max_seq_len else ""
        yield Text.assemble(f"  {one.start:>{width},}  ", (bar, bar_style), f" {one.documents:,}")


# --- samples ---------------------------------------------------------------------------------------


def _samples_heading(style: TerminalStyle) -> Text:
    heading = (style.text("data.first_samples"), _STYLES["heading"])
    if style.colour:
        return Text.assemble(heading, "  (", (style.text("data.in_loss"), _STYLES["learned"]), ")")
    return Text.assemble(heading, f"  ({style.text('data_report.in_loss_marks', start=_START, end=_END)})")


def _sample(number: int, sample: SampleView, style: TerminalStyle) -> Text:
    text = Text(f"{number}. ")
    in_loss, document, shown = False, -1 if sample.answers else 0, 0
    for skipped, token in _shown_tokens(sample):
        if len(text) > _MAX_SAMPLE_CHARS * max(1, len(sample.answers)):
            break
        if skipped:
            text.append(" … ", style=_STYLES["given"])
        if token.document != document:
            document = token.document
            if not style.colour and in_loss:
                text.append(_END)
            in_loss = False
            text.append(f"\n--- {_document_heading(sample, document, style)}\n", style=_STYLES["given"])
            if sample.answers and sample.answers[document].skipped:
                text.append("… ", style=_STYLES["given"])
        if not style.colour and token.in_loss != in_loss:
            text.append(_START if token.in_loss else _END)
        in_loss = token.in_loss
        kind = _STYLES["learned" if token.in_loss else "given"] + (" bold" if token.special else "")
        text.append(escape_control_characters(token.text.replace("\n", "↵\n")), style=kind if style.colour else "")
        shown += skipped + 1
    if not style.colour and in_loss:
        text.append(_END)
    if sample.length > shown:
        text.append(f" {style.text('data.more_tokens', count=f'{sample.length - shown:,}')}", style=_STYLES["given"])
    return text


def _document_heading(sample: SampleView, document: int, style: TerminalStyle) -> str:
    if not sample.answers:
        return style.text("data.document_number", number=document + 1)
    return style.text("data.chosen" if sample.answers[document].chosen else "data.rejected")


def _shown_tokens(sample: SampleView) -> Iterator[tuple[int, Token]]:
    """The tokens without the middle of long prompts, each after the number of tokens that are left out before it."""
    for (_, in_loss), group in groupby(sample.tokens, lambda token: (token.document, token.in_loss)):
        tokens = list(group)
        left_out = 0 if in_loss else max(0, len(tokens) - 2 * _PROMPT_TOKENS)
        for place, token in enumerate(tokens):
            if place < _PROMPT_TOKENS or place >= _PROMPT_TOKENS + left_out:
                yield left_out if place == _PROMPT_TOKENS + left_out else 0, token
