"""Words that a tokenizer has added to its vocabulary, such as Qwen's `<think>`: texts are cut at them.

`tokenizers` looks for them before anything else, and splits what stands between two of them on its own
(AddedVocabulary::extract_and_normalize in its added_vocabulary.rs). It looks twice: in the text as it is for
the words called not normalized, then in what is left, once that is composed, for the others. Of overlapping
words the leftmost one counts, of those the longest. A special token takes part in that, and is then passed
over, for here what people wrote never becomes one.

No torch, no Qt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_ODD = ("single_word", "lstrip", "rstrip")  # they ask what stands beside a word


class _Look:
    """One look for some of the added tokens: ids by name, None for one that is special."""

    def __init__(self, names: Mapping[str, int | None]) -> None:
        longest_first = sorted(filter(None, names), key=len, reverse=True)
        self._names = names
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._words = [name for name, number in names.items() if name and number is not None]

    def finds(self, text: str) -> bool:
        """Whether there could be a word in the text."""
        return any(word in text for word in self._words)  # several times as fast as the pattern

    def cut(self, text: str) -> Iterator[str | int]:
        """The text in pieces (none of them empty), and the ids of the words between them."""
        here = 0
        for found in self._pattern.finditer(text) if self._words else ():
            number = self._names[found[0]]
            if number is None:
                continue
            if found.start() > here:
                yield text[here : found.start()]
            yield number
            here = found.end()
        if here < len(text):
            yield text[here:]


class AddedWords:
    """The words in the `added_tokens` of a tokenizer.json. `composed`: what the tokenizer makes of a text first."""

    def __init__(self, added: Sequence[Mapping[str, Any]], composed: Callable[[str], str]) -> None:
        self._composed = composed
        odd = [one for one in added if not one["special"] and any(one[flag] for flag in _ODD)]
        raw = {one["content"]: None if one["special"] else one["id"] for one in added if not one["normalized"]}
        normalized: dict[str, int | None] = {}
        for one in (one for one in added if one["normalized"]):
            name = composed(one["content"])
            if name in normalized:  # two words that are spelled in the same way
                odd.append(one)
            normalized[name] = None if one["special"] else one["id"]
        self._looks = _Look(raw), _Look(normalized)
        self._odd = {form for one in odd for form in (one["content"], composed(one["content"])) if form}

    def has_odd(self, text: str) -> bool:
        """Whether a word stands in the text for which more than its spelling counts."""
        return bool(self._odd) and any(word in form for form in {text, self._composed(text)} for word in self._odd)

    def finds(self, text: str) -> bool:
        """Whether there could be a word in the text, or in one of the texts that it is joined of."""
        return self._looks[0].finds(text) or self._looks[1].finds(self._composed(text))

    def cut(self, text: str) -> Iterator[str | int]:
        """The composed text in pieces that are encoded on their own, and the ids of the words between them."""
        for piece in self._looks[0].cut(text):
            if isinstance(piece, int):
                yield piece
            else:
                yield from self._looks[1].cut(self._composed(piece))
