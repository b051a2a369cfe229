"""A run that is killed again and again loses little, and ends as the one that nobody disturbed.

`python -m bench.faults kills` is the same for 200 kills.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.faults import kills, small

KILLS, STEPS = 5, 40


@pytest.mark.parametrize("waiting", [False, True])
def test_after_kills_at_random_instants_the_finished_model_is_the_unbroken_one(tmp_path: Path, waiting: bool) -> None:
    unbroken = small.unbroken(tmp_path, STEPS)
    found = kills.kill_often(unbroken, tmp_path, KILLS, seed=3, waiting=waiting)
    assert not found.problems, found
    assert len(found.kills) == KILLS
    assert found.runs >= 1
    assert any(kill.saved for kill in found.kills), "some kills came after a checkpoint"
