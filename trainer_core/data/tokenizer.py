"""Text to token ids and back: training a byte-level BPE tokenizer, loading a given one, and ChatML.

No torch, no Qt.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from trainer_core.data import template
from trainer_core.messages import TraindeckError

PreTokenizer = Literal["gpt-2", "llama-bpe", "qwen2"]

# How each family splits text before merging, as in its tokenizer.json and, by the same name, in llama.cpp
# (src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_GPT2, _LLAMA3 and _QWEN2). A GGUF file names one of these in
# `tokenizer.ggml.pre` and cannot carry a regex of its own.
REGEXES: Final[dict[PreTokenizer, str]] = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}

_POLL_SECONDS: Final = 0.1


def train(texts: Iterable[str], vocab_size: int, pre_tokenizer: PreTokenizer, poll: Callable[[], None]) -> Tokenizer:
    """A byte-level BPE tokenizer learned from `texts`; the same texts always give the same one.

    Ids: the special tokens 0 to 2, the 256 bytes, then merges, up to `vocab_size` (fewer if there is
    too little text). `poll` is called about ten times a second and may raise to abandon the training.
    """
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(REGEXES[pre_tokenizer]), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if pre_tokenizer == "qwen2":
        # As Qwen's own has it. transformers 5 puts its Qwen2Tokenizer, which composes characters so, in the
        # place of any tokenizer that stands beside a Qwen2 model; without this the ids would differ.
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=list(template.SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    _polled(lambda feed: tokenizer.train_from_iterator(feed, trainer), texts, poll)
    return tokenizer


class _Abandoned(Exception):  # noqa: N818 - ends the feed from within
    pass


def _polled(work: Callable[[Iterator[str]], None], texts: Iterable[str], poll: Callable[[], None]) -> None:
    """Run `work` beside this thread, which goes on polling: merging pairs takes seconds without a pause.

    When `poll` raises, the feed ends; a merge that has begun runs out unattended and is thrown away.
    """
    abandoned = threading.Event()
    failures: list[BaseException] = []

    def feed() -> Iterator[str]:
        for text in texts:
            if abandoned.is_set():
                raise _Abandoned
            yield text

    def run() -> None:
        try:
            work(feed())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            failures.append(error)

    thread = threading.Thread(target=run, name="tokenizer-training")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            poll()
    except BaseException:
        abandoned.set()
        raise
    if failures:
        raise failures[0]


# --- a given tokenizer -----------------------------------------------------------------------------


def find(given: str) -> Path:
    """The tokenizer.json at a path or in a folder; raises `data.bad_tokenizer`."""
    path = Path(given).expanduser()
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise TraindeckError("data.bad_tokenizer", path=str(path), reason="there is no such file")
    return path


def load_given(path: Path) -> tuple[Tokenizer, list[str]]:
    """A person's own tokenizer, and the special tokens that it lacked and was given (at the end).

    Raises `data.bad_tokenizer`.
    """
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # tokenizers raises bare Exception
        raise TraindeckError("data.bad_tokenizer", path=str(path), reason=str(error)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    missing = [token for token in template.SPECIAL_TOKENS if tokenizer.token_to_id(token) is None]
    tokenizer.add_special_tokens(list(template.SPECIAL_TOKENS))  # also marks as special those it had as plain words
    return tokenizer, missing


# --- using one -------------------------------------------------------------------------------------


class Codec:
    """A tokenizer in use. What people wrote is encoded as text even where it spells a special token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Without this, `<|im_end|>` in somebody's text would end the turn.
        tokenizer.encode_special_tokens = True
        self.end_of_text = self._id(template.END_OF_TEXT)
        self.im_start = self._id(template.IM_START)
        self.im_end = self._id(template.IM_END)
        # The largest id counts, not the number of tokens: some tokenizers leave ids out.
        self.vocab_size: int = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self._user_end = [self.im_end, *self.encode("\n"), self.im_start, *self.encode(template.ASSISTANT_HEAD)]

    def _id(self, token: str) -> int:
        number: int | None = self._tokenizer.token_to_id(token)
        assert number is not None, token
        return number

    @classmethod
    def load(cls, path: Path) -> Codec:
        """From a tokenizer.json that holds the special tokens; raises `data.bad_tokenizer`."""
        tokenizer, missing = load_given(path)
        if missing:
            raise TraindeckError("data.bad_tokenizer", path=str(path), reason=f"it lacks {', '.join(missing)}")
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of plain texts, on all cores. Keep batches to a few MiB: each token costs memory here."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_prompt(self, prompt: str) -> list[int]:
        """The ids of `template.render_prompt(prompt)`."""
        return self.encode_pairs([(prompt, "")])[0][0]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
        """The ids of the rendered prompt and of the rendered response, for each pair."""
        flat = [text for prompt, response in pairs for text in (template.USER_HEAD + prompt, response)]
        ids = iter(self.encode_batch(flat))
        return [
            ([self.im_start, *prompt, *self._user_end], [*response, self.im_end])
            for prompt, response in zip(ids, ids, strict=True)
        ]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids. A character cut in the middle comes out as U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def save(self, path: Path) -> None:
        """Write tokenizer.json, which `tokenizers` and transformers load with the same ids."""
        path.write_bytes(self._tokenizer.to_str(pretty=False).encode("utf-8"))


def tokenizer_config(task: Literal["pretrain", "sft"], max_seq_len: int) -> dict[str, Any]:
    """What tokenizer_config.json of a checkpoint says, so that transformers and converters know the rest.

    A tuned model ends its turn with `<|im_end|>`, a pretrained one its text with `<|endoftext|>`.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_seq_len,
        "bos_token": template.END_OF_TEXT,
        "eos_token": template.IM_END if task == "sft" else template.END_OF_TEXT,
        "pad_token": template.END_OF_TEXT,
        "additional_special_tokens": [template.IM_START, template.IM_END],
        "chat_template": template.CHAT_TEMPLATE,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
    }


def save_config(folder: Path, task: Literal["pretrain", "sft"], max_seq_len: int) -> None:
    """Write tokenizer_config.json into a checkpoint folder."""
    text = json.dumps(tokenizer_config(task, max_seq_len), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8", newline="\n")
