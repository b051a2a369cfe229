"""Token caches made by hand: their tokens are known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainer_core.config import Config
from trainer_core.data.prepare import PreparedData, SplitCounts
from trainer_core.data.sequence_layout import SPLITS, build_sequences
from trainer_core.data.sequences import count_text_sequences
from trainer_core.data.token_files import Split, TokenBlock, TokenFileWriter
from trainer_core.progress import NullReporter

END = 0  # ends each text, and pads
VOCABULARY = 300

Chat = tuple[Sequence[int], Sequence[tuple[int, int]]]  # tokens; [start, stop) of those that are trained on


def add_document(writer: TokenFileWriter, ids: Sequence[int], spans: Sequence[tuple[int, int]] | None = None) -> None:
    """Append a document: a text, or a conversation of which the tokens in `spans` are trained on."""
    start = np.zeros(1, np.int64)
    if spans is None:
        writer.add_block(TokenBlock(np.asarray(ids, np.int64), start))
    else:
        pairs = np.array(spans, np.int64).reshape(-1, 2)
        writer.add_block(TokenBlock(np.asarray(ids, np.int64), start, pairs, np.array([len(spans)])))


def conversations(folder: Path, config: Config, train: Sequence[Chat], validation: Sequence[Chat] = ()) -> PreparedData:
    """A cache of conversations."""
    for split, chats in zip(SPLITS, (train, validation), strict=True):
        writer = TokenFileWriter(folder / split, VOCABULARY)
        for ids, spans in chats:
            add_document(writer, ids, spans)
        writer.finish()
    return described(folder, config, "sft")


def texts(folder: Path, config: Config, train: Sequence[Sequence[int]]) -> PreparedData:
    """A cache of plain texts; each gets `END` as its last token."""
    for split, documents in zip(SPLITS, (train, ()), strict=True):
        writer = TokenFileWriter(folder / split, VOCABULARY)
        for ids in documents:
            add_document(writer, [*ids, END])
        writer.finish()
    return described(folder, config, "pretrain")


def described(folder: Path, config: Config, task: str) -> PreparedData:
    stores = {split: Split(folder / split, VOCABULARY) for split in SPLITS}
    if task == "sft":
        samples = {
            split: one.samples for split, one in build_sequences(folder, VOCABULARY, config, NullReporter()).items()
        }
    else:
        samples = {split: count_text_sequences(one.tokens, config.max_seq_len, split) for split, one in stores.items()}
    counts = {split: SplitCounts(one.documents, one.tokens, samples[split]) for split, one in stores.items()}
    return PreparedData(
        fingerprint="made",
        folder=folder,
        task=task,  # type: ignore[arg-type]
        tokenizer=folder / "tokenizer.json",
        vocab_size=VOCABULARY,
        end_of_text=END,
        max_seq_len=config.max_seq_len,
        packed=config.packing and task == "sft",
        attend_across_documents=config.attend_across_documents,
        train=counts["train"],
        validation=counts["validation"],
        truncated=0,
        dropped=0,
        bytes=0,
        sources=(),
        reused=False,
    )
