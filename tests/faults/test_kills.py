"""A run that is killed repeatedly ends with the same model.

`python -m bench.faults kills` is the same for 200 kills.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.faults import kills, small

KILLS, STEPS = 5, 40


@pytest.mark.parametrize("waiting", [False, True])
def test_a_run_killed_at_random_moments_ends_with_the_same_model(tmp_path: Path, waiting: bool) -> None:
    unbroken = small.unbroken(tmp_path, STEPS)
    found = kills.kill_often(unbroken, tmp_path, KILLS, seed=3, waiting=waiting)
    assert not found.problems, found
    assert len(found.kills) == KILLS
    assert found.runs >= 1
    assert any(kill.saved for kill in found.kills), "some kills came after a checkpoint"
