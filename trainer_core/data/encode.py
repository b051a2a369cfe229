"""Documents to token files: fills a cache, and goes on where an earlier process was stopped.

One process reads and writes; as many others as there are cores encode, where there is enough to do.
What comes out is the same, byte for byte, however many they are and wherever they were interrupted.

No torch, no Qt.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainer_core.config import Config
from trainer_core.data import cache
from trainer_core.data.columns import Document
from trainer_core.data.encode_batch import (
    Content,
    Encoded,
    begin,
    encode_batch,
    encode_here,
    ready,
    without_pauses,
)
from trainer_core.data.insight.measures import count_duplicates, count_overlap
from trainer_core.data.sources import Looks
from trainer_core.data.split_files import HeldOut, Mask, SplitFiles
from trainer_core.data.store import Growing
from trainer_core.data.stream import Position, Stream
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.machine.hardware import usable_threads
from trainer_core.machine.ram import system_memory
from trainer_core.messages import TraindeckError, Value
from trainer_core.protocol import PhaseName
from trainer_core.report import Quiet, Reporter, Unit

HASHES: Final = "hashes.bin"
VALIDATION_HASHES: Final = "validation_hashes.bin"
SPLITS: Final = ("train", "validation")
_BATCH, _SMALL_BATCH = 1024 * 1024, 128 * 1024  # characters encoded at once
_COMMIT_S: Final = 3.0  # work that a kill may cost
_WORTH_IT: Final = 48 * 1024 * 1024  # bytes of data that repay the start of processes
_MOST: Final = 6  # processes; more would take over 1 GB together, and wait for the one that reads
_POLL_S: Final = 0.1

Warning_ = tuple[str, dict[str, Value]]


class Notes(Quiet):
    """Passes everything on and remembers warnings: they hold for the cache, whoever uses it later.

    What was said once is not said again.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._said: set[str] = set()
        self.warnings: list[Warning_] = []

    def begin(self, warnings: Iterable[Sequence[Any]]) -> None:
        """Take over what an earlier process was warned of."""
        self.warnings = []
        for code, params in warnings:
            self.warn(code, **params)

    def repeat(self, warnings: Iterable[Sequence[Any]]) -> None:
        """Say what has not been said yet."""
        for code, params in warnings:
            self.say(code, **params)

    def say(self, code: str, **params: Value) -> None:
        """Warn without remembering it for the cache."""
        told = repr((code, sorted(params.items())))
        if told not in self._said:
            self._said.add(told)
            self._reporter.warn(code, **params)

    def warn(self, code: str, **params: Value) -> None:
        if (code, params) not in self.warnings:
            self.warnings.append((code, params))
        self.say(code, **params)

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        self._reporter.progress(phase, done, total, unit)

    def poll(self) -> None:
        self._reporter.poll()


# --- the pipeline ----------------------------------------------------------------------------------


def encode_all(
    working: Path, tokenizer: Path, looks: Looks, config: Config, notes: Notes, fast: bool = True
) -> dict[str, Any]:
    """Fill `working` with the tokens of all documents; the result is what meta.json says of them.

    What an earlier process committed there is kept. Raises what `Stream`, `Codec` and `notes.poll` raise.
    """
    processes = choose_processes(config, looks.bytes, tokenizer)
    try:
        return _Pipeline(working, tokenizer, looks, config, notes, fast, processes).run()
    except BrokenProcessPool:  # the system may have ended one for its memory
        logging.getLogger(__name__).warning("a process that encodes was lost; going on without others")
        notes.begin(cache.read_journal(working).get("warnings", ()))
        return _Pipeline(working, tokenizer, looks, config, notes, fast, 0).run()


def choose_processes(config: Config, data_bytes: int, tokenizer: Path) -> int:
    """How many processes encode beside this one, which has little to do: one a core; none for little data or memory."""
    if config.low_memory or data_bytes < _WORTH_IT:
        return 0
    each = 120e6 + 25 * tokenizer.stat().st_size  # a large vocabulary takes memory in each of them
    fitting = int(min(0.8e9, system_memory().available / 4) / each)
    return max(0, min(usable_threads(), _MOST, fitting))


class _Pipeline:
    """Reads batches, has them encoded, and writes them in their order."""

    def __init__(
        self,
        working: Path,
        tokenizer: Path,
        looks: Looks,
        config: Config,
        notes: Notes,
        fast: bool,
        processes: int,
    ) -> None:
        journal = {**cache.read_journal(working), "fast": fast}
        self._config, self._notes, self._processes, self._fast = config, notes, processes, fast
        self._stream = Stream(looks.all, config, notes, journal.get("position"))
        self._codec = Codec.load(tokenizer, fast)
        self._tokenizer = tokenizer
        first = looks.first_validation_file
        self._files = Files(working, self._codec, config, journal, self._stream.path_of, first)
        # Training the tokenizer was the first part of the work.
        self._base = 0.0 if config.tokenizer else float(sum(one.bytes for one in looks.train))

    @contextmanager
    def _pool(self) -> Iterator[ProcessPoolExecutor | None]:
        """The processes that encode; they start while this one looks how they may."""
        pool = self._make_pool()
        if pool is None:
            yield None
            return
        with pool:
            self._codec.encoder.choose()
            self._codec.encoder.forget()
            yield pool

    def _make_pool(self) -> ProcessPoolExecutor | None:
        if not self._processes:
            return None
        # spawn everywhere: it is what Windows has, and a fork of a process with threads can hang
        context = multiprocessing.get_context("spawn")
        try:
            pool = ProcessPoolExecutor(self._processes, context, begin, (self._tokenizer, self._fast))
            for _ in range(self._processes):
                pool.submit(ready)
        except (OSError, NotImplementedError):  # no semaphores here (some containers)
            self._processes = 0
            return None
        return pool

    def run(self) -> dict[str, Any]:
        stream, files, notes = self._stream, self._files, self._notes
        try:
            with self._pool() as pool, without_pauses():
                try:
                    for batch, encoded, done, position, warnings in self._encoded(pool):
                        files.bad_rows = stream.bad
                        files.write(batch, encoded)
                        if files.due() and position is not None:
                            files.commit(position, notes.warnings[:warnings])
                        notes.progress("preparing", self._base + done, self._base + stream.total, "bytes")
                        self._poll(position, warnings)
                except BaseException:
                    if pool is not None:
                        pool.shutdown(wait=True, cancel_futures=True)
                    raise
            counts = files.finish(notes)
            report = asdict(stream.counts)
            report["bad"] += files.refused
            report["first_bad"] = report["first_bad"] or files.first_refused
            return {**counts, "warnings": notes.warnings, "report": {**report, **files.report()}}
        finally:
            files.abandon()

    def _encoded(
        self, pool: ProcessPoolExecutor | None
    ) -> Iterator[tuple[list[Document], Encoded, float, Position | None, int]]:
        """Batches with their tokens, in order, and where the stream stood after each."""
        waiting: deque[tuple[list[Document], Future[Encoded], float, Position | None, int]] = deque()
        equal = self._codec.encoder.path == "gigatoken"
        for batch in batches(self._stream, _SMALL_BATCH if self._config.low_memory else _BATCH):
            place = self._stream.done, self._stream.position, len(self._notes.warnings)
            if pool is None:
                yield (batch, encode_batch(self._codec, contents(batch)), *place)
                continue
            waiting.append((batch, pool.submit(encode_here, contents(batch), equal), *place))
            while len(waiting) > 2 * self._processes or (waiting and waiting[0][1].done()):
                yield self._next(waiting)
        while waiting:
            yield self._next(waiting)

    def _next(self, waiting: deque[Any]) -> Any:
        batch, future, *place = waiting.popleft()
        while True:
            try:
                return batch, future.result(_POLL_S), *place
            except TimeoutError:
                self._notes.poll()

    def _poll(self, position: Position | None, warnings: int) -> None:
        """A stop commits first what was done since the last commit."""
        try:
            self._notes.poll()
        except BaseException:
            if position is not None:
                self._files.commit(position, self._notes.warnings[:warnings])
            raise


def batches(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Documents in batches of about `size` characters, never reading ahead of what is handed out."""
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


def contents(batch: Sequence[Document]) -> list[Content]:
    return [document.turns or document.text for document in batch]


# --- the files -------------------------------------------------------------------------------------


class Files:
    """The files of a cache in the making. `path_of` names a file of the data by its number; documents of files from
    `first_validation_file` on are held out, or where it is None `validation_fraction` of all."""

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
        self._held_out, self._first_validation_file = HeldOut(config.validation_fraction), first_validation_file
        self._hashes: dict[str, Growing] = {}
        self._splits: dict[str, SplitFiles] = {}
        try:
            for name in (HASHES, VALIDATION_HASHES):
                self._hashes[name] = Growing(working / name, journal.get(name, 0))
            for name in SPLITS:
                state, held_out = journal.get(name), name == "validation"
                # Evaluations read sequences from all over the held-out data: encoding them each time would take long.
                keep_tokens = config.token_cache or held_out
                self._splits[name] = SplitFiles(working / name, codec, state, held_out, keep_tokens)
        except BaseException:
            self.abandon()
            raise
        self.bad_rows = 0  # that the reader has come across
        self.refused: int = journal.get("refused", 0)  # conversations that the chat template does not take
        self.first_refused: dict[str, str] = journal.get("first_refused", {})
        self.left_out: int = journal.get("left_out", 0)  # turns with tool calls that the chat template cannot write
        self._committed = time.monotonic()

    def add(self, batch: list[Document]) -> None:
        """Encode and write a batch."""
        self.write(batch, encode_batch(self._codec, contents(batch)))

    def write(self, batch: list[Document], encoded: Encoded) -> None:
        for number, reason in encoded.refused:
            self._refuse(batch[number], reason)
        self.left_out += encoded.left_out
        held_out = self._held_out_of(batch)
        for name, hashes in ((HASHES, encoded.hashes), (VALIDATION_HASHES, encoded.hashes[held_out])):
            self._hashes[name].write(hashes.astype("<u8").tobytes())
        for name, split in self._splits.items():
            wanted = held_out if name == "validation" else ~held_out
            if encoded.refused or encoded.left_out:
                wanted &= encoded.lengths > 0
            if wanted.any():
                split.add(batch, encoded, wanted)

    def _held_out_of(self, batch: list[Document]) -> Mask:
        if self._first_validation_file is None:
            return self._held_out.among(np.array([document.unit for document in batch]))
        return np.array([document.file for document in batch]) >= self._first_validation_file

    def _refuse(self, document: Document, reason: str) -> None:
        told = {"path": self._path_of(document.file), "position": f"row {document.row + 1}", "reason": reason}
        self.refused += 1
        self.first_refused = self.first_refused or told
        if self._config.on_bad_row == "stop":
            raise TraindeckError("data.bad_row", **told)
        count = self.refused + self.bad_rows
        if 0 < self._config.bad_row_limit < count:
            raise TraindeckError("data.too_many_bad_rows", count=count, **self.first_refused)

    def due(self) -> bool:
        return time.monotonic() - self._committed > _COMMIT_S

    def commit(self, position: Position, warnings: Sequence[Warning_]) -> None:
        """Make durable what was written; another process goes on from here."""
        states = {name: split.commit() for name, split in self._splits.items()}
        for hashes in self._hashes.values():
            hashes.flush_to_disk()
        refused = {"refused": self.refused, "first_refused": self.first_refused, "fast": self._fast}
        sizes = {name: hashes.size for name, hashes in self._hashes.items()} | {"left_out": self.left_out}
        cache.write_journal(self._working, {"position": position, "warnings": warnings, **states, **sizes, **refused})
        self._committed = time.monotonic()

    def finish(self, notes: Reporter) -> dict[str, Any]:
        """Close all files; the result counts documents and tokens."""
        counts = {name: split.finish() for name, split in self._splits.items()}
        for hashes in self._hashes.values():
            hashes.flush_to_disk()
        if self.refused:
            notes.warn("data.rows_skipped", count=self.refused, **self.first_refused)
        if self.left_out:
            notes.warn("data.turns_left_out", count=self.left_out)
        return counts

    def report(self) -> dict[str, Any]:
        every, held_out = self._working / HASHES, self._working / VALIDATION_HASHES
        rows = self._hashes[VALIDATION_HASHES].size // 8
        return {
            "duplicates": count_duplicates(every),
            "validation_rows": rows,
            "overlap": count_overlap(every, held_out),
            "left_out_turns": self.left_out,
        }

    def abandon(self) -> None:
        for split in self._splits.values():
            split.abandon()
        for hashes in self._hashes.values():
            hashes.close()
