"""Text encoders of the same tokenizer, on gigatoken and on `tokenizers`, for comparison."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer

from trainer_core.data.tokenizing.encoder import TextEncoder


def fast_and_reference(tokenizer: Tokenizer) -> tuple[TextEncoder, TextEncoder]:
    """Return an encoder that has selected gigatoken and one that uses only `tokenizers`."""
    fast = TextEncoder(Tokenizer.from_str(tokenizer.to_str()))
    fast.encode(["x" * 70_000])
    assert fast.backend == "gigatoken"
    return fast, TextEncoder(Tokenizer.from_str(tokenizer.to_str()), fast=False)


def assert_same_ids(fast: TextEncoder, reference: TextEncoder, texts: list[str]) -> None:
    for text, ids, expected in zip(texts, fast.encode(texts), reference.encode(texts), strict=True):
        assert ids.dtype == np.uint32
        assert ids.tolist() == expected.tolist(), text
