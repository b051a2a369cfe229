"""Data reports: an estimate from a bounded sample (`preview`), or exact figures of prepared data.

A preview does with its sample what preparation does with all data, in a temporary folder. No torch, no Qt.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from trainer_core import protocol
from trainer_core.config import Config, knobs
from trainer_core.data.columns import TOOLS_ROLE, Document, Task
from trainer_core.data.encoder import CacheWriter, batch_documents
from trainer_core.data.order import keyed_hash
from trainer_core.data.prepare import PreparedData, report_skipped_files, summarize_source, warn_about_overlap
from trainer_core.data.report.sample_view import SampleViewer
from trainer_core.data.report.sampling import DatasetSampler
from trainer_core.data.report.statistics import measure_lengths, steps_per_epoch
from trainer_core.data.sequence_layout import SPLITS, SequenceStats, build_sequences, unpacked_fill_ratio
from trainer_core.data.sequences import SequenceIndex, count_text_sequences, fit_conversations, sequences_folder
from trainer_core.data.sources import DatasetScans, common_task, scan_datasets
from trainer_core.data.token_files import Split
from trainer_core.data.tokenizing.bpe import train
from trainer_core.data.tokenizing.encoder import EncoderMismatchError
from trainer_core.data.tokenizing.tokenizer import Codec, load_user_tokenizer
from trainer_core.data.tokenizing.tokenizer_files import find_tokenizer
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter, Reporter

_READ_BUDGET_BYTES: Final = 16 * 1024 * 1024  # of text
_ENCODE_DEADLINE_S: Final = 9.0  # since the start of the preview
_ENCODE_BATCH_CHARS: Final = 512 * 1024
_TOKENIZER_TRAINING_CHARS: Final = 1024 * 1024
_PREVIEW_VOCAB_SIZE: Final = 16_384  # of a tokenizer trained for a preview
_NUM_SAMPLES: Final = 5
_BLOCK_DOCUMENTS: Final = 1 << 19  # documents whose spans are read at once
_DUPLICATE_WARNING_FRACTION: Final = 0.01  # of the rows


class _Scale(NamedTuple):
    """Ratio of all rows, and of all characters, to those that were encoded."""

    rows: float = 1.0
    characters: float = 1.0


@dataclass(slots=True)
class _Findings:
    """Inputs of a report. Without `total_rows`, everything was read and encoded."""

    task: Task
    folder: Path  # of the cache
    codec: Codec
    sources: list[protocol.Source]
    validation_sources: list[protocol.Source]
    counts: dict[str, Any]  # `RowCounts` and `CacheWriter.report`
    bytes: int
    read_bytes: int
    complete: bool = True
    total_rows: float | None = None
    total_characters: float | None = None
    scales: dict[str, _Scale] = field(default_factory=lambda: dict.fromkeys(SPLITS, _Scale()))


# --- prepared data -------------------------------------------------------------------------------------


def report_prepared_data(prepared: PreparedData, config: Config) -> protocol.DataReport:
    """Exact report of prepared data."""
    found = _Findings(
        task=prepared.task,
        folder=prepared.folder,
        codec=prepared.load_codec(),
        sources=list(prepared.sources),
        validation_sources=list(prepared.validation_sources),
        counts=prepared.report,
        bytes=prepared.bytes,
        read_bytes=prepared.bytes,
    )
    report = _build_report(found, config, prepared.open_split)
    report.prepared = True
    return report


# --- preview -------------------------------------------------------------------------------------------


def preview(config: Config, reporter: Reporter, budget: int = _READ_BUDGET_BYTES) -> protocol.DataReport:
    """Report on a sample of about `budget` bytes of text. Takes about ten seconds and keeps no files.

    Emits the warnings and raises the errors of preparation, as far as their causes are in the sample.
    Raises `TraindeckError` (`data.…`) and what `reporter.poll` raises.
    """
    if not config.data:
        raise TraindeckError("data.none_given")
    deadline = time.monotonic() + _ENCODE_DEADLINE_S
    reporter.progress("preparing", 0, None, "files")
    scans = scan_datasets(config, reporter.poll)
    report_skipped_files(scans.all, reporter)
    config = msgspec.structs.replace(config, token_cache=True)
    with tempfile.TemporaryDirectory(prefix="traindeck-preview-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        sampler = DatasetSampler(scans, config, budget, folder, reporter)
        sampler.read()
        if not sampler.samples["train"].documents:
            raise TraindeckError("data.empty", path=", ".join(config.data))
        _save_tokenizer(folder, scans, sampler.samples["train"].documents, config, reporter)
        try:
            found = _encode_sample(folder / "fast", scans, sampler, config, reporter, deadline, fast=True)
        except EncoderMismatchError:
            found = _encode_sample(folder / "plain", scans, sampler, config, reporter, deadline, fast=False)
        report = _build_report(found, config, lambda name: Split(found.folder / name, found.codec.vocab_size))
    _warn_about_report(report, config, reporter)
    return report


def _save_tokenizer(
    folder: Path, scans: DatasetScans, documents: Sequence[Document], config: Config, reporter: Reporter
) -> None:
    """Save the given tokenizer, or one trained on some of the documents, to `folder`."""
    if config.tokenizer:
        codec, missing = load_user_tokenizer(find_tokenizer(config.tokenizer))
        if missing:
            reporter.warn("data.tokenizer_extended", path=config.tokenizer, tokens=", ".join(missing))
        if common_task(scans.all) == "sft":
            codec.require_template()  # the error names the user's file, not the copy
    else:
        vocab_size = min(config.vocab_size, _PREVIEW_VOCAB_SIZE)
        codec = Codec(train(_iter_tokenizer_texts(documents), vocab_size, config.pre_tokenizer, reporter.poll))
    codec.save(folder / "tokenizer.json")


def _iter_tokenizer_texts(documents: Sequence[Document]) -> Iterator[str]:
    """Texts of randomly chosen documents to train a tokenizer on."""
    share = _TOKENIZER_TRAINING_CHARS / max(1, sum(one.characters for one in documents))
    for document in documents:
        if keyed_hash("preview", document.split_unit) < share * 2**64:
            yield from ("\n".join(turn[:2]) for turn in document.turns if turn[0] != TOOLS_ROLE)
            yield document.text


def _encode_sample(
    folder: Path,
    scans: DatasetScans,
    sampler: DatasetSampler,
    config: Config,
    reporter: Reporter,
    deadline: float,
    fast: bool,
) -> _Findings:
    """Write the tokens of the sample as preparation does, until `deadline`."""
    folder.mkdir()
    codec = Codec.load(folder.parent / "tokenizer.json", fast)
    paths = [str(file.path) for scan in scans.all for file in scan.files]
    samples, counts = sampler.samples, asdict(sampler.counts) | {"rows": 0, "characters": 0}
    read_bytes, characters = (sum(getattr(one, name) for one in samples.values()) for name in ("read", "characters"))
    complete, scales = True, {}
    writer = CacheWriter(folder, codec, config, {}, paths.__getitem__, scans.first_validation_file)
    try:
        # Training data comes last: there is more of it, and its figures are estimated if the time is over.
        for name, sample in sorted(samples.items(), reverse=True):
            start, encoded = counts["characters"], 0
            for batch in batch_documents(sample.documents, _ENCODE_BATCH_CHARS):
                writer.encode_and_write(batch)
                encoded += len(batch)
                counts["characters"] += sum(one.characters for one in batch)
                done = read_bytes * (1 + counts["characters"] / max(1, characters))
                reporter.progress("preparing", done, 2 * read_bytes, "bytes")
                reporter.poll()
                if time.monotonic() > deadline:
                    break
            rows = len({one.split_unit for one in sample.documents[:encoded]})
            counts["rows"] += rows
            complete = complete and sample.is_complete and encoded == len(sample.documents)
            scales[name] = _Scale(
                sample.estimate("rows") / max(1, rows),
                sample.estimate("characters") / max(1, counts["characters"] - start),
            )
        writer.finish(reporter)
    finally:
        writer.abort()
    counts["bad"] += writer.refused
    return _Findings(
        task=common_task(scans.all),
        folder=folder,
        codec=codec,
        sources=[summarize_source(one) for one in scans.train],
        validation_sources=[summarize_source(one) for one in scans.validation],
        counts=counts | writer.report(),
        bytes=scans.bytes,
        read_bytes=read_bytes,
        complete=complete,
        total_rows=sum(one.estimate("rows") for one in samples.values()),
        total_characters=sum(one.estimate("characters") for one in samples.values()),
        scales={name: scales.get(name, scales["train"]) for name in SPLITS},
    )


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


def _build_report(found: _Findings, config: Config, open_split: Callable[[str], Split]) -> protocol.DataReport:
    """The report. All files are closed afterwards, so that Windows can delete them."""
    limit, counts, scales = config.max_seq_len, found.counts, found.scales
    layout: dict[str, SequenceStats] = {}
    if found.task == "sft":
        layout = build_sequences(found.folder, found.codec.vocab_size, config, NullReporter())
    with ExitStack() as stack:
        splits = {name: stack.enter_context(closing(open_split(name))) for name in SPLITS}
        lengths = measure_lengths([split.offsets for split in splits.values()], limit + 1)
        documents = {name: round(scales[name].rows * split.documents) for name, split in splits.items()}
        tokens = {name: round(scales[name].characters * split.tokens) for name, split in splits.items()}
        samples = count_text_sequences(tokens["train"], limit, "train")
        if layout:
            samples = round(scales["train"].rows * layout["train"].samples)
        steps, full_steps = steps_per_epoch(samples, config.effective_batch)
        rows, characters = counts["rows"], counts["characters"]
        report = protocol.DataReport(
            complete=found.complete,
            task=found.task,
            sources=found.sources,
            bytes=found.bytes,
            read_bytes=found.read_bytes,
            tokenizer=config.tokenizer,
            vocab_size=found.codec.vocab_size,
            read=protocol.DataCounts(
                rows=rows, documents=lengths.documents, characters=characters, tokens=lengths.tokens
            ),
            total=protocol.DataCounts(
                rows=rows if found.total_rows is None else round(found.total_rows),
                documents=sum(documents.values()),
                characters=characters if found.total_characters is None else round(found.total_characters),
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
            duplicates=counts["duplicates"],
            validation_sources=found.validation_sources,
            validation_rows=counts["validation_rows"],
            overlap=counts["overlap"],
            empty=counts["empty"],
            bad=counts["bad"],
            first_bad=protocol.BadRow(**counts["first_bad"]) if counts["first_bad"] else None,
            undecodable=counts["undecodable"],
            samples_per_epoch=samples,
            tokens_per_step=config.effective_batch * limit,
            steps_per_epoch=steps,
            full_steps_per_epoch=full_steps,
            total_steps=config.max_steps or config.max_epochs * steps,
            limited=config.max_steps > 0,
            samples_per_step=config.effective_batch,
            batch_is_default=_is_batch_default(config),
        )
        viewer = SampleViewer(splits["train"], found.codec, limit)
        if layout:
            _add_conversations(report, found.folder, splits, layout, viewer, config)
        else:
            report.remainder_tokens = max(0, tokens["train"] - samples * limit - (samples > 0))
            report.samples = viewer.text_samples(_NUM_SAMPLES, config.attend_across_documents)
    return report


def _is_batch_default(config: Config) -> bool:
    names = ("batch_size", "gradient_accumulation_steps")
    return not config.preset and all(getattr(config, name) == knobs()[name].default for name in names)


def _add_conversations(
    report: protocol.DataReport,
    folder: Path,
    splits: dict[str, Split],
    layout: dict[str, SequenceStats],
    viewer: SampleViewer,
    config: Config,
) -> None:
    limit, train = report.max_seq_len, layout["train"]
    report.truncated = sum(one.truncated for one in layout.values())
    report.dropped = sum(one.dropped for one in layout.values())
    report.truncated_tokens = sum(_count_truncated_tokens(split, limit) for split in splits.values())
    report.tokens_per_step = round(report.samples_per_step * train.positions / max(1, train.samples))
    report.fill_unpacked = unpacked_fill_ratio(folder, config)
    if config.packing:
        report.packed_sequences, report.fill = train.samples, train.fill_ratio(limit)
    with closing(SequenceIndex(sequences_folder(folder, limit, config.packing) / "train", config.packing)) as sequences:
        report.samples = viewer.conversation_samples(sequences, min(_NUM_SAMPLES, train.samples))


def _count_truncated_tokens(split: Split, limit: int) -> int:
    """Tokens of truncated conversations that no sequence has."""
    tokens = 0
    for first in range(0, split.documents, _BLOCK_DOCUMENTS):
        last = min(first + _BLOCK_DOCUMENTS, split.documents)
        excess = np.diff(split.offsets[first : last + 1]) - limit - 1
        tokens += int(excess[fit_conversations(split, first, last, limit).truncated].sum())
    return tokens
