"""Several ranks without a command line: we are one, and each other is a process of its own that runs a script."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.core.trainer import ROOT, environment
from trainer_core.train.joined import Joined
from trainer_core.train.rendezvous import FolderStore, wait_for

BEGIN = """
import sys
from pathlib import Path
import torch
from tests.core.ranks import joined
from tests.core.test_loop import config, trainer
from trainer_core.train.following import obey
from trainer_core.train.ranks import EndedByLeader, RankLost
from trainer_core.train.peak_memory import PeakMemory

folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ranks = joined(folder / "meet", rank, size)
"""


def joined(folder: Path, rank: int, size: int) -> Joined:
    """This process as a rank, once all are there."""
    folder.mkdir(exist_ok=True)
    store = FolderStore(folder)
    store.set(f"here/{rank}", "1")
    wait_for(store, [f"here/{other}" for other in range(size)], lambda: None)
    return Joined(store, rank, size)


@contextlib.contextmanager
def others(folder: Path, script: str, size: int = 2, we: int = 0) -> Iterator[list[subprocess.Popen[str]]]:
    """The other ranks, which run `script` after `BEGIN`; none of them outlives this."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + script, str(folder), str(rank), str(size)],
            env=environment(folder) | {"OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        for rank in range(size)
        if rank != we
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return Path(f"/proc/{pid}").exists()
