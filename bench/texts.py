"""Made-up texts for the benchmarks: the same ones for the same seed, as much as is wanted, from nothing but Python.

What is fast on text that repeats itself may be slow on real text, so these do not repeat themselves:
- English is a Markov chain over the words of the standard library's docstrings, in which one word in fifty
  is one that never was before (real text has as many names, numbers and misspellings);
- Chinese is drawn by Zipf's law from 20,000 made-up words of one to four of the 3,755 most common characters,
  with punctuation and numbers. Encoders that split text at spaces see each clause for the first time;
- code is the standard library's own, in blocks of lines, in random order, with names that are new.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trainer_core.data.builtin import list_python_library

Kind = Literal["pairs", "text"]
Bounds = tuple[int, int]
Row = tuple[str, ...]
Integers = npt.NDArray[np.int64]

COLUMNS: Final[dict[Kind, tuple[str, ...]]] = {"pairs": ("prompt", "response"), "text": ("text",)}
PROMPT, RESPONSE = (20, 200), (100, 1500)  # characters
PARAGRAPH: Final = (100, 3000)
ROW_GROUP: Final = 10_000

_CHAINS, _STEPS = 4096, 48  # words drawn at once
_NEW_WORDS: Final = 1 / 50
_CHINESE_WORDS: Final = 20_000
_CLAUSE: Final = 4  # words in a clause, on average: eight characters, as in real text
_DRAWS: Final = 1 << 20  # resolution of Zipf's law: the rarest word has several shares of it
_DRAWN_AT_ONCE: Final = 1 << 18
_BLOCK_LINES: Final = (4, 40)
_SYLLABLES: Final = [
    a + b + c for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u") for c in ("", "n", "r", "s")
]


# --- the three languages ---------------------------------------------------------------------------


class _Chain(NamedTuple):
    """Words of a text by number, and which words follow each of them there."""

    words: list[str]
    first: Integers  # where the successors of a word begin
    counts: Integers
    successors: Integers


@cache
def _sources() -> list[str]:
    _, files = list_python_library()
    return [file.read_text(encoding="utf-8", errors="ignore").replace("\r\n", "\n") for file in files]


@cache
def _chain() -> _Chain:
    docstrings = (found for source in _sources() for found in re.findall(r'"""(.*?)"""', source, re.DOTALL))
    corpus = [word for text in docstrings for word in text.split() if len(word) <= 20]
    words, ids = np.unique(np.array(corpus), return_inverse=True)
    count = np.bincount(ids)
    order = np.argsort(ids, kind="stable")
    return _Chain(words.tolist(), np.cumsum(count) - count, count, np.roll(ids, -1)[order])


def _english(rng: np.random.Generator) -> str:
    chain = _chain()
    drawn = np.empty((_STEPS, _CHAINS), dtype=np.int64)
    current = rng.choice(chain.successors, _CHAINS)
    for step in range(_STEPS):
        drawn[step] = current
        place = (rng.random(_CHAINS) * chain.counts[current]).astype(np.int64)
        current = chain.successors[chain.first[current] + place]
    new = np.flatnonzero(rng.random(drawn.size) < _NEW_WORDS)
    flat = drawn.T.reshape(-1)
    flat[new] = len(chain.words) + np.arange(len(new))
    table = chain.words + _new_words(rng, len(new))
    return " ".join(map(table.__getitem__, flat.tolist()))


def _new_words(rng: np.random.Generator, count: int) -> list[str]:
    """Words of two to four syllables, and among them numbers."""
    syllables = rng.integers(0, len(_SYLLABLES), (count, 4)).tolist()
    lengths = rng.integers(1, 5, count).tolist()  # one syllable: a number in its place
    return [
        "".join([_SYLLABLES[i] for i in parts[:length]]) if length > 1 else str(parts[0] * 431 + parts[1])
        for parts, length in zip(syllables, lengths, strict=True)
    ]


@cache
def _chinese_words() -> tuple[list[str], Integers]:
    """The words, each bare and then with every mark that may follow it, and a table to draw words from."""
    rng = np.random.default_rng(2312)
    characters = [bytes([high, low]).decode("gb2312") for high in range(0xB0, 0xD8) for low in range(0xA1, 0xFF)
                  if (high, low) < (0xD7, 0xFA)]  # fmt: skip
    weights = 1 / np.arange(10, len(characters) + 10)
    shuffled = rng.permutation(characters)
    lengths = rng.choice([1, 2, 3, 4], 2 * _CHINESE_WORDS, p=[0.05, 0.6, 0.2, 0.15])
    drawn = rng.choice(shuffled, (len(lengths), 4), p=weights / weights.sum())
    unique = dict.fromkeys("".join(row[:length]) for row, length in zip(drawn.tolist(), lengths.tolist(), strict=True))
    words = list(unique)[:_CHINESE_WORDS]
    words.sort(key=lambda word: len(word) ** 2 * rng.exponential())  # the most common words are short
    share = 1 / (np.arange(len(words)) + 3.7)  # with Mandelbrot's constant: no word is a tenth of the text
    table = np.repeat(np.arange(len(words)), np.maximum(1, np.round(share / share.sum() * _DRAWS)).astype(np.int64))
    return [word + mark for mark in ("", *"，，，。。、？") for word in words], table


def _chinese(rng: np.random.Generator) -> str:
    words, table = _chinese_words()
    drawn = table[rng.integers(0, len(table), _DRAWN_AT_ONCE)]
    ends = np.flatnonzero(rng.random(_DRAWN_AT_ONCE) < 1 / _CLAUSE)
    marks = len(words) // _CHINESE_WORDS - 1
    drawn[ends] += _CHINESE_WORDS * rng.integers(1, marks + 1, len(ends))
    new = np.flatnonzero(rng.random(_DRAWN_AT_ONCE) < _NEW_WORDS / 4)
    drawn[new] = len(words) + np.arange(len(new))
    table_and_new = words + _new_words(rng, len(new))
    return "".join(map(table_and_new.__getitem__, drawn.tolist()))


@cache
def _code_lines() -> tuple[str, Integers]:
    """The standard library's source as one text without blank lines, and where its lines begin."""
    text = re.sub(r"\n\s*\n", "\n", "\n".join(_sources()))
    return text, np.fromiter((0, *(found.end() for found in re.finditer("\n", text))), dtype=np.int64)


def _code(rng: np.random.Generator) -> str:
    text, lines = _code_lines()
    blocks = 1024
    first = rng.integers(0, len(lines) - _BLOCK_LINES[1] - 1, blocks)
    last = first + rng.integers(*_BLOCK_LINES, blocks)
    names = _new_words(rng, 2 * blocks)
    spans = zip(lines[first].tolist(), lines[last].tolist(), strict=True)
    return "\n".join(
        f"def {names[2 * i]}_{names[2 * i + 1]}():\n{text[start : stop - 1]}" for i, (start, stop) in enumerate(spans)
    )


class _Language:
    """An endless text of one language that is taken piece by piece."""

    def __init__(self, make: Callable[[np.random.Generator], str], between: str, rng: np.random.Generator) -> None:
        self._make, self._between, self._rng = make, between, rng
        self._text, self._at = "", 0

    def take(self, characters: int) -> str:
        """The next `characters`, or a few more where a word or a line must end first."""
        if self._at + 2 * characters + 200 > len(self._text):
            rest = self._text[self._at :]
            self._text, self._at = (rest + self._between if rest else "") + self._make(self._rng), 0
        stop = self._at + characters
        if self._between:
            found = self._text.find(self._between, stop, stop + characters + 200)
            stop = found if found >= 0 else stop
        piece = self._text[self._at : stop]
        self._at = stop + len(self._between)
        return piece


class _Languages:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.english = _Language(_english, " ", self.rng)
        self.chinese = _Language(_chinese, "", self.rng)
        self.code = _Language(_code, "\n", self.rng)

    def lengths(self, bounds: Bounds, count: int) -> list[int]:
        """As many short texts as there are twice as long ones: lengths by log-uniform draws."""
        low, high = np.log(bounds)
        drawn: list[int] = np.exp(self.rng.uniform(low, high, count)).astype(np.int64).tolist()
        return drawn


# --- what the benchmarks take ----------------------------------------------------------------------


def paragraphs(seed: int = 0, bounds: Bounds = PARAGRAPH) -> Iterator[str]:
    """Paragraphs without end: half of them English, two fifths Chinese, a tenth code."""
    made = _Languages(seed)
    while True:
        which = made.rng.random(4096).tolist()
        for length, share in zip(made.lengths(bounds, 4096), which, strict=True):
            language = made.english if share < 0.5 else made.chinese if share < 0.9 else made.code
            yield language.take(length)


def pairs(seed: int = 0, prompt: Bounds = PROMPT, response: Bounds = RESPONSE) -> Iterator[tuple[str, str]]:
    """Prompts and responses without end, lengths in characters: English and Chinese in turn by chance, one in ten
    English prompts answered with code."""
    made = _Languages(seed)
    while True:
        which = made.rng.random(4096).tolist()
        lengths = zip(made.lengths(prompt, 4096), made.lengths(response, 4096), which, strict=True)
        for asked, answered, share in lengths:
            question = made.english if share < 0.5 else made.chinese
            answer = made.code if share < 0.05 else question
            yield question.take(asked), answer.take(answered)


def endless(kind: Kind, seed: int = 0) -> Iterator[Row]:
    """Rows of `COLUMNS[kind]` without end."""
    return pairs(seed) if kind == "pairs" else ((text,) for text in paragraphs(seed))


def mixed_text(megabytes: float, seed: int = 0) -> Iterator[str]:
    """Paragraphs that are together about this large in UTF-8."""
    return (text for (text,) in until(endless("text", seed), megabytes))


def rows(n: int, seed: int = 0, prompt: Bounds = PROMPT, response: Bounds = RESPONSE) -> Iterator[tuple[str, str]]:
    """`n` prompts and responses."""
    return islice(pairs(seed, prompt, response), n)


def until(made: Iterable[Row], megabytes: float) -> Iterator[Row]:
    """Rows until they are together this large in UTF-8."""
    left = megabytes * 1e6
    for row in made:
        if left <= 0:
            return
        left -= sum(utf8_size(text) for text in row)
        yield row


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8"))


# --- files -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """What a file holds: `text_bytes` is the size of its texts in UTF-8, whatever the file's own size."""

    rows: int
    text_bytes: int
    file_bytes: int


def write(path: Path, made: Iterable[Row], kind: Kind) -> Written:
    """Write rows as the file's ending says: .parquet (groups of 10,000 rows) or .txt (one below the other)."""
    writers = {".parquet": _write_parquet, ".txt": _write_txt}
    path.parent.mkdir(parents=True, exist_ok=True)
    count, size = writers[path.suffix](path, made, COLUMNS[kind])
    return Written(count, size, path.stat().st_size)


def _write_parquet(path: Path, made: Iterable[Row], columns: tuple[str, ...]) -> tuple[int, int]:
    count = size = 0
    made = iter(made)
    schema = pa.schema([(name, pa.string()) for name in columns])
    with pq.ParquetWriter(path, schema) as writer:
        while group := list(islice(made, ROW_GROUP)):
            arrays = [pa.array(values, pa.string()) for values in zip(*group, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=ROW_GROUP)
            count += len(group)
            size += sum(array.buffers()[2].size for array in arrays)
    return count, size


def _write_txt(path: Path, made: Iterable[Row], columns: tuple[str, ...]) -> tuple[int, int]:
    count = 0
    with path.open("wb") as file:
        for row in made:
            file.write("\n".join(row).encode("utf-8") + b"\n")
            count += 1
        return count, file.tell()
