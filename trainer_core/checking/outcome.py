"""What a trial is asked, and what it found. Plain values: they go between processes, and are kept on disk.

No torch, no Qt.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from trainer_core.config import Config, to_dict


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration to run steps of. Data are made up, so all that is told of them is their shape."""

    config: dict[str, Any]  # all knobs
    vocab_size: int  # of the tokenizer
    task: Literal["pretrain", "sft"]
    total_steps: int  # of the run

    @classmethod
    def of(cls, config: Config, vocab_size: int, task: Literal["pretrain", "sft"], total_steps: int) -> Request:
        return cls(config=to_dict(config), vocab_size=vocab_size, task=task, total_steps=total_steps)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Bytes; seconds. Of several GPUs: one of them, the one that is the fullest."""

    fits: bool  # the steps were done; False: memory ended, or would have
    device: str  # name for people
    uuids: list[str] = []  # of the GPUs; empty: a CPU
    memory_total: int  # of the device
    memory_free: int  # of the device, before anything was allocated
    needed: int  # at least, by arithmetic
    state: int  # of it for weights, gradients and moments, however small the batches are
    parameters: int  # trainable weights
    checkpoint_bytes: int  # of one checkpoint
    peak: int | None = None  # of the device's memory that the process took; None: memory ended
    ram_peak: int | None = None  # of the process's resident memory
    tokens_per_s: float | None = None
    compile_s: float | None = None  # None: not compiled


_TIGHT: Final = 10  # less than this part of the device's memory is left


def verdict(outcome: Outcome) -> Literal["fits", "tight", "does_not_fit"]:
    """By what was free before. A peak beyond it is none that fits, even where the steps were done: Windows gives a GPU
    the system's memory then, and they take ten times as long."""
    if not outcome.fits or outcome.peak is None or outcome.peak > outcome.memory_free:
        return "does_not_fit"
    left = outcome.memory_free - outcome.peak
    return "tight" if left < outcome.memory_total / _TIGHT else "fits"


def is_roomy(outcome: Outcome) -> bool:
    return verdict(outcome) == "fits"
