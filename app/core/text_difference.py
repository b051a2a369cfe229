"""Parts in which two texts differ."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Final

_WORD: Final = re.compile(r"[^\W\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]+|\s+|.", re.DOTALL)
"""A word, white space, or one character: of Chinese, Japanese and Korean, and punctuation."""
_MAX_WORDS: Final = 1000  # compared, in less than 0.1 s
Span = tuple[int, int]


def differing_spans(first: str, second: str) -> tuple[list[Span], list[Span]]:
    """Spans of characters of each text that the other lacks. What follows the first 1000 words counts as different."""
    words: list[list[str]] = [_WORD.findall(text)[:_MAX_WORDS] for text in (first, second)]
    spans: tuple[list[Span], list[Span]] = ([], [])
    ends = [_word_ends(part) for part in words]
    for tag, *places in SequenceMatcher(None, words[0], words[1], autojunk=False).get_opcodes():
        for side, (begin, end) in enumerate((places[:2], places[2:])):
            if tag != "equal" and begin < end:
                spans[side].append((ends[side][begin], ends[side][end]))
    for side, text in enumerate((first, second)):
        if ends[side][-1] < len(text):
            spans[side].append((ends[side][-1], len(text)))
    return spans


def _word_ends(words: list[str]) -> list[int]:
    """Position before the first word, then after each word."""
    ends = [0]
    for word in words:
        ends.append(ends[-1] + len(word))
    return ends
