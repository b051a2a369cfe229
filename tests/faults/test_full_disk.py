"""A disk that is full at any write of a run.

`python -m bench.faults disk` tests every write, this test every 90th.
"""

from __future__ import annotations

from pathlib import Path

from bench.faults import disk, small


def test_a_full_disk_at_any_write_loses_no_checkpoint_and_no_step(tmp_path: Path) -> None:
    outcomes, problems = disk.full_at_each(small.unbroken(tmp_path, 40), tmp_path, every=90)
    assert not problems, outcomes
    assert {outcome.did for outcome in outcomes} >= {"ended with disk.full", "waited and continued"}
