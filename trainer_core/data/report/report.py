"""Data reports: an estimate from a bounded sample (`preview`), or exact figures of prepared data.

A preview does with its sample what preparation does with all data, in a temporary folder. No torch, no Qt.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from trainer_core import protocol
from trainer_core.config import Config, knobs
from trainer_core.data.documents import DocumentStream, choose_piece_chars
from trainer_core.data.encode_batch import encode_batch
from trainer_core.data.encoder import CacheWriter, batch_documents
from trainer_core.data.prepare import (
    PreparedData,
    all_dropped_code,
    ensure_tokenizer,
    load_prepared,
    report_skipped_files,
    summarize_source,
    warn_about_data,
)
from trainer_core.data.report.sample_view import SampleViewer
from trainer_core.data.report.sampling import sample_datasets
from trainer_core.data.report.statistics import (
    conversation_offsets,
    measure_lengths,
    measure_preferences,
    steps_per_epoch,
)
from trainer_core.data.sequences import count_text_sequences, fit_conversations
from trainer_core.data.sources import DatasetScan, DatasetScans, common_task, count_sides, scan_datasets
from trainer_core.data.token_files import SPLITS, Split
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


def report_prepared_data(prepared: PreparedData, config: Config) -> protocol.DataReport:
    """Exact report of prepared data."""
    fields = {"read_bytes": prepared.bytes, "complete": True, "prepared": True}
    return _build_report(prepared, config, dict.fromkeys(SPLITS, 1.0), **fields)


def preview(config: Config, reporter: Reporter, budget: int = _READ_BUDGET_BYTES) -> protocol.DataReport:
    """Report on a sample of about `budget` bytes of text. Takes about ten seconds and keeps no files.

    Emits the warnings and raises the errors of preparation, as far as their causes are in the sample.
    Raises `TraindeckError` (`data.…`) and what `reporter.poll` raises.
    """
    reporter.progress("preparing", 0, None, "files")
    scans = scan_datasets(config, reporter.poll)
    report_skipped_files(scans.all, reporter)
    sampled = sample_datasets(scans, budget)
    vocab_size = min(config.vocab_size, _PREVIEW_VOCAB_SIZE)
    sample_config = msgspec.structs.replace(
        config, tokenizer_sample_mib=_TOKENIZER_SAMPLE_MIB, vocab_size=vocab_size, token_cache=True
    )
    with tempfile.TemporaryDirectory(prefix="traindeck-preview-", ignore_cleanup_errors=True) as folder:
        return _report_sample(Path(folder), scans, sampled, sample_config, reporter)


def _report_sample(
    folder: Path, scans: DatasetScans, sampled: DatasetScans, config: Config, reporter: Reporter
) -> protocol.DataReport:
    """Write the tokens of the sample as preparation does, and report on them."""
    codec = Codec.load(ensure_tokenizer(folder, sampled, config, reporter), fast=False)  # exact for any data
    stream = DocumentStream(sampled.all, config, reporter, piece_chars=choose_piece_chars(scans.all))
    writer = CacheWriter(folder, codec, config, {}, stream.path_of, sampled.first_validation_file)
    try:
        for batch in batch_documents(stream, _ENCODE_BATCH_CHARS):
            encoded = encode_batch(codec, [document.content for document in batch])
            writer.write(batch, encoded, stream.bad)
            reporter.progress("preparing", stream.bytes_done, max(stream.total_bytes, stream.bytes_done), "bytes")
            reporter.poll()
        if not stream.counts.rows:
            raise TraindeckError("data.empty", path=", ".join(config.data))
        meta = {"vocab_size": codec.vocab_size, "end_of_text": codec.end_of_text, **writer.finish(reporter)}
    finally:
        writer.abort()
    prepared = replace(
        load_prepared(folder, common_task(scans.all), meta, config, NullReporter(), count_sides(scans.all)),
        bytes=scans.bytes,
        sources=tuple(map(summarize_source, scans.train)),
        validation_sources=tuple(map(summarize_source, scans.validation)),
        report=writer.report(stream.counts, count_sides(scans.all)),
    )
    warn_about_data(prepared, config, reporter)
    if not prepared.train.samples and prepared.task == "pretrain":  # preparation fails
        reporter.warn("data.too_short", tokens=prepared.train.tokens, needed=config.max_seq_len + 1)
    elif not prepared.train.samples:
        reporter.warn(all_dropped_code(config), limit=config.max_seq_len)
    files = [file for scan in sampled.all for file in scan.files]
    read = [stream.sampled_bytes.get(number, file.bytes) for number, file in enumerate(files)]
    first = sampled.first_validation_file
    ratio = _inverse_share(scans.train, read[:first])
    ratios = {"train": ratio, "validation": ratio if first is None else _inverse_share(scans.validation, read[first:])}
    complete = not stream.sampled_bytes and len(files) == sum(len(scan.files) for scan in scans.all)
    return _build_report(prepared, config, ratios, read_bytes=sum(read), complete=complete)


def _inverse_share(scans: list[DatasetScan], read: list[int]) -> float:
    """The ratio of all bytes to those that were read of each file."""
    return sum(scan.bytes for scan in scans) / max(1, sum(read))


def warn_about_duplicates(report: protocol.DataReport, reporter: Reporter) -> None:
    """Warn if more than 1% of the rows are duplicates."""
    if report.duplicates > _DUPLICATE_WARNING_FRACTION * report.read.rows:
        reporter.warn("data.duplicates", count=report.duplicates, total=report.read.rows)


# --- the report ------------------------------------------------------------------------------------


def _build_report(data: PreparedData, config: Config, ratios: dict[str, float], **fields: Any) -> protocol.DataReport:
    """The report. `ratios`: of all data to the data that was read, by split. Closes all files, so that Windows can
    delete them."""
    limit, counts = config.max_seq_len, data.report
    rows, held_out_rows = counts["rows"], min(counts["rows"], counts["validation_rows"])
    with ExitStack() as stack:
        splits = {name: stack.enter_context(closing(data.open_split(name))) for name in SPLITS}
        offsets = [conversation_offsets(split) if data.sides else split.offsets for split in splits.values()]
        lengths = measure_lengths(offsets, limit + 1)
        documents = {name: round(ratios[name] * split.documents) for name, split in splits.items()}
        tokens = {name: round(ratios[name] * split.tokens) for name, split in splits.items()}
        read_tokens = sum(split.tokens for split in splits.values())
        samples = count_text_sequences(tokens["train"], limit, "train")
        if data.sequences:
            samples = round(ratios["train"] * data.train.samples)
        steps, full_steps = steps_per_epoch(samples, config.effective_batch)
        report = protocol.DataReport(
            task=data.task,
            sources=list(data.sources),
            validation_sources=list(data.validation_sources),
            bytes=data.bytes,
            tokenizer=config.tokenizer,
            vocab_size=data.vocab_size,
            read=protocol.DataCounts(
                rows=rows,
                documents=sum(split.documents for split in splits.values()),
                characters=counts["characters"],
                tokens=read_tokens,
            ),
            total=protocol.DataCounts(
                rows=round(ratios["train"] * (rows - held_out_rows) + ratios["validation"] * held_out_rows),
                documents=sum(documents.values()),
                characters=round(counts["characters"] * sum(tokens.values()) / max(1, read_tokens)),
                tokens=sum(tokens.values()),
            ),
            train_documents=documents["train"],
            train_tokens=tokens["train"],
            validation_documents=documents["validation"],
            validation_tokens=tokens["validation"],
            max_seq_len=limit,
            lengths=list(lengths.bins),
            longest=lengths.longest,
            over_length=lengths.over_limit,
            skipped_turns=counts["left_out_turns"],
            **{name: counts[name] for name in _COUNTS},
            first_bad=protocol.BadRow(**counts["first_bad"]) if counts["first_bad"] else None,
            samples_per_epoch=samples,
            tokens_per_step=config.effective_batch * data.sequence_len,
            steps_per_epoch=steps,
            full_steps_per_epoch=full_steps,
            total_steps=config.max_steps or config.max_epochs * steps,
            limited=config.max_steps > 0,
            samples_per_step=config.effective_batch,
            batch_is_default=_is_batch_default(config),
            **fields,
        )
        viewer = SampleViewer(splits["train"], data.load_codec(), limit)
        if data.sequences:
            _add_conversations(report, data, splits, viewer, config)
        else:
            report.remainder_tokens = max(0, tokens["train"] - samples * limit - (samples > 0))
            report.samples = viewer.text_samples(_NUM_SAMPLES, config.attend_across_documents)
    return report


def _is_batch_default(config: Config) -> bool:
    names = ("batch_size", "gradient_accumulation_steps")
    return not config.preset and all(getattr(config, name) == knobs()[name].default for name in names)


def _add_conversations(
    report: protocol.DataReport,
    data: PreparedData,
    splits: dict[str, Split],
    viewer: SampleViewer,
    config: Config,
) -> None:
    train = data.sequences["train"]
    report.truncated, report.dropped = data.truncated, data.dropped
    if data.sides:
        found = (data.report.get(name, 0) for name in ("equal_pairs", "swapped_pairs"))
        report.preference = measure_preferences(splits.values(), data.sides, *found)
    report.truncated_tokens = sum(_count_truncated_tokens(split, config, data.sides > 0) for split in splits.values())
    report.tokens_per_step = round(report.samples_per_step * train.positions / max(1, train.samples))
    report.fill_unpacked = train.unpacked_fill_ratio(config.batch_size)
    if config.packing:
        report.packed_sequences, report.fill = train.samples, train.fill_ratio
    if data.sides:
        report.samples = viewer.preference_samples(train, _NUM_SAMPLES)
    else:
        report.samples = viewer.conversation_samples(train, min(_NUM_SAMPLES, train.samples))


def _count_truncated_tokens(split: Split, config: Config, has_sides: bool) -> int:
    """Tokens of truncated conversations that no sequence has."""
    blocks = (
        (first, min(first + _BLOCK_DOCUMENTS, split.documents)) for first in range(0, split.documents, _BLOCK_DOCUMENTS)
    )
    return sum(int(fit_conversations(split, *block, config, has_sides).cut.sum()) for block in blocks)
