"""Synthetic texts of any size, reproducible by their seed.

What is fast on repetitive text may be slow on real text, so these do not repeat themselves:
- English: words of the standard library's docstrings by frequency; one word in fifty is new, as names and numbers are;
- Chinese: 20,000 made-up words of the 3,755 most common characters by Zipf's law, with punctuation;
- code: blocks of lines of the standard library in random order, with new function names.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trainer_core.data.builtin import list_python_library

Row = tuple[str, ...]
Rng = np.random.Generator
Words = tuple[list[str], npt.NDArray[Any]]  # and their cumulative probabilities

_PROMPT, _RESPONSE, _PARAGRAPH = (20, 200), (100, 1500), (100, 3000)  # characters
_ROW_GROUP: Final = 10_000
_BLOCK_WORDS: Final = 1 << 17  # generated at once
_NEW_WORDS: Final = 1 / 50
_CHINESE_WORDS: Final = 20_000
_SYLLABLES: Final = [a + b + c for a in "bcdfghjklmnprstvwz" for b in "aeiou" for c in ("", "n", "r", "s")]


@cache
def _sources() -> list[str]:
    _, files = list_python_library()
    return [file.read_text(encoding="utf-8", errors="ignore").replace("\r\n", "\n") for file in files]


@cache
def _english_words() -> Words:
    docstrings = (found for source in _sources() for found in re.findall(r'"""(.*?)"""', source, re.DOTALL))
    counts = Counter(word for text in docstrings for word in text.split() if len(word) <= 20)
    cumulative = np.cumsum(list(counts.values()))
    return list(counts), cumulative / cumulative[-1]


@cache
def _chinese_words() -> Words:
    rng = np.random.default_rng(2312)
    codes = (bytes([high, low]) for high in range(0xB0, 0xD8) for low in range(0xA1, 0xFF))
    characters = [code.decode("gb2312") for code in codes if code < b"\xd7\xfa"]
    weights = 1 / np.arange(10, len(characters) + 10)
    lengths = rng.choice([1, 2, 3, 4], 2 * _CHINESE_WORDS, p=[0.05, 0.6, 0.2, 0.15]).tolist()
    drawn = rng.choice(rng.permutation(characters), (len(lengths), 4), p=weights / weights.sum()).tolist()
    words = dict.fromkeys("".join(row[:length]) for row, length in zip(drawn, lengths, strict=True))
    cumulative = np.cumsum(1 / (np.arange(_CHINESE_WORDS) + 3.7))  # Zipf-Mandelbrot: no word is a tenth of the text
    return list(words)[:_CHINESE_WORDS], cumulative / cumulative[-1]


def _draw(rng: Rng, words: Words, new: float) -> list[str]:
    """A block of words by probability; a share `new` of them never occurred before."""
    drawn = [words[0][index] for index in np.searchsorted(words[1], rng.random(_BLOCK_WORDS)).tolist()]
    positions = np.flatnonzero(rng.random(_BLOCK_WORDS) < new).tolist()
    for position, word in zip(positions, _new_words(rng, len(positions)), strict=True):
        drawn[position] = word
    return drawn


def _new_words(rng: Rng, count: int) -> list[str]:
    """Words of two to four syllables, and numbers."""
    syllables = rng.integers(0, len(_SYLLABLES), (count, 4)).tolist()
    lengths = rng.integers(1, 5, count).tolist()  # one syllable: a number
    return [
        "".join([_SYLLABLES[i] for i in parts[:length]]) if length > 1 else str(parts[0] * 431 + parts[1])
        for parts, length in zip(syllables, lengths, strict=True)
    ]


def _english(rng: Rng) -> str:
    return " ".join(_draw(rng, _english_words(), _NEW_WORDS))


def _chinese(rng: Rng) -> str:
    words = _draw(rng, _chinese_words(), _NEW_WORDS / 4)
    marks = rng.choice([*"，，，。。、？"], len(words)).tolist()
    ends = (rng.random(len(words)) < 1 / 4).tolist()  # clauses of eight characters on average, as in real text
    return "".join(word + mark if end else word for word, mark, end in zip(words, marks, ends, strict=True))


@cache
def _code_lines() -> list[str]:
    return [line for source in _sources() for line in source.split("\n") if line.strip()]


def _code(rng: Rng) -> str:
    lines, names = _code_lines(), _new_words(rng, 2048)
    starts = rng.integers(0, len(lines) - 40, 1024).tolist()
    lengths = rng.integers(4, 40, 1024).tolist()
    blocks = zip(names[::2], names[1::2], starts, lengths, strict=True)
    return "\n".join(
        "\n".join([f"def {first}_{second}():", *lines[start : start + length]])
        for first, second, start, length in blocks
    )


class _Text:
    """An endless text that is read in pieces."""

    def __init__(self, generate: Callable[[Rng], str], seed: int) -> None:
        self._generate, self._rng, self._text, self._position = generate, np.random.default_rng(seed), "", 0

    def read(self, characters: int) -> str:
        start, self._position = self._position, self._position + characters
        if self._position > len(self._text):
            self._text = self._text[start:] + self._generate(self._rng)
            start, self._position = 0, characters
        return self._text[start : self._position]


def _lengths(rng: Rng, bounds: tuple[int, int]) -> Iterator[int]:
    """Endless log-uniform lengths."""
    low, high = np.log(bounds).tolist()
    while True:
        yield from np.exp(rng.uniform(low, high, 4096)).astype(np.int64).tolist()


def paragraphs(seed: int = 0) -> Iterator[tuple[str]]:
    """Endless paragraphs: half of them English, two fifths Chinese, a tenth code."""
    rng = np.random.default_rng(seed)
    english, chinese, code = (_Text(language, seed) for language in (_english, _chinese, _code))
    for length in _lengths(rng, _PARAGRAPH):
        share = rng.random()
        yield ((english if share < 0.5 else chinese if share < 0.9 else code).read(length),)


def pairs(seed: int = 0) -> Iterator[tuple[str, str]]:
    """Endless prompts and responses, half English, half Chinese; one English prompt in ten is answered with code."""
    rng = np.random.default_rng(seed)
    english, chinese, code = (_Text(language, seed) for language in (_english, _chinese, _code))
    for prompt, response in zip(_lengths(rng, _PROMPT), _lengths(rng, _RESPONSE), strict=False):
        share = rng.random()
        language = english if share < 0.5 else chinese
        yield language.read(prompt), (code if share < 0.05 else language).read(response)


def take(rows: Iterable[Row], megabytes: float) -> Iterator[Row]:
    """The first rows, up to this size in UTF-8."""
    remaining = megabytes * 1e6
    for row in rows:
        if remaining <= 0:
            return
        remaining -= sum(len(text.encode("utf-8")) for text in row)
        yield row


def write(path: Path, rows: Iterable[Row]) -> dict[str, int]:
    """Write pairs as .parquet or paragraphs as .txt. Returns the number of rows and the size of their text in UTF-8."""
    count = size = 0
    if path.suffix == ".txt":
        with path.open("wb") as file:
            for (text,) in rows:
                count, size = count + 1, size + file.write(text.encode("utf-8") + b"\n")
    else:
        iterator, schema = iter(rows), pa.schema({"prompt": pa.string(), "response": pa.string()})
        with pq.ParquetWriter(path, schema) as writer:
            while group := list(islice(iterator, _ROW_GROUP)):
                arrays = [pa.array(column, pa.string()) for column in zip(*group, strict=True)]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=_ROW_GROUP)
                count += len(group)
                size += sum(array.buffers()[2].size for array in arrays)
    return {"rows": count, "text_bytes": size}
