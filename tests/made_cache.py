"""Token caches made by hand: their tokens are known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainer_core.config import Config
from trainer_core.data.arrange import SPLITS, arrange
from trainer_core.data.prepare import Prepared, SplitCounts
from trainer_core.data.sequences import windows
from trainer_core.data.store import Split, Writer
from trainer_core.report import Quiet

END = 0  # ends each text, and pads
VOCABULARY = 300

Chat = tuple[Sequence[int], Sequence[tuple[int, int]]]  # tokens; [start, stop) of those that are trained on


def conversations(folder: Path, config: Config, train: Sequence[Chat], validation: Sequence[Chat] = ()) -> Prepared:
    """A cache of conversations."""
    for split, chats in zip(SPLITS, (train, validation), strict=True):
        writer = Writer(folder / split, VOCABULARY)
        for ids, spans in chats:
            writer.begin_document()
            writer.add_chat(ids, spans)
        writer.finish()
    return described(folder, config, "sft")


def texts(folder: Path, config: Config, train: Sequence[Sequence[int]]) -> Prepared:
    """A cache of plain texts; each gets `END` as its last token."""
    for split, documents in zip(SPLITS, (train, ()), strict=True):
        writer = Writer(folder / split, VOCABULARY)
        for ids in documents:
            writer.begin_document()
            writer.add([*ids, END])
        writer.finish()
    return described(folder, config, "pretrain")


def described(folder: Path, config: Config, task: str) -> Prepared:
    stores = {split: Split(folder / split, VOCABULARY) for split in SPLITS}
    if task == "sft":
        samples = {split: one.samples for split, one in arrange(folder, VOCABULARY, config, Quiet()).items()}
    else:
        samples = {split: windows(one.tokens, config.max_seq_len, split) for split, one in stores.items()}
    counts = {split: SplitCounts(one.documents, one.tokens, samples[split]) for split, one in stores.items()}
    return Prepared(
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
