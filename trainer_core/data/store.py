"""Token files: shards of numbers on disk, written once in a stream and then read through memory maps.

    tokens-00000.bin …   token ids, uint16 where the vocabulary allows, else uint32; little-endian
    offsets.bin          int64: where each document begins in the tokens, and at last where they end
    responses.bin        int32, only for prompts with responses: tokens before the response
    texts.jsonl          one line a document: the pair, or the beginning of the text (see `prepare`)

No torch, no Qt.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

SHARD_TOKENS: Final = 64 * 1024 * 1024
_BUFFERED: Final = 4096  # offsets held before they are written


def token_type(vocab_size: int) -> str:
    """The numpy type that holds every id."""
    return "<u2" if vocab_size <= 65_536 else "<u4"


class Writer:
    """Streams one split to disk. Holds a few kilobytes; close it before its folder is renamed."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        folder.mkdir(parents=True)
        self._folder, self._shard_tokens = folder, shard_tokens
        self._type = np.dtype(token_type(vocab_size))
        self._shard: BinaryIO | None = None
        self._shards = self._in_shard = 0
        self.tokens = self.documents = 0
        self._offsets = _Numbers(folder / "offsets.bin", "q")
        self._responses = _Numbers(folder / "responses.bin", "i")
        self._texts = (folder / "texts.jsonl").open("wb")

    def begin_document(self, text: dict[str, str] | None = None) -> None:
        """What is added from here on belongs to a new document; `text` is kept beside it."""
        self._offsets.add(self.tokens)
        self.documents += 1
        if text is not None:
            self._texts.write(json.dumps(text, ensure_ascii=False).encode("utf-8") + b"\n")

    def add(self, ids: Sequence[int]) -> None:
        """Append tokens, beginning new shards where one is full."""
        values = np.asarray(ids, dtype=self._type)
        self.tokens += len(values)
        while len(values):
            if self._shard is None or self._in_shard == self._shard_tokens:
                self._next_shard()
            assert self._shard is not None
            part = values[: self._shard_tokens - self._in_shard]
            self._shard.write(part.tobytes())
            self._in_shard += len(part)
            values = values[len(part) :]

    def add_pair(self, prompt: Sequence[int], response: Sequence[int]) -> None:
        self._responses.add(len(prompt))
        self.add([*prompt, *response])

    def _next_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
        self._shard = (self._folder / f"tokens-{self._shards:05d}.bin").open("wb")
        self._shards, self._in_shard = self._shards + 1, 0

    def close(self) -> None:
        """Write what is buffered and close every file, even where writing fails (a full disk)."""
        try:
            self._offsets.add(self.tokens)
            self._offsets.flush()
            self._responses.flush()
            if self._shard is not None:
                self._shard.flush()
            self._texts.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close every file; what is not written is lost."""
        for file in (self._shard, self._texts, self._offsets.file, self._responses.file):
            if file is not None:
                with suppress(OSError):  # closing flushes, which fails again on a full disk
                    file.close()


class _Numbers:
    """A file of integers that grows."""

    def __init__(self, path: Path, code: str) -> None:
        self.file: BinaryIO = path.open("wb")
        self._waiting = array(code)

    def add(self, value: int) -> None:
        self._waiting.append(value)
        if len(self._waiting) >= _BUFFERED:
            self.flush()

    def flush(self) -> None:
        self._waiting.tofile(self.file)
        del self._waiting[:]
        self.file.flush()


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
    def responses(self) -> npt.NDArray[np.int32]:
        """Tokens of each document that belong to the prompt; empty for plain text."""
        return self._map("responses.bin", np.dtype("<i4"))

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

    def texts(self) -> Iterator[dict[str, str]]:
        """The texts kept beside the documents, in their order."""
        with (self.folder / "texts.jsonl").open("rb") as file:
            for line in file:
                yield json.loads(line)

    def close(self) -> None:
        """Release the memory maps; an array still in somebody's hand keeps its own. Reading opens them anew."""
        self._maps.clear()
