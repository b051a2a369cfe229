"""A disk that is full at any write of a run: it says so and waits, or ends; nothing is lost, and the end is the same.

`python -m bench.faults disk` is the same for every operation.
"""

from __future__ import annotations

from pathlib import Path

from bench.faults import disk, small


def test_a_full_disk_at_any_write_loses_no_checkpoint_and_no_step(tmp_path: Path) -> None:
    found, problems = disk.full_at_each(small.unbroken(tmp_path, 40), tmp_path, every=90)
    assert not problems, found
    assert {one.did for one in found} >= {"ended with disk.full", "waited and continued"}
