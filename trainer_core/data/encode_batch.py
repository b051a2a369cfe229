"""A batch of documents as tokens: the work that other processes can take over.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer_core.data.columns import Turn
from trainer_core.data.store import NO_NUMBERS, token_type
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import TraindeckError

_OBJECTS: Final = 100_000  # made since Python last looked for unused ones; 700 by default

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
    left_out: int = 0  # turns of conversations that the template cannot write


def encode_batch(codec: Codec, batch: Sequence[Content]) -> Encoded:
    """Raises what `Codec` raises."""
    digests = b"".join([_digest(content) for content in batch])
    hashes = np.frombuffer(digests, "<u8").astype(np.uint64)
    kind = token_type(codec.vocab_size)  # half as much to hand from one process to the other
    if isinstance(batch[0], str):
        texts = codec.encode_texts(batch)  # type: ignore[arg-type]
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        return Encoded(np.concatenate(texts).astype(kind), lengths, hashes, NO_NUMBERS.reshape(-1, 2), NO_NUMBERS, [])
    refused: list[tuple[int, str]] = []

    def refuse(number: int, error: TraindeckError) -> None:
        refused.append((number, str(error.params.get("reason", error.code))))

    ids, lengths, spans, counts, left_out = codec.encode_conversations(batch, refuse)  # type: ignore[arg-type]
    return Encoded(ids.astype(kind), lengths, hashes, spans, counts, refused, left_out)


def _digest(content: Content) -> bytes:
    # Lengths keep ("ab", "c") and ("a", "bc") apart.
    if isinstance(content, str):
        told = content
    else:
        told = "".join([f"\0{len(part)}\0{part}" for turn in content for part in turn[1:]])
    return hashlib.blake2b(told.encode("utf-8"), digest_size=8).digest()


@contextlib.contextmanager
def without_pauses() -> Iterator[None]:
    """Python looks for unused cycles of objects rarely: in millions of rows there are none, and to look takes a
    tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


# --- in another process ----------------------------------------------------------------------------

_codec: Codec | None = None


def begin(tokenizer: Path, fast: bool) -> None:
    """Set a process up; `fast`: whether gigatoken may encode.

    It ends when the one that started it is gone, however that ended.
    """
    global _codec
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches every process of a terminal; only one answers
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    _codec = Codec.load(tokenizer, fast)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def ready() -> None:
    """Asked for so that processes start while the one that starts them still has other things to do."""


def encode_here(batch: Sequence[Content], equal: bool) -> Encoded:
    """`encode_batch` with the tokenizer of this process; `equal`: another one has found that gigatoken may encode."""
    assert _codec is not None
    if equal:
        _codec.encoder.choose(compare=False)
    else:
        _codec.encoder.switch_off()
    return encode_batch(_codec, batch)
