"""Token files of a split: written as a stream, read through memory maps. Little-endian.

    tokens.bin           token ids: uint16 if the vocabulary fits, else uint32; empty if tokens are not stored
    offsets.bin          int64, documents + 1: start of each document in the tokens, and the number of tokens
    spans.bin            int32 pairs, conversations only: [start, stop) of trained tokens, relative to the document
    span_offsets.bin     int64, conversations only: start of each document's spans, and the number of spans
    rows.bin             int32 pairs, only if tokens are not stored: file and row of each document (see uncached.py)
    hashes.bin           uint64: content hash of each row or piece of text, to find duplicates
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

SPLITS: Final = ("train", "validation")
HASHES_FILE: Final = "hashes.bin"
_FILES: Final = ("tokens.bin", "offsets.bin", "spans.bin", "span_offsets.bin", "rows.bin", HASHES_FILE, "texts.jsonl")
EMPTY_INT64: Final[npt.NDArray[np.int64]] = np.zeros(0, np.int64)

WriterState = dict[str, int]  # sizes of files in bytes, and counts


def token_dtype(vocab_size: int) -> str:
    """The numpy type of the token ids."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


class TruncatedFileError(Exception):
    """A file is shorter than it was at the last commit."""


def _open_for_append(path: Path, size: int) -> BinaryIO:
    """Open a file after its first `size` bytes and drop the rest. Raises `TruncatedFileError`."""
    if size and (not path.exists() or path.stat().st_size < size):
        raise TruncatedFileError(path)
    file = path.open("r+b" if path.exists() else "w+b")
    file.truncate(size)
    file.seek(size)
    return file


class TokenBlock(NamedTuple):
    """Tokens of some documents."""

    ids: npt.NDArray[Any]
    document_starts: npt.NDArray[Any]  # indices into `ids`
    spans: npt.NDArray[Any] = EMPTY_INT64  # (n, 2), of conversations
    span_counts: npt.NDArray[Any] = EMPTY_INT64  # spans per document; empty for plain text
    texts: Sequence[dict[str, Any]] = ()
    row_locations: npt.NDArray[Any] = EMPTY_INT64  # (documents, 2), if tokens are not stored
    hashes: npt.NDArray[Any] = EMPTY_INT64


class TokenFileWriter:
    """Writes one split. `state`, the result of `commit`, continues existing files.

    Without `keep_tokens`, the location of each document is stored instead of its tokens.
    """

    def __init__(
        self, folder: Path, vocab_size: int, state: WriterState | None = None, keep_tokens: bool = True
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        state = state or {}
        self._folder, self._keep_tokens = folder, keep_tokens
        self._type = token_dtype(vocab_size)
        self.tokens, self.documents = state.get("tokens", 0), state.get("documents", 0)
        self._num_spans = state.get("spans", 0)
        self._files: dict[str, BinaryIO] = {}
        try:
            for name in _FILES:
                self._files[name] = _open_for_append(folder / name, state.get(name, 0))
        except BaseException:
            self.abort()  # on Windows, open files cannot be deleted
            raise

    def add_block(self, block: TokenBlock) -> None:
        """Append documents, or parts of the last document."""
        self._write("offsets.bin", block.document_starts + self.tokens, "<i8")
        if len(block.span_counts):
            begins = np.cumsum(block.span_counts) - block.span_counts
            self._write("span_offsets.bin", begins + self._num_spans, "<i8")
            self._write("spans.bin", block.spans, "<i4")
            self._num_spans += len(block.spans)
        if self._keep_tokens:
            self._write("tokens.bin", block.ids, self._type)
        else:
            self._write("rows.bin", block.row_locations, "<i4")
        self._write(HASHES_FILE, block.hashes, "<u8")
        for text in block.texts:
            self._files["texts.jsonl"].write(json.dumps(text, ensure_ascii=False).encode("utf-8") + b"\n")
        self.documents += len(block.document_starts)
        self.tokens += len(block.ids)

    def _write(self, name: str, numbers: npt.NDArray[Any], kind: str) -> None:
        self._files[name].write(numbers.astype(kind).tobytes())

    def commit(self) -> WriterState:
        """Flush all files to disk. Returns the state for a new writer."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        files.fsync_folder(self._folder)
        sizes = {name: file.tell() for name, file in self._files.items()}
        return {"tokens": self.tokens, "documents": self.documents, "spans": self._num_spans, **sizes}

    def finish(self) -> dict[str, int]:
        """Write the final offsets, flush and close. Returns the number of documents and tokens."""
        try:
            self._write("offsets.bin", np.array([self.tokens]), "<i8")
            if self._files["span_offsets.bin"].tell():  # conversations, possibly without any spans
                self._write("span_offsets.bin", np.array([self._num_spans]), "<i8")
            self.commit()
        finally:
            self.abort()
        return {"documents": self.documents, "tokens": self.tokens}

    def abort(self) -> None:
        """Close all files without flushing."""
        for file in self._files.values():
            with suppress(OSError):  # a full disk
                file.close()


class Split:
    """One split on disk. Pickles as its folder; the files are mapped at first use.

    Call `close` before deleting the folder: Windows does not delete mapped files.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.folder, self._vocab_size = folder, vocab_size
        self._maps: dict[str, npt.NDArray[Any]] = {}

    def __reduce__(self) -> Any:
        return type(self), (self.folder, self._vocab_size)

    def _map(self, name: str, kind: str) -> npt.NDArray[Any]:
        if name not in self._maps:
            self._maps[name] = map_file(self.folder / name, kind)
        return self._maps[name]

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """(documents + 1,): start of each document, and the number of tokens."""
        return self._map("offsets.bin", "<i8")

    @property
    def span_offsets(self) -> npt.NDArray[np.int64]:
        """(documents + 1,): start of each conversation in `spans`, and their number. Empty for plain text."""
        return self._map("span_offsets.bin", "<i8")

    @property
    def spans(self) -> npt.NDArray[np.int32]:
        """(n, 2): [start, stop) of the tokens trained on, relative to the document."""
        return self._map("spans.bin", "<i4").reshape(-1, 2)

    @property
    def row_locations(self) -> npt.NDArray[np.int32]:
        """(documents, 2): file and row of each document. Empty if tokens are stored."""
        return self._map("rows.bin", "<i4").reshape(-1, 2)

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        return int(self.offsets[-1])

    @property
    def has_tokens(self) -> bool:
        """Whether tokens are stored. Without, `OnTheFlySplit` encodes them, which is slow in random order."""
        return not len(self.row_locations)

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Tokens [start, stop)."""
        return self._map("tokens.bin", token_dtype(self._vocab_size))[start:stop].astype(np.int64)

    def texts(self) -> Iterator[dict[str, Any]]:
        """The kept texts, in document order."""
        with (self.folder / "texts.jsonl").open("rb") as file:
            for line in file:
                yield json.loads(line)

    def close(self) -> None:
        """Release the memory maps. Reading maps the files again."""
        self._maps.clear()


def divide_spans(spans: Sequence[Sequence[int]], length: int) -> Iterator[tuple[int, int, int, list[tuple[int, int]]]]:
    """The conversations of a preference of `length` tokens, which are not empty: 1 (chosen) or -1 (rejected), [start,
    stop) of its tokens, and its spans."""
    middle = next(place for place, (start, stop) in enumerate(spans) if start == stop)
    boundary = spans[middle][0]
    for side, begin, end, own in ((1, 0, boundary, spans[:middle]), (-1, boundary, length, spans[middle + 1 :])):
        if begin < end:
            yield side, begin, end, [(start - begin, stop - begin) for start, stop in own]


def map_file(path: Path, kind: str) -> npt.NDArray[Any]:
    """A file of numbers as a memory-mapped array."""
    if not path.stat().st_size:  # empty files cannot be mapped
        return np.zeros(0, kind)
    # Slicing a memmap takes ten times as long as slicing a plain array.
    return np.asarray(np.memmap(path, dtype=kind, mode="r"))
