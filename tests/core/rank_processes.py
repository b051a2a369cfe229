"""Ranks without a command line: the test process is one rank, and each other rank is a process that runs a script."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.core.trainer_process import ROOT, environment
from trainer_core.train.joined import Joined
from trainer_core.train.rendezvous import FolderStore, wait_for

PREAMBLE = """
import sys
from pathlib import Path
import torch
from tests.core.rank_processes import join_ranks
from tests.core.training import build_trainer, tiny_config
from trainer_core.train.following import obey
from trainer_core.train.ranks import EndedByLeader, RankLost
from trainer_core.train.peak_memory import PeakMemory

folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ranks = join_ranks(folder / "rendezvous", rank, size)
"""


def join_ranks(folder: Path, rank: int, size: int) -> Joined:
    """Join the process group as `rank`; returns once all ranks have joined."""
    folder.mkdir(exist_ok=True)
    store = FolderStore(folder)
    store.set(f"joined/{rank}", "1")
    wait_for(store, [f"joined/{other}" for other in range(size)], lambda: None)
    return Joined(store, rank, size)


@contextlib.contextmanager
def start_ranks(folder: Path, script: str, size: int = 2, own_rank: int = 0) -> Iterator[list[subprocess.Popen[str]]]:
    """Start all other ranks with `script` after `PREAMBLE`; they are killed at the end of the context."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + script, str(folder), str(rank), str(size)],
            env=environment(folder) | {"OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        for rank in range(size)
        if rank != own_rank
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return Path(f"/proc/{pid}").exists()
