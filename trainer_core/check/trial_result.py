"""Request and result of a trial: plain values that are exchanged between processes and cached on disk.

No torch, no Qt.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from trainer_core.config import Config, to_dict

Verdict = Literal["fits", "tight", "does_not_fit"]
_TIGHT_SHARE: Final = 0.1  # of the device's memory


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration to measure. Its data are synthetic and depend on `vocab_size` and `task` alone."""

    config: dict[str, Any]  # all settings
    vocab_size: int
    task: Literal["pretrain", "sft"]
    total_steps: int  # of the run: decides what is compiled
    seconds: float = 1.5  # of measured steps, at least

    @classmethod
    def from_config(
        cls, config: Config, vocab_size: int, task: Literal["pretrain", "sft"], total_steps: int, seconds: float = 1.5
    ) -> TrialRequest:
        return cls(config=to_dict(config), vocab_size=vocab_size, task=task, total_steps=total_steps, seconds=seconds)


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate and measurement of a configuration. Bytes; seconds. Of several GPUs, the fullest counts."""

    fits: bool  # all steps succeeded; False: out of memory, measured or estimated
    device: str  # display name
    uuids: list[str] = []  # of the GPUs; empty on a CPU
    memory_total: int  # of the device
    memory_free: int  # of the device, before anything was allocated
    needed: int  # estimated lower bound
    state: int  # part of `needed` for weights, gradients and moments, independent of the batch size
    parameters: int  # trainable
    checkpoint_bytes: int  # of one checkpoint
    precision: str = ""  # of the forward pass
    peak: int | None = None  # of the device's memory taken by the process; None: out of memory
    ram_peak: int | None = None  # of the process's resident memory
    tokens_per_s: float | None = None
    step_s: float | None = None  # an optimizer update with all its micro-batches
    start_s: float | None = None  # from the start of the process to the end of its first step
    compile_s: float | None = None  # None: not compiled
    utilization: float | None = None  # 0..1, of the GPU; None: not on a GPU, or not reported
    mfu: float | None = None  # 0..1; None: the peak of the device is unknown


def verdict(result: TrialResult) -> Verdict:
    """Compare the peak with the memory that was free before.

    A larger peak does not fit even if all steps succeeded: on Windows the driver then moves GPU memory to RAM, and
    steps take ten times as long.
    """
    if not result.fits or result.peak is None or result.peak > result.memory_free:
        return "does_not_fit"
    return "tight" if result.memory_free - result.peak < result.memory_total * _TIGHT_SHARE else "fits"
