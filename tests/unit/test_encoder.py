"""Text encoder: gigatoken and the reference, `tokenizers`, return the same ids for any text."""

from __future__ import annotations

import functools
import json
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.unit.text_encoders import assert_same_ids, fast_and_reference
from trainer_core.data.tokenizing import encoder as encoder_module
from trainer_core.data.tokenizing.bpe import REGEXES, PreTokenizer, train
from trainer_core.data.tokenizing.encoder import EncoderMismatchError, TextEncoder

STDLIB = Path(json.__file__).parents[1]
CHINESE = "我们的模型在2024年学会了中文，“你好”！今天天气很好，大家都在学习如何训练语言模型。"


def corpus() -> Iterator[str]:
    for file in sorted(STDLIB.glob("*.py"))[:40]:
        yield file.read_text(encoding="utf-8")
    yield from (CHINESE[start:] for start in range(len(CHINESE)))


@pytest.fixture(scope="module", params=list(REGEXES))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param)


def train_tokenizer(pre_tokenizer: PreTokenizer) -> Tokenizer:
    return train(corpus(), 1500, pre_tokenizer, lambda: None)


SPECIAL_CASES = st.sampled_from(
    ["'s", "'S", "'ſ", "'ll", "<|im_end|>", "<|endoftext|>", " " * 40, "\r\n", "\n\n", "1234", "e\u0301", "İ", "ﬁ",
     "我们", "😀", "👨‍👩‍👧", "\u200b", "\ufeff", "\u3000", "\x85", "\u2028", "\u180e", "\x00", "a" * 200, "\U000323b0"]
)  # fmt: skip
TEXT = st.lists(st.one_of(SPECIAL_CASES, st.text(max_size=12)), max_size=12).map("".join)


def test_random_texts_have_the_ids_of_the_reference(tokenizer: Tokenizer) -> None:
    fast, reference = fast_and_reference(tokenizer)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(TEXT, min_size=1, max_size=20))
    def check(texts: list[str]) -> None:
        assert_same_ids(fast, reference, texts)

    check()


def test_every_character_has_the_ids_of_the_reference(tokenizer: Tokenizer) -> None:
    fast, reference = fast_and_reference(tokenizer)
    assigned = [chr(code) for code in range(0x2FA20) if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")]
    sample = [*assigned[:8000], *assigned[8000::37]]  # all of the small alphabets, every 37th of the large ones
    assert_same_ids(fast, reference, [f"a{c}b 1{c}2 '{c}\n{c} !{c}{c}" for c in sample])


def test_unassigned_characters_are_encoded_by_the_reference() -> None:
    fast, reference = fast_and_reference(train_tokenizer("qwen2"))
    unassigned = [chr(code) for code in range(0x32000, sys.maxunicode, 997) if unicodedata.category(chr(code)) == "Cn"]
    assert len(unassigned) > 100
    assert_same_ids(fast, reference, [f"a{c}b 1{c}2" for c in unassigned])


def test_long_runs_of_one_character_are_encoded() -> None:
    fast, reference = fast_and_reference(train_tokenizer("qwen2"))
    assert_same_ids(fast, reference, ["a" * 100_000, " " * 100_000, "\n" * 100_000, "我" * 100_000, "!1" * 50_000, ""])


@pytest.mark.parametrize("word", ["café", "cafe\u0301"])
def test_added_words_are_found_in_any_unicode_form(word: str) -> None:
    """The reference applies NFC to the text and to the added word before the search."""
    tokenizer = train_tokenizer("qwen2")
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=True)])
    fast, reference = fast_and_reference(tokenizer)
    for text in ("a cafe\u0301 here", "a café here"):
        assert tokenizer.token_to_id(word) in reference.encode([text])[0]
        assert_same_ids(fast, reference, [text])


def test_short_texts_use_the_reference() -> None:
    short = TextEncoder(train_tokenizer("gpt-2"))
    short.encode(["a few words"])
    assert short.backend == ""


def test_other_kinds_of_tokenizers_use_the_reference() -> None:
    word_level = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    word_level.pre_tokenizer = pre_tokenizers.Whitespace()
    metaspace = Tokenizer(models.BPE({"▁": 0, "a": 1}, []))
    metaspace.pre_tokenizer = pre_tokenizers.Metaspace()
    metaspace.decoder = decoders.Metaspace()
    for tokenizer in (word_level, metaspace):
        encoder = TextEncoder(tokenizer)
        encoder.encode(["a " * 50_000])
        assert encoder.backend == "tokenizers"


def test_other_normalizers_use_the_reference() -> None:
    tokenizer = train_tokenizer("gpt-2")
    tokenizer.normalizer = normalizers.Lowercase()
    encoder = TextEncoder(tokenizer)
    assert len(encoder.encode(["ABC " * 20_000])[0])
    assert encoder.backend == "tokenizers"


def test_a_mismatch_during_encoding_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, _ = fast_and_reference(train_tokenizer("gpt-2"))
    assert fast._fast is not None
    compose = functools.partial(unicodedata.normalize, "NFC")  # the reference does not normalize
    monkeypatch.setattr(fast._fast, "normalize", compose)
    with pytest.raises(EncoderMismatchError):
        fast.encode(["e\u0301 " * 100])


def test_memory_is_bounded_for_texts_without_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "_MAX_MEMORY_GROWTH", 8 * 2**20)
    fast, _ = fast_and_reference(train_tokenizer("gpt-2"))
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz    ", np.uint8)
    rng = np.random.default_rng(0)
    process, before = psutil.Process(), psutil.Process().memory_info().rss
    for _ in range(30):
        text = letters[rng.integers(0, len(letters), 2**20)].tobytes().decode()
        fast.encode([text[start : start + 4096] for start in range(0, len(text), 4096)])
    assert process.memory_info().rss - before < 100 * 2**20  # 190 MiB if the encoder is never renewed
