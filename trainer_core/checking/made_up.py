"""Tokens that mean nothing, of the shape that a run's batches have at most, as a cache that training reads.

The worst case counts: every sequence is as long as it may be, and every token of it is learned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from trainer_core.config import Config
from trainer_core.data.arrange import SPLITS, arrange
from trainer_core.data.columns import Task
from trainer_core.data.prepare import Prepared, SplitCounts
from trainer_core.data.sequences import windows
from trainer_core.data.store import Block, Writer
from trainer_core.data.tokenizing.bpe import train
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.report import Quiet

_VOCABULARY: Final = 300  # of the tokenizer that stands beside them; the model has its own


def prepared(folder: Path, config: Config, task: Task, vocab_size: int, sequences: int) -> Prepared:
    """A cache of so many training sequences, and one batch to evaluate on. Documents share a sequence, two in each,
    where they do in the run and do not see each other."""
    divided = config.packing if task == "sft" else not config.attend_across_documents
    counts = dict(zip(SPLITS, (sequences, config.batch_size), strict=True))
    tokens: dict[str, int] = {}
    for split, count in counts.items():
        writer = Writer(folder / split, vocab_size)
        writer.add_block(_block(count, config.max_seq_len, task, vocab_size, divided))
        writer.finish()
        tokens[split] = writer.tokens
    tokenizer = folder / "tokenizer.json"
    Codec(train(["made up"], _VOCABULARY, config.pre_tokenizer, Quiet().poll)).save(tokenizer)
    if task == "sft":
        samples = {split: one.samples for split, one in arrange(folder, vocab_size, config, Quiet()).items()}
    else:
        samples = {split: windows(tokens[split], config.max_seq_len, split) for split in SPLITS}
    splits = {split: SplitCounts(counts[split], tokens[split], samples[split]) for split in SPLITS}
    return Prepared(
        fingerprint="made up",
        folder=folder,
        task=task,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        end_of_text=0,
        max_seq_len=config.max_seq_len,
        packed=config.packing and task == "sft",
        attend_across_documents=config.attend_across_documents,
        train=splits["train"],
        validation=splits["validation"],
        truncated=0,
        dropped=0,
        bytes=0,
        sources=(),
        reused=True,
    )


def _block(count: int, length: int, task: Task, vocab_size: int, divided: bool) -> Block:
    """So many sequences. A conversation has a token more than it takes positions; plain text has one more in all."""
    parts = (length // 2, length - length // 2) if divided else (length,)
    lengths = np.tile([part + (task == "sft") for part in parts], count)
    lengths[-1] += task == "pretrain"
    ids = np.random.default_rng(0).integers(0, vocab_size, int(lengths.sum()))
    begins = np.cumsum(lengths) - lengths
    if task == "pretrain":
        return Block(ids, begins)
    spans = np.stack([np.zeros_like(lengths), lengths], 1)
    return Block(ids, begins, spans, np.ones_like(lengths))
