"""Trains a tokenizer on a text file, ours or with `tokenizers`' own trainer, and says what it took.

    python -m bench.peers.tokenizer_trainer ours|tokenizers FILE.txt OUT.json [--vocab-size 8192] [--kind qwen2]

Prints one line of JSON: the seconds of the training (reading the file included, imports not), and the longest time in
which it could not be stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from trainer_core.data.tokenizing import bpe
from trainer_core.data.tokenizing.chat import SPECIAL_TOKENS

_PIECE: Final = 64 * 1024  # characters


def pieces(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="") as file:
        while text := file.read(_PIECE):
            yield text


def by_tokenizers(texts: Iterator[str], vocab_size: int, kind: bpe.PreTokenizer, poll: Callable[[], None]) -> Tokenizer:
    from tokenizers import pre_tokenizers, trainers

    tokenizer = bpe.train([], vocab_size, kind, poll)  # the same parts around an empty model
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=["ours", "tokenizers"])
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--kind", choices=list(bpe.REGEXES), default="qwen2")
    chosen = parser.parse_args()
    train = bpe.train if chosen.trainer == "ours" else by_tokenizers
    asked = [time.perf_counter()]
    tokenizer = train(pieces(chosen.file), chosen.vocab_size, chosen.kind, lambda: asked.append(time.perf_counter()))
    asked.append(time.perf_counter())
    tokenizer.save(str(chosen.out))
    longest = max(later - sooner for sooner, later in pairwise(asked))
    print(json.dumps({"training": asked[-1] - asked[0], "longest_silence": longest}))


if __name__ == "__main__":
    main()
