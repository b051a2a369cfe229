"""Encodes documents into the token files of a cache. Resumes after an interruption.

One process reads and writes; for large data, a pool of processes encodes. The result is byte-identical for any number
of processes and interruptions.

No torch, no Qt.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from trainer_core.config import Config
from trainer_core.data import cache
from trainer_core.data.columns import Content, Document
from trainer_core.data.documents import DocumentStream, RowCounts, StreamPosition
from trainer_core.data.encode_batch import EncodedBatch, encode_batch, encode_in_worker, init_worker
from trainer_core.data.report.statistics import count_duplicates, count_overlap, count_swapped
from trainer_core.data.sources import DatasetScans, count_sides
from trainer_core.data.split_files import HeldOutSelector, Mask, SplitWriter
from trainer_core.data.token_files import HASHES_FILE, SPLITS
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import TraindeckError, Value
from trainer_core.progress import NullReporter, Reporter, Unit
from trainer_core.protocol import PhaseName
from trainer_core.system.hardware import usable_threads
from trainer_core.system.memory import system_memory

_BATCH_CHARS, _SMALL_BATCH_CHARS = 1024 * 1024, 128 * 1024  # characters encoded at once
_COMMIT_INTERVAL_S: Final = 3.0
_MIN_PARALLEL_BYTES: Final = 48 * 1024 * 1024  # starting processes does not pay off for less data
_MAX_PROCESSES: Final = 6  # more would use over 1 GB and wait for the reading process
_POLL_INTERVAL_S: Final = 0.1

WarningRecord = tuple[str, dict[str, Value]]


class WarningRecorder(NullReporter):
    """Forwards everything, each warning once, and records the warnings that hold for all users of the cache."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._emitted: list[WarningRecord] = []
        self.warnings: list[WarningRecord] = []

    def restore(self, warnings: Iterable[Sequence[Any]]) -> None:
        """Replace the recorded warnings by those of an earlier process."""
        self.warnings = []
        for code, params in warnings:
            self.warn(code, **params)

    def emit(self, code: str, **params: Value) -> None:
        """Forward a warning without recording it."""
        if (code, params) not in self._emitted:
            self._emitted.append((code, params))
            self._reporter.warn(code, **params)

    def warn(self, code: str, **params: Value) -> None:
        if (code, params) not in self.warnings:
            self.warnings.append((code, params))
        self.emit(code, **params)

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        self._reporter.progress(phase, done, total, unit)

    def poll(self) -> None:
        self._reporter.poll()


# --- the pipeline ----------------------------------------------------------------------------------


def encode_documents(
    working: Path, tokenizer: Path, scans: DatasetScans, config: Config, recorder: WarningRecorder, fast: bool = True
) -> dict[str, Any]:
    """Write the tokens of all documents to `working`, from the last commit on. Returns the values for meta.json.

    Raises what `DocumentStream`, `Codec` and `recorder.poll` raise.
    """
    processes = choose_num_processes(config, scans.bytes, tokenizer)
    try:
        return _encode(working, tokenizer, scans, config, recorder, fast, processes)
    except BrokenProcessPool:  # e.g. killed by the system for lack of memory
        logging.getLogger(__name__).warning("an encoding process was lost; encoding continues in the main process")
        recorder.restore(cache.read_journal(working).get("warnings", ()))
        return _encode(working, tokenizer, scans, config, recorder, fast, 0)


def choose_num_processes(config: Config, data_bytes: int, tokenizer: Path) -> int:
    """Number of encoding processes: one per core within the free memory; 0 for little data."""
    if config.low_memory or data_bytes < _MIN_PARALLEL_BYTES:
        return 0
    bytes_each = 120e6 + 25 * tokenizer.stat().st_size
    fitting = int(min(0.8e9, system_memory().available / 4) / bytes_each)
    return max(0, min(usable_threads(), _MAX_PROCESSES, fitting))


def _encode(
    working: Path,
    tokenizer: Path,
    scans: DatasetScans,
    config: Config,
    recorder: WarningRecorder,
    fast: bool,
    processes: int,
) -> dict[str, Any]:
    journal = {**cache.read_journal(working), "fast": fast}
    stream = DocumentStream(scans.all, config, recorder, journal.get("position"))
    codec = Codec.load(tokenizer, fast)
    writer = CacheWriter(working, codec, config, journal, stream.path_of, scans.first_validation_file)
    # The tokenizer was trained first, on the training data.
    offset = 0.0 if config.tokenizer else float(sum(one.bytes for one in scans.train))
    size = _SMALL_BATCH_CHARS if config.low_memory else _BATCH_CHARS
    pool = _start_pool(processes) if processes else None
    encode = partial(encode_in_worker, tokenizer, fast) if pool else partial(encode_batch, codec)
    try:
        for batch in _encode_batches(stream, size, encode, pool, 2 * processes, recorder):
            writer.write(batch.documents, batch.encoded.result(), stream.bad)
            is_due = writer.is_commit_due()
            try:
                recorder.progress("preparing", offset + batch.done, offset + stream.total_bytes, "bytes")
                recorder.poll()
            except BaseException:
                is_due = True
                raise
            finally:
                if is_due and batch.position is not None:
                    writer.commit(batch.position, recorder.warnings[: batch.num_warnings])
        counts = writer.finish(recorder)
        vocabulary = {"vocab_size": codec.vocab_size, "end_of_text": codec.end_of_text, "fast": fast}
        report = writer.report(stream.counts, count_sides(scans.all))
        return {**vocabulary, **counts, "warnings": recorder.warnings, "report": report}
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        writer.abort()


class _EncodedDocuments(NamedTuple):
    """A batch, and the state of the stream after it."""

    documents: list[Document]
    encoded: Future[EncodedBatch]
    done: float  # bytes
    position: StreamPosition | None
    num_warnings: int  # recorded so far


def _encode_batches(
    stream: DocumentStream,
    size: int,
    encode: Callable[[Sequence[Content]], EncodedBatch],
    pool: ProcessPoolExecutor | None,
    limit: int,
    recorder: WarningRecorder,
) -> Iterator[_EncodedDocuments]:
    """Batches of about `size` characters in order, encoded here or in a pool, which has at most `limit` at a time."""
    pending: deque[_EncodedDocuments] = deque()
    batches = batch_documents(stream, size)
    while (documents := next(batches, None)) or pending:
        if documents:
            contents = [document.content for document in documents]
            encoded = pool.submit(encode, contents) if pool else Future[EncodedBatch]()
            if not pool:
                encoded.set_result(encode(contents))
            state = stream.bytes_done, stream.position, len(recorder.warnings)
            pending.append(_EncodedDocuments(documents, encoded, *state))
        while pending and (not documents or len(pending) > limit or pending[0].encoded.done()):
            while not pending[0].encoded.done():
                wait([pending[0].encoded], _POLL_INTERVAL_S)
                recorder.poll()
            yield pending.popleft()


def _start_pool(processes: int) -> ProcessPoolExecutor | None:
    """None without semaphores, as in some containers."""
    # spawn on every system: Windows has nothing else, and a fork of a process with threads can hang
    context = multiprocessing.get_context("spawn")
    try:
        pool = ProcessPoolExecutor(processes, context, init_worker)
        for _ in range(processes):
            pool.submit(int)  # starts the processes
    except (OSError, NotImplementedError):  # no semaphores, in some containers
        return None
    return pool


def batch_documents(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Batches of about `size` characters. Does not read ahead."""
    batch: list[Document] = []
    length = 0
    for document in documents:
        batch.append(document)
        length += document.characters
        if length >= size:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


# --- the files -------------------------------------------------------------------------------------


class CacheWriter:
    """Writes the files of a cache.

    `path_of` maps a file's number in the data to its path. Documents of files from `first_validation_file` on are held
    out; if that is None, `validation_fraction` of all documents.
    """

    def __init__(
        self,
        working: Path,
        codec: Codec,
        config: Config,
        journal: dict[str, Any],
        path_of: Callable[[int], str],
        first_validation_file: int | None = None,
    ) -> None:
        self._working, self._codec, self._config, self._path_of = working, codec, config, path_of
        self._fast: bool = journal.get("fast", True)
        self._held_out_selector = HeldOutSelector(config.validation_fraction)
        self._first_validation_file = first_validation_file
        self._splits: dict[str, SplitWriter] = {}
        try:
            for name in SPLITS:
                held_out = name == "validation"
                # Evaluation reads held-out data in random order, which would be slow to encode on the fly.
                keep_tokens = config.token_cache or held_out
                self._splits[name] = SplitWriter(working / name, codec, journal.get(name), held_out, keep_tokens)
        except BaseException:
            self.abort()
            raise
        self._refused: int = journal.get("refused", 0)  # conversations that the chat template rejects
        self._first_refused: dict[str, str] = journal.get("first_refused", {})
        self._dropped_turns: int = journal.get("dropped_turns", 0)  # turns that the chat template cannot write
        self._equal_pairs: int = journal.get("equal_pairs", 0)  # pairs of twice the same conversation
        self._last_commit_time = time.monotonic()

    def write(self, batch: list[Document], encoded: EncodedBatch, bad_rows: int) -> None:
        """Raises `data.bad_row` or `data.too_many_bad_rows`; `bad_rows` counts those that the reader found."""
        for number, reason in encoded.refused:
            self._record_refused(batch[number], reason, bad_rows)
        self._dropped_turns += encoded.dropped_turns
        self._equal_pairs += encoded.equal_pairs
        held_out = self._held_out_mask(batch)
        for name, split in self._splits.items():
            wanted = held_out if name == "validation" else ~held_out
            if encoded.refused or encoded.dropped_turns or encoded.equal_pairs:
                wanted &= encoded.lengths > 0
            if wanted.any():
                split.add(batch, encoded, wanted)

    def _held_out_mask(self, batch: list[Document]) -> Mask:
        if self._first_validation_file is None:
            return self._held_out_selector.mask(np.array([document.split_unit for document in batch]))
        return np.array([document.file for document in batch]) >= self._first_validation_file

    def _record_refused(self, document: Document, reason: str, bad_rows: int) -> None:
        params = {"path": self._path_of(document.file), "position": f"row {document.row + 1}", "reason": reason}
        self._refused += 1
        self._first_refused = self._first_refused or params
        if self._config.on_bad_row == "stop":
            raise TraindeckError("data.bad_row", **params)
        count = self._refused + bad_rows
        if 0 < self._config.bad_row_limit < count:
            raise TraindeckError("data.too_many_bad_rows", count=count, **self._first_refused)

    def is_commit_due(self) -> bool:
        return time.monotonic() - self._last_commit_time > _COMMIT_INTERVAL_S

    def commit(self, position: StreamPosition, warnings: Sequence[WarningRecord]) -> None:
        """Flush all files and record the state from which another process resumes."""
        state = {
            **{name: split.commit() for name, split in self._splits.items()},
            "position": position,
            "warnings": warnings,
            "fast": self._fast,
            "refused": self._refused,
            "first_refused": self._first_refused,
            "dropped_turns": self._dropped_turns,
            "equal_pairs": self._equal_pairs,
        }
        cache.write_journal(self._working, state)
        self._last_commit_time = time.monotonic()

    def finish(self, recorder: Reporter) -> dict[str, Any]:
        """Complete all files. Returns the documents and tokens of each split."""
        counts = {name: split.finish() for name, split in self._splits.items()}
        if self._refused:
            recorder.warn("data.rows_skipped", count=self._refused, **self._first_refused)
        if self._dropped_turns:
            recorder.warn("data.turns_left_out", count=self._dropped_turns)
        return counts

    def report(self, counts: RowCounts, sides: int) -> dict[str, Any]:
        """The counts of the rows that were read, and of what was found in them. `sides`: see `ColumnMapping.sides`."""
        train, validation = (self._working / name / HASHES_FILE for name in SPLITS)
        return {
            **asdict(counts),
            "bad": counts.bad + self._refused,
            "first_bad": counts.first_bad or self._first_refused,
            "duplicates": count_duplicates(train, validation),
            "validation_rows": validation.stat().st_size // 8,
            "overlap": count_overlap(train, validation),
            "left_out_turns": self._dropped_turns,
            "equal_pairs": self._equal_pairs,
            "swapped_pairs": count_swapped(train, validation) if sides else 0,
        }

    def abort(self) -> None:
        for split in self._splits.values():
            split.abort()
