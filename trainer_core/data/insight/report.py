"""What data holds, as one report: from a look at a bounded part of it, or exactly from a finished cache.

A preview does with its part what preparation does with all of it, in a temporary folder: where the part is
all there is, both say the same. No torch, no Qt.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from trainer_core import protocol
from trainer_core.config import Config, knobs
from trainer_core.data.arrange import SPLITS, Arranged, arrange, fill_without_packing
from trainer_core.data.columns import TOOLS, Document, Task
from trainer_core.data.encode import Files
from trainer_core.data.insight.encoded_part import Progress, Scale, counts_of, encode_part, is_complete, scale_of
from trainer_core.data.insight.measures import Lengths, steps_per_epoch
from trainer_core.data.insight.part import Part, PartReader
from trainer_core.data.insight.views import Viewer
from trainer_core.data.order import keyed_hash
from trainer_core.data.prepare import Prepared, describe, tell_skipped, warn_of_overlap
from trainer_core.data.sequences import Sequences, fit, folder_of, windows
from trainer_core.data.sources import Look, Looks, common_task, look_at_all
from trainer_core.data.store import Split
from trainer_core.data.tokenizing.bpe import train
from trainer_core.data.tokenizing.encoder import EncoderDiffers
from trainer_core.data.tokenizing.tokenizer import Codec, load_given
from trainer_core.data.tokenizing.tokenizer_files import find
from trainer_core.messages import TraindeckError
from trainer_core.report import Quiet, Reporter

_BUDGET: Final = 16 * 1024 * 1024  # bytes of text that a preview reads
_READ_S: Final = 3.5  # for reading
_TRAINED_ON: Final = 1024 * 1024  # characters; more would make the figures hardly better
_VOCABULARY: Final = 16_384  # of a tokenizer that is trained for a preview
_SAMPLES: Final = 5
_BATCH_OF: Final = ("batch_size", "gradient_accumulation_steps")
_AT_ONCE: Final = 1 << 19  # documents whose spans are looked at together
_VALIDATION_SHARE: Final = 0.25  # of bytes and time for reading, where there is validation data
_MANY: Final = 0.01  # share of duplicates that is worth a warning


@dataclass(slots=True)
class _Found:
    """What a report is made of."""

    task: Task
    sources: list[protocol.Source]
    splits: dict[str, Split]
    codec: Codec
    counts: dict[str, Any]  # as `stream.Counts` has them; and duplicates
    bytes: int
    read_bytes: int
    complete: bool = True
    rows_in_all: float | None = None  # None: what was read is all
    characters_in_all: float | None = None
    scale: dict[str, Scale] = field(default_factory=dict)  # by split; what was read is all where there is none
    validation_sources: list[protocol.Source] = field(default_factory=list)
    arranged: dict[str, Arranged] | None = None  # of conversations
    folder: Path = Path()  # that holds what was arranged

    def scale_of(self, split: str) -> Scale:
        return self.scale.get(split, Scale())


# --- from a finished cache ---------------------------------------------------------------------------


def of_prepared(prepared: Prepared, config: Config) -> protocol.DataReport:
    """What a finished cache holds. Exact."""
    found = _Found(
        task=prepared.task,
        sources=list(prepared.sources),
        validation_sources=list(prepared.validation_sources),
        splits={name: prepared.split(name) for name in SPLITS},
        codec=prepared.codec(),
        counts=prepared.report,
        bytes=prepared.bytes,
        read_bytes=prepared.bytes,
        folder=prepared.folder,
    )
    if prepared.task == "sft":
        found.arranged = arrange(prepared.folder, prepared.vocab_size, config, Quiet())
    report = _closed(found, config)
    report.prepared = True
    return report


# --- from a part -------------------------------------------------------------------------------------


def preview(config: Config, reporter: Reporter, budget: int = _BUDGET) -> protocol.DataReport:
    """Look at about `budget` bytes of the data without preparing it: about ten seconds, and nothing is kept.

    Warns of what preparation would warn of, and ends where it would end, as far as that lies in the part that is read.
    Raises `TraindeckError` (`data.…`) and what `reporter.poll` raises.
    """
    if not config.data:
        raise TraindeckError("data.none_given")
    began = time.monotonic()
    reporter.progress("preparing", 0, None, "files")
    looks = look_at_all(config, reporter.poll)
    cached = msgspec.structs.replace(config, token_cache=True)
    with tempfile.TemporaryDirectory(prefix="traindeck-look-", ignore_cleanup_errors=True) as name, _let_go():
        folder = Path(name)
        parts = _read(folder, looks, cached, reporter, budget)
        if not parts["train"].documents:
            raise TraindeckError("data.empty", path=", ".join(config.data))
        _warn_of_files(looks, parts, reporter)
        _tokenizer(folder, looks.all, parts["train"], cached, reporter)
        try:
            found = _encoded(folder / "fast", looks, parts, cached, reporter, began, fast=True)
        except EncoderDiffers:
            found = _encoded(folder / "plain", looks, parts, cached, reporter, began, fast=False)
        if found.task == "sft":
            found.arranged = arrange(found.folder, found.codec.vocab_size, cached, Quiet())
        report = _closed(found, config)
    _warn_of(report, config, reporter)
    return report


@contextmanager
def _let_go() -> Iterator[None]:
    """An exception keeps the readers it came through, and these their files, which Windows then would not delete."""
    try:
        yield
    except BaseException as raised:
        error: BaseException | None = raised
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        raise


def _read(folder: Path, looks: Looks, config: Config, reporter: Reporter, budget: int) -> dict[str, Part]:
    """Parts of the data by split: of all of it as `train` where there is no validation data."""
    share = _VALIDATION_SHARE if looks.validation else 0.0
    wanted = [("train", looks.train, 1 - share), ("validation", looks.validation, share)]
    readers: dict[str, PartReader] = {}

    def poll() -> None:
        read, total = (
            sum(figures) for figures in zip(*((r.part.bytes, r.total) for r in readers.values()), strict=True)
        )
        reporter.progress("preparing", read, 2 * total, "bytes")
        reporter.poll()

    for name, some, portion in wanted:
        if some:
            (folder / name).mkdir()
            readers[name] = PartReader(some, config, int(budget * portion), _READ_S * portion, folder / name, poll)
    return {name: reader.read() for name, reader in readers.items()}


def _tokenizer(folder: Path, looks: Sequence[Look], part: Part, config: Config, reporter: Reporter) -> None:
    """Put the tokenizer into `folder`: the one given, or one trained on some of the part."""
    if config.tokenizer:
        codec, missing = load_given(find(config.tokenizer))
        if missing:
            reporter.warn("data.tokenizer_extended", path=config.tokenizer, tokens=", ".join(missing))
        if common_task(looks) == "sft":
            codec.require_template()  # of the copy, it would be told by a path that nobody knows
    else:
        vocabulary = min(config.vocab_size, _VOCABULARY)
        codec = Codec(train(_texts(part.documents), vocabulary, config.pre_tokenizer, reporter.poll))
    codec.save(folder / "tokenizer.json")


def _texts(documents: Sequence[Document]) -> Iterator[str]:
    """Texts to train a tokenizer on: from all over the part, and at no fixed distance, for rows may alternate."""
    share = _TRAINED_ON / max(1, sum(one.characters for one in documents))
    for document in documents:
        if keyed_hash("preview", document.unit) < share * 2**64:
            yield from ("\n".join(turn[:2]) for turn in document.turns if turn[0] != TOOLS)
            yield document.text


def _encoded(
    folder: Path, looks: Looks, parts: dict[str, Part], config: Config, reporter: Reporter, began: float, fast: bool
) -> _Found:
    """Write the tokens of the parts as preparation would, or of so much of them as there is time for."""
    folder.mkdir()
    codec = Codec.load(folder.parent / "tokenizer.json", fast)
    progress = Progress(parts.values(), reporter, began)
    first = looks.first_validation_file or 0

    def path_of(number: int) -> str:
        is_train = "validation" not in parts or number < first
        return parts["train"].path_of(number) if is_train else parts["validation"].path_of(number - first)

    files = Files(folder, codec, config, {}, path_of, looks.first_validation_file)
    try:
        # Training data comes last: there is more of it, and where time ends its figures are estimated.
        done = {}
        if "validation" in parts:
            documents = [msgspec.structs.replace(one, file=one.file + first) for one in parts["validation"].documents]
            done["validation"] = encode_part(files, documents, progress)
        done["train"] = encode_part(files, parts["train"].documents, progress)
        files.finish(reporter)
    finally:
        files.abandon()
    scale = {name: scale_of(part, done[name]) for name, part in parts.items()}
    if "validation" not in scale:
        scale["validation"] = scale["train"]
    return _Found(
        task=common_task(looks.all),
        sources=[describe(one) for one in looks.train],
        validation_sources=[describe(one) for one in looks.validation],
        splits={name: Split(folder / name, codec.vocab_size) for name in SPLITS},
        codec=codec,
        counts={**counts_of(parts.values(), done.values(), files.refused), **files.report()},
        bytes=sum(part.bytes_in_all for part in parts.values()),
        read_bytes=sum(part.bytes for part in parts.values()),
        complete=all(is_complete(part, done[name]) for name, part in parts.items()),
        rows_in_all=sum(scale[name].rows * one.rows for name, one in done.items()),
        characters_in_all=sum(scale[name].text * one.characters for name, one in done.items()),
        scale=scale,
        folder=folder,
    )


def _warn_of_files(looks: Looks, parts: dict[str, Part], reporter: Reporter) -> None:
    tell_skipped(looks.all, reporter)
    for code, params in (warning for part in parts.values() for warning in part.warnings):
        reporter.warn(code, **params)


def _warn_of(report: protocol.DataReport, config: Config, reporter: Reporter) -> None:
    """What preparation says at its end."""
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
    warn_of_overlap(report.overlap, report.validation_rows, reporter, given=bool(report.validation_sources))


def warn_of_duplicates(report: protocol.DataReport, reporter: Reporter) -> None:
    """Say so where much of the data is there more than once."""
    if report.duplicates > _MANY * report.read.rows:
        reporter.warn("data.duplicates", count=report.duplicates, total=report.read.rows)


# --- the report --------------------------------------------------------------------------------------


def _closed(found: _Found, config: Config) -> protocol.DataReport:
    """The report; afterwards no file is open, so that Windows can delete them."""
    try:
        return _report(found, config)
    finally:
        for split in found.splits.values():
            split.close()


def _report(found: _Found, config: Config) -> protocol.DataReport:
    limit, train, held_out = config.max_seq_len, found.splits["train"], found.splits["validation"]
    lengths = Lengths(limit + 1)
    for split in found.splits.values():
        lengths.add_offsets(split.offsets)
    of_train, of_held_out = found.scale_of("train"), found.scale_of("validation")
    train_tokens, samples = round(of_train.text * train.tokens), _samples_per_epoch(found, config)
    steps = steps_per_epoch(samples, config.batch_size, config.gradient_accumulation_steps)
    counts = found.counts
    read = protocol.Counts(
        rows=counts["rows"], documents=lengths.documents, characters=counts["characters"], tokens=lengths.tokens
    )
    report = protocol.DataReport(
        complete=found.complete,
        task=found.task,
        sources=found.sources,
        bytes=found.bytes,
        read_bytes=found.read_bytes,
        tokenizer=config.tokenizer,
        vocab_size=found.codec.vocab_size,
        read=read,
        total=_scaled(read, found),
        train_documents=round(of_train.rows * train.documents),
        train_tokens=train_tokens,
        validation_documents=round(of_held_out.rows * held_out.documents),
        validation_tokens=round(of_held_out.text * held_out.tokens),
        max_seq_len=limit,
        lengths=lengths.bins(),
        longest=lengths.longest,
        longer=lengths.longer,
        left_out_turns=counts["left_out_turns"],
        duplicates=counts["duplicates"],
        validation_sources=found.validation_sources,
        validation_rows=counts["validation_rows"],
        overlap=counts["overlap"],
        empty=counts["empty"],
        bad=counts["bad"],
        first_bad=protocol.BadRow(**counts["first_bad"]) if counts["first_bad"] else None,
        undecodable=counts["undecodable"],
        samples_per_epoch=samples,
        tokens_per_step=0,
        steps_per_epoch=steps.total,
        full_steps_per_epoch=steps.full,
        total_steps=config.max_steps or config.max_epochs * steps.total,
        limited=config.max_steps > 0,
        samples_per_step=config.effective_batch,
        batch_is_default=_batch_is_default(config),
    )
    if found.arranged is None:
        _add_text(report, found, config)
    else:
        _add_conversations(report, found, found.arranged, config)
    return report


def _batch_is_default(config: Config) -> bool:
    return not config.preset and all(getattr(config, name) == knobs()[name].default for name in _BATCH_OF)


def _scaled(read: protocol.Counts, found: _Found) -> protocol.Counts:
    scaled = [(found.scale_of(name), split) for name, split in found.splits.items()]
    return protocol.Counts(
        rows=read.rows if found.rows_in_all is None else round(found.rows_in_all),
        documents=round(sum(scale.rows * split.documents for scale, split in scaled)),
        characters=read.characters if found.characters_in_all is None else round(found.characters_in_all),
        tokens=round(sum(scale.text * split.tokens for scale, split in scaled)),
    )


def _samples_per_epoch(found: _Found, config: Config) -> int:
    if found.arranged is not None:
        return round(found.scale_of("train").rows * found.arranged["train"].samples)
    return windows(round(found.scale_of("train").text * found.splits["train"].tokens), config.max_seq_len, "train")


def _add_text(report: protocol.DataReport, found: _Found, config: Config) -> None:
    limit, samples = report.max_seq_len, report.samples_per_epoch
    report.left_out_tokens = max(0, report.train_tokens - samples * limit - (samples > 0))
    report.tokens_per_step = report.samples_per_step * limit
    viewer = Viewer(found.splits["train"], found.codec, limit)
    report.samples = viewer.windows(_SAMPLES, config.attend_across_documents)


def _add_conversations(
    report: protocol.DataReport, found: _Found, arranged: dict[str, Arranged], config: Config
) -> None:
    limit, train = report.max_seq_len, arranged["train"]
    report.truncated = sum(one.truncated for one in arranged.values())
    report.dropped = sum(one.dropped for one in arranged.values())
    report.cut_tokens = sum(_cut_tokens(split, limit) for split in found.splits.values())
    report.tokens_per_step = round(report.samples_per_step * train.positions / max(1, train.samples))
    report.fill_alone = fill_without_packing(found.folder, config)
    if config.packing:
        report.packs, report.fill = train.samples, train.fill(limit)
    sequences = Sequences(folder_of(found.folder, limit, config.packing) / "train", config.packing)
    with closing(sequences):
        viewer = Viewer(found.splits["train"], found.codec, limit)
        report.samples = viewer.conversations(sequences, min(_SAMPLES, train.samples))


def _cut_tokens(split: Split, limit: int) -> int:
    """Tokens behind the end of a sequence, of the conversations that are cut."""
    tokens = 0
    for first in range(0, split.documents, _AT_ONCE):
        last = min(first + _AT_ONCE, split.documents)
        lengths = np.diff(split.offsets[first : last + 1])
        tokens += int((lengths - limit - 1)[fit(split, first, last, limit).cut].sum())
    return tokens
