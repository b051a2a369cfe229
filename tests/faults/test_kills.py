"""A run that is killed repeatedly ends with the same model.

`python -m bench.faults kills` repeats this with 200 kills.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.faults import kills, small

KILLS, STEPS = 5, 40


@pytest.mark.parametrize("waiting", [False, True])
def test_a_run_killed_at_random_moments_ends_with_the_same_model(tmp_path: Path, waiting: bool) -> None:
    unbroken = small.unbroken(tmp_path, STEPS)
    outcome = kills.kill_often(unbroken, tmp_path, KILLS, seed=3, waiting=waiting)
    assert not outcome.problems, outcome
    assert len(outcome.kills) == KILLS
    assert outcome.runs >= 1
    assert any(kill.saved for kill in outcome.kills), "all kills came before the first checkpoint"
