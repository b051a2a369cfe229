"""Token files: shards of numbers on disk, written in a stream and then read through memory maps.

    tokens-00000.bin …   token ids, uint16 where the vocabulary allows, else uint32; little-endian
    offsets.bin          int64: where each document begins in the tokens, and at last where they end
    spans.bin            int32 pairs, conversations only: [start, stop) of the tokens of a document that
                         are trained on, counted from its beginning
    span_offsets.bin     int64, conversations only: where each document's spans begin, and at last their number
    places.bin           int32 pairs, only without tokens on disk: file and row of each document (see `direct`)
    texts.jsonl          one line a document: its turns, or the beginning of the text (see `encode`)

All of them only ever grow while they are written. `Writer.commit` makes what is there durable and says
how long each file is; a writer that is given these lengths cuts off whatever came later and goes on.

No torch, no Qt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_core import files

SHARD_TOKENS: Final = 64 * 1024 * 1024
PLACES: Final = "places.bin"
NO_NUMBERS: Final[npt.NDArray[np.int64]] = np.zeros(0, np.int64)

State = dict[str, int]  # sizes of files in bytes, and counts


def token_type(vocab_size: int) -> str:
    """The numpy type that holds every id."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


class FilesAreShortError(Exception):
    """A file has less in it than was committed: the work cannot be gone on with."""


class Growing:
    """A file that is only appended to; what is behind `size` is cut off. Raises `FilesAreShortError`."""

    def __init__(self, path: Path, size: int = 0) -> None:
        if size and (not path.exists() or path.stat().st_size < size):
            raise FilesAreShortError(path)
        self.path = path
        self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(size)
        self._file.seek(size)
        self.size = size

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def flush_to_disk(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Block(NamedTuple):
    """Tokens to append. `begins`: where in `ids` documents begin; each array is int64 or of the stored type."""

    ids: npt.NDArray[Any]
    begins: npt.NDArray[Any]
    spans: npt.NDArray[Any] = NO_NUMBERS  # (n, 2), of conversations
    span_counts: npt.NDArray[Any] = NO_NUMBERS  # spans of each document; none: this is plain text
    texts: Sequence[dict[str, Any]] = ()  # kept beside the tokens
    places: npt.NDArray[Any] = NO_NUMBERS  # (documents, 2), where tokens are not kept


class Writer:
    """Streams one split to disk. Holds a few kilobytes; close it before its folder is renamed.

    With `state` (of a `commit`) it goes on where that left off, in the same files. Without `keep_tokens` it
    notes where documents stand, and counts their tokens.
    """

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        state: State | None = None,
        keep_tokens: bool = True,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        state = state or {}
        self._folder, self._shard_tokens, self._keep_tokens = folder, shard_tokens, keep_tokens
        self._type = np.dtype(token_type(vocab_size))
        self.tokens, self.documents = state.get("tokens", 0), state.get("documents", 0)
        self._spans_written = state.get("spans", 0)
        names = ("offsets.bin", "spans.bin", "span_offsets.bin", PLACES, "texts.jsonl")
        self._files: dict[str, Growing] = {}
        self._shards = -(-self.tokens // shard_tokens) if keep_tokens else 0
        self._shard: Growing | None = None
        self._finished: list[Growing] = []  # shards that are full and not yet known to be on the disk
        try:
            for name in names:
                self._files[name] = Growing(folder / name, state.get(name, 0))
            self._shard = self._open_shard()
        except BaseException:
            self.abandon()  # Windows lets nobody begin anew with files that are open
            raise

    def _open_shard(self) -> Growing | None:
        """The shard to go on with, cut to the tokens that count; later ones are emptied by being opened anew."""
        if not self._keep_tokens:
            return None
        full, inner = divmod(self.tokens, self._shard_tokens)
        for number in range(full):
            path, size = self._shard_path(number), self._shard_tokens * self._type.itemsize
            if not path.exists() or path.stat().st_size != size:
                raise FilesAreShortError(path)
        if not inner:
            return None
        return Growing(self._shard_path(self._shards - 1), inner * self._type.itemsize)

    def _shard_path(self, number: int) -> Path:
        return self._folder / f"tokens-{number:05d}.bin"

    def add_block(self, block: Block) -> None:
        """Append documents, or parts of them."""
        self._write("offsets.bin", block.begins.astype("<i8") + self.tokens)
        self.documents += len(block.begins)
        if len(block.span_counts):
            begins = np.cumsum(block.span_counts) - block.span_counts
            self._write("span_offsets.bin", begins.astype("<i8") + self._spans_written)
            self._write("spans.bin", block.spans.astype("<i4"))
            self._spans_written += len(block.spans)
        if not self._keep_tokens:
            self._write(PLACES, block.places.astype("<i4"))
        for text in block.texts:
            self._files["texts.jsonl"].write(json.dumps(text, ensure_ascii=False).encode("utf-8") + b"\n")
        self._add_tokens(block.ids)

    def _write(self, name: str, numbers: npt.NDArray[Any]) -> None:
        self._files[name].write(numbers.tobytes())

    def _add_tokens(self, ids: npt.NDArray[Any]) -> None:
        values = ids.astype(self._type)
        if not self._keep_tokens:
            self.tokens += len(values)
            return
        while len(values):
            inner = self.tokens % self._shard_tokens
            if not inner or self._shard is None:
                self._next_shard()
            assert self._shard is not None
            part = values[: self._shard_tokens - inner]
            self._shard.write(part.tobytes())
            self.tokens += len(part)
            values = values[len(part) :]

    def _next_shard(self) -> None:
        if self._shard is not None:
            self._finished.append(self._shard)
        self._shard = Growing(self._shard_path(self._shards))
        self._shards += 1

    def commit(self) -> State:
        """Put everything on the disk; the result is what a new writer needs to go on from here."""
        for finished in self._finished:
            finished.flush_to_disk()
            finished.close()
        self._finished.clear()
        for file in [*self._files.values(), *([self._shard] if self._shard else [])]:
            file.flush_to_disk()
        files.flush_folder(self._folder)
        sizes = {name: file.size for name, file in self._files.items()}
        return {"tokens": self.tokens, "documents": self.documents, "spans": self._spans_written, **sizes}

    def finish(self) -> None:
        """Write the last offsets, put all on the disk, and close."""
        try:
            self._write("offsets.bin", np.array([self.tokens], "<i8"))
            if self._files["span_offsets.bin"].size:  # conversations, even if there is nothing to learn in any
                self._write("span_offsets.bin", np.array([self._spans_written], "<i8"))
            self.commit()
        finally:
            self.abandon()
        for name, file in self._files.items():
            if not file.size and name != "texts.jsonl":
                (self._folder / name).unlink()

    def abandon(self) -> None:
        """Close every file; what is not written is lost."""
        for file in (*self._finished, self._shard, *self._files.values()):
            if file is not None:
                with suppress(OSError):  # closing flushes, which fails again on a full disk
                    file.close()

    # --- one document at a time -------------------------------------------------------------------

    def begin_document(self) -> None:
        """What is added from here on belongs to a new document."""
        self.add_block(Block(NO_NUMBERS, np.zeros(1, np.int64)))

    def add(self, ids: Sequence[int]) -> None:
        """Append tokens to the document that was begun."""
        self.add_block(Block(np.asarray(ids, np.int64), NO_NUMBERS))

    def add_chat(self, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> None:
        """Append the tokens of the conversation that was begun, of which those in `spans` are trained on."""
        learned = np.array(spans, np.int64).reshape(-1, 2)
        self.add_block(Block(np.asarray(ids, np.int64), NO_NUMBERS, learned, np.array([len(spans)])))


class Split:
    """One split on disk, read as if its shards were one array.

    Pickles as its folder; each process opens the files at first use. `close` lets go of them: Windows
    does not delete a file that is mapped.
    """

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self.folder, self._vocab_size, self._shard_tokens = folder, vocab_size, shard_tokens
        self._type = np.dtype(token_type(vocab_size))
        self._maps: dict[str, npt.NDArray[Any]] = {}

    def __getstate__(self) -> tuple[Path, int, int]:
        return self.folder, self._vocab_size, self._shard_tokens

    def __setstate__(self, state: tuple[Path, int, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _map(self, name: str, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        if name not in self._maps:
            path = self.folder / name
            if not path.exists() or not path.stat().st_size:  # an empty file cannot be mapped
                return np.zeros(0, kind)
            # A plain array over the map: slicing a memmap object costs ten times as much.
            self._maps[name] = np.asarray(np.memmap(path, dtype=kind, mode="r"))
        return self._maps[name]

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Where documents begin, and at last the number of tokens; length documents + 1."""
        return self._map("offsets.bin", np.dtype("<i8"))

    @property
    def span_offsets(self) -> npt.NDArray[np.int64]:
        """Where each conversation's spans begin in `spans`, and at last their number; empty for plain text."""
        return self._map("span_offsets.bin", np.dtype("<i8"))

    @property
    def spans(self) -> npt.NDArray[np.int32]:
        """(n, 2): [start, stop) of the tokens trained on, counted from the beginning of their document."""
        return self._map("spans.bin", np.dtype("<i4")).reshape(-1, 2)

    @property
    def places(self) -> npt.NDArray[np.int32]:
        """(documents, 2): file and row of each document; empty where tokens are on disk."""
        return self._map(PLACES, np.dtype("<i4")).reshape(-1, 2)

    @property
    def documents(self) -> int:
        return max(0, len(self.offsets) - 1)

    @property
    def tokens(self) -> int:
        return int(self.offsets[-1]) if len(self.offsets) else 0

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Tokens [start, stop) as int64, across shards."""
        parts = []
        while start < stop:
            shard, inner = divmod(start, self._shard_tokens)
            end = min(stop - start + inner, self._shard_tokens)
            parts.append(self._map(f"tokens-{shard:05d}.bin", self._type)[inner:end])
            start += end - inner
        if len(parts) == 1:
            return parts[0].astype(np.int64)
        return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)

    def texts(self) -> Iterator[dict[str, Any]]:
        """The texts kept beside the documents, in their order."""
        with (self.folder / "texts.jsonl").open("rb") as file:
            for line in file:
                yield json.loads(line)

    def close(self) -> None:
        """Release the memory maps; an array still in somebody's hand keeps its own. Reading opens them anew."""
        self._maps.clear()
