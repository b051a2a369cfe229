"""Text to token ids, as fast as is correct.

Two paths make the same ids. `tokenizers` is the reference and takes every tokenizer. gigatoken is some
twenty times as fast, knows byte-level BPE with the usual splits only, and is used where it agrees: it is
compared with the reference before its first use and again on a part of every batch. Text that the two
could split differently goes to the reference: characters newer than this Python's Unicode tables, and
words that a tokenizer has added to its vocabulary and that mind their neighbours. Other added words are
found here (added_words.py), and what stands between them is encoded.

No torch, no Qt.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import psutil
from tokenizers import Tokenizer

from trainer_core.data.tokenizing.added_tokens import AddedWords
from trainer_core.data.tokenizing.bpe import REGEXES
from trainer_core.messages import TraindeckError

Ids = npt.NDArray[np.uint32]
Reason = Literal["", "equal", "switched_off", "not_installed", "unknown_kind", "differs"]

_MIN_FAST_CHARS: Final = 64 * 1024  # characters in one call that repay the proof; shorter ones use the reference
_VERIFIED_CHARS: Final = 2048  # characters of each batch that both paths encode
_MAX_VERIFIED_TOKENS: Final = 16_384  # tokens of a vocabulary: all of those that are trained here by default
_MAX_MEMORY_GROWTH: Final = 48 * 1024 * 1024  # gigatoken remembers every word it saw, without bound
_MEMORY_CHECK_CHARS: Final = 4 * 1024 * 1024  # characters between two looks at how much memory that takes
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

    `path` says which way long batches take, `reason` why: equal (compared), switched_off, not_installed,
    unknown_kind (no byte-level BPE, or a split that gigatoken does not know), differs. Empty: no batch
    has been long enough to decide.
    """

    def __init__(self, tokenizer: Tokenizer, fast: bool = True) -> None:
        tokenizer.encode_special_tokens = True  # else `<|im_end|>` in somebody's text would end the turn
        self._reference = tokenizer
        self._fast: _GigatokenEncoder | None = None
        self.backend: Literal["tokenizers", "gigatoken"] = "tokenizers"
        self.reason: Reason = "" if fast else "switched_off"

    def encode(self, text: str) -> Ids:
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text. Keep a call to a few MiB of text: the reference needs some 100 bytes a token.

        Raises `EncoderMismatchError`.
        """
        if not self.reason and sum(map(len, texts)) >= _MIN_FAST_CHARS:
            self.choose_backend()
        if self._fast is None:
            return self._encode_with_reference(texts)
        return self._fast.encode_many(texts, self._encode_with_reference)

    def _encode_with_reference(self, texts: Sequence[str]) -> list[Ids]:
        try:
            encodings = self._reference.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:  # a panic: the regex engine gives up where a pattern would take for ever
            if isinstance(error, Exception) or type(error).__name__ != "PanicException":
                raise
            reason = str(error).splitlines()[0][:200].rstrip(".")
            raise TraindeckError("data.bad_tokenizer", path="tokenizer.json", reason=reason) from error
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def choose_backend(self, verify: bool = True) -> None:
        """Decide which way long batches take. Without `compare`, another process has found both ways equal."""
        if self.reason:
            return
        self.reason, fast = _create_fast_encoder(self._reference)
        if fast is None:
            return
        try:
            if verify:
                fast.verify([*_PROBE_TEXTS, *_vocabulary_texts(self._reference)], self._encode_with_reference)
        except EncoderMismatchError:
            self.reason = "differs"
        else:
            self._fast, self.backend = fast, "gigatoken"

    def disable_fast_path(self) -> None:
        """Take the reference always."""
        self._fast, self.backend, self.reason = None, "tokenizers", self.reason or "switched_off"

    def release_fast_path(self) -> None:
        """Free the memory of the quick way; short texts do not need it."""
        self._fast = None


def _vocabulary_texts(tokenizer: Tokenizer) -> list[str]:
    """Tokens as text (those that are text), spread over a large vocabulary: each alone, and several side by side."""
    count = tokenizer.get_vocab_size(with_added_tokens=True)
    numbers = range(0, count, -(-count // _MAX_VERIFIED_TOKENS))
    alone = [text for text in tokenizer.decode_batch([[number] for number in numbers]) if "\ufffd" not in text]
    together = ["".join(alone[start : start + 40]) for start in range(0, len(alone), 40)]
    return alone + together


def _create_fast_encoder(tokenizer: Tokenizer) -> tuple[Reason, _GigatokenEncoder | None]:
    if importlib.util.find_spec("gigatoken") is None:
        return "not_installed", None
    description = _to_gigatoken_format(json.loads(tokenizer.to_str()))
    if description is None:
        return "unknown_kind", None
    try:
        return "equal", _GigatokenEncoder(*description)
    except Exception:  # noqa: BLE001 - it raises RuntimeError for splits it does not know; any other is no better
        return "unknown_kind", None


def _to_gigatoken_format(document: dict[str, Any]) -> tuple[str, bool, list[dict[str, Any]]] | None:
    """A tokenizer.json without what would hinder gigatoken; whether text is composed (NFC); its added tokens.

    None: not a byte-level BPE, or with options that change the splitting.
    """
    model, normalizer, split = document["model"], document["normalizer"], document["pre_tokenizer"]
    plain = not any(model.get(key) for key in ("dropout", "byte_fallback", "continuing_subword_prefix"))
    if model["type"] != "BPE" or not plain or model.get("end_of_word_suffix"):
        return None
    if normalizer is not None and normalizer["type"] != "NFC":
        return None
    steps = split["pretokenizers"] if split and split["type"] == "Sequence" else [split]
    if not steps or steps[-1] is None or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    if [step.get("pattern") for step in steps[:-1]] == [{"Regex": REGEXES["gpt-2"]}]:
        document["pre_tokenizer"] = {**steps[-1], "use_regex": True}  # the same split by the name it knows
    added = document["added_tokens"]
    document.update(normalizer=None, post_processor=None, added_tokens=[], truncation=None, padding=None)
    return json.dumps(document), normalizer is not None, added


class _GigatokenEncoder:
    """gigatoken, kept to what it does right."""

    def __init__(self, document: str, composed: bool, added: list[dict[str, Any]]) -> None:
        from gigatoken import Tokenizer as Gigatoken  # here: only long batches need it

        self._create_backend: Callable[[], Any] = lambda: Gigatoken.from_json(document).backend
        self._normalizes = composed
        self._added_words = AddedWords(added, self._normalize)
        self._own_process = psutil.Process()
        self._recreate_backend()

    def _recreate_backend(self) -> None:
        self._backend = None  # first: both at once would take twice the memory
        self._backend = self._create_backend()
        self._chars_since_check, self._initial_rss = 0, self._own_process.memory_info().rss

    def encode_many(self, texts: Sequence[str], slowly: Callable[[Sequence[str]], list[Ids]]) -> list[Ids]:
        ids = self._encode(texts, slowly)
        longest = max(texts, key=len)
        self.verify([longest[:_VERIFIED_CHARS]], slowly)
        self._chars_since_check += sum(map(len, texts))
        if self._chars_since_check >= _MEMORY_CHECK_CHARS:
            self._chars_since_check = 0
            if self._own_process.memory_info().rss - self._initial_rss > _MAX_MEMORY_GROWTH:
                self._recreate_backend()
        return ids

    def verify(self, texts: Sequence[str], slowly: Callable[[Sequence[str]], list[Ids]]) -> None:
        """Raises `EncoderMismatchError`."""
        for ours, theirs in zip(self._encode(texts, slowly), slowly(texts), strict=True):
            if not np.array_equal(ours, theirs):
                raise EncoderMismatchError

    def _encode(self, texts: Sequence[str], slowly: Callable[[Sequence[str]], list[Ids]]) -> list[Ids]:
        together = "\n".join(texts)  # one look at all of them: doubts are rare
        if not _has_known_characters(together) or self._added_words.has_odd(together):
            if len(texts) == 1:
                return slowly(texts)
            half = len(texts) // 2
            return self._encode(texts[:half], slowly) + self._encode(texts[half:], slowly)
        if self._added_words.finds(together):
            return [self._encode_around_added_words(text) for text in texts]
        # One by one: its batches come as awkward arrays, whose library takes 40 MB. Other processes are the
        # other cores.
        assert self._backend is not None
        composed = not self._normalizes or unicodedata.is_normalized("NFC", together)
        return [*map(self._backend.encode, texts if composed else map(self._normalize, texts))]

    def _encode_around_added_words(self, text: str) -> Ids:
        assert self._backend is not None
        pieces = [
            self._backend.encode(piece) if isinstance(piece, str) else np.array((piece,), np.uint32)
            for piece in self._added_words.cut(text)
        ]
        return np.concatenate(pieces) if pieces else np.empty(0, np.uint32)

    def _normalize(self, text: str) -> str:
        return text if not self._normalizes or text.isascii() else unicodedata.normalize("NFC", text)


# --- characters that libraries may know and Python does not -----------------------------------------

_BLOCK_BITS: Final = 8
_ASSIGNED, _UNASSIGNED, _UNCHECKED = 0, 1, 2
_code_point_status: Final = np.full(sys.maxunicode + 1, _UNCHECKED, np.uint8)  # by code point
_code_point_status[:128] = _ASSIGNED


def _has_known_characters(text: str) -> bool:
    """Whether this Python's Unicode tables have all characters. Libraries with newer ones may call others letters."""
    if text.isascii():
        return True
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    kinds = _code_point_status[codes]
    if kinds.max() == _UNCHECKED:  # a block at a time: all of them would take 0.4 s in each process
        for block in np.unique(codes[kinds == _UNCHECKED] >> _BLOCK_BITS).tolist():
            looked_at = range(block << _BLOCK_BITS, (block + 1) << _BLOCK_BITS)
            _code_point_status[looked_at.start : looked_at.stop] = [
                unicodedata.category(chr(code)) == "Cn" for code in looked_at
            ]
        kinds = _code_point_status[codes]
    return not kinds.any()
