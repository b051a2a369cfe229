"""Ranks follow from the environment of the launcher."""

from __future__ import annotations

import pytest

from trainer_core.rank_info import RankInfo, first_host, from_environment, rendezvous_environment


def test_without_a_launcher_there_are_no_ranks() -> None:
    assert from_environment({}) is None
    assert from_environment({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert from_environment({"SLURM_NTASKS": "4"}) is None, "sbatch without srun"


def test_torchrun_names_rank_and_machine() -> None:
    environment = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert from_environment(environment) == RankInfo(5, 8, 1, 4)
    assert from_environment({"RANK": "1", "WORLD_SIZE": "2"}) == RankInfo(1, 2, 1, 2)


def test_srun_names_rank_and_machine() -> None:
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NNODES": "2"}
    assert from_environment(slurm) == RankInfo(3, 4, 1, 2)
    found = rendezvous_environment(slurm | {"SLURM_JOB_ID": "123456", "SLURM_STEP_NODELIST": "gpu[03-05,09],login1"})
    assert found == {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "gpu03", "MASTER_PORT": "32956"}


@pytest.mark.parametrize(
    ("nodes", "first"), [("node1", "node1"), ("a1,b2", "a1"), ("n[7,9]", "n7"), ("n[01-04]x", "n01")]
)
def test_the_first_machine_of_a_list_is_found(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
