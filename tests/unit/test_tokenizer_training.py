"""Training of a byte-level BPE tokenizer."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, pre_tokenizers

from bench.synthetic_texts import paragraphs, take
from trainer_core.data.tokenizing import bpe
from trainer_core.data.tokenizing.bpe import REGEXES, PreTokenizer
from trainer_core.data.tokenizing.conversations import SPECIAL_TOKENS
from trainer_core.progress import StopRequested

ROOT = Path(__file__).resolve().parents[2]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())  # one character per byte
BYTE_ORDER = [bpe._to_printable(bytes([value])) for value in range(256)]  # rustbpe breaks ties by the lowest id
BASE_VOCAB_SIZE = len(SPECIAL_TOKENS) + len(ALPHABET)


def train(texts: Iterable[str], vocab_size: int = 400, kind: PreTokenizer = "qwen2") -> Tokenizer:
    return bpe.train(texts, vocab_size, kind, lambda: None)


def read_merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]


def split_by_regex(text: str, kind: PreTokenizer) -> list[str]:
    composed = unicodedata.normalize("NFC", text) if kind == "qwen2" else text
    split = pre_tokenizers.Split(Regex(REGEXES[kind]), behavior="isolated")
    return [word for word, _ in split.pre_tokenize_str(composed)]


kinds = st.sampled_from(list(REGEXES))


# --- merges ----------------------------------------------------------------------------------------


def reference_merges(
    texts: Iterable[str], vocab_size: int, kind: PreTokenizer, alphabet: Sequence[str] = ALPHABET
) -> list[tuple[str, str]]:
    """BPE by its definition: repeatedly count all pairs and merge the most frequent one with the lowest ids."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = Counter(word for text in texts for word in split_by_regex(text, kind))
    tokens = list(alphabet)
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
            index = 0
            while index < len(sequence) - 1:
                if (sequence[index], sequence[index + 1]) == best:
                    sequence[index : index + 2] = [len(tokens) - 1]
                index += 1
    return merges


alphabets = st.sampled_from(["ab", "aaab", "aab \n", "的一是 了", "a's12 !\n", "abcdefgh "])
repetitive = alphabets.flatmap(
    lambda characters: st.lists(st.text(st.sampled_from(characters), max_size=120), max_size=6)
)


@given(repetitive, st.sampled_from([BASE_VOCAB_SIZE + 6, 300, 400]), kinds)
@settings(max_examples=80, deadline=None)
def test_merges_equal_those_of_the_definition_of_bpe(texts: list[str], vocab_size: int, kind: PreTokenizer) -> None:
    assert read_merges(train(texts, vocab_size, kind)) == reference_merges(texts, vocab_size, kind)


@pytest.mark.parametrize("kind", REGEXES)
def test_a_long_sample_merges_the_most_frequent_pairs(mixed_texts: list[str], kind: PreTokenizer) -> None:
    texts = ["".join(mixed_texts)[:20_000]]
    assert read_merges(train(texts, BASE_VOCAB_SIZE + 50, kind)) == reference_merges(
        texts, BASE_VOCAB_SIZE + 50, kind, BYTE_ORDER
    )


@pytest.fixture(scope="module")
def mixed_texts() -> list[str]:
    """English, Chinese and code."""
    readmes = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")]
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "trainer_core").glob("c*.py"))]
    return [*readmes, *sources, *(text for (text,) in take(paragraphs(), 0.25))]


def test_a_long_sample_compresses_as_well_as_with_the_trainer_of_tokenizers(
    mixed_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(text for (text,) in take(paragraphs(seed=1), 0.1))
    tokenizer = train(mixed_texts, 2000)
    monkeypatch.setattr(bpe, "_MIN_CHARS_PER_TOKEN", 10**9)
    assert len(tokenizer.encode(text).ids) < 1.005 * len(train(mixed_texts, 2000).encode(text).ids)


def test_the_text_of_every_token_is_encoded_as_that_token(mixed_texts: list[str]) -> None:
    tokenizer = train(mixed_texts, 4000)
    for token, number in tokenizer.get_vocab(with_added_tokens=False).items():
        if number >= len(SPECIAL_TOKENS):
            assert [piece.id for piece in tokenizer.model.tokenize(token)] == [number]


# --- the tokenizer ---------------------------------------------------------------------------------


def test_ids_are_special_tokens_then_bytes_then_merges_up_to_vocab_size(mixed_texts: list[str]) -> None:
    for size in (300, 1000):
        vocab = train(mixed_texts, size).get_vocab()
        tokens = sorted(vocab, key=lambda token: vocab[token])
        assert tokens[:BASE_VOCAB_SIZE] == [*SPECIAL_TOKENS, *ALPHABET]
        assert sorted(vocab.values()) == list(range(size))


@pytest.mark.parametrize("texts", [[], [""], ["", "\n", "a"], ["ab"], ["\ud800"]])
@pytest.mark.parametrize("kind", REGEXES)
def test_a_small_sample_yields_a_smaller_vocabulary(texts: list[str], kind: PreTokenizer) -> None:
    tokenizer = train(texts, 8192, kind)
    assert tokenizer.get_vocab_size() == BASE_VOCAB_SIZE
    assert tokenizer.decode(tokenizer.encode("好 ab").ids) == "好 ab"


def test_qwen2_splits_digits_and_the_others_group_them() -> None:
    lengths = [len(train(["12345 " * 500], 300, kind).encode("12345").ids) for kind in REGEXES]
    assert dict(zip(REGEXES, lengths, strict=True)) == {"gpt-2": 1, "llama-bpe": 2, "qwen2": 5}


def test_training_is_deterministic_across_processes(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from trainer_core.data.tokenizing import bpe;"
        "texts = Path(bpe.__file__).with_name('tokenizer.py').read_text(encoding='utf-8').splitlines(keepends=True);"
        "[bpe.train(texts * n, 400, 'qwen2', lambda: None).save(path) for n, path in zip((1, 4), sys.argv[1:])]"
    )
    for name, seed in (("a", "1"), ("b", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        files = [str(tmp_path / f"{name}{number}") for number in (1, 2)]
        subprocess.run([sys.executable, "-c", script, *files], check=True, env=environment)
    for number in (1, 2):
        assert (tmp_path / f"a{number}").read_bytes() == (tmp_path / f"b{number}").read_bytes()


# --- stopping --------------------------------------------------------------------------------------


def test_a_stop_ends_the_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "_MAX_IN_PROCESS_CHARS", 0)

    def stop() -> None:
        if multiprocessing.active_children():
            raise StopRequested

    with pytest.raises(StopRequested):
        bpe.train(["some text "] * 100_000, 400, "qwen2", stop)
    assert not multiprocessing.active_children()


def test_a_child_process_trains_the_same_tokenizer(mixed_texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(mixed_texts, 2000).to_str()
    monkeypatch.setattr(bpe, "_MAX_IN_PROCESS_CHARS", 0)
    assert train(mixed_texts, 2000).to_str() == expected


def test_a_failed_child_process_raises_its_exit_code(monkeypatch: pytest.MonkeyPatch, mixed_texts: list[str]) -> None:
    monkeypatch.setattr(bpe, "_MAX_IN_PROCESS_CHARS", 0)
    with pytest.raises(RuntimeError, match="exit code 1"):
        bpe.train(mixed_texts, 400, "unknown", lambda: None)  # type: ignore[arg-type]


def test_a_stop_interrupts_reading_the_sample() -> None:
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
