"""Encodes a batch of documents, in this process or in a worker process.

No torch, no Qt.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer_core.data.columns import Content, Conversation, Preference
from trainer_core.data.preferences import encode_preferences
from trainer_core.data.token_files import EMPTY_INT64, token_dtype
from trainer_core.data.tokenizing.tokenizer import Codec, EncodedChat
from trainer_core.messages import TraindeckError

_GC_THRESHOLD: Final = 100_000  # objects; 700 by default, which takes a tenth of the time


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """The tokens of a batch of documents, concatenated."""

    ids: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]  # tokens per document; 0 if refused
    hashes: npt.NDArray[np.uint64]  # content hash per document
    spans: npt.NDArray[np.int64]  # (n, 2): [start, stop) of the tokens trained on, relative to the document
    span_counts: npt.NDArray[np.int64]  # spans per document; empty for plain text
    refused: list[tuple[int, str]]  # index and reason of conversations that the template rejects
    dropped_turns: int = 0  # turns that the template cannot write
    equal_pairs: int = 0  # pairs with twice the same tokens, which are left out


def encode_batch(codec: Codec, batch: Sequence[Content]) -> EncodedBatch:
    """Raises what `Codec` raises."""
    refused: list[tuple[int, str]] = []

    def refuse(number: int, error: TraindeckError) -> None:
        refused.append((number, str(error.params.get("reason", error.code))))

    spans, counts, dropped, equal = EMPTY_INT64, EMPTY_INT64, 0, 0
    if isinstance(batch[0], str):
        parts = codec.encode_texts(batch)  # type: ignore[arg-type]
    else:
        chats, equal = encode_conversations(codec, batch, refuse)
        parts, dropped = [chat.ids for chat in chats], sum(chat.dropped_turns for chat in chats)
        spans = np.array([span for chat in chats for span in chat.spans], np.int64)
        counts = np.array([len(chat.spans) for chat in chats])
    ids = np.concatenate(parts).astype(token_dtype(codec.vocab_size))  # small, since it is sent between processes
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    hashes = np.frombuffer(b"".join(map(_content_hash, batch)), "<u8").astype(np.uint64)
    return EncodedBatch(ids, lengths, hashes, spans.reshape(-1, 2), counts, refused, dropped, equal)


def encode_conversations(
    codec: Codec, batch: Sequence[Content], on_refused: Callable[[int, TraindeckError], None] | None = None
) -> tuple[list[EncodedChat], int]:
    """Conversations or preferences, and the number of pairs that are left out since their conversations are equal."""
    if batch and isinstance(batch[0], Preference):
        return encode_preferences(codec, batch, on_refused)  # type: ignore[arg-type]
    return codec.encode_chats(batch, on_refused), 0  # type: ignore[arg-type]


def _content_hash(content: Content) -> bytes:
    """The hash of a row. Two pairs of the same answers the other way round differ only in the lowest bit, and so do
    an answer labelled good and the same labelled bad."""
    if not isinstance(content, Preference):
        return _hash(content)
    chosen, rejected = (_hash(one) if one else b"" for one in content)
    number = int.from_bytes(_hash("".join(sorted((chosen.hex(), rejected.hex())))), "little")
    return (number & ~1 | (chosen > rejected)).to_bytes(8, "little")


def _hash(content: str | Conversation) -> bytes:
    # The lengths distinguish ("ab", "c") from ("a", "bc").
    if not isinstance(content, str):
        content = "".join([f"\0{len(part)}\0{part}" for turn in content for part in turn[1:]])
    return hashlib.blake2b(content.encode("utf-8"), digest_size=8).digest()


# --- worker processes ------------------------------------------------------------------------------


def init_worker() -> None:
    """Set up a worker process, which exits with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches every process of a terminal; the parent handles it
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])


def _exit_with_parent(parent: Any) -> None:
    parent.join()
    os._exit(1)


def encode_in_worker(tokenizer: Path, fast: bool, batch: Sequence[Content]) -> EncodedBatch:
    """`encode_batch` in a worker. `fast`: gigatoken may be used."""
    return encode_batch(_load_codec(tokenizer, fast), batch)


_load_codec = functools.cache(Codec.load)
