"""A batch of documents as tokens: the work that other processes can take over.

No torch, no Qt.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer_core.data.columns import Turn
from trainer_core.data.store import NO_NUMBERS
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import TraindeckError

Content = str | tuple[Turn, ...]  # a text, or a conversation


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a batch, one document after the other."""

    ids: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]  # tokens of each document; 0 where it was refused
    hashes: npt.NDArray[np.uint64]  # of each document's content: finds duplicates
    spans: npt.NDArray[np.int64]  # (n, 2): [start, stop) of the tokens trained on, from the document's beginning
    span_counts: npt.NDArray[np.int64]  # spans of each document; empty for plain text
    refused: list[tuple[int, str]]  # conversations that the template does not take, and why


def encode_batch(codec: Codec, batch: Sequence[Content]) -> Encoded:
    """Raises what `Codec` raises."""
    hashes = np.array([_hash(content) for content in batch], np.uint64)
    if isinstance(batch[0], str):
        texts = codec.encode_texts(batch)  # type: ignore[arg-type]
        return Encoded(_joined(texts), _lengths(texts), hashes, NO_NUMBERS.reshape(-1, 2), NO_NUMBERS, [])
    refused: list[tuple[int, str]] = []

    def refuse(number: int, error: TraindeckError) -> None:
        refused.append((number, str(error.params.get("reason", error.code))))

    chats = codec.encode_chats(batch, refuse)  # type: ignore[arg-type]
    ids = [chat.ids for chat in chats]
    spans = np.array([span for chat in chats for span in chat.spans], np.int64).reshape(-1, 2)
    return Encoded(_joined(ids), _lengths(ids), hashes, spans, _lengths([chat.spans for chat in chats]), refused)


def _joined(parts: list[Any]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else NO_NUMBERS


def _lengths(parts: Sequence[Any]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, parts), np.int64, len(parts))


def _hash(content: Content) -> int:
    # Lengths keep ("ab", "c") and ("a", "bc") apart.
    told = content if isinstance(content, str) else "".join(f"\0{len(said)}\0{said}" for _, said in content)
    return int.from_bytes(hashlib.blake2b(told.encode("utf-8"), digest_size=8).digest(), "little")


# --- in another process ----------------------------------------------------------------------------

_codec: Codec | None = None


def begin(tokenizer: Path, fast: bool) -> None:
    """Set a process up; `fast`: the one that starts it has found that gigatoken may encode.

    It ends when the one that started it is gone, however that ended.
    """
    global _codec
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches every process of a terminal; only one answers
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _codec = Codec.load(tokenizer, fast)
    if fast:
        _codec.encoder.choose(compare=False)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def encode_here(batch: Sequence[Content]) -> Encoded:
    """`encode_batch` with the tokenizer of this process."""
    assert _codec is not None
    return encode_batch(_codec, batch)
