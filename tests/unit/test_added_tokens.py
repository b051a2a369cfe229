"""Texts with words added to the vocabulary have the ids of the reference."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from trainer_core.data.tokenizing.bpe import PreTokenizer, train
from trainer_core.data.tokenizing.encoder import TextEncoder

CORPUS = [
    "I think that <think> is a word.\n\nThe café is 我们的 café, and 'tis 2024.",
    "think tool call café the\n" * 9,
]
# Words that begin with, contain and overlap each other, parts of other words, two ways to write é; and white space.
WORDS = ["<think>", "</think>", "<th", "think>x", ">x<", "ink", "的", "我们的", "1", "e\u0301", "café", "'s"]
BLANKS = ["\n\n", "  ", "think>\n"]
SPECIAL = ["<think", "<|im_end|>", "们的 ", "nk>"]
FRAGMENTS = [
    *WORDS,
    *BLANKS,
    *SPECIAL,
    "<",
    ">",
    "x",
    " ",
    "\n",
    "我",
    "们",
    "e",
    "\u0301",
    "cafe",
    "think",
    "2024",
    "s",
    "'",
]


def fast_and_reference(
    pre_tokenizer: PreTokenizer, added: list[AddedToken]
) -> tuple[TextEncoder, TextEncoder, Tokenizer]:
    """An encoder that has chosen gigatoken, and one on the reference alone."""
    tokenizer = train(CORPUS, 400, pre_tokenizer, lambda: None)
    tokenizer.add_tokens([one for one in added if not one.special])
    tokenizer.add_special_tokens([one for one in added if one.special])
    fast, reference = TextEncoder(Tokenizer.from_str(tokenizer.to_str())), TextEncoder(tokenizer, fast=False)
    fast.encode(["x" * 70_000])
    assert fast.backend == "gigatoken"
    return fast, reference, tokenizer


def assert_same(fast: TextEncoder, reference: TextEncoder, texts: list[str]) -> None:
    for text, ours, theirs in zip(texts, fast.encode(texts), reference.encode(texts), strict=True):
        assert ours.dtype == np.uint32
        assert ours.tolist() == theirs.tolist(), text


def draw_tokens(chance: random.Random, flags: bool) -> list[AddedToken]:
    """Some of the words, in any order. `tokenizers` panics where words take white space that is a word itself."""
    found = []
    for name in chance.sample([*WORDS, *SPECIAL] if flags else [*WORDS, *BLANKS, *SPECIAL], chance.randint(1, 8)):
        odd = {flag: flags and chance.random() < 0.3 for flag in ("single_word", "lstrip", "rstrip")}
        found.append(AddedToken(name, special=name in SPECIAL, normalized=chance.random() < 0.5, **odd))
    return found


@pytest.mark.parametrize("flags", [False, True], ids=["without flags", "with flags"])
@pytest.mark.parametrize("pre_tokenizer", ["qwen2", "gpt-2", "llama-bpe"])
def test_texts_with_any_added_tokens_have_the_ids_of_the_reference(pre_tokenizer: PreTokenizer, flags: bool) -> None:
    chance = random.Random(f"{pre_tokenizer} {flags}")
    for _ in range(12):
        fast, reference, _ = fast_and_reference(pre_tokenizer, draw_tokens(chance, flags))
        texts = ["".join(chance.choices(FRAGMENTS, k=chance.randint(0, 14))) for _ in range(300)]
        assert_same(fast, reference, texts)


def test_random_texts_have_the_ids_of_the_reference() -> None:
    words = [
        AddedToken(name, special=False, normalized=number % 2 == 0) for number, name in enumerate([*WORDS, *BLANKS])
    ]
    fast, reference, _ = fast_and_reference("qwen2", [*words, *(AddedToken(name, special=True) for name in SPECIAL)])

    @settings(max_examples=80, deadline=None)
    @given(st.lists(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=4))).map("".join), max_size=8))
    def check(texts: list[str]) -> None:
        assert_same(fast, reference, texts or [""])

    check()
