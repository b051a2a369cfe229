"""Texts of a data report for the terminal and the window: key figures, table rows, sources. No torch, no Qt."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainer_core.messages.amounts import format_bytes, format_percentage
from trainer_core.protocol import DataReport, Source
from trainer_core.texts import Language, get

_ROLE_NAMES = {
    "text": "data.text", "prompt": "data.prompt", "response": "data.response", "input": "data.input",
    "system": "data.system", "messages": "data.messages", "tools": "data.tools", "chosen": "data.chosen",
    "rejected": "data.rejected", "label": "data.label",
}  # fmt: skip


class KeyFigure(NamedTuple):
    title: str
    value: int
    caption: str
    estimated: bool
    note: str = ""


def key_figures(report: DataReport, language: Language) -> dict[str, KeyFigure]:
    """Return the most important figures by name."""
    read, total, estimated = report.read, report.total, not report.complete
    epochs = report.total_steps / max(1, report.steps_per_epoch)

    def text(key: str, **counts: str) -> str:
        return get(key, language, **counts)

    documents_read = text("data.count_read" if estimated else "data.all_read", count=f"{read.documents:,}")
    note = text("data.segments_note") if report.splits_documents else ""
    characters = text("data.characters_per_token", count=f"{read.characters / max(1, read.tokens):.2f}")
    positions = report.max_seq_len * (report.preference.sides if report.preference else 1)
    sample_length = text("data.max_tokens_per_sample", count=f"{positions:,}")
    per_step = text("data.samples_per_step", count=f"{report.samples_per_step:,}")
    if report.complete and report.steps_per_epoch > report.full_steps_per_epoch:
        per_step = text("data.full_and_short_steps", count=f"{report.full_steps_per_epoch:,}")
    all_epochs = text("data.one_epoch" if epochs == 1 else "data.count_epochs", count=f"{epochs:.3g}")
    return {
        "documents": KeyFigure(text("data.documents"), total.documents, documents_read, estimated, note),
        "tokens": KeyFigure(text("data.tokens"), total.tokens, characters, estimated),
        "samples": KeyFigure(text("data.samples_per_epoch"), report.samples_per_epoch, sample_length, estimated),
        "epoch": KeyFigure(text("data.steps_per_epoch"), report.steps_per_epoch, per_step, estimated),
        "steps": KeyFigure(text("data.total_steps"), report.total_steps, all_epochs, estimated and not report.limited),
    }


def table_rows(report: DataReport, language: Language) -> list[tuple[str, str]]:
    """Return the other figures as (name, value), actionable ones first."""
    read = report.read
    found = report.preference
    conversations = found.chosen + found.rejected if found else read.documents
    rows = {"data.long_documents": _part(report.over_length, conversations)}
    if report.task == "pretrain":
        rows["data.remaining_tokens"] = f"{report.remainder_tokens:,}"
    else:
        rows["data.truncated_tokens"] = _part(report.truncated_tokens, read.tokens)
        rows["data.dropped_pairs" if found else "data.dropped_samples"] = _part(report.dropped, read.documents)
    if found:
        rows["data.equal_pairs"] = _part(found.equal, read.rows)
        rows["data.swapped_pairs"] = _part(found.swapped, read.documents)
        for name, count, tokens in (
            ("data.chosen_answers", found.chosen, found.chosen_tokens),
            ("data.rejected_answers", found.rejected, found.rejected_tokens),
        ):
            rows[name] = get("data.answer_length", language, count=f"{count:,}", tokens=f"{tokens:,.1f}")
    if report.skipped_turns:
        rows["data.skipped_tool_messages"] = f"{report.skipped_turns:,}"
    if report.packed_sequences is not None and report.fill is not None:
        packed, alone = format_percentage(report.fill, 1), format_percentage(report.fill_unpacked or 0, 1)
        rows["data.packed_sequences"] = f"{report.packed_sequences:,}"
        rows["data.fill_rate"] = get("data.fill_rates", language, packed=packed, alone=alone)
    rows["data.duplicates"] = _part(report.duplicates, read.rows)
    if report.overlap:
        rows["data.overlapping_rows"] = _part(report.overlap, report.validation_rows)
    rows["data.empty_rows"] = f"{report.empty:,}"
    rows["data.invalid_rows"] = f"{report.bad:,}"
    rows["data.undecodable_bytes"] = _part(report.undecodable, report.read_bytes)
    sign = "" if report.complete else "≈ "
    rows["data.characters"] = f"{sign}{report.total.characters:,}"
    if not report.splits_documents:  # a split of plain text has no documents
        rows["data.training_documents"] = f"{sign}{report.train_documents:,}"
        rows["data.validation_documents"] = f"{sign}{report.validation_documents:,}"
    held_out = format_percentage(report.validation_tokens, report.total.tokens)
    rows["data.training_tokens"] = f"{sign}{report.train_tokens:,}"
    rows["data.validation_tokens"] = f"{sign}{report.validation_tokens:,} ({held_out})"
    rows["data.tokens_per_step"] = f"{report.tokens_per_step:,}"
    rows["data.vocabulary"] = f"{report.vocab_size:,}"
    return [(get(key, language), value) for key, value in rows.items()]


def _part(part: int, whole: int) -> str:
    """`414 (0.27 %)`, or `0`."""
    return f"{part:,} ({format_percentage(part, whole)})" if part else "0"


def format_read_state(report: DataReport, language: Language) -> str:
    """Return how much of the data was read."""
    size = format_bytes(report.bytes)
    if not report.complete:
        return get("data.read_part", language, read=format_bytes(report.read_bytes), size=size)
    if report.tokenizer or report.prepared:
        return get("data.read_all", language, size=size)
    return get("data.read_all_without_tokenizer", language, size=size)  # trained on a part of the text


# --- sources -----------------------------------------------------------------------------------------


def source_name(source: Source) -> str:
    return source.path if source.path.startswith("builtin:") else Path(source.path).name or source.path


def format_file_kind(source: Source) -> str:
    return " · ".join(filter(None, (source.format, source.compression, source.encoding)))


def format_columns(source: Source, language: Language) -> str:
    """Return the columns by role: `prompt: question, response: answer`."""
    names = {role: get(key, language) for role, key in _ROLE_NAMES.items()}
    roles = source.column_roles.items()
    columns = [column if column == role else f"{names.get(role, role)}: {column}" for role, column in roles]
    return ", ".join(columns or source.columns)
