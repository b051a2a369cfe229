"""A disk that is full at any write of a run.

`python -m bench.faults disk` tests every write, this test every 90th.
"""

from __future__ import annotations

from pathlib import Path

from bench.faults import disk
from bench.faults.reference_run import ReferenceRun


def test_a_full_disk_at_any_write_loses_no_checkpoint_and_no_step(tmp_path: Path) -> None:
    outcomes, problems = disk.fill_at_each_operation(ReferenceRun(tmp_path, 40).train(), tmp_path, every=90)
    assert not problems, outcomes
    assert {outcome.reaction for outcome in outcomes} >= {"ended with disk.full", "waited and continued"}
