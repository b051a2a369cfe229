"""Length of a run in steps and epochs."""

from __future__ import annotations

from app.pages.setup.texts import format_run_length


def test_max_steps_determine_the_length() -> None:
    values = {"max_steps": 400, "max_epochs": 1, "batch_size": 4, "gradient_accumulation_steps": 2}
    assert format_run_length(values, None) == "Ends after 400 steps; epochs are ignored"
    assert format_run_length(values, 8000) == "Ends after 400 steps: about 0.4 epochs"


def test_without_max_steps_the_epochs_determine_the_length() -> None:
    values = {"max_steps": 0, "max_epochs": 3, "batch_size": 4, "gradient_accumulation_steps": 2}
    assert format_run_length(values, None) == "Ends after 3 epochs"
    assert format_run_length(values, 81) == "Ends after 3 epochs: about 33 steps"
    assert format_run_length({**values, "max_epochs": 1}, 81) == "Ends after 1 epoch: about 11 steps"
