"""Results of simulated trials, for tests of `check` and `bench`."""

from __future__ import annotations

from typing import Final

from trainer_core.check.trial_process import TrialResult

FREE_BYTES: Final = 1000
STATE_BYTES: Final = 100  # weights, gradients and optimizer moments


def trial_result(peak: int | None, speed: float | None = 1.0, needed: int = STATE_BYTES) -> TrialResult:
    """Return the result of a trial with a memory peak of `peak` bytes; None: it does not fit."""
    return TrialResult(
        fits=peak is not None, device="simulated", memory_total=FREE_BYTES, memory_free=FREE_BYTES, needed=needed,
        parameters=1, checkpoint_bytes=1, peak=peak, ram_peak=peak, tokens_per_s=speed if peak is not None else None,
    )  # fmt: skip
