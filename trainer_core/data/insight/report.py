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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from trainer_core import protocol
from trainer_core.config import Config, knobs
from trainer_core.data.arrange import SPLITS, Arranged, arrange, fill_without_packing
from trainer_core.data.columns import Document, Task
from trainer_core.data.encode import Files, batches
from trainer_core.data.insight.measures import Lengths, steps_per_epoch
from trainer_core.data.insight.part import Part, PartReader
from trainer_core.data.insight.views import Viewer
from trainer_core.data.order import keyed_hash
from trainer_core.data.prepare import Prepared, describe, tell_skipped
from trainer_core.data.sequences import Sequences, fit, folder_of, windows
from trainer_core.data.sources import Look, common_task, look
from trainer_core.data.store import Split
from trainer_core.data.tokenizing.bpe import train
from trainer_core.data.tokenizing.encoder import EncoderDiffers
from trainer_core.data.tokenizing.tokenizer import Codec, load_given
from trainer_core.data.tokenizing.tokenizer_files import find
from trainer_core.messages import TraindeckError
from trainer_core.report import Quiet, Reporter

_BUDGET: Final = 16 * 1024 * 1024  # bytes of text that a preview reads
_READ_S: Final = 3.5  # for reading
_ENCODED_S: Final = 9.0  # from the beginning to the last batch that is encoded
_TRAINED_ON: Final = 1024 * 1024  # characters; more would make the figures hardly better
_VOCABULARY: Final = 16_384  # of a tokenizer that is trained for a preview
_BATCH: Final = 512 * 1024  # characters encoded at once
_SAMPLES: Final = 5
_BATCH_OF: Final = ("batch_size", "gradient_accumulation_steps")
_AT_ONCE: Final = 1 << 19  # documents whose spans are looked at together
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
    arranged: dict[str, Arranged] | None = None  # of conversations
    folder: Path = Path()  # that holds what was arranged

    @property
    def more_rows(self) -> float:
        """How many times as many rows there are in all."""
        return 1.0 if self.rows_in_all is None else self.rows_in_all / max(1, int(self.counts["rows"]))

    @property
    def more_text(self) -> float:
        if self.characters_in_all is None:
            return 1.0
        return self.characters_in_all / max(1, int(self.counts["characters"]))


# --- from a finished cache ---------------------------------------------------------------------------


def of_prepared(prepared: Prepared, config: Config) -> protocol.DataReport:
    """What a finished cache holds. Exact."""
    found = _Found(
        task=prepared.task,
        sources=list(prepared.sources),
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
    looks = [look(path, config, reporter.poll) for path in config.data]
    common_task(looks)
    cached = msgspec.structs.replace(config, token_cache=True)
    with tempfile.TemporaryDirectory(prefix="traindeck-look-", ignore_cleanup_errors=True) as name, _let_go():
        folder = Path(name)
        part = _read(folder, looks, cached, reporter, budget)
        if not part.documents:
            raise TraindeckError("data.empty", path=", ".join(config.data))
        _warn_of_files(looks, part, reporter)
        _tokenizer(folder, looks, part, cached, reporter)
        try:
            found = _encoded(folder / "fast", looks, part, cached, reporter, began, fast=True)
        except EncoderDiffers:
            found = _encoded(folder / "plain", looks, part, cached, reporter, began, fast=False)
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


def _read(folder: Path, looks: Sequence[Look], config: Config, reporter: Reporter, budget: int) -> Part:
    def poll() -> None:
        reporter.progress("preparing", reader.part.bytes, 2 * reader.total, "bytes")
        reporter.poll()

    reader = PartReader(looks, config, budget, _READ_S, folder, poll)
    return reader.read()


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
            for role, content in document.turns:
                yield f"{role}\n{content}"
            yield document.text


def _encoded(
    folder: Path, looks: Sequence[Look], part: Part, config: Config, reporter: Reporter, began: float, fast: bool
) -> _Found:
    """Write the tokens of the part as preparation would, or of so much of it as there is time for."""
    folder.mkdir()
    codec = Codec.load(folder.parent / "tokenizer.json", fast)
    files = Files(folder, codec, config, {}, part.path_of)
    in_all, rows, characters, unit = sum(one.characters for one in part.documents), 0, 0, -1
    try:
        for batch in batches(part.documents, _BATCH):
            files.add(batch)
            rows += len({one.unit for one in batch} - {unit})
            characters, unit = characters + sum(one.characters for one in batch), batch[-1].unit
            reporter.progress("preparing", part.bytes * (1 + characters / max(1, in_all)), 2 * part.bytes, "bytes")
            reporter.poll()
            if time.monotonic() - began > _ENCODED_S:
                break
        files.finish(reporter)
    finally:
        files.abandon()
    complete = part.complete and characters == in_all
    read = {"rows": rows, "characters": characters, "bad": part.counts.bad + files.refused}
    return _Found(
        task=common_task(looks),
        sources=[describe(one) for one in looks],
        splits={name: Split(folder / name, codec.vocab_size) for name in SPLITS},
        codec=codec,
        counts={**asdict(part.counts), **read, **files.report()},
        bytes=part.bytes_in_all,
        read_bytes=part.bytes,
        complete=complete,
        rows_in_all=None if complete else part.rows_in_all,
        characters_in_all=None if complete else part.characters_in_all,
        folder=folder,
    )


def _warn_of_files(looks: Sequence[Look], part: Part, reporter: Reporter) -> None:
    tell_skipped(looks, reporter)
    for code, params in part.warnings:
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
    if not report.validation_documents and config.validation_fraction > 0:
        reporter.warn("data.no_validation")


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
    train_tokens, samples = round(found.more_text * train.tokens), _samples_per_epoch(found, config)
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
        train_documents=round(found.more_rows * train.documents),
        train_tokens=train_tokens,
        validation_documents=round(found.more_rows * held_out.documents),
        validation_tokens=round(found.more_text * held_out.tokens),
        max_seq_len=limit,
        lengths=lengths.bins(),
        longest=lengths.longest,
        longer=lengths.longer,
        duplicates=counts["duplicates"],
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
    return protocol.Counts(
        rows=round(found.more_rows * read.rows),
        documents=round(found.more_rows * read.documents),
        characters=round(found.more_text * read.characters),
        tokens=round(found.more_text * read.tokens),
    )


def _samples_per_epoch(found: _Found, config: Config) -> int:
    if found.arranged is not None:
        return round(found.more_rows * found.arranged["train"].samples)
    return windows(round(found.more_text * found.splits["train"].tokens), config.max_seq_len, "train")


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
