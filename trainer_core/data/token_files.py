"""Token files of a split: written as a stream, read through memory maps. Little-endian.

    tokens-00000.bin …   token ids: uint16 if the vocabulary fits, else uint32
    offsets.bin          int64, documents + 1: start of each document in the tokens, and the number of tokens
    spans.bin            int32 pairs, conversations only: [start, stop) of trained tokens, relative to the document
    span_offsets.bin     int64, conversations only: start of each document's spans, and the number of spans
    places.bin           int32 pairs, only if tokens are not stored: file and row of each document (see uncached.py)
    texts.jsonl          kept samples: turns, or the beginning of the text (see split_files.py)

All files are append-only. `TokenFileWriter.commit` flushes them and returns their sizes; a new writer truncates them to
these sizes and continues.

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

from trainer_core.system import files

SHARD_TOKENS: Final = 64 * 1024 * 1024
ROW_LOCATIONS_FILE: Final = "places.bin"
EMPTY_INT64: Final[npt.NDArray[np.int64]] = np.zeros(0, np.int64)

WriterState = dict[str, int]  # sizes of files in bytes, and counts


def token_dtype(vocab_size: int) -> str:
    """The numpy type of the token ids."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


class TruncatedFileError(Exception):
    """A file is shorter than it was at the last commit."""


class AppendOnlyFile:
    """A file opened for appending after its first `size` bytes. Raises `TruncatedFileError`."""

    def __init__(self, path: Path, size: int = 0) -> None:
        if size and (not path.exists() or path.stat().st_size < size):
            raise TruncatedFileError(path)
        self.path = path
        self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(size)
        self._file.seek(size)
        self.size = size

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def fsync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class TokenBlock(NamedTuple):
    """Tokens of some documents."""

    ids: npt.NDArray[Any]
    document_starts: npt.NDArray[Any]  # indices into `ids`
    spans: npt.NDArray[Any] = EMPTY_INT64  # (n, 2), of conversations
    span_counts: npt.NDArray[Any] = EMPTY_INT64  # spans per document; empty for plain text
    texts: Sequence[dict[str, Any]] = ()
    row_locations: npt.NDArray[Any] = EMPTY_INT64  # (documents, 2), if tokens are not stored


class TokenFileWriter:
    """Writes one split. `state`, the result of `commit`, continues existing files.

    Without `keep_tokens`, the location of each document is stored instead of its tokens.
    """

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        state: WriterState | None = None,
        keep_tokens: bool = True,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        state = state or {}
        self._folder, self._shard_tokens, self._keep_tokens = folder, shard_tokens, keep_tokens
        self._type = np.dtype(token_dtype(vocab_size))
        self.tokens, self.documents = state.get("tokens", 0), state.get("documents", 0)
        self._num_spans = state.get("spans", 0)
        names = ("offsets.bin", "spans.bin", "span_offsets.bin", ROW_LOCATIONS_FILE, "texts.jsonl")
        self._files: dict[str, AppendOnlyFile] = {}
        self._num_shards = -(-self.tokens // shard_tokens) if keep_tokens else 0
        self._shard: AppendOnlyFile | None = None
        self._full_shards: list[AppendOnlyFile] = []  # not flushed yet
        try:
            for name in names:
                self._files[name] = AppendOnlyFile(folder / name, state.get(name, 0))
            self._shard = self._open_shard()
        except BaseException:
            self.abort()  # on Windows, open files cannot be deleted
            raise

    def _open_shard(self) -> AppendOnlyFile | None:
        """The last shard, truncated to the committed tokens. Later shards are truncated when they are reached."""
        if not self._keep_tokens:
            return None
        full, inner = divmod(self.tokens, self._shard_tokens)
        for number in range(full):
            path, size = self._shard_path(number), self._shard_tokens * self._type.itemsize
            if not path.exists() or path.stat().st_size != size:
                raise TruncatedFileError(path)
        if not inner:
            return None
        return AppendOnlyFile(self._shard_path(self._num_shards - 1), inner * self._type.itemsize)

    def _shard_path(self, number: int) -> Path:
        return self._folder / f"tokens-{number:05d}.bin"

    def add_block(self, block: TokenBlock) -> None:
        """Append documents, or parts of the last document."""
        self._write("offsets.bin", block.document_starts.astype("<i8") + self.tokens)
        self.documents += len(block.document_starts)
        if len(block.span_counts):
            begins = np.cumsum(block.span_counts) - block.span_counts
            self._write("span_offsets.bin", begins.astype("<i8") + self._num_spans)
            self._write("spans.bin", block.spans.astype("<i4"))
            self._num_spans += len(block.spans)
        if not self._keep_tokens:
            self._write(ROW_LOCATIONS_FILE, block.row_locations.astype("<i4"))
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
            self._full_shards.append(self._shard)
        self._shard = AppendOnlyFile(self._shard_path(self._num_shards))
        self._num_shards += 1

    def commit(self) -> WriterState:
        """Flush all files to disk. Returns the state for a new writer."""
        for finished in self._full_shards:
            finished.fsync()
            finished.close()
        self._full_shards.clear()
        for file in [*self._files.values(), *([self._shard] if self._shard else [])]:
            file.fsync()
        files.fsync_folder(self._folder)
        sizes = {name: file.size for name, file in self._files.items()}
        return {"tokens": self.tokens, "documents": self.documents, "spans": self._num_spans, **sizes}

    def finish(self) -> None:
        """Write the final offsets, flush and close."""
        try:
            self._write("offsets.bin", np.array([self.tokens], "<i8"))
            if self._files["span_offsets.bin"].size:  # conversations, possibly without any spans
                self._write("span_offsets.bin", np.array([self._num_spans], "<i8"))
            self.commit()
        finally:
            self.abort()
        for name, file in self._files.items():
            if not file.size and name != "texts.jsonl":
                (self._folder / name).unlink()

    def abort(self) -> None:
        """Close all files without flushing."""
        for file in (*self._full_shards, self._shard, *self._files.values()):
            if file is not None:
                with suppress(OSError):  # a full disk
                    file.close()


class Split:
    """One split on disk. Pickles as its folder; the files are mapped at first use.

    Call `close` before deleting the folder: Windows does not delete mapped files.
    """

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self.folder, self._vocab_size, self._shard_tokens = folder, vocab_size, shard_tokens
        self._type = np.dtype(token_dtype(vocab_size))
        self._maps: dict[str, npt.NDArray[Any]] = {}

    def __getstate__(self) -> tuple[Path, int, int]:
        return self.folder, self._vocab_size, self._shard_tokens

    def __setstate__(self, state: tuple[Path, int, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _map(self, name: str, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        if name not in self._maps:
            path = self.folder / name
            if not path.exists() or not path.stat().st_size:  # empty files cannot be mapped
                return np.zeros(0, kind)
            # Slicing a memmap takes ten times as long as slicing a plain array.
            self._maps[name] = np.asarray(np.memmap(path, dtype=kind, mode="r"))
        return self._maps[name]

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """(documents + 1,): start of each document, and the number of tokens."""
        return self._map("offsets.bin", np.dtype("<i8"))

    @property
    def span_offsets(self) -> npt.NDArray[np.int64]:
        """(documents + 1,): start of each conversation in `spans`, and their number. Empty for plain text."""
        return self._map("span_offsets.bin", np.dtype("<i8"))

    @property
    def spans(self) -> npt.NDArray[np.int32]:
        """(n, 2): [start, stop) of the tokens trained on, relative to the document."""
        return self._map("spans.bin", np.dtype("<i4")).reshape(-1, 2)

    @property
    def row_locations(self) -> npt.NDArray[np.int32]:
        """(documents, 2): file and row of each document. Empty if tokens are stored."""
        return self._map(ROW_LOCATIONS_FILE, np.dtype("<i4")).reshape(-1, 2)

    @property
    def documents(self) -> int:
        return max(0, len(self.offsets) - 1)

    @property
    def tokens(self) -> int:
        return int(self.offsets[-1]) if len(self.offsets) else 0

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Tokens [start, stop)."""
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
        """The kept texts, in document order."""
        with (self.folder / "texts.jsonl").open("rb") as file:
            for line in file:
                yield json.loads(line)

    def close(self) -> None:
        """Release the memory maps. Reading maps the files again."""
        self._maps.clear()
