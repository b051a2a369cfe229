"""Training a tokenizer: the merges that the definition of BPE gives, whatever the text, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from bench.texts import mixed_text
from trainer_core.data.tokenizing import bpe, bpe_merges, bpe_pairs, bpe_words
from trainer_core.data.tokenizing.bpe import REGEXES, PreTokenizer
from trainer_core.data.tokenizing.bpe_split import Splitter, blocks
from trainer_core.data.tokenizing.bpe_words import WordTable
from trainer_core.data.tokenizing.chat import SPECIAL_TOKENS
from trainer_core.messages import TraindeckError
from trainer_core.report import StopRequested

ROOT = Path(__file__).resolve().parents[2]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())  # a character for each byte
FIRST = len(SPECIAL_TOKENS) + len(ALPHABET)


def nothing() -> None:
    pass


def trained(texts: Iterable[str], vocab_size: int = 400, kind: PreTokenizer = "qwen2") -> Tokenizer:
    return bpe.train(texts, vocab_size, kind, nothing)


def merges_of(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]


def split_by_regex(text: str, kind: PreTokenizer) -> list[str]:
    composed = unicodedata.normalize("NFC", text) if kind == "qwen2" else text
    split = pre_tokenizers.Split(Regex(REGEXES[kind]), behavior="isolated")
    return [word for word, _ in split.pre_tokenize_str(composed)]


kinds = st.sampled_from(list(REGEXES))


# --- words -----------------------------------------------------------------------------------------

# What the regexes tell apart: letters of all sorts, numerals, blanks, newlines, signs, and endings like 'll.
SIGNS = "aab zſSstTremvldDLE''  \n\r\t!.12 3中，é\u0301\u3000\xa0\u2028\x0b٣½\x1c\x85😀\U0002ebf0"


splitter = cache(Splitter)


def counted(texts: Iterable[str], kind: PreTokenizer, budget: int = 1 << 20) -> tuple[dict[bytes, int], WordTable]:
    table = WordTable(splitter(kind), budget, nothing)
    for block in blocks(texts, kind == "qwen2", nothing):
        table.add(block)
    table.settle()
    words: dict[bytes, int] = {}
    for part in table.take():
        ends = np.cumsum(part.lengths).tolist()
        spelled = [part.data[start:end].tobytes() for start, end in zip([0, *ends], ends, strict=False)]
        words.update(zip(spelled, part.counts.tolist(), strict=True))
    return words, table


@given(st.lists(st.text(st.sampled_from(SIGNS), max_size=20), max_size=4), kinds)
@settings(max_examples=200, deadline=None)
def test_words_are_those_that_the_regex_finds(texts: list[str], kind: PreTokenizer) -> None:
    words = Counter(word.encode() for text in texts for word in split_by_regex(text, kind))
    assert counted(texts, kind)[0] == {word: count for word, count in words.items() if len(word) > 1}


@given(st.lists(st.text(max_size=20), max_size=4), kinds)
@settings(max_examples=100, deadline=None)
def test_so_they_are_for_any_characters(texts: list[str], kind: PreTokenizer) -> None:
    words = Counter(word.encode() for text in texts for word in split_by_regex(text, kind))
    assert counted(texts, kind)[0] == {word: count for word, count in words.items() if len(word) > 1}


def test_half_a_character_from_a_broken_file_ends_a_word() -> None:
    assert counted(["ab\ud83dcd\udc00ab"], "qwen2")[0] == {b"ab": 2, b"cd": 1}


def test_a_text_longer_than_a_block_is_cut_between_words() -> None:
    words, _ = counted(["three words here " * 50_000], "gpt-2")
    assert words == {b"three": 1, b" three": 49_999, b" words": 50_000, b" here": 50_000}


def test_thinning_leaves_the_expected_counts_as_they_were_wherever_words_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe_words, "_PENDING", 100_000)

    def letters(number: int) -> str:
        return f"{number:06x}".translate(str.maketrans("0123456789", "ghijklmnop"))

    rare, budget = 40_000, 200_000
    texts = [f"x{letters(n)} the y{letters(n % 1000)}" for n in range(2 * rare)]
    words, table = counted(texts, "gpt-2", budget)
    assert table.floor > 1
    assert sum(len(word) + 4 for word in words) <= budget
    assert words[b" the"] == 2 * rare
    assert all(words[f" y{letters(n)}".encode()] == 2 * rare / 1000 for n in range(1000))
    for half in (range(rare), range(rare, 2 * rare)):
        assert sum(words.get(f"x{letters(n)}".encode(), 0) for n in half) == pytest.approx(rare, rel=0.05)
    assert counted(texts, "gpt-2", budget)[0] == words


# --- merges ----------------------------------------------------------------------------------------


def naive(texts: Iterable[str], vocab_size: int, kind: PreTokenizer) -> list[tuple[str, str]]:
    """BPE by its definition: count all pairs, merge the first of the most frequent ones, and again."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = Counter(word for text in texts for word in split_by_regex(text, kind))
    tokens = list(ALPHABET)
    spelled = [("".join(part for part, _ in byte_level.pre_tokenize_str(word)), n) for word, n in words.items()]
    sequences = [([tokens.index(character) for character in word], n) for word, n in spelled]
    merges = []
    while len(tokens) < vocab_size - len(SPECIAL_TOKENS):
        counts: Counter[tuple[int, int]] = Counter()
        for sequence, n in sequences:
            for pair in pairwise(sequence):
                counts[pair] += n
        best = min(counts, key=lambda pair: (-counts[pair], pair), default=(0, 0))
        if counts[best] < 2:
            break
        merges.append((tokens[best[0]], tokens[best[1]]))
        tokens.append("".join(merges[-1]))
        for sequence, _ in sequences:
            place = 0
            while place < len(sequence) - 1:
                if (sequence[place], sequence[place + 1]) == best:
                    sequence[place : place + 2] = [len(tokens) - 1]
                place += 1
    return merges


few_signs = st.sampled_from(["ab", "aaab", "aab \n", "的一是 了", "a's12 !\n", "abcdefgh "])
repetitive = few_signs.flatmap(lambda signs: st.lists(st.text(st.sampled_from(signs), max_size=120), max_size=6))


@given(repetitive, st.sampled_from([FIRST + 6, 300, 400]), kinds)
@settings(max_examples=80, deadline=None)
def test_merges_are_those_of_counting_anew_each_time(texts: list[str], vocab_size: int, kind: PreTokenizer) -> None:
    assert merges_of(trained(texts, vocab_size, kind)) == naive(texts, vocab_size, kind)


@given(repetitive, kinds, st.tuples(*(st.sampled_from(sizes) for sizes in ([1, 5, 50], [3, 16], [4, 9], [1, 30], [2]))))
@settings(max_examples=80, deadline=None)
def test_so_they_are_however_little_is_kept_in_mind_at_once(
    texts: list[str], kind: PreTokenizer, limits: tuple[int, ...]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tracked, chunk, bits, places, few = limits
        for module, name, value in (
            (bpe_merges, "_TRACKED", tracked),
            (bpe_merges, "_MANY", few),
            (bpe_merges, "CHUNK", chunk),
            (bpe_pairs, "CHUNK", chunk),
            (bpe_pairs, "_SKETCH_BITS", bits),
            (bpe_pairs, "_PLACES", places),
            (bpe_pairs, "_WAITING", few),
            (bpe_pairs, "_DISTINCT", 5 * few),
        ):
            patch.setattr(module, name, value)
        merges = merges_of(trained(texts, 300, kind))
    assert merges == naive(texts, 300, kind)


def by_tokenizers(texts: Iterable[str], vocab_size: int, kind: PreTokenizer) -> Tokenizer:
    """What `tokenizers` makes of the same texts with its own trainer."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(REGEXES[kind]), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=ALPHABET,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def mixed() -> list[str]:
    """English, Chinese and code."""
    readmes = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")]
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "trainer_core").glob("c*.py"))]
    return [*readmes, *sources, *mixed_text(0.25)]


@pytest.mark.parametrize("kind", REGEXES)
def test_the_file_is_byte_for_byte_what_tokenizers_would_write(mixed: list[str], kind: PreTokenizer) -> None:
    assert trained(mixed, 2000, kind).to_str() == by_tokenizers(mixed, 2000, kind).to_str()


def test_a_tokenizer_from_thinned_words_needs_hardly_more_tokens(
    mixed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(mixed_text(0.1, seed=1))
    best = len(trained(mixed, 2000).encode(text).ids)
    monkeypatch.setattr(bpe, "_BUDGET", 100_000)
    assert len(trained(mixed, 2000).encode(text).ids) < 1.03 * best


def test_every_token_is_its_own_encoding(mixed: list[str]) -> None:
    tokenizer = trained(mixed, 4000)
    for token, number in tokenizer.get_vocab(with_added_tokens=False).items():
        if number >= len(SPECIAL_TOKENS):
            assert [found.id for found in tokenizer.model.tokenize(token)] == [number]


@pytest.mark.parametrize("word", ["a" * 16_385, "ab" * 3000 + "a" * 999, "".join(map(chr, range(0x4E00, 0x9E00)))])
def test_one_long_word_is_merged_as_others_are(word: str) -> None:
    assert trained([word], 500).to_str() == by_tokenizers([word], 500, "qwen2").to_str()


# --- the tokenizer ---------------------------------------------------------------------------------


def test_special_tokens_come_first_then_the_bytes_then_merges_up_to_the_size_asked(mixed: list[str]) -> None:
    for size in (300, 1000):
        vocab = trained(mixed, size).get_vocab()
        tokens = sorted(vocab, key=lambda token: vocab[token])
        assert tokens[:FIRST] == [*SPECIAL_TOKENS, *ALPHABET]
        assert sorted(vocab.values()) == list(range(size))


@pytest.mark.parametrize("texts", [[], [""], ["", "\n", "a"], ["ab"], ["\ud800"]])
@pytest.mark.parametrize("kind", REGEXES)
def test_too_little_text_makes_a_smaller_vocabulary(texts: list[str], kind: PreTokenizer) -> None:
    tokenizer = trained(texts, 8192, kind)
    assert tokenizer.get_vocab_size() == FIRST
    assert tokenizer.decode(tokenizer.encode("好 ab").ids) == "好 ab"


def test_chinese_characters_become_tokens() -> None:
    characters = "床前明月光疑是地上霜举头望低思故乡，。"
    drawn = np.random.default_rng(0).choice(list(characters), 5000)
    tokenizer = trained(["".join(drawn)], 350)
    for character in characters:
        assert len(tokenizer.encode(character).ids) == 1


def test_a_large_vocabulary_has_room_for_its_numbers(mixed: list[str]) -> None:
    texts = mixed[:6]
    assert trained(texts, 100_000, "gpt-2").to_str() == by_tokenizers(texts, 100_000, "gpt-2").to_str()


def test_qwen2_keeps_digits_apart_and_the_others_group_them() -> None:
    lengths = [len(trained(["12345 " * 500], 300, kind).encode("12345").ids) for kind in REGEXES]
    assert dict(zip(REGEXES, lengths, strict=True)) == {"gpt-2": 1, "llama-bpe": 2, "qwen2": 5}


def test_the_same_text_always_trains_the_same_tokenizer(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from trainer_core.data.tokenizing import bpe; bpe._BUDGET = 8000;"
        "texts = Path(bpe.__file__).with_name('bpe_words.py').read_text(encoding='utf-8').splitlines(keepends=True);"
        "bpe.train(texts, 600, 'qwen2', lambda: None).save(sys.argv[1])"
    )
    for name, seed in (("a.json", "1"), ("b.json", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], check=True, env=environment)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


# --- memory, and stopping --------------------------------------------------------------------------


def random_words(rng: np.random.Generator) -> str:
    letters = rng.integers(97, 123, 100_000, dtype=np.uint8)
    letters[rng.random(len(letters)) < 1 / 7] = ord(" ")
    return letters.tobytes().decode()


def random_chinese(rng: np.random.Generator) -> str:
    characters = rng.integers(0x4E00, 0x4E00 + 3000, 33_333, dtype=np.uint32)
    characters[::12] = ord("，")
    return characters.tobytes().decode("utf-32-le")


@pytest.mark.parametrize("made", [random_words, random_chinese])
def test_memory_does_not_grow_with_the_text(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    monkeypatch.setattr(bpe, "_BUDGET", 500_000)
    monkeypatch.setattr(bpe_words, "_PENDING", 100_000)

    def peak(pieces: int) -> int:
        rng = np.random.default_rng(0)
        tracemalloc.start()
        trained((made(rng) for _ in range(pieces)), 300)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    assert peak(40) < 1.1 * peak(10)


def test_training_stops_at_any_time(mixed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "_POLL_SECONDS", 0)
    stops = [1]
    for calls in stops:
        asked = 0

        def stop() -> None:
            nonlocal asked
            asked += 1
            if asked == calls:  # noqa: B023 - called within this turn of the loop
                raise StopRequested

        try:
            bpe.train(mixed[:6], 1000, "qwen2", stop)
        except StopRequested:
            assert asked == calls
            stops.append(4 * calls)
    assert stops[-1] > 200  # once for each token at least


def test_merging_asks_at_least_ten_times_a_second(mixed: list[str]) -> None:
    asked = [time.monotonic()]
    bpe.train(mixed, 3000, "qwen2", lambda: asked.append(time.monotonic()))
    asked.append(time.monotonic())
    assert np.median(np.diff(asked)) < 0.1


def test_training_stops_soon_after_it_was_asked_to() -> None:
    calls = 0

    def stop_at_third() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise StopRequested

    def endless() -> Iterator[str]:
        while True:
            yield "word after word "

    with pytest.raises(StopRequested):
        bpe.train(endless(), 400, "qwen2", stop_at_third)


def test_an_error_while_reading_comes_out_of_training() -> None:
    def broken() -> Iterator[str]:
        yield "text"
        raise TraindeckError("data.unreadable", path="x", reason="y")

    with pytest.raises(TraindeckError):
        trained(broken())
