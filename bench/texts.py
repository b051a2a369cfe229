"""Synthetic texts for benchmarks: the same for the same seed, of any size.

What is fast on repetitive text may be slow on real text, so these do not repeat themselves:
- English: words of the standard library's docstrings by frequency; one word in fifty is new, as names and numbers are;
- Chinese: 20,000 made-up words of the 3,755 most common characters by Zipf's law, with punctuation;
- code: blocks of lines of the standard library in random order, with new function names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer_core.data.builtin import list_python_library

Kind = Literal["pairs", "text"]
Row = tuple[str, ...]

COLUMNS: Final[dict[Kind, tuple[str, ...]]] = {"pairs": ("prompt", "response"), "text": ("text",)}
_PROMPT, _RESPONSE, _PARAGRAPH = (20, 200), (100, 1500), (100, 3000)  # characters
_ROW_GROUP: Final = 10_000
_BLOCK_WORDS: Final = 1 << 17  # generated at once
_NEW_WORDS: Final = 1 / 50
_CHINESE_WORDS: Final = 20_000
_SYLLABLES: Final = [
    a + b + c for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u") for c in ("", "n", "r", "s")
]


@cache
def _sources() -> list[str]:
    _, files = list_python_library()
    return [file.read_text(encoding="utf-8", errors="ignore").replace("\r\n", "\n") for file in files]


@cache
def _english_words() -> tuple[list[str], list[float]]:
    """Words and their cumulative probabilities."""
    docstrings = (found for source in _sources() for found in re.findall(r'"""(.*?)"""', source, re.DOTALL))
    counts = Counter(word for text in docstrings for word in text.split() if len(word) <= 20)
    cumulative = np.cumsum(list(counts.values()))
    return list(counts), (cumulative / cumulative[-1]).tolist()


@cache
def _chinese_words() -> tuple[list[str], list[float]]:
    """Words and their cumulative probabilities."""
    rng = np.random.default_rng(2312)
    characters = [bytes([high, low]).decode("gb2312") for high in range(0xB0, 0xD8) for low in range(0xA1, 0xFF)
                  if (high, low) < (0xD7, 0xFA)]  # fmt: skip
    weights = 1 / np.arange(10, len(characters) + 10)
    lengths = rng.choice([1, 2, 3, 4], 2 * _CHINESE_WORDS, p=[0.05, 0.6, 0.2, 0.15]).tolist()
    drawn = rng.choice(rng.permutation(characters), (len(lengths), 4), p=weights / weights.sum()).tolist()
    words = dict.fromkeys("".join(row[:length]) for row, length in zip(drawn, lengths, strict=True))
    cumulative = np.cumsum(1 / (np.arange(_CHINESE_WORDS) + 3.7))  # Zipf-Mandelbrot: no word is a tenth of the text
    return list(words)[:_CHINESE_WORDS], (cumulative / cumulative[-1]).tolist()


def _draw(rng: np.random.Generator, words: list[str], cumulative: list[float], new: float) -> list[str]:
    """Words by probability; a share `new` of them never occurred before."""
    indexes = np.searchsorted(cumulative, rng.random(_BLOCK_WORDS))
    drawn = [words[index] for index in indexes.tolist()]
    positions = np.flatnonzero(rng.random(_BLOCK_WORDS) < new).tolist()
    for position, word in zip(positions, _new_words(rng, len(positions)), strict=True):
        drawn[position] = word
    return drawn


def _new_words(rng: np.random.Generator, count: int) -> list[str]:
    """Words of two to four syllables, and numbers."""
    syllables = rng.integers(0, len(_SYLLABLES), (count, 4)).tolist()
    lengths = rng.integers(1, 5, count).tolist()  # one syllable: a number
    return [
        "".join([_SYLLABLES[i] for i in parts[:length]]) if length > 1 else str(parts[0] * 431 + parts[1])
        for parts, length in zip(syllables, lengths, strict=True)
    ]


def _english(rng: np.random.Generator) -> str:
    return " ".join(_draw(rng, *_english_words(), _NEW_WORDS))


def _chinese(rng: np.random.Generator) -> str:
    words = _draw(rng, *_chinese_words(), _NEW_WORDS / 4)
    marks = rng.choice([*"，，，。。、？"], len(words)).tolist()
    ends = (rng.random(len(words)) < 1 / 4).tolist()  # clauses of eight characters on average, as in real text
    return "".join(word + mark if end else word for word, mark, end in zip(words, marks, ends, strict=True))


@cache
def _code_lines() -> list[str]:
    return [line for source in _sources() for line in source.split("\n") if line.strip()]


def _code(rng: np.random.Generator) -> str:
    lines, names = _code_lines(), _new_words(rng, 2048)
    starts = rng.integers(0, len(lines) - 40, 1024).tolist()
    lengths = rng.integers(4, 40, 1024).tolist()
    heads = (f"def {first}_{second}():" for first, second in zip(names[::2], names[1::2], strict=True))
    blocks = zip(heads, starts, lengths, strict=True)
    return "\n".join("\n".join([head, *lines[start : start + length]]) for head, start, length in blocks)


def _pieces(generate: Callable[[np.random.Generator], str], seed: int) -> Callable[[int], str]:
    """A function that returns the next characters of an endless text."""
    rng, text, position = np.random.default_rng(seed), "", 0

    def next_piece(characters: int) -> str:
        nonlocal text, position
        if position + characters > len(text):
            text, position = text[position:] + generate(rng), 0
        position += characters
        return text[position - characters : position]

    return next_piece


def _lengths(rng: np.random.Generator, bounds: tuple[int, int]) -> Iterator[int]:
    """Log-uniform lengths."""
    low, high = np.log(bounds).tolist()
    while True:
        yield from np.exp(rng.uniform(low, high, 4096)).astype(np.int64).tolist()


def paragraphs(seed: int = 0) -> Iterator[str]:
    """Endless paragraphs: half of them English, two fifths Chinese, a tenth code."""
    rng = np.random.default_rng(seed)
    english, chinese, code = (_pieces(language, seed) for language in (_english, _chinese, _code))
    for length in _lengths(rng, _PARAGRAPH):
        share = rng.random()
        yield (english if share < 0.5 else chinese if share < 0.9 else code)(length)


def pairs(seed: int = 0) -> Iterator[tuple[str, str]]:
    """Endless prompts and responses: half of them English, half Chinese; one English prompt in ten is answered with
    code."""
    rng = np.random.default_rng(seed)
    english, chinese, code = (_pieces(language, seed) for language in (_english, _chinese, _code))
    for prompt, response in zip(_lengths(rng, _PROMPT), _lengths(rng, _RESPONSE), strict=False):
        share = rng.random()
        language = english if share < 0.5 else chinese
        yield language(prompt), (code if share < 0.05 else language)(response)


def endless(kind: Kind, seed: int = 0) -> Iterator[Row]:
    """Endless rows of `COLUMNS[kind]`."""
    return pairs(seed) if kind == "pairs" else ((text,) for text in paragraphs(seed))


def mixed_text(megabytes: float, seed: int = 0) -> Iterator[str]:
    """Paragraphs of this size in UTF-8."""
    return (text for (text,) in until(endless("text", seed), megabytes))


def rows(count: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """`count` prompts and responses."""
    return islice(pairs(seed), count)


def until(rows: Iterable[Row], megabytes: float) -> Iterator[Row]:
    """Rows until they have this size in UTF-8."""
    left = megabytes * 1e6
    for row in rows:
        if left <= 0:
            return
        left -= sum(len(text.encode("utf-8")) for text in row)
        yield row


@dataclass(frozen=True, slots=True)
class Written:
    """Contents of a file. `text_bytes`: its texts in UTF-8, not the size of the file."""

    rows: int
    text_bytes: int


def write(path: Path, rows: Iterable[Row], kind: Kind) -> Written:
    """Write rows as .parquet (groups of 10,000 rows) or .txt (one after the other)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = size = 0
    if path.suffix == ".txt":
        with path.open("wb") as file:
            for row in rows:
                count, size = count + 1, size + file.write("\n".join(row).encode("utf-8") + b"\n")
        return Written(count, size)
    iterator = iter(rows)
    schema = pa.schema([(name, pa.string()) for name in COLUMNS[kind]])
    with pq.ParquetWriter(path, schema) as writer:
        while group := list(islice(iterator, _ROW_GROUP)):
            arrays = [pa.array(values, pa.string()) for values in zip(*group, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=_ROW_GROUP)
            count += len(group)
            size += sum(array.buffers()[2].size for array in arrays)
    return Written(count, size)
