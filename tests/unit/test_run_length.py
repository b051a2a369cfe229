"""Length of a run in steps and epochs."""

from __future__ import annotations

from app.core.run_length import RunLength, compute_run_length
from trainer_core.data.report.statistics import steps_per_epoch


def test_max_steps_determine_the_length() -> None:
    values = {"max_steps": 400, "max_epochs": 1, "batch_size": 4, "gradient_accumulation_steps": 2}
    assert compute_run_length(values, None) == RunLength(True, 400, None)
    assert compute_run_length(values, 8000) == RunLength(True, 400, 0.4)
    assert compute_run_length(values, 800, exact=False) == RunLength(True, 400, 4.0, exact=False)


def test_without_max_steps_the_epochs_determine_the_length() -> None:
    values = {"max_steps": 0, "max_epochs": 3, "batch_size": 4, "gradient_accumulation_steps": 2}
    assert compute_run_length(values, None) == RunLength(False, None, 3.0)
    assert compute_run_length(values, 81) == RunLength(False, 33, 3.0)
    assert steps_per_epoch(81, 8) == (11, 10)
