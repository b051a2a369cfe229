"""Text to token ids, as fast as is correct.

`tokenizers` is the reference and supports every tokenizer. gigatoken is some twenty times as fast, supports only
byte-level BPE with the usual splits, and is used where it agrees: it is compared with the reference before its first
use and again on a part of every batch. Text that the two could split differently goes to the reference.

Conversations are encoded in pieces, cut at special tokens. Some tokenizers write a space before the first word of each
text, and must not do so in the middle of one. And some make special tokens of text that only spells them, or have
control tokens that they do not mark as special.

No torch, no Qt.
"""

from __future__ import annotations

import copy
import functools
import json
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import psutil
from tokenizers import Tokenizer

from trainer_core.data.tokenizing.bpe import REGEXES
from trainer_core.data.tokenizing.tokenizer_files import bad_tokenizer_error

Ids = npt.NDArray[np.uint32]
PrecededBy = Literal["start", "mark", "text"]  # nothing; a special token; text that is cut here

_MIN_FAST_CHARS: Final = 64 * 1024  # characters in one call that repay the verification
_VERIFIED_CHARS: Final = 2048  # characters of each batch that both paths encode
_MAX_VERIFIED_TOKENS: Final = 16_384  # tokens of a vocabulary: all of those that are trained here by default
_MAX_MEMORY_GROWTH: Final = 48 * 2**20  # bytes by which gigatoken's cache of words may grow
_ANY_CHARACTERS: Final = "a\n \t\x00\ufffd\U0010fffdé你😀"  # a tokenizer that fails on unknown ones fails here
_PROBE_TEXTS: Final = (
    "Don't stop, it'S 1234567 o'clock…  we'LL\tsee\r\n\r\n  the   end \n \n",
    "def f(x):\n        return {'a': x**2 - 1e-9}  # ok\n\n\n",
    "我们的模型在2024年学会了中文，“你好”！　全角　空格 ＡＢＣ１２３",
    "naïve café e\u0301 İstanbul ſharp ß ﬁ 한국어 русский عربى हिन्दी ไทย 👩‍👩‍👧 \u200b\ufeff\u00ad",
    "<|im_end|> <|endoftext|> </s> [INST] <s>",
    "a" * 300 + " " * 300 + "\n" * 50 + "!?" * 100,
)


class EncoderMismatchError(Exception):
    """The two paths gave different ids for the same text."""


class TextEncoder:
    """Ids of plain texts, none of which is ever one of `hidden`: a text that spells a special token stays text.

    `fast`: gigatoken may be used. `backend`: the path of long batches; empty until a batch was long enough to decide.
    Raises `data.bad_tokenizer`, with `path`, for a tokenizer that cannot encode every text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        fast: bool = True,
        hidden: Collection[str] = (),
        path: Path = Path("tokenizer.json"),
    ) -> None:
        tokenizer.encode_special_tokens = True  # else `<|im_end|>` in a message would end the turn
        self.tokenizer, self._path = tokenizer, path
        try:
            possible = tokenizer.encode(_ANY_CHARACTERS, add_special_tokens=False).ids
        except Exception as error:  # tokenizers raises bare Exception
            raise bad_tokenizer_error(path, f"it cannot encode every text: {error}") from error
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._is_hidden = np.zeros(max(vocabulary.values()) + 1, np.bool_)  # by id
        self._is_hidden[[vocabulary[name] for name in hidden if name in vocabulary]] = True
        self._is_hidden[possible] = False  # such as `<unk>`
        places: tuple[PrecededBy, ...] = ("mark", "text")
        changed: dict[PrecededBy, Tokenizer] = {one: _without_leading_space(tokenizer, one) for one in places}
        self._by_place: dict[PrecededBy, Tokenizer] = {"start": tokenizer, **changed}
        self._fast: _Gigatoken | None = None
        self.backend: Literal["", "tokenizers", "gigatoken"] = "" if fast else "tokenizers"

    def encode(self, texts: Sequence[str], preceded_by: Sequence[PrecededBy] = ()) -> list[Ids]:
        """Ids of each text. Keep a call to a few MiB of text: the reference needs some 100 bytes a token.

        `preceded_by`: by default, nothing precedes. Raises `EncoderMismatchError` and `data.bad_tokenizer`.
        """
        if not texts:
            return []
        places = preceded_by or ["start"] * len(texts)
        if not self.backend and sum(map(len, texts)) >= _MIN_FAST_CHARS:
            self._choose_backend()
        if self._fast is None:
            found = self._encode_with_reference(texts, places)
        else:
            found = self._encode_fast(texts)
            self._verify([max(texts, key=len)[:_VERIFIED_CHARS]])
            self._fast.limit_memory()
        if not self._is_hidden[np.concatenate(found)].any():
            return found
        return [
            self._encode_cut(text, self._by_place[place]) if self._is_hidden[ids].any() else ids
            for ids, text, place in zip(found, texts, places, strict=True)
        ]

    def _encode_cut(self, text: str, tokenizer: Tokenizer) -> Ids:
        """Ids of a text that spells hidden tokens: it is cut within their names."""
        encoding = tokenizer.encode(text, add_special_tokens=False)
        cuts = [0]
        for number, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if self._is_hidden[number]:
                if stop - start < 2:
                    raise bad_tokenizer_error(self._path, f"text can become its special token {text[start:stop]}")
                cuts.append(start + 1)
        if len(cuts) == 1:
            return np.array(encoding.ids, np.uint32)
        first, *others = (text[start:stop] for start, stop in pairwise([*cuts, len(text)]))
        within = self._by_place["text"]
        return np.concatenate([self._encode_cut(first, tokenizer), *(self._encode_cut(one, within) for one in others)])

    def _choose_backend(self) -> None:
        self._fast, self.backend = _create_gigatoken(self.tokenizer), "tokenizers"
        if self._fast is not None:
            try:
                self._verify([*_PROBE_TEXTS, *_vocabulary_texts(self.tokenizer)])
                self.backend = "gigatoken"
            except EncoderMismatchError:
                self._fast = None

    def _encode_fast(self, texts: Sequence[str]) -> list[Ids]:
        """Texts that gigatoken does not support go to the reference. The tokenizer adds no spaces."""
        fast = self._fast
        assert fast is not None
        if fast.is_supported("\n".join(texts)):  # unsupported text is rare
            return fast.encode(texts)
        supported = [fast.is_supported(text) for text in texts]
        others = [text for text, is_supported in zip(texts, supported, strict=True) if not is_supported]
        by_reference = iter(self._encode_with_reference(others, ["start"] * len(others)))
        by_gigatoken = iter(
            fast.encode([text for text, is_supported in zip(texts, supported, strict=True) if is_supported])
        )
        return [next(by_gigatoken if is_supported else by_reference) for is_supported in supported]

    def _encode_with_reference(self, texts: Sequence[str], places: Sequence[PrecededBy]) -> list[Ids]:
        found = [np.empty(0, np.uint32)] * len(texts)
        for tokenizer in set(self._by_place.values()):
            numbers = [number for number, place in enumerate(places) if self._by_place[place] is tokenizer]
            chosen = [texts[number] for number in numbers]
            try:
                if len(chosen) == 1 and len(chosen[0]) < _MIN_FAST_CHARS:  # no threads, which may lack memory to start
                    encodings = [tokenizer.encode(chosen[0], add_special_tokens=False)]
                else:
                    encodings = tokenizer.encode_batch_fast(chosen, add_special_tokens=False)
            except BaseException as error:  # a panic: the regex engine abandons a catastrophic pattern
                if isinstance(error, Exception) or type(error).__name__ != "PanicException":
                    raise
                raise bad_tokenizer_error(self._path, str(error).splitlines()[0][:200]) from error
            for number, encoding in zip(numbers, encodings, strict=True):
                found[number] = np.array(encoding.ids, dtype=np.uint32)
        return found

    def _verify(self, texts: Sequence[str]) -> None:
        reference = self._encode_with_reference(texts, ["start"] * len(texts))
        if not all(map(np.array_equal, self._encode_fast(texts), reference)):
            raise EncoderMismatchError


def _vocabulary_texts(tokenizer: Tokenizer) -> list[str]:
    """Tokens as text (those that are text), spread over a large vocabulary: each alone, and several side by side."""
    count = tokenizer.get_vocab_size(with_added_tokens=True)
    numbers = range(0, count, -(-count // _MAX_VERIFIED_TOKENS))
    alone = [text for text in tokenizer.decode_batch([[number] for number in numbers]) if "\ufffd" not in text]
    together = ["".join(alone[start : start + 40]) for start in range(0, len(alone), 40)]
    return alone + together


def _without_leading_space(tokenizer: Tokenizer, preceded_by: PrecededBy) -> Tokenizer:
    """Return a tokenizer that does not prepend a space to a part of a text; the same one if it never does."""
    parts = {"normalizer": tokenizer.normalizer, "pre_tokenizer": tokenizer.pre_tokenizer}
    states: dict[str, Any] = {name: json.loads(part.__getstate__()) if part else None for name, part in parts.items()}
    changed = copy.deepcopy(states)
    normalizer, split = changed["normalizer"], changed["pre_tokenizer"] or {}
    for number, step in enumerate(split.get("pretokenizers", [split])):
        # Later steps write a space before each part that the earlier ones have split off.
        within = preceded_by == "text" and not number
        if step.get("prepend_scheme") == "first" or (step.get("prepend_scheme") == "always" and within):
            step["prepend_scheme"] = "never"
        if step.get("type") == "ByteLevel" and within:
            step["add_prefix_space"] = False
    if normalizer and preceded_by == "text":
        if normalizer["type"] == "Prepend":
            changed["normalizer"] = None
        elif normalizer["type"] == "Sequence":
            normalizer["normalizers"] = [one for one in normalizer["normalizers"] if one["type"] != "Prepend"]
    if changed == states:
        return tokenizer
    made = Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), **changed}))
    made.encode_special_tokens = True
    return made


# --- gigatoken -------------------------------------------------------------------------------------


def _create_gigatoken(tokenizer: Tokenizer) -> _Gigatoken | None:
    """None if gigatoken is not installed or does not support the tokenizer: a byte-level BPE without options that
    change the splitting."""
    document = json.loads(tokenizer.to_str())
    model, normalizer, split = document["model"], document["normalizer"], document["pre_tokenizer"] or {}
    last = split.get("pretokenizers", [split])[-1]
    options = ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix")
    if model["type"] != "BPE" or any(model.get(option) for option in options):
        return None
    if (normalizer and normalizer["type"] != "NFC") or last.get("type") != "ByteLevel" or last["add_prefix_space"]:
        return None
    try:
        return _Gigatoken(document)
    except Exception:  # noqa: BLE001 - it raises RuntimeError for splits it does not know; any other is no better
        return None


class _Gigatoken:
    """gigatoken, restricted to what it does right. `document`: a tokenizer.json."""

    def __init__(self, document: dict[str, Any]) -> None:
        from gigatoken import Tokenizer as Gigatoken  # here: only long batches need it

        compose = functools.partial(unicodedata.normalize, "NFC")
        self.normalize: Callable[[str], str] | None = compose if document["normalizer"] else None
        # It does not know the words that a tokenizer has added to its vocabulary, such as Qwen's `<think>`.
        added = {token["content"] for token in document["added_tokens"] if not token["special"]} - {""}
        self._unsupported = added | set(map(compose, added))
        *steps, last = document["pre_tokenizer"].get("pretokenizers", [document["pre_tokenizer"]])
        if [step.get("pattern") for step in steps] == [{"Regex": REGEXES["gpt-2"]}]:
            document["pre_tokenizer"] = {**last, "use_regex": True}  # the same split by the name it knows
        document.update(normalizer=None, post_processor=None, added_tokens=[], truncation=None, padding=None)
        source = json.dumps(document)
        self._create: Callable[[], Any] = lambda: Gigatoken.from_json(source).backend
        self._backend: Any = self._create()
        self._rss = psutil.Process().memory_info().rss

    def limit_memory(self) -> None:
        """Start again with an empty cache of words if it is large."""
        if psutil.Process().memory_info().rss - self._rss > _MAX_MEMORY_GROWTH:
            self._backend = None  # first: both at once would take twice the memory
            self._backend, self._rss = self._create(), psutil.Process().memory_info().rss

    def is_supported(self, text: str) -> bool:
        if not _has_known_characters(text):
            return False
        forms = {text, self.normalize(text) if self.normalize else text} if self._unsupported else ()
        return not any(word in form for form in forms for word in self._unsupported)

    def encode(self, texts: Iterable[str]) -> list[Ids]:
        # One by one: batches come as awkward arrays, whose library takes 40 MB. Other processes are the other cores.
        return [*map(self._backend.encode, map(self.normalize, texts) if self.normalize else texts)]


# --- characters that libraries may know and Python does not -----------------------------------------

_CODE_POINTS: Final = 0x40000  # the planes with letters


@functools.cache
def _unassigned() -> npt.NDArray[np.bool_]:
    """Code points that the Unicode tables of this Python do not have."""
    return np.array([unicodedata.category(chr(code)) == "Cn" for code in range(_CODE_POINTS)])


def _has_known_characters(text: str) -> bool:
    """Whether this Python's Unicode tables have all characters. Libraries with newer ones may call others letters."""
    if text.isascii():
        return True
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return bool(codes.max() < _CODE_POINTS) and not _unassigned()[codes].any()
