"""Training of a byte-level BPE tokenizer.

`rustbpe` holds the GIL while it merges, for seconds with a large sample, so it runs in a child process: progress, Stop
and monitoring continue meanwhile. It also merges pairs that occur once, so a short sample goes to the trainer of
`tokenizers`, which is slower and uses more memory, but has a minimum frequency.

No torch, no Qt.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import unicodedata
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Final, Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from trainer_core.data.tokenizing.conversations import SPECIAL_TOKENS
from trainer_core.system import child_process

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

_MIN_CHARS_PER_TOKEN: Final = 64  # below, rustbpe would merge pairs that occur only once
_MAX_IN_PROCESS_CHARS: Final = 256 * 1024
_POLL_INTERVAL_S: Final = 0.05
_ABORTED: Final = (-6, 0xC0000409)  # exit codes of a Rust library that could not allocate memory


def train(texts: Iterable[str], vocab_size: int, pre_tokenizer: PreTokenizer, poll: Callable[[], None]) -> Tokenizer:
    """Train a byte-level BPE tokenizer. The same texts always give the same tokenizer.

    Ids: the special tokens 0 to 2, the 256 bytes, then merges of pairs that occur at least twice, up to `vocab_size`.

    Args:
        texts: Training sample, held in memory.
        vocab_size: Maximum number of tokens. A small sample yields fewer.
        pre_tokenizer: Key of `REGEXES`.
        poll: Called about every 50 ms; may raise to abandon training.

    Raises MemoryError if the system ended the child process, RuntimeError if it failed otherwise.
    """
    sample: list[str] = []
    next_poll = 0.0
    for text in texts:
        if time.monotonic() >= next_poll:
            poll()
            next_poll = time.monotonic() + _POLL_INTERVAL_S
        text = text.encode("utf-8", "ignore").decode()  # a lone surrogate from a damaged file has no UTF-8 form
        sample.append(unicodedata.normalize("NFC", text) if pre_tokenizer == "qwen2" else text)
    if sum(map(len, sample)) <= _MAX_IN_PROCESS_CHARS:
        return _train(sample, vocab_size, pre_tokenizer)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_trained, args=(sender, sample, vocab_size, pre_tokenizer), daemon=True)
    process.start()
    try:
        sender.close()
        while not receiver.poll(_POLL_INTERVAL_S):
            poll()
        return Tokenizer.from_str(receiver.recv())
    except (EOFError, BrokenPipeError):
        process.join()
        if process.exitcode in _ABORTED or child_process.is_out_of_memory(process.exitcode or 0):
            raise MemoryError("tokenizer training") from None
        raise RuntimeError(f"tokenizer training failed with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        receiver.close()


def _send_trained(sender: Connection, sample: list[str], vocab_size: int, pre_tokenizer: PreTokenizer) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches every process of a terminal; the parent handles it
    sender.send(_train(sample, vocab_size, pre_tokenizer).to_str())


def _train(sample: list[str], vocab_size: int, pre_tokenizer: PreTokenizer) -> Tokenizer:
    is_short = sum(map(len, sample)) < _MIN_CHARS_PER_TOKEN * vocab_size
    model = models.BPE() if is_short else _train_with_rustbpe(sample, vocab_size, pre_tokenizer)
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(REGEXES[pre_tokenizer]), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if pre_tokenizer == "qwen2":
        # As in Qwen's own file. transformers 5 replaces any tokenizer of a Qwen2 model with its Qwen2Tokenizer,
        # which normalizes to NFC; without this the ids would differ.
        tokenizer.normalizer = normalizers.NFC()
    if is_short:
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            show_progress=False,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        tokenizer.train_from_iterator(sample, trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _train_with_rustbpe(sample: list[str], vocab_size: int, pre_tokenizer: PreTokenizer) -> models.BPE:
    import rustbpe

    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator(iter(sample), vocab_size - len(SPECIAL_TOKENS), pattern=REGEXES[pre_tokenizer])
    ranks = {bytes(token): rank for token, rank in trainer.get_mergeable_ranks()}
    alphabet = sorted((token for token in ranks if len(token) == 1), key=_to_printable)
    merged = sorted((token for token in ranks if len(token) > 1), key=lambda token: ranks[token])
    tokens = [*SPECIAL_TOKENS, *map(_to_printable, [*alphabet, *merged])]
    merges = [(_to_printable(left), _to_printable(right)) for left, right in (_split(one, ranks) for one in merged)]
    return models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges)


def _split(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens that were merged into `token`: its encoding with the merges of lower rank."""
    parts = [bytes([value]) for value in token]
    while len(parts) > 2:
        place = min(range(len(parts) - 1), key=lambda n: ranks.get(parts[n] + parts[n + 1], len(ranks)))
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]


def _to_printable(token: bytes) -> str:
    """Bytes as GPT-2's printable characters, as in tokenizer.json."""
    return token.decode("latin-1").translate(_PRINTABLE)


# The printable bytes stand for themselves, the others for the characters from U+0100 on.
_OTHER_BYTES: Final = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
_PRINTABLE: Final = {value: 0x100 + number for number, value in enumerate(_OTHER_BYTES)}
