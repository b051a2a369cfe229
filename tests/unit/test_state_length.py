"""When a run ends."""

from __future__ import annotations

from app.state.length import Length, length_of
from trainer_core.data.insight.measures import steps_per_epoch


def test_steps_end_a_run_wherever_the_epochs_are() -> None:
    values = {"max_steps": 400, "max_epochs": 1, "batch_size": 4, "gradient_accumulation_steps": 2}
    assert length_of(values, None) == Length(True, 400, None)
    assert length_of(values, 8000) == Length(True, 400, 0.4)
    assert length_of(values, 800, exact=False) == Length(True, 400, 4.0, exact=False)


def test_without_steps_the_epochs_do() -> None:
    values = {"max_steps": 0, "max_epochs": 3, "batch_size": 4, "gradient_accumulation_steps": 2}
    assert length_of(values, None) == Length(False, None, 3.0)
    assert length_of(values, 81) == Length(False, 33, 3.0)
    assert steps_per_epoch(81, 4, 2).total == 11
