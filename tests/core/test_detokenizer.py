"""Incremental detokenization."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.model_folders import FAMILIES, model_folder
from trainer_core.data.tokenizing import tokenizer
from trainer_core.generation.generate import IncrementalDetokenizer

TEXT = "The quick brown 床😀 fox jumps 床前😀, twice"


@pytest.mark.parametrize("family", FAMILIES)
def test_text_continues_its_context_at_any_token(tmp_path: Path, family: str) -> None:
    """SentencePiece tokenizers decode `▁the` as `the` at the start of a text and as ` the` after other tokens."""
    codec, _ = tokenizer.load_user_tokenizer(model_folder(tmp_path, family) / "tokenizer.json")
    tokens = codec.encode(TEXT)
    for length in range(1, len(tokens)):
        context = codec.decode(tokens[:length])
        if "\ufffd" in context:  # within a character, where no prompt ends
            continue
        stream = IncrementalDetokenizer(codec, tokens[:length])
        assert context + "".join(stream.add(token) for token in tokens[length:]) == TEXT


@pytest.mark.parametrize("family", FAMILIES)
def test_only_complete_characters_are_emitted(tmp_path: Path, family: str) -> None:
    codec, _ = tokenizer.load_user_tokenizer(model_folder(tmp_path, family) / "tokenizer.json")
    stream = IncrementalDetokenizer(codec)
    pieces = [stream.add(token) for token in codec.encode(TEXT)]
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
