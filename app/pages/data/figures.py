"""Figures of a data report: tiles and table rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.pages.plots.tiles import TileContent
from app.texts import tr
from app.widgets import formatting
from trainer_core.protocol import DataReport

Row = tuple[str, str]
"""(name, value)"""

TILES: Final = ("documents", "tokens", "samples", "epoch", "steps")


def tiles(report: DataReport) -> dict[str, TileContent]:
    """Return the contents of the tiles. The tooltips have the full numbers."""
    read, total = report.read, report.total
    documents_read = tr("data.count_read", count=formatting.format_count(read.documents))
    return {
        "documents": _tile(
            report, tr("data.documents"), total.documents,
            tr("data.all_read") if report.complete else documents_read,
            tr("data.plain_text_what_held_back") if report.splits_documents else "",
        ),
        "tokens": _tile(
            report, tr("data.tokens"), total.tokens,
            tr("data.count_characters_each", count=f"{read.characters / max(1, read.tokens):.2f}"),
        ),
        "samples": _tile(
            report, tr("data.samples_per_epoch"), report.samples_per_epoch,
            tr("data.count_tokens_at_most", count=formatting.format_count(report.max_seq_len)),
        ),
        "epoch": _tile(report, tr("data.steps_per_epoch"), report.steps_per_epoch, _epoch_caption(report)),
        "steps": _tile(
            report, tr("data.steps_in_all"), report.total_steps, _steps_caption(report),
            exact=report.limited,  # by max_steps
        ),
    }  # fmt: skip


def _tile(
    report: DataReport, title: str, value: int, caption: str, note: str = "", *, exact: bool = False
) -> TileContent:
    text = formatting.format_large_number(value) if exact else _estimate(report, value)
    return TileContent(title, text, caption, "\n".join(filter(None, (formatting.format_count(value), note))))


def _epoch_caption(report: DataReport) -> str:
    if report.complete and report.steps_per_epoch > report.full_steps_per_epoch:
        return tr("data.count_full_one_short", count=formatting.format_count(report.full_steps_per_epoch))
    return tr("data.count_samples_each", count=formatting.format_count(report.samples_per_step))


def _steps_caption(report: DataReport) -> str:
    epochs = report.total_steps / max(1, report.steps_per_epoch)
    return tr("data.one_epoch") if epochs == 1 else tr("data.count_epochs", count=f"{epochs:.3g}")


def _estimate(report: DataReport, value: float, number: Callable[[float], str] = formatting.format_large_number) -> str:
    """Format a figure of all the data, marked where only a part was read."""
    return number(value) if report.complete else f"≈ {number(value)}"


def rows(report: DataReport) -> list[Row]:
    """Return the other figures, actionable ones first."""
    return [*_length_rows(report), *_packing_rows(report), *_count_rows(report)]


def _length_rows(report: DataReport) -> list[Row]:
    read = report.read
    found = [(tr("data.longer_than_a_sequence"), _of(report.over_length, read.documents))]
    if report.task != "sft":
        return [*found, (tr("data.tokens_left_over_at_end"), formatting.format_count(report.remainder_tokens))]
    found.append((tr("data.tokens_cut_away"), _of(report.truncated_tokens, read.tokens)))
    found.append((tr("data.left_out_no_room_for"), _of(report.dropped, read.documents)))
    if report.skipped_turns:
        found.append((tr("data.tool_messages_left_out"), formatting.format_count(report.skipped_turns)))
    return found


def _packing_rows(report: DataReport) -> list[Row]:
    if report.packed_sequences is None or report.fill is None:
        return []
    packed, alone = (formatting.format_percentage(share or 0, 1) for share in (report.fill, report.fill_unpacked))
    return [
        (tr("data.packed_into_sequences"), formatting.format_count(report.packed_sequences)),
        (tr("data.filled_with_tokens"), tr("data.packed_unpacked_alone", packed=packed, alone=alone)),
    ]


def _count_rows(report: DataReport) -> list[Row]:
    def estimate(value: float) -> str:
        return _estimate(report, value, formatting.format_count)

    held_back = formatting.format_percentage(report.validation_tokens, report.total.tokens)
    found = [(tr("data.duplicates"), _of(report.duplicates, report.read.rows))]
    if report.overlap:
        found.append((tr("data.validation_rows_also_in_training"), _of(report.overlap, report.validation_rows)))
    found += [
        (tr("data.rows_without_text"), formatting.format_count(report.empty)),
        (tr("data.rows_that_cannot_be_used"), formatting.format_count(report.bad)),
        (tr("data.undecodable_bytes"), _of(report.undecodable, report.read_bytes)),
        (tr("data.characters"), estimate(report.total.characters)),
    ]
    if not report.splits_documents:  # a split of plain text has no documents
        found += [
            (tr("data.documents_to_train_on"), estimate(report.train_documents)),
            (tr("data.documents_held_back"), estimate(report.validation_documents)),
        ]
    return [
        *found,
        (tr("data.tokens_to_train_on"), estimate(report.train_tokens)),
        (tr("data.tokens_held_back"), f"{estimate(report.validation_tokens)} ({held_back})"),
        (tr("data.tokens_per_step"), formatting.format_count(report.tokens_per_step)),
        (tr("data.vocabulary"), formatting.format_count(report.vocab_size)),
    ]


def _of(part: int, whole: int) -> str:
    """`414 (0.27 %)`, or `0`."""
    return f"{formatting.format_count(part)} ({formatting.format_percentage(part, whole)})" if part else "0"


def format_read_state(report: DataReport) -> str:
    """Return how much of the data was read."""
    size = formatting.format_file_size(report.bytes)
    if not report.complete:
        return tr("data.read_size_were_read_figures", read=formatting.format_file_size(report.read_bytes), size=size)
    if report.tokenizer or report.prepared:
        return tr("data.all_was_read_size_every", size=size)
    return tr("data.all_was_read_size_tokenizer", size=size)  # the preview trains a tokenizer on a part of the text
