"""Data reports: an estimate from a bounded sample (`preview`), or exact figures of prepared data.

A preview does with its sample what preparation does with all data, in a temporary folder. No torch, no Qt.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from trainer_core import protocol
from trainer_core.config import Config, knobs
from trainer_core.data.columns import Task
from trainer_core.data.documents import DocumentStream, choose_piece_chars
from trainer_core.data.encode_batch import encode_batch
from trainer_core.data.encoder import CacheWriter, WarningRecorder, batch_documents
from trainer_core.data.prepare import (
    PreparedData,
    ensure_tokenizer,
    report_skipped_files,
    summarize_source,
    warn_about_overlap,
)
from trainer_core.data.report.sample_view import SampleViewer
from trainer_core.data.report.sampling import sample_datasets
from trainer_core.data.report.statistics import measure_lengths, steps_per_epoch
from trainer_core.data.sequences import SequenceLayout, build_sequences, count_text_sequences, fit_conversations
from trainer_core.data.sources import DatasetScans, common_task, scan_datasets
from trainer_core.data.token_files import SPLITS, Split
from trainer_core.data.tokenizing.encoder import EncoderMismatchError
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter, Reporter

_READ_BUDGET_BYTES: Final = 8 * 1024 * 1024  # of text
_ENCODE_BATCH_CHARS: Final = 512 * 1024
_TOKENIZER_SAMPLE_MIB: Final = 1
_PREVIEW_VOCAB_SIZE: Final = 16_384  # of a tokenizer trained for a preview
_NUM_SAMPLES: Final = 5
_BLOCK_DOCUMENTS: Final = 1 << 19  # documents whose spans are read at once
_DUPLICATE_WARNING_FRACTION: Final = 0.01  # of the rows
_COUNTS: Final = ("duplicates", "validation_rows", "overlap", "empty", "bad", "undecodable")


@dataclass(slots=True)
class _Estimates:
    """Rows and characters of all data, and by split their ratio to those that were read."""

    rows: float
    characters: float
    row_ratio: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPLITS, 1.0))
    character_ratio: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPLITS, 1.0))


def report_prepared_data(prepared: PreparedData, config: Config) -> protocol.DataReport:
    """Exact report of prepared data."""
    counts = prepared.report
    return _build_report(
        prepared.task,
        prepared.sequences,
        prepared.load_codec(),
        prepared.open_split,
        counts,
        _Estimates(counts["rows"], counts["characters"]),
        config,
        sources=list(prepared.sources),
        validation_sources=list(prepared.validation_sources),
        bytes=prepared.bytes,
        read_bytes=prepared.bytes,
        complete=True,
        prepared=True,
    )


def preview(config: Config, reporter: Reporter, budget: int = _READ_BUDGET_BYTES) -> protocol.DataReport:
    """Report on a sample of about `budget` bytes of text. Takes about ten seconds and keeps no files.

    Emits the warnings and raises the errors of preparation, as far as their causes are in the sample.
    Raises `TraindeckError` (`data.…`) and what `reporter.poll` raises.
    """
    reporter.progress("preparing", 0, None, "files")
    scans = scan_datasets(config, reporter.poll)
    report_skipped_files(scans.all, reporter)
    sampled = sample_datasets(scans, budget)
    recorder = WarningRecorder(reporter)
    tokenizer_config = msgspec.structs.replace(
        config,
        tokenizer_sample_mib=_TOKENIZER_SAMPLE_MIB,
        vocab_size=min(config.vocab_size, _PREVIEW_VOCAB_SIZE),
    )
    with tempfile.TemporaryDirectory(prefix="traindeck-preview-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        tokenizer = ensure_tokenizer(folder, sampled, tokenizer_config, recorder)
        try:
            report = _report_sample(folder / "fast", Codec.load(tokenizer, True), scans, sampled, config, recorder)
        except EncoderMismatchError:
            report = _report_sample(folder / "plain", Codec.load(tokenizer, False), scans, sampled, config, recorder)
    _warn_about_report(report, config, reporter)
    return report


def _report_sample(
    folder: Path, codec: Codec, scans: DatasetScans, sampled: DatasetScans, config: Config, reporter: Reporter
) -> protocol.DataReport:
    """Write the tokens of the sample as preparation does, and report on them."""
    folder.mkdir()
    config = msgspec.structs.replace(config, token_cache=True)
    stream = DocumentStream(sampled.all, config, reporter, piece_chars=choose_piece_chars(scans.all))
    writer = CacheWriter(folder, codec, config, {}, stream.path_of, sampled.first_validation_file)
    rows: Counter[int] = Counter()  # by file
    characters: Counter[int] = Counter()
    last_unit = -1
    try:
        for batch in batch_documents(stream, _ENCODE_BATCH_CHARS):
            encoded = encode_batch(codec, [document.turns or document.text for document in batch])
            writer.write(batch, encoded, stream.bad)
            for document in batch:
                rows[document.file] += document.split_unit != last_unit
                characters[document.file] += document.characters
                last_unit = document.split_unit
            reporter.progress("preparing", stream.done, max(stream.total, stream.done), "bytes")
            reporter.poll()
        if not rows:
            raise TraindeckError("data.empty", path=", ".join(config.data))
        writer.finish(reporter)
    finally:
        writer.abort()
    counts = writer.report(stream.counts)
    files = [file for scan in sampled.all for file in scan.files]
    read = {number: stream.sampled_bytes.get(number, file.bytes) for number, file in enumerate(files)}
    task = common_task(scans.all)
    return _build_report(
        task,
        build_sequences(folder, codec.vocab_size, config, NullReporter()) if task == "sft" else {},
        codec,
        lambda name: Split(folder / name, codec.vocab_size),
        counts,
        _estimate(scans, sampled, read, rows, characters),
        config,
        sources=[summarize_source(one) for one in scans.train],
        validation_sources=[summarize_source(one) for one in scans.validation],
        bytes=scans.bytes,
        read_bytes=sum(read.values()),
        complete=not stream.sampled_bytes and len(files) == sum(len(scan.files) for scan in scans.all),
    )


def _estimate(
    scans: DatasetScans, sampled: DatasetScans, read: dict[int, int], rows: Counter[int], characters: Counter[int]
) -> _Estimates:
    """Extrapolate from the bytes that were `read` of each sampled file to all bytes of all files."""
    estimates = _Estimates(0, 0)
    number = 0
    for name in SPLITS:
        files = [file for scan in getattr(sampled, name) for file in scan.files]
        numbers = range(number, number + len(files))
        number += len(files)
        if not files:  # held out from the training data
            estimates.row_ratio[name] = estimates.row_ratio["train"]
            estimates.character_ratio[name] = estimates.character_ratio["train"]
            continue
        factor = sum(scan.bytes for scan in getattr(scans, name)) / max(1, sum(file.bytes for file in files))
        scale = {index: factor * file.bytes / max(1, read[index]) for index, file in zip(numbers, files, strict=True)}
        total_rows, total_characters = (
            sum(counter[index] * scale[index] for index in numbers) for counter in (rows, characters)
        )
        estimates.rows += total_rows
        estimates.characters += total_characters
        estimates.row_ratio[name] = total_rows / max(1, sum(rows[index] for index in numbers))
        estimates.character_ratio[name] = total_characters / max(1, sum(characters[index] for index in numbers))
    return estimates


def _warn_about_report(report: protocol.DataReport, config: Config, reporter: Reporter) -> None:
    """Emit the warnings of preparation; warn of too little data where preparation fails."""
    documents, limit = report.read.documents, report.max_seq_len
    if report.truncated:
        reporter.warn("data.truncated", count=report.truncated, total=documents, limit=limit)
    if report.dropped:
        reporter.warn("data.samples_dropped", count=report.dropped, total=documents, limit=limit)
    if not report.samples_per_epoch and report.task == "pretrain":
        reporter.warn("data.too_short", tokens=report.train_tokens, needed=limit + 1)
    elif not report.samples_per_epoch:
        reporter.warn("data.too_few_samples", samples=0, needed=1)
    if not report.validation_documents and not report.validation_sources and config.validation_fraction > 0:
        reporter.warn("data.no_validation")
    warn_about_overlap(report.overlap, report.validation_rows, reporter, given=bool(report.validation_sources))


def warn_about_duplicates(report: protocol.DataReport, reporter: Reporter) -> None:
    """Warn if more than 1% of the rows are duplicates."""
    if report.duplicates > _DUPLICATE_WARNING_FRACTION * report.read.rows:
        reporter.warn("data.duplicates", count=report.duplicates, total=report.read.rows)


# --- the report ----------------------------------------------------------------------------------------


def _build_report(
    task: Task,
    layout: Mapping[str, SequenceLayout],
    codec: Codec,
    open_split: Callable[[str], Split],
    counts: dict[str, Any],
    estimates: _Estimates,
    config: Config,
    **fields: Any,
) -> protocol.DataReport:
    """The report. `layout`: empty for plain text; `counts`: see `PreparedData.report`. Closes all files, so that
    Windows can delete them."""
    limit = config.max_seq_len
    with ExitStack() as stack:
        splits = {name: stack.enter_context(closing(open_split(name))) for name in SPLITS}
        lengths = measure_lengths([split.offsets for split in splits.values()], limit + 1)
        documents = {name: round(estimates.row_ratio[name] * split.documents) for name, split in splits.items()}
        tokens = {name: round(estimates.character_ratio[name] * split.tokens) for name, split in splits.items()}
        samples = count_text_sequences(tokens["train"], limit, "train")
        if layout:
            samples = round(estimates.row_ratio["train"] * layout["train"].samples)
        steps, full_steps = steps_per_epoch(samples, config.effective_batch)
        report = protocol.DataReport(
            task=task,
            tokenizer=config.tokenizer,
            vocab_size=codec.vocab_size,
            read=protocol.DataCounts(
                rows=counts["rows"],
                documents=lengths.documents,
                characters=counts["characters"],
                tokens=lengths.tokens,
            ),
            total=protocol.DataCounts(
                rows=round(estimates.rows),
                documents=sum(documents.values()),
                characters=round(estimates.characters),
                tokens=sum(tokens.values()),
            ),
            train_documents=documents["train"],
            train_tokens=tokens["train"],
            validation_documents=documents["validation"],
            validation_tokens=tokens["validation"],
            max_seq_len=limit,
            lengths=lengths.bins,
            longest=lengths.longest,
            over_length=lengths.over_limit,
            skipped_turns=counts["left_out_turns"],
            **{name: counts[name] for name in _COUNTS},
            first_bad=protocol.BadRow(**counts["first_bad"]) if counts["first_bad"] else None,
            samples_per_epoch=samples,
            tokens_per_step=config.effective_batch * limit,
            steps_per_epoch=steps,
            full_steps_per_epoch=full_steps,
            total_steps=config.max_steps or config.max_epochs * steps,
            limited=config.max_steps > 0,
            samples_per_step=config.effective_batch,
            batch_is_default=_is_batch_default(config),
            **fields,
        )
        viewer = SampleViewer(splits["train"], codec, limit)
        if layout:
            _add_conversations(report, splits, layout, viewer, config)
        else:
            report.remainder_tokens = max(0, tokens["train"] - samples * limit - (samples > 0))
            report.samples = viewer.text_samples(_NUM_SAMPLES, config.attend_across_documents)
    return report


def _is_batch_default(config: Config) -> bool:
    names = ("batch_size", "gradient_accumulation_steps")
    return not config.preset and all(getattr(config, name) == knobs()[name].default for name in names)


def _add_conversations(
    report: protocol.DataReport,
    splits: dict[str, Split],
    layout: Mapping[str, SequenceLayout],
    viewer: SampleViewer,
    config: Config,
) -> None:
    limit, train = report.max_seq_len, layout["train"]
    report.truncated = sum(one.truncated for one in layout.values())
    report.dropped = sum(one.dropped for one in layout.values())
    report.truncated_tokens = sum(_count_truncated_tokens(split, limit) for split in splits.values())
    report.tokens_per_step = round(report.samples_per_step * train.positions / max(1, train.samples))
    report.fill_unpacked = train.unpacked_fill_ratio(config.batch_size)
    if config.packing:
        report.packed_sequences, report.fill = train.samples, train.fill_ratio
    report.samples = viewer.conversation_samples(train, min(_NUM_SAMPLES, train.samples))


def _count_truncated_tokens(split: Split, limit: int) -> int:
    """Tokens of truncated conversations that no sequence has."""
    tokens = 0
    for first in range(0, split.documents, _BLOCK_DOCUMENTS):
        last = min(first + _BLOCK_DOCUMENTS, split.documents)
        excess = np.diff(split.offsets[first : last + 1]) - limit - 1
        tokens += int(excess[fit_conversations(split, first, last, limit).truncated].sum())
    return tokens
