"""A run that is killed repeatedly ends with the same model.

`python -m bench.faults kills` repeats this with 200 kills.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.faults import kills
from bench.faults.reference_run import ReferenceRun

KILLS, STEPS = 5, 40


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_whose_ranks_are_killed_at_random_moments_ends_with_the_same_model(tmp_path: Path, parallel: str) -> None:
    reference = ReferenceRun(tmp_path, STEPS, nproc_per_node=2, parallel=parallel).train()
    all_kills, _, problems = kills.kill_often(reference, tmp_path, 2, seed=5, waiting=False, ranks=2)
    assert not problems, all_kills
    assert len(all_kills) == 2


@pytest.mark.parametrize("waiting", [False, True])
def test_a_run_killed_at_random_moments_ends_with_the_same_model(tmp_path: Path, waiting: bool) -> None:
    reference = ReferenceRun(tmp_path, STEPS).train()
    all_kills, runs, problems = kills.kill_often(reference, tmp_path, KILLS, seed=3, waiting=waiting)
    assert not problems, all_kills
    assert len(all_kills) == KILLS
    assert runs >= 1
    assert any(kill.saved for kill in all_kills), "all kills came before the first checkpoint"
