"""From the data that a person chose to a token cache that training reads: `prepare`.

No torch, no Qt.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainer_core.config import Config
from trainer_core.data import cache, template
from trainer_core.data.order import keyed_hash
from trainer_core.data.sources import Look, Piece, Stream, Task, cache_root, common_task, look
from trainer_core.data.store import Split, Writer
from trainer_core.data.tokenizer import Codec, find, load_given, train
from trainer_core.messages import TraindeckError, Value
from trainer_core.protocol import PhaseName
from trainer_core.report import Reporter, Unit

_MIB: Final = 1024 * 1024
_PARTS: Final = 1_000_000  # resolution of validation_fraction
_SMALL_BATCH, _CORE_BATCH, _LARGE_BATCH = 128 * 1024, 128 * 1024, 4 * _MIB  # characters encoded at once
_BEGINNING: Final = 240  # characters kept of each held-out text
_TRAIN_BEGINNINGS: Final = 64
_PROMPT: Final = 64  # characters of a beginning that is given to the model


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """`documents` counts rows, or pieces of plain text; `samples` what one epoch holds at this length."""

    documents: int
    tokens: int
    samples: int


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One data path, for display."""

    path: str
    format: str
    encoding: str
    columns: tuple[str, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """Data ready to train on. Picklable; holds no file open."""

    fingerprint: str
    folder: Path
    task: Task
    tokenizer: Path
    vocab_size: int
    end_of_text: int  # the id of `<|endoftext|>`, which also pads
    max_seq_len: int
    train: SplitCounts
    validation: SplitCounts
    truncated: int  # pairs cut at max_seq_len, of both splits
    dropped: int  # pairs whose prompt leaves no room for a response
    bytes: int
    sources: tuple[SourceInfo, ...]
    reused: bool  # the cache was there already

    def split(self, name: str) -> Split:
        """The tokens of `train` or `validation`."""
        return Split(self.folder / name, self.vocab_size)

    def codec(self) -> Codec:
        return Codec.load(self.tokenizer)

    def held_out_examples(self, n: int) -> list[tuple[str, str]]:
        """Up to `n` held-out pairs: always the same ones, spread over the data. Empty for plain text."""
        if self.task != "sft":
            return []
        return [(row["prompt"], row["response"]) for row in self._chosen("validation", n)]

    def held_out_beginnings(self, n: int) -> list[str]:
        """Up to `n` beginnings of held-out texts (of training texts where none are held out)."""
        if self.task == "sft":
            return [row["prompt"] for row in self._chosen("validation", n)]
        found = self._chosen("validation", 4 * n) or self._chosen("train", 4 * n)
        return [text for text in (_opening(row["text"]) for row in found) if text][:n]

    def _chosen(self, split: str, n: int) -> list[dict[str, str]]:
        texts = enumerate(self.split(split).texts())
        ranked = ((keyed_hash("examples", number), number, text) for number, text in texts)
        return [text for _, _, text in heapq.nsmallest(n, ranked)]


def _opening(text: str) -> str:
    """A short beginning that ends between two words, where the text has such a place."""
    text = text.strip()
    if len(text) <= _PROMPT:
        return text
    end = max(text.rfind(" ", _PROMPT // 3, _PROMPT), text.rfind("\n", _PROMPT // 3, _PROMPT))
    return text[: end if end > 0 else _PROMPT // 2].rstrip()


def prepare(config: Config, reporter: Reporter) -> Prepared:
    """Look at the data, train or load the tokenizer, encode all of it; or find that done already.

    Raises `TraindeckError` (`data.…`, `disk.…`) and what `reporter.poll` raises; a cache that is not
    whole is never left behind.
    """
    if not config.data:
        raise TraindeckError("data.none_given")
    reporter.progress("preparing", 0, None, "files")
    looks = [look(path, config, reporter.poll) for path in config.data]
    for one in looks:
        if one.skipped:
            first, code = one.skipped[0]
            reporter.warn("data.files_skipped", count=len(one.skipped), path=one.path, first=first, reason=code)
            for skipped, why in one.skipped:
                logging.getLogger(__name__).warning("skipped %s (%s)", skipped, why)  # each of them, in log.txt
    task = common_task(looks, config)
    name = cache.fingerprint(looks, task, config, reporter.poll)
    folder = cache_root(config) / name
    meta = cache.read_meta(folder)
    reused = meta is not None
    if meta is None:
        _build(folder, looks, config, reporter)
        meta = cache.read_meta(folder)
        assert meta is not None
    else:
        for code, params in meta["warnings"]:
            reporter.warn(code, **params)
    prepared = _described(name, folder, task, meta, looks, config, reused)
    _check(prepared, config, reporter)
    return prepared


def _build(folder: Path, looks: list[Look], config: Config, reporter: Reporter) -> None:
    with cache.building(folder) as working:
        notes = _Notes(reporter)
        codec = _tokenizer(looks, config, notes)
        codec.save(working / "tokenizer.json")
        writers = _encode_all(working, Stream(looks, config, notes), codec, config, notes)
        counts = {name: {"documents": one.documents, "tokens": one.tokens} for name, one in writers.items()}
        ids = {"vocab_size": codec.vocab_size, "end_of_text": codec.end_of_text}
        cache.write_meta(working, {**ids, **counts, "warnings": notes.warnings})


class _Notes:
    """Passes everything on and remembers warnings: they hold for the cache, whoever uses it later."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.warnings: list[tuple[str, dict[str, Value]]] = []

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        self._reporter.progress(phase, done, total, unit)

    def warn(self, code: str, **params: Value) -> None:
        self.warnings.append((code, params))
        self._reporter.warn(code, **params)

    def poll(self) -> None:
        self._reporter.poll()


# --- tokenizer -------------------------------------------------------------------------------------


def _tokenizer(looks: list[Look], config: Config, reporter: Reporter) -> Codec:
    if config.tokenizer:
        path = find(config.tokenizer)
        given, missing = load_given(path)
        if missing:
            reporter.warn("data.tokenizer_extended", path=str(path), tokens=", ".join(missing))
        return Codec(given)
    stream = Stream(looks, config)
    texts = _sample(stream, config)

    def poll() -> None:
        reporter.progress("preparing", stream.done, stream.total * 2, "bytes")
        reporter.poll()

    return Codec(train(texts, config.vocab_size, config.pre_tokenizer, poll))


def _sample(stream: Stream, config: Config) -> Iterator[str]:
    """Training texts, thinned evenly over the data where it is more than a tokenizer needs."""
    limit = config.tokenizer_sample_mib * _MIB
    kept = min(1.0, limit / max(1, stream.total))
    taken = 0
    for number, piece in enumerate(stream):
        if held_out(number, config.validation_fraction) or keyed_hash("sample", number) >= kept * 2**64:
            continue
        yield f"{template.USER_HEAD}{piece.prompt}" if piece.prompt else ""
        yield piece.text
        taken += len(piece.prompt) + len(piece.text)
        if taken > limit * 1.25:  # compressed files hold more text than bytes
            return


# --- encoding --------------------------------------------------------------------------------------


def held_out(number: int, fraction: float) -> bool:
    """Whether document `number` is for validation: one at a hashed place in every `1 / fraction`.

    A hash of each number alone would leave a small data set without any by chance.
    """
    share = round(fraction * _PARTS)
    if not share:
        return False
    block = number * share // _PARTS
    start, end = -(-block * _PARTS // share), -(-(block + 1) * _PARTS // share)
    return number - start == keyed_hash("validation", block) % (end - start)


def _encode_all(working: Path, stream: Stream, codec: Codec, config: Config, reporter: Reporter) -> dict[str, Writer]:
    writers = {name: Writer(working / name, codec.vocab_size) for name in ("train", "validation")}
    try:
        encoders = {name: _Encoder(writer, codec, name == "validation") for name, writer in writers.items()}
        base = 0.0 if config.tokenizer else stream.total  # training the tokenizer was the first half
        for batch in _batches(stream, _batch_size(config)):
            for name, encoder in encoders.items():
                wanted = name == "validation"
                encoder.add([piece for n, piece in batch if held_out(n, config.validation_fraction) == wanted])
            reporter.progress("preparing", base + stream.done, base + stream.total, "bytes")
            reporter.poll()
        for encoder in encoders.values():
            encoder.finish()
        for writer in writers.values():
            writer.close()
    finally:
        for writer in writers.values():
            writer.abandon()
    return writers


def _batch_size(config: Config) -> int:
    if config.low_memory:
        return _SMALL_BATCH
    return min(_LARGE_BATCH, _CORE_BATCH * max(2, os.cpu_count() or 1))


def _batches(pieces: Iterable[Piece], size: int) -> Iterator[list[tuple[int, Piece]]]:
    """Numbered pieces in batches of about `size` characters."""
    batch: list[tuple[int, Piece]] = []
    length = 0
    for number, piece in enumerate(pieces):
        batch.append((number, piece))
        length += len(piece.prompt) + len(piece.text)
        if length >= size:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


class _Encoder:
    """Encodes pieces into one split, with `<|endoftext|>` wherever the document changes."""

    def __init__(self, writer: Writer, codec: Codec, validation: bool) -> None:
        self._writer, self._codec, self._validation = writer, codec, validation
        self._document = -1

    def add(self, pieces: list[Piece]) -> None:
        if pieces and pieces[0].prompt:
            self._add_pairs(pieces)
            return
        for piece, ids in zip(pieces, self._codec.encode_batch([piece.text for piece in pieces]), strict=True):
            if self._document not in (-1, piece.document):
                self._writer.add([self._codec.end_of_text])
            self._document = piece.document
            keep = self._validation or self._writer.documents < _TRAIN_BEGINNINGS
            self._writer.begin_document({"text": piece.text[:_BEGINNING]} if keep else None)
            self._writer.add(ids)

    def _add_pairs(self, pieces: list[Piece]) -> None:
        encoded = self._codec.encode_pairs([(piece.prompt, piece.text) for piece in pieces])
        for piece, (prompt, response) in zip(pieces, encoded, strict=True):
            self._writer.begin_document({"prompt": piece.prompt, "response": piece.text} if self._validation else None)
            self._writer.add_pair(prompt, response)

    def finish(self) -> None:
        if self._document >= 0:
            self._writer.add([self._codec.end_of_text])


# --- what came out ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lengths:
    """How the pairs of a split fit into `max_seq_len`. A pair of n tokens makes n - 1 inputs."""

    usable: np.ndarray[Any, np.dtype[np.bool_]]
    truncated: int


def lengths(split: Split, max_seq_len: int) -> Lengths:
    """Pairs are cut at their end. One whose prompt alone fills the sequence teaches nothing: not usable."""
    usable = split.responses[:] <= max_seq_len
    cut = np.diff(split.offsets) > max_seq_len + 1
    return Lengths(usable, int(np.count_nonzero(cut & usable)))


def _described(
    name: str, folder: Path, task: Task, meta: dict[str, Any], looks: list[Look], config: Config, reused: bool
) -> Prepared:
    counts: dict[str, SplitCounts] = {}
    truncated = dropped = 0
    for split_name in ("train", "validation"):
        split = Split(folder / split_name, meta["vocab_size"])
        documents, tokens = meta[split_name]["documents"], meta[split_name]["tokens"]
        if task == "sft":
            fit = lengths(split, config.max_seq_len)
            samples = int(np.count_nonzero(fit.usable))
            truncated, dropped = truncated + fit.truncated, dropped + documents - samples
        else:
            samples = windows(tokens, config.max_seq_len, split_name)
        counts[split_name] = SplitCounts(documents, tokens, samples)
    return Prepared(
        fingerprint=name,
        folder=folder,
        task=task,
        tokenizer=folder / "tokenizer.json",
        vocab_size=meta["vocab_size"],
        end_of_text=meta["end_of_text"],
        max_seq_len=config.max_seq_len,
        train=counts["train"],
        validation=counts["validation"],
        truncated=truncated,
        dropped=dropped,
        bytes=sum(one.bytes for one in looks),
        sources=tuple(
            SourceInfo(one.path, one.format, one.encoding, one.columns, len(one.files), one.bytes) for one in looks
        ),
        reused=reused,
    )


def windows(tokens: int, max_seq_len: int, split: str) -> int:
    """Sequences of plain text in a split: whole ones, and for validation a shorter last one."""
    whole, rest = divmod(max(0, tokens - 1), max_seq_len)
    return whole + (split == "validation" and rest > 0)


def _check(prepared: Prepared, config: Config, reporter: Reporter) -> None:
    documents = prepared.train.documents + prepared.validation.documents
    if not documents:
        raise TraindeckError("data.empty", path=", ".join(config.data))
    if not prepared.train.samples and prepared.task == "pretrain":
        raise TraindeckError("data.too_short", tokens=prepared.train.tokens, needed=config.max_seq_len + 1)
    if not prepared.train.samples:
        raise TraindeckError("data.too_few_samples", samples=0, needed=1)
    limit = config.max_seq_len
    if prepared.truncated:
        reporter.warn("data.truncated", count=prepared.truncated, total=documents, limit=limit)
    if prepared.dropped:
        reporter.warn("data.samples_dropped", count=prepared.dropped, total=documents, limit=limit)
    if not prepared.validation.samples and config.validation_fraction > 0:
        reporter.warn("data.no_validation")


def to_dict(prepared: Prepared) -> dict[str, Any]:
    """Plain values, for printing."""
    return {**asdict(prepared), "folder": str(prepared.folder), "tokenizer": str(prepared.tokenizer)}
