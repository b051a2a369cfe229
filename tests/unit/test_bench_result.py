"""Results of the command `bench`: CPU load, speedup, reduction of the tuned batch."""

from __future__ import annotations

import psutil
import pytest

from tests.unit.trial_results import trial_result
from trainer_core.benchmark import run
from trainer_core.benchmark.run import Recipe
from trainer_core.check.trial_process import TrialResult
from trainer_core.config import Config


def test_an_unknown_cpu_load_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(interval: float) -> float:
        raise OSError(1, "Invalid function")

    monkeypatch.setattr(psutil, "cpu_percent", fail)
    assert run.cpu_load() == 0.0


def test_runs_are_compared_within_their_round() -> None:
    """A tuned batch that was halved has no runs of earlier rounds. A failed recipe has none of later rounds."""
    untuned = Recipe("untuned", Config(), {1: trial_result(1, 100), 2: trial_result(1, 50), 3: trial_result(1, 80)})
    halved = Recipe("tuned", Config(), {2: trial_result(1, 100), 3: trial_result(1, 240)})
    failed = Recipe("tuned", Config(), {1: trial_result(1, 150)})
    assert (run.speedup(halved, untuned) or {})["each"] == [2.0, 3.0]
    assert (run.speedup(failed, untuned) or {})["each"] == [1.5]
    assert run.speedup(Recipe("tuned", Config()), untuned) is None


def test_the_tuned_batch_is_halved_until_it_fits_and_other_recipes_fail() -> None:
    def measure(recipe: Recipe, number: int) -> TrialResult:
        return trial_result(100 if recipe.config.batch_size <= 8 else None)

    tuned = Recipe("tuned", Config(batch_size=32), {0: trial_result(1)})
    untuned = Recipe("untuned", Config(batch_size=12))
    for recipe in (tuned, untuned):
        run._measure(recipe, 1, measure)
    assert (tuned.config.batch_size, list(tuned.runs), tuned.error) == (8, [1], None)
    assert untuned.error is not None
    assert untuned.error[0] == "memory.out"
