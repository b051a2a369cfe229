"""Encoding with added tokens: gigatoken and the reference return the same ids."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from tests.unit.text_encoders import assert_same_ids, fast_and_reference
from trainer_core.data.tokenizing.bpe import PreTokenizer, train

CORPUS = [
    "I think that <think> is a word.\n\nThe café is 我们的 café, and 'tis 2024.",
    "think tool call café the\n" * 9,
]
# Words that are prefixes or parts of each other, that overlap, and that spell é in two ways; and white space.
WORDS = ["<think>", "</think>", "<th", "think>x", ">x<", "ink", "的", "我们的", "1", "e\u0301", "café", "'s"]
WHITE_SPACE = ["\n\n", "  ", "think>\n"]
SPECIAL = ["<think", "<|im_end|>", "们的 ", "nk>"]
FRAGMENTS = [
    *WORDS,
    *WHITE_SPACE,
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


def train_with_added_tokens(pre_tokenizer: PreTokenizer, added: list[AddedToken]) -> Tokenizer:
    tokenizer = train(CORPUS, 400, pre_tokenizer, lambda: None)
    tokenizer.add_tokens([token for token in added if not token.special])
    tokenizer.add_special_tokens([token for token in added if token.special])
    return tokenizer


def draw_tokens(rng: random.Random, with_flags: bool) -> list[AddedToken]:
    """Draw added tokens in random order.

    With flags, white space is excluded: `tokenizers` panics if a token strips white space that is a token itself.
    """
    contents = [*WORDS, *SPECIAL] if with_flags else [*WORDS, *WHITE_SPACE, *SPECIAL]
    tokens = []
    for content in rng.sample(contents, rng.randint(1, 8)):
        flags = {flag: with_flags and rng.random() < 0.3 for flag in ("single_word", "lstrip", "rstrip")}
        tokens.append(AddedToken(content, special=content in SPECIAL, normalized=rng.random() < 0.5, **flags))
    return tokens


@pytest.mark.parametrize("flags", [False, True], ids=["without flags", "with flags"])
@pytest.mark.parametrize("pre_tokenizer", ["qwen2", "gpt-2", "llama-bpe"])
def test_texts_with_any_added_tokens_have_the_ids_of_the_reference(pre_tokenizer: PreTokenizer, flags: bool) -> None:
    rng = random.Random(f"{pre_tokenizer} {flags}")
    for _ in range(12):
        fast, reference = fast_and_reference(train_with_added_tokens(pre_tokenizer, draw_tokens(rng, flags)))
        texts = ["".join(rng.choices(FRAGMENTS, k=rng.randint(0, 14))) for _ in range(300)]
        assert_same_ids(fast, reference, texts)


def test_random_texts_have_the_ids_of_the_reference() -> None:
    added = [
        AddedToken(content, special=False, normalized=number % 2 == 0)
        for number, content in enumerate([*WORDS, *WHITE_SPACE])
    ]
    added += [AddedToken(content, special=True) for content in SPECIAL]
    fast, reference = fast_and_reference(train_with_added_tokens("qwen2", added))

    @settings(max_examples=80, deadline=None)
    @given(st.lists(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=4))).map("".join), max_size=8))
    def check(texts: list[str]) -> None:
        assert_same_ids(fast, reference, texts or [""])

    check()
