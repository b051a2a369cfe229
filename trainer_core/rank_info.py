"""Rank of this process among those that train one model, from the environment of its launcher.

Launchers: `torchrun`, `accelerate launch`, SLURM's `srun`, and `train --nproc-per-node` itself. Only rank 0 reads
commands and emits events. No torch, no Qt.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainer_core.system import child_process

SINGLE_PROCESS_ENVIRONMENT: Final = {"WORLD_SIZE": "1", "SLURM_NTASKS": "1"}
"""For a child process that is not a rank of the launcher."""
OWN_RUN_ID: Final = "traindeck"
"""TORCHELASTIC_RUN_ID of ranks that `train --nproc-per-node` started."""
_FIRST_PORT: Final = 29_500  # of MASTER_PORT under SLURM, plus a number from the job's id
_PORTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Place of a process among all, and among those of its machine."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def from_environment(environment: Mapping[str, str] = os.environ) -> RankInfo | None:
    """The rank that a launcher assigned to this process; None: no launcher, or one process."""
    if "RANK" in environment:
        size = _number(environment, "WORLD_SIZE", 1)
        local_size = _number(environment, "LOCAL_WORLD_SIZE", size)
        rank = _number(environment, "RANK", 0)
        local_rank = _number(environment, "LOCAL_RANK", rank % local_size)
    else:
        size = _number(environment, "SLURM_NTASKS", 1) if "SLURM_PROCID" in environment else 1
        rank, local_rank = _number(environment, "SLURM_PROCID", 0), _number(environment, "SLURM_LOCALID", 0)
        local_size = _number(environment, "SLURM_NTASKS_PER_NODE", size // _number(environment, "SLURM_NNODES", 1))
    return RankInfo(rank, size, local_rank, local_size) if size > 1 else None


def rendezvous_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of `torch.distributed` that SLURM does not set: rank 0 listens on the job's first machine."""
    if "RANK" in environment or "SLURM_PROCID" not in environment:
        return {}
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "localhost")
    port = _FIRST_PORT + _number(environment, "SLURM_JOB_ID", 0) % _PORTS
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment.get("SLURM_NTASKS", "1"),
        "MASTER_ADDR": environment.get("MASTER_ADDR") or first_host(nodes),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(port),
    }


def launch_command(module: str, arguments: Sequence[str], ranks: int) -> list[str]:
    """Command line that runs `python -m module arguments`, on several ranks with their elastic agent."""
    python = [sys.executable, *child_process.interpreter_flags(), "-P", "-m"]
    if ranks == 1:
        return [*python, module, *arguments]
    return [*python, "trainer_core.elastic_agent", str(os.getpid()), str(ranks), module, *arguments]


def first_host(nodes: str) -> str:
    """First name of SLURM's list: `gpu[03-05,09],login1` → `gpu03`."""
    found = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    return "".join(filter(None, found.groups())) if found else nodes


def is_elastic(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether an elastic agent that the user started restarts this process when it fails."""
    return environment.get("TORCHELASTIC_RUN_ID", OWN_RUN_ID) != OWN_RUN_ID


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else default
