"""Synthetic token cache with batches of the largest shape of a run: every sequence is full, every token counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from trainer_core.config import Config
from trainer_core.data.column_mapping import Task
from trainer_core.data.prepare import PreparedData, load_prepared
from trainer_core.data.token_files import SPLITS, TokenBlock, TokenFileWriter
from trainer_core.data.tokenizing.bpe import train
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.progress import NullReporter

_VOCAB_SIZE: Final = 300  # of a tokenizer that is required but not used


def build_synthetic_cache(
    folder: Path, config: Config, task: Task, vocab_size: int, sequences: int, sides: int = 0
) -> PreparedData:
    """Write a cache of `sequences` for training and one batch for validation.

    Sequences hold two documents each if the run separates the documents of a sequence, or the `sides` of a preference.
    """
    divided = config.packing if task == "sft" else not config.attend_across_documents
    meta: dict[str, Any] = {"vocab_size": vocab_size, "end_of_text": 0}
    for split, count in zip(SPLITS, (sequences, config.batch_size), strict=True):
        writer = TokenFileWriter(folder / split, vocab_size)
        if sides:
            block = _preference_block(count, config.max_seq_len, vocab_size, sides)
        else:
            answer = config.rollout_max_new_tokens if config.uses_rewards else config.max_seq_len
            block = _block(count, config.max_seq_len, task, vocab_size, divided, answer)
        writer.add_block(block)
        meta[split] = writer.finish()
    prepared = load_prepared(folder, task, meta, config, NullReporter(), sides)
    Codec(train(["synthetic"], _VOCAB_SIZE, config.pre_tokenizer, NullReporter().poll)).save(prepared.tokenizer)
    return prepared


def _block(count: int, length: int, task: Task, vocab_size: int, divided: bool, answer: int) -> TokenBlock:
    """Random tokens. A conversation has one token more than positions; plain text has one more in total.

    `answer`: most tokens at the end of a conversation that are trained on.
    """
    parts = (length // 2, length - length // 2) if divided else (length,)
    lengths = np.tile([part + (task == "sft") for part in parts], count)
    lengths[-1] += task == "pretrain"
    ids = np.random.default_rng(0).integers(0, vocab_size, int(lengths.sum()))
    begins = np.cumsum(lengths) - lengths
    if task == "pretrain":
        return TokenBlock(ids, begins)
    spans = np.stack([np.maximum(lengths - answer - 1, 0), lengths], 1)
    return TokenBlock(ids, begins, spans, np.ones_like(lengths))


def _preference_block(count: int, length: int, vocab_size: int, sides: int) -> TokenBlock:
    """Random tokens, with `sides` conversations a document (see `preferences`)."""
    side = length + 1
    spans = [(0, side), (side, side), *([(side, 2 * side)] if sides > 1 else [])]
    ids = np.random.default_rng(0).integers(0, vocab_size, count * sides * side)
    begins = np.arange(count) * sides * side
    return TokenBlock(ids, begins, np.tile(spans, (count, 1)), np.full(count, len(spans)))
