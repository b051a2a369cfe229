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

from trainer_core.data.tokenizing.added_words import AddedWords
from trainer_core.data.tokenizing.bpe import REGEXES
from trainer_core.messages import TraindeckError

Ids = npt.NDArray[np.uint32]
Reason = Literal["", "equal", "switched_off", "not_installed", "unknown_kind", "differs"]

_WORTH_IT: Final = 64 * 1024  # characters in one call that repay the proof; shorter ones use the reference
_COMPARED: Final = 2048  # characters of each batch that both paths encode
_MOST_COMPARED: Final = 16_384  # tokens of a vocabulary: all of those that are trained here by default
_RENEW_BYTES: Final = 48 * 1024 * 1024  # gigatoken remembers every word it saw, without bound
_RENEW_AFTER: Final = 4 * 1024 * 1024  # characters between two looks at how much memory that takes
_PROBE: Final = (
    "Don't stop, it'S 1234567 o'clock…  we'LL\tsee\r\n\r\n  the   end \n \n",
    "def f(x):\n        return {'a': x**2 - 1e-9}  # ok\n\n\n",
    "我们的模型在2024年学会了中文，“你好”！　全角　空格 ＡＢＣ１２３",
    "naïve café e\u0301 İstanbul ſharp ß ﬁ 한국어 русский عربى हिन्दी ไทย 👩‍👩‍👧 \u200b\ufeff\u00ad",
    "<|im_end|> <|endoftext|> </s> [INST] <s>",
    "a" * 300 + " " * 300 + "\n" * 50 + "!?" * 100,
)


class EncoderDiffers(Exception):  # noqa: N818 - not an error of the user: work is done again without gigatoken
    """The two paths gave different ids for the same text."""


class Encoder:
    """Ids of plain texts. A text that spells a special token stays text.

    `path` says which way long batches take, `reason` why: equal (compared), switched_off, not_installed,
    unknown_kind (no byte-level BPE, or a split that gigatoken does not know), differs. Empty: no batch
    has been long enough to decide.
    """

    def __init__(self, tokenizer: Tokenizer, fast: bool = True) -> None:
        tokenizer.encode_special_tokens = True  # else `<|im_end|>` in somebody's text would end the turn
        self._reference = tokenizer
        self._fast: _Fast | None = None
        self.path: Literal["tokenizers", "gigatoken"] = "tokenizers"
        self.reason: Reason = "" if fast else "switched_off"

    def encode(self, text: str) -> Ids:
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text. Keep a call to a few MiB of text: the reference needs some 100 bytes a token.

        Raises `EncoderDiffers`.
        """
        if not self.reason and sum(map(len, texts)) >= _WORTH_IT:
            self.choose()
        if self._fast is None:
            return self._slowly(texts)
        return self._fast.encode_many(texts, self._slowly)

    def _slowly(self, texts: Sequence[str]) -> list[Ids]:
        try:
            encodings = self._reference.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:  # a panic: the regex engine gives up where a pattern would take for ever
            if isinstance(error, Exception) or type(error).__name__ != "PanicException":
                raise
            reason = str(error).splitlines()[0][:200].rstrip(".")
            raise TraindeckError("data.bad_tokenizer", path="tokenizer.json", reason=reason) from error
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def choose(self, compare: bool = True) -> None:
        """Decide which way long batches take. Without `compare`, another process has found both ways equal."""
        if self.reason:
            return
        self.reason, fast = _find_fast(self._reference)
        if fast is None:
            return
        try:
            if compare:
                fast.compare([*_PROBE, *_vocabulary(self._reference)], self._slowly)
        except EncoderDiffers:
            self.reason = "differs"
        else:
            self._fast, self.path = fast, "gigatoken"

    def switch_off(self) -> None:
        """Take the reference always."""
        self._fast, self.path, self.reason = None, "tokenizers", self.reason or "switched_off"

    def forget(self) -> None:
        """Free the memory of the quick way; short texts do not need it."""
        self._fast = None


def _vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Tokens as text (those that are text), spread over a large vocabulary: each alone, and several side by side."""
    count = tokenizer.get_vocab_size(with_added_tokens=True)
    numbers = range(0, count, -(-count // _MOST_COMPARED))
    alone = [text for text in tokenizer.decode_batch([[number] for number in numbers]) if "\ufffd" not in text]
    together = ["".join(alone[start : start + 40]) for start in range(0, len(alone), 40)]
    return alone + together


def _find_fast(tokenizer: Tokenizer) -> tuple[Reason, _Fast | None]:
    if importlib.util.find_spec("gigatoken") is None:
        return "not_installed", None
    description = _as_gigatoken_takes_it(json.loads(tokenizer.to_str()))
    if description is None:
        return "unknown_kind", None
    try:
        return "equal", _Fast(*description)
    except Exception:  # noqa: BLE001 - it raises RuntimeError for splits it does not know; any other is no better
        return "unknown_kind", None


def _as_gigatoken_takes_it(document: dict[str, Any]) -> tuple[str, bool, list[dict[str, Any]]] | None:
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


class _Fast:
    """gigatoken, kept to what it does right."""

    def __init__(self, document: str, composed: bool, added: list[dict[str, Any]]) -> None:
        from gigatoken import Tokenizer as Gigatoken  # here: only long batches need it

        self._make: Callable[[], Any] = lambda: Gigatoken.from_json(document).backend
        self._composed = composed
        self._words = AddedWords(added, self._normalized)
        self._process = psutil.Process()
        self._renew()

    def _renew(self) -> None:
        self._backend = None  # first: both at once would take twice the memory
        self._backend = self._make()
        self._since, self._memory = 0, self._process.memory_info().rss

    def encode_many(self, texts: Sequence[str], slowly: Callable[[Sequence[str]], list[Ids]]) -> list[Ids]:
        ids = self._encode(texts, slowly)
        longest = max(texts, key=len)
        self.compare([longest[:_COMPARED]], slowly)
        self._since += sum(map(len, texts))
        if self._since >= _RENEW_AFTER:
            self._since = 0
            if self._process.memory_info().rss - self._memory > _RENEW_BYTES:
                self._renew()
        return ids

    def compare(self, texts: Sequence[str], slowly: Callable[[Sequence[str]], list[Ids]]) -> None:
        """Raises `EncoderDiffers`."""
        for ours, theirs in zip(self._encode(texts, slowly), slowly(texts), strict=True):
            if not np.array_equal(ours, theirs):
                raise EncoderDiffers

    def _encode(self, texts: Sequence[str], slowly: Callable[[Sequence[str]], list[Ids]]) -> list[Ids]:
        together = "\n".join(texts)  # one look at all of them: doubts are rare
        if not _is_known(together) or self._words.has_odd(together):
            if len(texts) == 1:
                return slowly(texts)
            half = len(texts) // 2
            return self._encode(texts[:half], slowly) + self._encode(texts[half:], slowly)
        if self._words.finds(together):
            return [self._around_words(text) for text in texts]
        # One by one: its batches come as awkward arrays, whose library takes 40 MB. Other processes are the
        # other cores.
        assert self._backend is not None
        composed = not self._composed or unicodedata.is_normalized("NFC", together)
        return [*map(self._backend.encode, texts if composed else map(self._normalized, texts))]

    def _around_words(self, text: str) -> Ids:
        assert self._backend is not None
        pieces = [
            self._backend.encode(piece) if isinstance(piece, str) else np.array((piece,), np.uint32)
            for piece in self._words.cut(text)
        ]
        return np.concatenate(pieces) if pieces else np.empty(0, np.uint32)

    def _normalized(self, text: str) -> str:
        return text if not self._composed or text.isascii() else unicodedata.normalize("NFC", text)


# --- characters that libraries may know and Python does not -----------------------------------------

_BLOCK_BITS: Final = 8
_ASSIGNED, _UNASSIGNED, _NOT_LOOKED_AT = 0, 1, 2
_kinds: Final = np.full(sys.maxunicode + 1, _NOT_LOOKED_AT, np.uint8)  # by code point
_kinds[:128] = _ASSIGNED


def _is_known(text: str) -> bool:
    """Whether this Python's Unicode tables have all characters. Libraries with newer ones may call others letters."""
    if text.isascii():
        return True
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    kinds = _kinds[codes]
    if kinds.max() == _NOT_LOOKED_AT:  # a block at a time: all of them would take 0.4 s in each process
        for block in np.unique(codes[kinds == _NOT_LOOKED_AT] >> _BLOCK_BITS).tolist():
            looked_at = range(block << _BLOCK_BITS, (block + 1) << _BLOCK_BITS)
            _kinds[looked_at.start : looked_at.stop] = [unicodedata.category(chr(code)) == "Cn" for code in looked_at]
        kinds = _kinds[codes]
    return not kinds.any()
