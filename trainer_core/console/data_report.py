"""A data report for a terminal: figures, a histogram, and samples with the tokens in the loss marked.

Without colors, brackets mark the tokens in the loss. Without block characters, bars are made of `#`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from trainer_core.console.events import escape_control_characters
from trainer_core.messages import Language
from trainer_core.messages import data as messages_data
from trainer_core.messages.amounts import format_bytes
from trainer_core.protocol import DataReport, LengthBin, SampleView, Source, Token
from trainer_core.texts import get

_BAR_WIDTH: Final = 40  # columns of the longest bar
_MAX_SAMPLE_CHARS: Final = 500  # characters shown of a sample
_LOSS_MARKS: Final = ("[[", "]]")  # around tokens in the loss, without colors
_STYLES: Final = {"heading": "bold", "learned": "green", "given": "dim", "special": "bold cyan", "over": "yellow"}


@dataclass(frozen=True, slots=True)
class TerminalStyle:
    """Capabilities of a terminal."""

    language: Language
    colour: bool = True
    unicode_blocks: bool = True  # its encoding has ≈, … and block characters

    def text(self, key: str, **values: object) -> str:
        text = get(key, self.language, **values)
        return text if self.unicode_blocks else text.replace("…", "...")

    @property
    def approx_sign(self) -> str:
        return "≈" if self.unicode_blocks else "~"


def format_data_report(report: DataReport, style: TerminalStyle) -> Iterator[Text]:
    """Yield the lines of the report."""
    size = format_bytes(report.bytes)
    if not report.complete:
        read = format_bytes(report.read_bytes)
        yield Text(style.text("data_report.read_part", read=read, size=size, sign=style.approx_sign))
    elif report.tokenizer or report.prepared:
        yield Text(style.text("data_report.read_all", size=size))
    else:  # the report's own tokenizer was trained on a part of the text
        yield Text(style.text("data_report.read_all_without_tokenizer", size=size))
    for source in report.sources:
        yield Text("  " + escape_control_characters(_format_source(source, style)))
    for source in report.validation_sources:
        line = style.text("data_report.validation_source", source=_format_source(source, style))
        yield Text("  " + escape_control_characters(line))
    yield Text()
    rows = [
        *_count_figures(report, style),
        *_quality_figures(report, style),
        *_length_figures(report, style),
        *_step_figures(report, style),
    ]
    yield from _table([(style.text(key) if key else "", value) for key, value in rows])
    if report.lengths:
        yield Text()
        yield from _histogram(report, style)
    if report.samples:
        yield Text()
        yield _samples_heading(style)
        for number, sample in enumerate(report.samples, 1):
            yield from _sample(number, sample, style)


# --- figures: key of the label, value ----------------------------------------------------------------


def _format_source(source: Source, style: TerminalStyle) -> str:
    name = source.path if source.path.startswith("builtin:") else Path(source.path).name or source.path
    roles = [column if column == role else f"{role}: {column}" for role, column in source.column_roles.items()]
    facts = [
        "" if source.files == 1 else style.text("data_report.files", count=source.files),
        source.format,
        source.compression,
        source.encoding,
        ", ".join(roles or source.columns),
        format_bytes(source.bytes),
        style.text("data_report.skipped_files", count=source.skipped) if source.skipped else "",
    ]
    split = f" ({source.split})" if source.split else ""
    return f"{name}{split}: " + " · ".join(filter(None, facts))


def _count_figures(report: DataReport, style: TerminalStyle) -> Iterator[tuple[str, str]]:
    def estimate(figure: int) -> str:
        return f"{figure:,}" if report.complete else f"{style.approx_sign} {figure:,}"

    def split(whole: int, train: int, held_out: int) -> str:
        parts = style.text("data_report.split", train=estimate(train), held_out=estimate(held_out))
        return f"{estimate(whole)}   {parts}"

    total, read = report.total, report.read
    if report.splits_documents:  # the number of text segments has no meaning
        yield "data_report.documents", f"{estimate(total.documents)}   {style.text('data_report.segments')}"
    else:
        documents = split(total.documents, report.train_documents, report.validation_documents)
        yield "data_report.documents", documents
    held_out = f" ({_format_percent(report.validation_tokens, total.tokens)})"
    yield "data_report.tokens", split(total.tokens, report.train_tokens, report.validation_tokens) + held_out
    per_token = style.text("data_report.per_token", count=read.characters / max(1, read.tokens))
    yield "data_report.characters", f"{estimate(total.characters)}   {per_token}"
    if report.tokenizer:
        origin = style.text("data_report.tokenizer_given", path=report.tokenizer)
    else:
        origin = style.text("data_report.trained_on_data" if report.prepared else "data_report.trained_on_part")
    yield "data_report.vocabulary", f"{report.vocab_size:,}   {escape_control_characters(origin)}"


def _quality_figures(report: DataReport, style: TerminalStyle) -> Iterator[tuple[str, str]]:
    share = _format_percent(report.duplicates, report.read.rows)
    yield "data_report.duplicates", f"{report.duplicates:,} ({share})" if report.duplicates else "0"
    if report.overlap:
        counts = {"count": report.overlap, "total": report.validation_rows}
        yield "data_report.overlap", style.text("data_report.overlapping_rows", **counts)
    if report.empty:
        yield "data_report.empty", f"{report.empty:,}"
    if report.bad:
        yield "data_report.bad", f"{report.bad:,}{_first_bad_row(report, style)}"
    if report.undecodable:
        share = _format_percent(report.undecodable, report.read_bytes)
        yield "data_report.undecodable", style.text("data_report.bytes", count=report.undecodable, share=share)


def _first_bad_row(report: DataReport, style: TerminalStyle) -> str:
    bad = report.first_bad
    if bad is None:
        return ""
    place = messages_data.translate_params({"position": bad.position, "reason": bad.reason}, style.language)
    line = style.text("data_report.first_bad", path=Path(bad.path).name, **place)
    return f"   {escape_control_characters(line)}"


def _length_figures(report: DataReport, style: TerminalStyle) -> Iterator[tuple[str, str]]:
    share = _format_percent(report.over_length, report.read.documents)
    counts = {"count": report.over_length, "limit": report.max_seq_len, "longest": report.longest}
    yield "data_report.long", style.text("data_report.long_documents", share=share, **counts)
    if report.truncated_tokens:
        share = _format_percent(report.truncated_tokens, report.read.tokens)
        counts = {"tokens": report.truncated_tokens, "count": report.truncated}
        yield "data_report.truncated", style.text("data_report.truncated_tokens", share=share, **counts)
    if report.dropped:
        yield "data_report.dropped", style.text("data_report.dropped_samples", count=report.dropped)
    if report.skipped_turns:
        yield "data_report.tool_calls", style.text("data_report.skipped_messages", count=report.skipped_turns)
    if report.remainder_tokens:
        yield "data_report.remainder", style.text("data_report.remaining_tokens", count=report.remainder_tokens)
    if report.packed_sequences is not None and report.fill is not None:
        fills = {"fill": _format_percent(report.fill, 1), "unpacked": _format_percent(report.fill_unpacked or 0, 1)}
        yield "data_report.packed", style.text("data_report.packed_sequences", count=report.packed_sequences, **fills)


def _step_figures(report: DataReport, style: TerminalStyle) -> Iterator[tuple[str, str]]:
    mark = "" if report.complete else f"{style.approx_sign} "
    if report.steps_per_epoch > report.full_steps_per_epoch:
        full = f"{mark}{report.full_steps_per_epoch:,}"
        detail = style.text("data_report.short_last_step", count=full, samples=report.samples_per_step)
    else:
        detail = style.text("data_report.full_steps", samples=report.samples_per_step)
    total = f"{'' if report.limited else mark}{report.total_steps:,}"
    steps = style.text("data_report.per_epoch", steps=f"{mark}{report.steps_per_epoch:,}", detail=detail, total=total)
    yield "data_report.steps", f"{steps}   {style.text('data_report.per_step', tokens=report.tokens_per_step)}"
    if report.batch_is_default:
        yield "", style.text("data_report.default_batch")


def _table(rows: Sequence[tuple[str, str]]) -> Iterator[Text]:
    width = max(cell_len(name) for name, _ in rows)
    for name, value in rows:
        yield Text.assemble((name, _STYLES["heading"]), " " * (width - cell_len(name) + 2), value)


# --- the histogram ---------------------------------------------------------------------------------


def _histogram(report: DataReport, style: TerminalStyle) -> Iterator[Text]:
    limit = style.text("data_report.limit", limit=report.max_seq_len)
    yield Text.assemble((style.text("data_report.lengths"), _STYLES["heading"]), f"  ({limit})")
    longest = max(one.documents for one in report.lengths)
    width = max(len(f"{one.start:,}") for one in report.lengths)
    marked = False
    for one in report.lengths:
        if not marked and one.stop > report.max_seq_len:
            marked = True
            if one is not report.lengths[0]:
                yield Text(f"  {'-' * (width + 2 + _BAR_WIDTH)} {report.max_seq_len:,}", style=_STYLES["over"])
        bar_style = _STYLES["over"] if one.start >= report.max_seq_len else ""
        yield Text.assemble(f"  {one.start:>{width},}  ", (_bar(one, longest, style), bar_style), f" {one.documents:,}")


def _bar(one: LengthBin, longest: int, style: TerminalStyle) -> str:
    eighths = round(8 * _BAR_WIDTH * one.documents / max(1, longest))
    if one.documents and not eighths:
        eighths = 1  # a bin with documents is never empty
    if not style.unicode_blocks:
        return "#" * -(-eighths // 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


# --- samples ---------------------------------------------------------------------------------------


def _samples_heading(style: TerminalStyle) -> Text:
    heading = Text(style.text("data_report.samples"), style=_STYLES["heading"])
    if style.colour:
        legend = Text.assemble("  (", (style.text("data_report.in_loss"), _STYLES["learned"]), ")")
    else:
        legend = Text(f"  ({style.text('data_report.in_loss_marks', start=_LOSS_MARKS[0], end=_LOSS_MARKS[1])})")
    return Text.assemble(heading, legend)


def _sample(number: int, sample: SampleView, style: TerminalStyle) -> Iterator[Text]:
    text = Text(f"{number}. ")
    in_loss, document, shown = False, sample.tokens[0].document if sample.tokens else 0, 0
    for token in sample.tokens:
        if len(text) > _MAX_SAMPLE_CHARS:
            break
        if token.document != document:
            document = token.document
            text.append(f"\n--- {style.text('data_report.document', number=document + 1)}\n", style=_STYLES["given"])
        if not style.colour and token.in_loss != in_loss:
            text.append(_LOSS_MARKS[not token.in_loss])
        in_loss = token.in_loss
        text.append(_token_text(token, style), style=_style(token) if style.colour else "")
        shown += 1
    if not style.colour and in_loss:
        text.append(_LOSS_MARKS[1])
    if sample.length > shown:
        text.append(f" {style.text('data_report.more', count=sample.length - shown)}", style=_STYLES["given"])
    yield text


def _style(token: Token) -> str:
    kind = _STYLES["learned" if token.in_loss else "given"]
    return f"{kind} bold" if token.special else kind


def _token_text(token: Token, style: TerminalStyle) -> str:
    return escape_control_characters(token.text.replace("\n", "↵\n") if style.unicode_blocks else token.text)


def _format_percent(part: float, whole: float) -> str:
    percent = 100 * part / max(1, whole)
    return f"{percent:.2g} %" if 0.01 <= percent < 1 else "< 0.01 %" if 0 < percent < 0.01 else f"{percent:.1f} %"
