"""Training a byte-level BPE tokenizer: `tokenizers`' own trainer takes several times as long and as much memory.

    bpe_split.py   texts → words
    bpe_words.py   the distinct words and how often each was seen
    bpe_pairs.py   distinct words → tokens in one array; which pairs of neighbours were seen often
    bpe_merges.py  the most frequent pair becomes a token, again and again

No torch, no Qt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from trainer_core.data.tokenizing.bpe_merges import Merger
from trainer_core.data.tokenizing.bpe_pairs import Corpus
from trainer_core.data.tokenizing.bpe_split import Splitter, blocks
from trainer_core.data.tokenizing.bpe_words import WordTable
from trainer_core.data.tokenizing.chat import SPECIAL_TOKENS

PreTokenizer = Literal["gpt-2", "llama-bpe", "qwen2"]

# How each family splits text before merging, as in its tokenizer.json and, by the same name, in llama.cpp
# (src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_GPT2, _LLAMA3 and _QWEN2). A GGUF file names one of these in
# `tokenizer.ggml.pre` and cannot carry a regex of its own.
REGEXES: Final[dict[PreTokenizer, str]] = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}

_BUDGET: Final = 32 * 1024 * 1024  # bytes of distinct words
_MIN_FREQUENCY: Final = 2
_POLL_SECONDS: Final = 0.05


def train(texts: Iterable[str], vocab_size: int, pre_tokenizer: PreTokenizer, poll: Callable[[], None]) -> Tokenizer:
    """A byte-level BPE tokenizer learned from `texts`; the same texts always give the same one.

    Ids: the special tokens 0 to 2, the 256 bytes, then merges, up to `vocab_size` (fewer if there is too
    little text). It is the tokenizer that `tokenizers` would train, but for this:
    - Where the distinct words (of Chinese: clauses) take more than 32 MiB, the rare ones are thinned evenly over
      all of the text, and those that stay count for those that do not (`bpe_words.WordTable`). Words seen often
      are never thinned. A pair is then merged only if it stands for two words that stayed.
    - A text of more than 256 Ki characters is cut, at a space where there is one.

    However much text there is, about 300 MB of memory are needed. `poll` is called about twenty times a second, between
    two texts too, and may raise to abandon the training.
    """
    due = time.monotonic()

    def poll_when_due() -> None:
        nonlocal due
        if time.monotonic() >= due:
            poll()
            due = time.monotonic() + _POLL_SECONDS

    table = WordTable(Splitter(pre_tokenizer), _BUDGET, poll_when_due)
    for block in blocks(texts, pre_tokenizer == "qwen2", poll_when_due):
        table.add(block)
    table.settle()
    size = vocab_size - len(SPECIAL_TOKENS)
    alphabet = sorted(range(256), key=_CHARACTERS.__getitem__)
    corpus = Corpus(table.take(), table.places, alphabet, size)
    merger = Merger(corpus, alphabet, size, _MIN_FREQUENCY * table.floor, poll_when_due)
    merger.run()
    return _tokenizer(pre_tokenizer, merger.spellings, merger.merges)


def _characters() -> list[str]:
    """The character that stands for each byte in a tokenizer.json, as GPT-2 chose them."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(value if value in shown else next(others)) for value in range(256)]


_CHARACTERS: Final = _characters()


def _tokenizer(pre_tokenizer: PreTokenizer, spellings: list[bytes], merges: list[tuple[int, int]]) -> Tokenizer:
    names = str.maketrans(dict(enumerate(_CHARACTERS)))
    tokens = [spelling.decode("latin-1").translate(names) for spelling in spellings]
    vocab = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *tokens])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(tokens[left], tokens[right]) for left, right in merges]))
    split = pre_tokenizers.Split(Regex(REGEXES[pre_tokenizer]), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if pre_tokenizer == "qwen2":
        # As Qwen's own has it. transformers 5 puts its Qwen2Tokenizer, which composes characters so, in the
        # place of any tokenizer that stands beside a Qwen2 model; without this the ids would differ.
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer
