"""Text to token ids, as fast as is correct.

Two paths give the same ids. `tokenizers` is the reference and supports every tokenizer. gigatoken is some twenty times
as fast, supports only byte-level BPE with the usual splits, and is used where it agrees: it is compared with the
reference before its first use and again on a part of every batch. Text that the two could split differently goes to the
reference.

No torch, no Qt.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import psutil
from tokenizers import Tokenizer

from trainer_core.data.tokenizing.bpe import REGEXES
from trainer_core.messages import TraindeckError

Ids = npt.NDArray[np.uint32]

_MIN_FAST_CHARS: Final = 64 * 1024  # characters in one call that repay the verification
_VERIFIED_CHARS: Final = 2048  # characters of each batch that both paths encode
_MAX_VERIFIED_TOKENS: Final = 16_384  # tokens of a vocabulary: all of those that are trained here by default
_MAX_MEMORY_GROWTH: Final = 48 * 1024 * 1024  # bytes; the word cache of gigatoken is unbounded
_MEMORY_CHECK_CHARS: Final = 4 * 1024 * 1024
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
    """Ids of plain texts. A text that spells a special token stays text.

    `fast`: gigatoken may be used. `backend`: the path of long batches; empty until a batch was long enough to decide.
    """

    def __init__(self, tokenizer: Tokenizer, fast: bool = True) -> None:
        tokenizer.encode_special_tokens = True  # else `<|im_end|>` in a message would end the turn
        self.tokenizer = tokenizer
        self._fast: _GigatokenEncoder | None = None
        self.backend: Literal["", "tokenizers", "gigatoken"] = "" if fast else "tokenizers"

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text. Keep a call to a few MiB of text: the reference needs some 100 bytes a token.

        Raises `EncoderMismatchError`.
        """
        size = sum(map(len, texts))
        if not self.backend and size >= _MIN_FAST_CHARS:
            self._choose_backend()
        if self._fast is None or not texts:
            return self._encode_with_reference(texts)
        ids = self._encode_fast(texts)
        self._verify([max(texts, key=len)[:_VERIFIED_CHARS]])
        self._fast.limit_memory(size)
        return ids

    def _choose_backend(self) -> None:
        self._fast, self.backend = _create_fast_encoder(self.tokenizer), "tokenizers"
        if self._fast is not None:
            try:
                self._verify([*_PROBE_TEXTS, *_vocabulary_texts(self.tokenizer)])
                self.backend = "gigatoken"
            except EncoderMismatchError:
                self._fast = None

    def _encode_fast(self, texts: Sequence[str]) -> list[Ids]:
        """Texts that gigatoken does not support go to the reference."""
        assert self._fast is not None
        if self._fast.is_supported("\n".join(texts)):  # unsupported text is rare
            return [*map(self._fast.encode, texts)]
        supported = [self._fast.is_supported(text) for text in texts]
        others = iter(
            self._encode_with_reference([text for text, fast in zip(texts, supported, strict=True) if not fast])
        )
        return [self._fast.encode(text) if fast else next(others) for text, fast in zip(texts, supported, strict=True)]

    def _encode_with_reference(self, texts: Sequence[str]) -> list[Ids]:
        try:
            if len(texts) == 1 and len(texts[0]) < _MIN_FAST_CHARS:  # without threads, which may lack memory to start
                encodings = [self.tokenizer.encode(texts[0], add_special_tokens=False)]
            else:
                encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:  # a panic: the regex engine abandons a catastrophic pattern
            if isinstance(error, Exception) or type(error).__name__ != "PanicException":
                raise
            reason = str(error).splitlines()[0][:200].rstrip(".")
            raise TraindeckError("data.bad_tokenizer", path="tokenizer.json", reason=reason) from error
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def _verify(self, texts: Sequence[str]) -> None:
        for fast, reference in zip(self._encode_fast(texts), self._encode_with_reference(texts), strict=True):
            if not np.array_equal(fast, reference):
                raise EncoderMismatchError


def _vocabulary_texts(tokenizer: Tokenizer) -> list[str]:
    """Tokens as text (those that are text), spread over a large vocabulary: each alone, and several side by side."""
    count = tokenizer.get_vocab_size(with_added_tokens=True)
    numbers = range(0, count, -(-count // _MAX_VERIFIED_TOKENS))
    alone = [text for text in tokenizer.decode_batch([[number] for number in numbers]) if "\ufffd" not in text]
    together = ["".join(alone[start : start + 40]) for start in range(0, len(alone), 40)]
    return alone + together


# --- gigatoken -------------------------------------------------------------------------------------


def _create_fast_encoder(tokenizer: Tokenizer) -> _GigatokenEncoder | None:
    """None if gigatoken is not installed or does not support the tokenizer."""
    document = json.loads(tokenizer.to_str())
    if importlib.util.find_spec("gigatoken") is None or not _is_supported_kind(document):
        return None
    try:
        return _GigatokenEncoder(document)
    except Exception:  # noqa: BLE001 - it raises RuntimeError for splits it does not know; any other is no better
        return None


def _is_supported_kind(document: dict[str, Any]) -> bool:
    """Whether a tokenizer.json is a byte-level BPE without options that change the splitting."""
    model, normalizer, steps = document["model"], document["normalizer"], _split_steps(document)
    options = ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix")
    if model["type"] != "BPE" or any(model.get(option) for option in options):
        return False
    if normalizer is not None and normalizer["type"] != "NFC":
        return False
    return bool(steps) and steps[-1]["type"] == "ByteLevel" and not steps[-1]["add_prefix_space"]


def _split_steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    split = document["pre_tokenizer"] or {"type": "Sequence", "pretokenizers": []}
    return split["pretokenizers"] if split["type"] == "Sequence" else [split]


class _GigatokenEncoder:
    """gigatoken, restricted to what it does right. `document`: a tokenizer.json.

    Texts are cut here at the words that a tokenizer has added to its vocabulary, such as Qwen's `<think>`. `tokenizers`
    matches those that are not normalized first, leftmost and longest (AddedVocabulary::extract_and_normalize in its
    added_vocabulary.rs); special tokens are matched too, but stay text. Other added words are not supported.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        from gigatoken import Tokenizer as Gigatoken  # here: only long batches need it

        self._normalizes = document["normalizer"] is not None
        added = [token for token in document["added_tokens"] if token["content"]]
        matched = [token for token in added if not token["normalized"]] or ([] if self._normalizes else added)
        contents = sorted((token["content"] for token in matched), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, contents)))
        words = {token["content"]: token["id"] for token in matched if not token["special"]}
        flags = ("single_word", "lstrip", "rstrip")  # the neighbours of the word count
        flagged = {token["content"] for token in added if any(token[flag] for flag in flags)}
        self._word_ids = {word: number for word, number in words.items() if word not in flagged}
        others = {token["content"] for token in added if not token["special"]} - self._word_ids.keys()
        self._unsupported_words = {form for word in others for form in (word, unicodedata.normalize("NFC", word))}
        steps = _split_steps(document)
        if [step.get("pattern") for step in steps[:-1]] == [{"Regex": REGEXES["gpt-2"]}]:
            document["pre_tokenizer"] = {**steps[-1], "use_regex": True}  # the same split by the name it knows
        document.update(normalizer=None, post_processor=None, added_tokens=[], truncation=None, padding=None)
        source = json.dumps(document)
        self._create_backend: Callable[[], Any] = lambda: Gigatoken.from_json(source).backend
        self._process = psutil.Process()
        self._recreate_backend()

    def _recreate_backend(self) -> None:
        self._backend: Any = None  # first: both at once would take twice the memory
        self._backend = self._create_backend()
        self._chars_since_check, self._initial_rss = 0, self._process.memory_info().rss

    def limit_memory(self, encoded_chars: int) -> None:
        self._chars_since_check += encoded_chars
        if self._chars_since_check >= _MEMORY_CHECK_CHARS:
            self._chars_since_check = 0
            if self._process.memory_info().rss - self._initial_rss > _MAX_MEMORY_GROWTH:
                self._recreate_backend()

    def is_supported(self, text: str) -> bool:
        if not _has_known_characters(text):
            return False
        forms = {text, self._normalize(text)} if self._unsupported_words else ()
        return not any(word in form for form in forms for word in self._unsupported_words)

    def encode(self, text: str) -> Ids:
        if not any(word in text for word in self._word_ids):  # several times as fast as the pattern
            return self._encode_plain(text)
        pieces, start = [], 0
        for found in self._pattern.finditer(text):
            if found[0] in self._word_ids:
                pieces += [self._encode_plain(text[start : found.start()]), self._word_ids[found[0]]]
                start = found.end()
        return np.hstack([*pieces, self._encode_plain(text[start:])]).astype(np.uint32)

    def _encode_plain(self, text: str) -> Ids:
        # One by one: batches come as awkward arrays, whose library takes 40 MB. Other processes are the other cores.
        return self._backend.encode(self._normalize(text))  # type: ignore[no-any-return]

    def _normalize(self, text: str) -> str:
        return unicodedata.normalize("NFC", text) if self._normalizes else text


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
