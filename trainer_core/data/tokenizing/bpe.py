"""Training of a byte-level BPE tokenizer with `rustbpe`.

`rustbpe` holds the GIL while it merges, for seconds with a large sample, so it runs in a process of its own: progress,
Stop and monitoring continue meanwhile.

No torch, no Qt.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import msgspec
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from trainer_core.data.tokenizing.chat_template import SPECIAL_TOKENS
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

_MIN_FREQUENCY: Final = 2
_SHORT: Final = 64  # characters per vocabulary entry; below, pairs that occur only once would be merged
_IN_PROCESS: Final = 256 * 1024  # characters; a larger sample is worth a process of its own
_POLL_SECONDS: Final = 0.05


class _Sample(msgspec.Struct):
    texts: list[str]
    vocab_size: int
    pre_tokenizer: PreTokenizer


def train(texts: Iterable[str], vocab_size: int, pre_tokenizer: PreTokenizer, poll: Callable[[], None]) -> Tokenizer:
    """Train a byte-level BPE tokenizer. The same texts always give the same tokenizer.

    Ids: the special tokens 0 to 2, the 256 bytes, then merges of pairs that occur at least twice, up to `vocab_size`.

    Args:
        texts: Training sample, held in memory.
        vocab_size: Maximum number of tokens. A small sample yields fewer.
        pre_tokenizer: Key of `REGEXES`.
        poll: Called about every 50 ms; may raise to abandon training.
    """
    sample, size, due = _Sample([], vocab_size, pre_tokenizer), 0, 0.0
    for text in texts:
        if time.monotonic() >= due:
            poll()
            due = time.monotonic() + _POLL_SECONDS
        text = text.encode("utf-8", "ignore").decode()  # a lone surrogate from a damaged file has no UTF-8 form
        sample.texts.append(unicodedata.normalize("NFC", text) if pre_tokenizer == "qwen2" else text)
        size += len(text)
    if size <= _IN_PROCESS:
        return _train(sample)
    with tempfile.TemporaryDirectory(prefix="traindeck-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "sample").write_bytes(msgspec.msgpack.encode(sample))
        del sample
        _run_child(Path(folder), poll)
        return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def _run_child(folder: Path, poll: Callable[[], None]) -> None:
    """Train in a child process. Raises MemoryError if the system killed it, RuntimeError for other failures."""
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env=child_process.environment(PYTHONUTF8="1"),
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        try:
            while process.poll() is None:
                poll()
                try:
                    process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    pass
        finally:
            child_process.kill_tree(process)
    if process.returncode:
        output = (folder / "errors").read_text(encoding="utf-8", errors="replace").strip()
        if child_process.is_out_of_memory(process.returncode) or "memory allocation" in output:
            raise MemoryError(f"tokenizer training: {output[-500:]}")
        raise RuntimeError(f"tokenizer training failed with exit code {process.returncode}: {output[-500:]}")


def _train(sample: _Sample) -> Tokenizer:
    short = sum(map(len, sample.texts)) < _SHORT * sample.vocab_size
    tokenizer = _train_with_tokenizers(sample) if short else _train_with_rustbpe(sample)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def _train_with_rustbpe(sample: _Sample) -> Tokenizer:
    import rustbpe

    merger = rustbpe.Tokenizer()
    size = sample.vocab_size - len(SPECIAL_TOKENS)
    merger.train_from_iterator(iter(sample.texts), size, pattern=REGEXES[sample.pre_tokenizer])
    ranks = {bytes(token): rank for token, rank in merger.get_mergeable_ranks()}
    alphabet = sorted((bytes([value]) for value in range(256)), key=_spelling)
    tokens = [*alphabet, *(token for token, rank in sorted(ranks.items(), key=lambda item: item[1]) if rank >= 256)]
    vocab = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *map(_spelling, tokens)])}
    pairs = (_merged_pair(token, ranks) for token in tokens[256:])
    merges = [(_spelling(left), _spelling(right)) for left, right in pairs]
    return _tokenizer(models.BPE(vocab=vocab, merges=merges), sample.pre_tokenizer)


def _train_with_tokenizers(sample: _Sample) -> Tokenizer:
    """Slower, but it ignores pairs that occur once, which matters in a short sample."""
    tokenizer = _tokenizer(models.BPE(), sample.pre_tokenizer)
    trainer = trainers.BpeTrainer(
        vocab_size=sample.vocab_size,
        min_frequency=_MIN_FREQUENCY,
        show_progress=False,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(sample.texts, trainer)
    return tokenizer


def _merged_pair(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two tokens that were merged into `token`: its encoding with the merges of lower rank."""
    limit = ranks[token]
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        lowest = min((left + right for left, right in pairwise(parts)), key=lambda pair: ranks.get(pair, limit))
        merged, place = [], 0
        while place < len(parts):
            found = place + 1 < len(parts) and parts[place] + parts[place + 1] == lowest
            merged.append(lowest if found else parts[place])
            place += 2 if found else 1
        parts = merged
    return parts[0], parts[1]


def _characters() -> dict[int, str]:
    """GPT-2's printable character for each byte, as used in tokenizer.json."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return {value: chr(value if value in printable else next(others)) for value in range(256)}


_CHARACTERS: Final = _characters()


def _spelling(token: bytes) -> str:
    return token.decode("latin-1").translate(_CHARACTERS)


def _tokenizer(model: models.BPE, pre_tokenizer: PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(REGEXES[pre_tokenizer]), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if pre_tokenizer == "qwen2":
        # As in Qwen's own file. transformers 5 replaces any tokenizer beside a Qwen2 model with its Qwen2Tokenizer,
        # which normalizes to NFC; without this the ids would differ.
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


if __name__ == "__main__":
    path = Path(sys.argv[1])
    request = msgspec.msgpack.decode((path / "sample").read_bytes(), type=_Sample)
    _train(request).save(str(path / "tokenizer.json"))
