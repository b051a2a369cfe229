"""Where a text is cut into words before byte-level BPE merges pairs within them.

A block of text at a time, as numpy arrays: a regex engine takes several times as long.

No torch, no Qt.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, pre_tokenizers

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

# Between two texts. Real text cannot hold a lone surrogate; where a broken file does, a word ends there.
BREAK: Final = "\ud800"

_BLOCK: Final = 256 * 1024  # characters
_OTHER, _LETTER, _NUMBER, _BLANK, _NEWLINE, _BOUNDARY, _UNSEEN = range(7)
_SPACE, _APOSTROPHE = ord(" "), ord("'")


class Splitter:
    """Finds the words that the regex of a pre-tokenizer finds (`bpe.REGEXES`), a block at a time."""

    def __init__(self, pre_tokenizer: str) -> None:
        self._gpt2 = pre_tokenizer == "gpt-2"
        self._group = {"llama-bpe": 3, "qwen2": 1}.get(pre_tokenizer, 0)  # numerals in a word
        self._kinds = np.full(0x110000, _UNSEEN, np.uint8)
        self._kinds[0xD800:0xE000] = _BOUNDARY
        self._learn(np.arange(128))
        self._ascii = self._kinds[:256].copy()
        self._ascii[128:] = _BOUNDARY
        self._suffix = np.zeros(0x110000, np.uint8)
        for letter in "stmdrevl":
            self._suffix[ord(letter)] = ord(letter)
            if not self._gpt2:  # the others ignore case
                self._suffix[ord(letter.upper())] = ord(letter)
        if not self._gpt2:
            self._suffix[0x17F] = ord("s")  # the long s, for which S is the capital too

    def words(self, codes: npt.NDArray[Any]) -> tuple[Ints, Ints]:
        """Where words start and stop in `codes` (code points, the first and last one a boundary)."""
        kinds = self._classes(codes)
        begins = self._begins_gpt2(codes, kinds) if self._gpt2 else self._begins_qwen2(codes, kinds)
        self._split_suffixes(codes, kinds, begins)
        starts = np.flatnonzero(begins)
        stops = np.append(starts[1:], len(codes))
        inside = kinds[starts] != _BOUNDARY
        return starts[inside], stops[inside]

    def _classes(self, codes: npt.NDArray[Any]) -> Bytes:
        if codes.dtype == np.uint8:
            return self._ascii.take(codes)
        kinds = self._kinds.take(codes)
        if (unseen := kinds == _UNSEEN).any():
            self._learn(np.unique(codes[unseen]))
            kinds = self._kinds.take(codes)
        return kinds

    def _learn(self, codes: npt.NDArray[Any]) -> None:
        """Asks the regex engine that will encode: its Unicode tables and Python's may differ."""
        characters = "".join(map(chr, codes.tolist()))
        self._kinds[codes] = _OTHER
        for kind, pattern in ((_LETTER, r"\p{L}"), (_NUMBER, r"\p{N}"), (_BLANK, r"\s"), (_NEWLINE, r"[\r\n]")):
            left = pre_tokenizers.Split(Regex(pattern), behavior="removed").pre_tokenize_str(characters)
            others = {character for part, _ in left for character in part}
            found = [ord(character) for character in characters if character not in others]
            self._kinds[found] = kind

    @staticmethod
    def _begins_gpt2(codes: npt.NDArray[Any], kinds: Bytes) -> Flags:
        kinds = np.where(kinds == _NEWLINE, np.uint8(_BLANK), kinds)
        begins = np.ones(len(codes), np.bool_)
        begins[1:] = kinds[1:] != kinds[:-1]
        begins[1:] &= (kinds[1:] > _NUMBER) | (codes[:-1] != _SPACE)  # a space belongs to the word behind it
        begins[:-1] |= (kinds[:-1] == _BLANK) & (kinds[1:] <= _NUMBER)  # the last blank stands apart
        return begins

    def _begins_qwen2(self, codes: npt.NDArray[Any], kinds: Bytes) -> Flags:
        """Also for llama-bpe, which differs only in how many numerals make a word."""
        other, letter, number, blank, newline = (kinds == kind for kind in range(_BOUNDARY))
        spaced = np.zeros(len(codes), np.bool_)
        spaced[1:] = codes[:-1] == _SPACE
        first = np.ones(len(codes), np.bool_)  # of its run of one kind
        first[1:] = kinds[1:] != kinds[:-1]
        lone = other & first & ~spaced  # goes with the letters behind it

        begins: Flags = first & (other & ~spaced | (kinds == _BOUNDARY))
        begins[1:] |= (first & letter)[1:] & ~blank[:-1] & ~lone[:-1]
        if self._group == 1:
            begins |= number
        else:
            places = np.flatnonzero(number)
            run = np.maximum.accumulate(np.where(first[places], places, 0))
            begins[places] = (places - run) % self._group == 0
        # Blanks and newlines: up to the last newline is one word, then the blanks but for the last one.
        # Newlines right behind signs belong to these.
        begins[1:] |= (first & blank)[1:] & ~newline[:-1]
        begins[1:] |= (first & newline)[1:] & ~blank[:-1] & ~other[:-1]
        begins[:-1] |= blank[:-1] & (kinds[1:] <= _NUMBER)
        self._begin_tails(kinds, first, blank, newline, begins)
        return begins

    @staticmethod
    def _begin_tails(kinds: Bytes, first: Flags, blank: Flags, newline: Flags, begins: Flags) -> None:
        """A blank behind a newline begins a word unless the newline's word reaches over it."""
        tails = np.flatnonzero((first & blank)[1:] & newline[:-1]) + 1
        if not len(tails):
            return
        run_ends = np.flatnonzero(blank[:-1] & ~blank[1:])
        behind = kinds[run_ends[np.searchsorted(run_ends, tails)] + 1]
        newlines = np.flatnonzero(first & newline)
        before = kinds[newlines[np.searchsorted(newlines, tails) - 1] - 1]
        begins[tails] = (behind != _NEWLINE) | (before == _OTHER)

    def _split_suffixes(self, codes: npt.NDArray[Any], kinds: Bytes, begins: Flags) -> None:
        """The endings 's, 't, 're, 've, 'm, 'll and 'd are words where the apostrophe begins one."""
        places = np.flatnonzero(codes[:-2] == _APOSTROPHE)
        places = places[(kinds[places - 1] != _OTHER) & (codes[places - 1] != _SPACE)]
        one, two = self._suffix[codes[places + 1]], self._suffix[codes[places + 2]]
        short = (one == ord("s")) | (one == ord("t")) | (one == ord("m")) | (one == ord("d"))
        long = ((one == ord("r")) | (one == ord("v"))) & (two == ord("e")) | (one == ord("l")) & (two == ord("l"))
        begins[places[short | long] + 1] = False
        begins[places[short] + 2] = True
        begins[places[long] + 3] = True


def blocks(texts: Iterable[str], compose: bool, poll: Callable[[], None]) -> Iterator[str]:
    """Texts joined to blocks for `WordTable.add`; longer texts are cut, at a blank where there is one.

    `compose`: in Unicode's normalization form C.
    """
    waiting: list[str] = []
    length = 0
    for text in texts:
        poll()
        for part in _parts(text):
            waiting.append(part)
            length += len(part)
            if length >= _BLOCK:
                yield _joined(waiting, compose)
                waiting, length = [], 0
    if waiting:
        yield _joined(waiting, compose)


def _joined(texts: list[str], compose: bool) -> str:
    block = BREAK.join(["", *texts, ""])
    return unicodedata.normalize("NFC", block) if compose else block


def _parts(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _BLOCK:
        stop = start + _BLOCK
        blank = text.rfind(" ", stop - _BLOCK // 4, stop)
        stop = blank if blank > 0 else stop
        yield text[start:stop]
        start = stop
    yield text[start:]
