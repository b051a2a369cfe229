"""Token caches with given tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainer_core.config import Config
from trainer_core.data.column_mapping import Task
from trainer_core.data.prepare import PreparedData, load_prepared
from trainer_core.data.token_files import SPLITS, TokenBlock, TokenFileWriter
from trainer_core.progress import NullReporter

END_OF_TEXT = 0  # also used for padding
VOCAB_SIZE = 300

Conversation = tuple[Sequence[int], Sequence[tuple[int, int]]]  # tokens; [start, stop) of those that are trained on


def add_document(writer: TokenFileWriter, ids: Sequence[int], spans: Sequence[tuple[int, int]] | None = None) -> None:
    """Append a text, or a conversation of which the tokens in `spans` are trained on."""
    start = np.zeros(1, np.int64)
    if spans is None:
        writer.add_block(TokenBlock(np.asarray(ids, np.int64), start))
    else:
        pairs = np.array(spans, np.int64).reshape(-1, 2)
        writer.add_block(TokenBlock(np.asarray(ids, np.int64), start, pairs, np.array([len(spans)])))


def build_conversation_cache(folder: Path, config: Config, train: Sequence[Conversation]) -> PreparedData:
    return _build(folder, config, "sft", train)


def build_text_cache(folder: Path, config: Config, train: Sequence[Sequence[int]]) -> PreparedData:
    """Each text gets `END_OF_TEXT` as its last token."""
    return _build(folder, config, "pretrain", [([*ids, END_OF_TEXT], None) for ids in train])


def _build(
    folder: Path, config: Config, task: Task, train: Sequence[tuple[Sequence[int], Sequence[tuple[int, int]] | None]]
) -> PreparedData:
    counts = {}
    for split in SPLITS:
        writer = TokenFileWriter(folder / split, VOCAB_SIZE)
        for ids, spans in train if split == "train" else ():
            add_document(writer, ids, spans)
        counts[split] = writer.finish()
    meta = {"vocab_size": VOCAB_SIZE, "end_of_text": END_OF_TEXT, **counts}
    return load_prepared(folder, task, meta, config, NullReporter())
