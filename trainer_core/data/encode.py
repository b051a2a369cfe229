"""Documents to token files: fills a cache, and goes on where an earlier process was stopped.

No torch, no Qt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from trainer_core.config import Config
from trainer_core.data import cache
from trainer_core.data.columns import Document
from trainer_core.data.measures import ContentHash, count_duplicates
from trainer_core.data.order import keyed_hash
from trainer_core.data.sources import Look, Stream
from trainer_core.data.store import Growing, State, Writer
from trainer_core.data.tokenizer import Codec
from trainer_core.messages import TraindeckError, Value
from trainer_core.protocol import PhaseName
from trainer_core.report import Reporter, Unit

HASHES: Final = "hashes.bin"
SPLITS: Final = ("train", "validation")
_PARTS: Final = 1_000_000  # resolution of validation_fraction
_BATCH, _SMALL_BATCH = 1024 * 1024, 128 * 1024  # characters encoded at once
_COMMIT_S: Final = 3.0  # work that a kill may cost
_BEGINNING: Final = 240  # characters kept of a text
_TRAIN_BEGINNINGS: Final = 64
_EXAMPLES: Final = 4096  # held-out texts that are all kept; of more, ever fewer


class Notes:
    """Passes everything on and remembers warnings: they hold for the cache, whoever uses it later."""

    def __init__(self, reporter: Reporter, warnings: Iterable[Sequence[Any]] = ()) -> None:
        self._reporter = reporter
        self.warnings: list[tuple[str, dict[str, Value]]] = [(code, params) for code, params in warnings]

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        self._reporter.progress(phase, done, total, unit)

    def warn(self, code: str, **params: Value) -> None:
        self.warnings.append((code, params))
        self._reporter.warn(code, **params)

    def poll(self) -> None:
        self._reporter.poll()


class HeldOut:
    """Which units are for validation: one at a hashed place in every `1 / fraction`.

    A hash of each number alone would leave a small data set without any by chance.
    """

    def __init__(self, fraction: float) -> None:
        self._share = round(fraction * _PARTS)
        self._chosen = self._end = -1  # of the block that was asked for last

    def __contains__(self, number: int) -> bool:
        if not self._share:
            return False
        if not self._chosen <= number < self._end:
            block = number * self._share // _PARTS
            start, self._end = -(-block * _PARTS // self._share), -(-(block + 1) * _PARTS // self._share)
            self._chosen = start + keyed_hash("validation", block) % (self._end - start)
        return number == self._chosen


def encode_all(working: Path, looks: Sequence[Look], codec: Codec, config: Config, notes: Notes) -> dict[str, Any]:
    """Fill `working` with the tokens of all documents; the result is what meta.json says of them.

    What an earlier process committed there is kept; the files come out the same, byte for byte.
    Raises what `Stream`, `Codec` and `notes.poll` raise.
    """
    journal = cache.read_journal(working)
    stream = Stream(looks, config, notes, journal.get("position"))
    files = Files(working, codec, config, journal, stream.refuse)
    base = 0.0 if config.tokenizer else stream.total  # training the tokenizer was the first half
    try:
        for batch in batches(stream, _SMALL_BATCH if config.low_memory else _BATCH):
            files.add(batch)
            if files.due() and stream.position is not None:
                files.commit(stream.position, notes.warnings)
            notes.progress("preparing", base + stream.done, base + stream.total, "bytes")
            _poll(notes, files, stream)
        counts = files.finish()
        report = {**asdict(stream.counts), "duplicates": count_duplicates(working / HASHES)}
        return {**counts, "warnings": notes.warnings, "report": report}
    finally:
        files.abandon()


def _poll(notes: Notes, files: Files, stream: Stream) -> None:
    """A stop commits first what was done since the last commit."""
    try:
        notes.poll()
    except BaseException:
        if stream.position is not None:
            files.commit(stream.position, notes.warnings)
        raise


def batches(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Documents in batches of about `size` characters, never reading ahead of what is handed out."""
    batch: list[Document] = []
    length = 0
    for document in documents:
        batch.append(document)
        length += len(document.text) + sum(len(content) for _, content in document.turns)
        if length >= size:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


class Files:
    """The files of a cache in the making."""

    def __init__(
        self,
        working: Path,
        codec: Codec,
        config: Config,
        journal: dict[str, Any],
        refuse: Callable[[Document, str], None],
    ) -> None:
        self._working, self._codec, self._refuse = working, codec, refuse
        self._held_out = HeldOut(config.validation_fraction)
        self._splits = {
            name: _SplitFiles(working / name, codec, journal.get(name), name == "validation", config.token_cache)
            for name in SPLITS
        }
        self._hashes = Growing(working / HASHES, journal.get(HASHES, 0))
        self._unit, self._hash = -1, ContentHash()
        self._committed = time.monotonic()

    def add(self, batch: list[Document]) -> None:
        for document in batch:
            self._note_content(document)
        if batch[0].turns:
            self._add_chats(batch)
        else:
            for document, ids in zip(batch, self._codec.encode_texts([one.text for one in batch]), strict=True):
                self._split_of(document).add_text(document, ids)

    def _add_chats(self, batch: list[Document]) -> None:
        def refused(number: int, error: TraindeckError) -> None:
            self._refuse(batch[number], str(error.params.get("reason", error.code)))

        for document, chat in zip(batch, self._codec.encode_chats([one.turns for one in batch], refused), strict=True):
            if len(chat.ids):
                self._split_of(document).add_chat(document, chat.ids, chat.spans)

    def _note_content(self, document: Document) -> None:
        if document.unit != self._unit:
            self._write_hash()
            self._unit = document.unit
        if document.turns:
            self._hash.turns(document.turns)
        else:
            self._hash.text(document.text)

    def _write_hash(self) -> None:
        if self._unit >= 0:
            self._hashes.write(self._hash.value.to_bytes(8, "little"))
            self._unit, self._hash = -1, ContentHash()

    def _split_of(self, document: Document) -> _SplitFiles:
        return self._splits["validation" if document.unit in self._held_out else "train"]

    def due(self) -> bool:
        return time.monotonic() - self._committed > _COMMIT_S

    def commit(self, position: dict[str, Any], warnings: list[tuple[str, dict[str, Value]]]) -> None:
        states = {name: split.commit() for name, split in self._splits.items()}
        self._write_hash()
        self._hashes.flush_to_disk()
        sizes = {HASHES: self._hashes.size}
        cache.write_journal(self._working, {"position": position, "warnings": warnings, **states, **sizes})
        self._committed = time.monotonic()

    def finish(self) -> dict[str, Any]:
        counts = {name: split.finish() for name, split in self._splits.items()}
        self._write_hash()
        self._hashes.flush_to_disk()
        return counts

    def abandon(self) -> None:
        for split in self._splits.values():
            split.writer.abandon()
        self._hashes.close()


class _SplitFiles:
    """Writes documents into one split, with `<|endoftext|>` after each text."""

    def __init__(self, folder: Path, codec: Codec, state: State | None, validation: bool, keep_tokens: bool) -> None:
        self.writer = Writer(folder, codec.vocab_size, state, keep_tokens)
        self._end_of_text, self._validation = codec.end_of_text, validation
        self._number, self._unit = (state or {}).get("number", -1), (state or {}).get("unit", -1)

    def add_text(self, document: Document, ids: Any) -> None:
        another = document.number != self._number
        if another and self._number >= 0:
            self.writer.add([self._end_of_text])
        if another or document.unit > self._unit + 1:  # a part of this text went into the other split
            text = {"text": document.text[:_BEGINNING]} if self._wanted() else None
            self.writer.begin_document(text, (document.file, document.row))
        self._number, self._unit = document.number, document.unit
        self.writer.add(ids)

    def add_chat(self, document: Document, ids: Any, spans: Sequence[tuple[int, int]]) -> None:
        text = {"turns": document.turns} if self._validation and self._wanted() else None
        self.writer.begin_document(text, (document.file, document.row))
        self.writer.add_chat(ids, spans)

    def _wanted(self) -> bool:
        """Whether a document's text is kept: of the training data the first ones, else so many that they stay few."""
        count = self.writer.documents
        if not self._validation:
            return count < _TRAIN_BEGINNINGS
        return count < _EXAMPLES or keyed_hash("kept", count) < 2**64 * _EXAMPLES // (count + 1)

    def commit(self) -> State:
        return {**self.writer.commit(), "number": self._number, "unit": self._unit}

    def finish(self) -> dict[str, int]:
        if self._number >= 0:
            self.writer.add([self._end_of_text])
        self.writer.finish()
        return {"documents": self.writer.documents, "tokens": self.writer.tokens}
