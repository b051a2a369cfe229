"""Parts in which two texts differ."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final

_WORD: Final = re.compile(r"[^\W\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]+|\s+|.", re.DOTALL)
"""A word, white space, or one character: of Chinese, Japanese and Korean, and punctuation."""
_MAX_WORDS: Final = 300  # compared: repeated ones take cubic time
Span = tuple[int, int]


def differing_spans(first: str, second: str) -> tuple[list[Span], list[Span]]:
    """Spans of characters of each text that the other lacks. After the first difference, 300 words are compared; those
    that follow count as different.
    """
    words: list[list[str]] = [_WORD.findall(text) for text in (first, second)]
    pairs = zip(words[0], words[1], strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    compared = [part[same : same + _MAX_WORDS] for part in words]
    spans: tuple[list[Span], list[Span]] = ([], [])
    ends = [_word_ends(part) for part in words]
    for tag, *places in SequenceMatcher(None, compared[0], compared[1], autojunk=False).get_opcodes():
        for side, (begin, end) in enumerate((places[:2], places[2:])):
            if tag != "equal" and begin < end:
                spans[side].append((ends[side][same + begin], ends[side][same + end]))
    for side, text in enumerate((first, second)):
        if (last := ends[side][same + len(compared[side])]) < len(text):
            spans[side].append((last, len(text)))
    return spans


def _word_ends(words: list[str]) -> list[int]:
    """Position before the first word, then after each word."""
    ends = [0]
    for word in words:
        ends.append(ends[-1] + len(word))
    return ends
