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
    """Tokenizers of SentencePiece's kind decode `▁the` as `the` at the beginning, and write a space there."""
    codec, _ = tokenizer.load_user_tokenizer(model_folder(tmp_path, family) / "tokenizer.json")
    whole = codec.encode(TEXT)
    for cut in range(1, len(whole)):
        before = codec.decode(whole[:cut])
        if "\ufffd" in before:  # within a character: no prompt ends so
            continue
        stream = IncrementalDetokenizer(codec, whole[:cut])
        assert before + "".join(stream.add(token) for token in whole[cut:]) == TEXT


@pytest.mark.parametrize("family", FAMILIES)
def test_only_complete_characters_are_emitted(tmp_path: Path, family: str) -> None:
    codec, _ = tokenizer.load_user_tokenizer(model_folder(tmp_path, family) / "tokenizer.json")
    stream = IncrementalDetokenizer(codec)
    pieces = [stream.add(token) for token in codec.encode(TEXT)]
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
