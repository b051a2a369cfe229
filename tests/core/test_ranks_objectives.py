"""Learning from preferences and rewards on two ranks equals training in a single process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.core.trainer_process import TINY, TrainerResult, run
from tests.core.training import pairs_file, preference_file
from trainer_core import protocol

STEPS = 6
ARGUMENTS = [
    "--max-steps", str(STEPS), "--save-steps", "3", "--keep-last", "9", "--eval-steps", "3", "--batch-size", "4",
    "--max-seq-len", "64", "--gradient-accumulation-steps", "2", "--dropout", "0",
]  # fmt: skip
REWARDS = ["--objective", "grpo", "--rewards", "length:-4", "--group-size", "4", "--rollout-max-new-tokens", "8"]
TWO = ["--nproc-per-node", "2"]


def train(home: Path, name: str, data: Path, *arguments: str) -> TrainerResult:
    result = run(home, "train", *TINY, *ARGUMENTS, "--data", str(data), "--run-dir", name, *arguments)
    assert result.code == 0, result.stderr
    return result


def weights(home: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(home / name / "checkpoints" / f"step-{STEPS:08d}" / "model.safetensors")


def assert_same_weights(home: Path, one: str, other: str) -> None:
    expected = weights(home, one)
    for key, weight in weights(home, other).items():
        torch.testing.assert_close(weight, expected[key], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(("objective", "parallel"), [("dpo", "ddp"), ("orpo", "fsdp"), ("kto", "ddp")])
def test_preferences_on_two_ranks_equal_a_single_process(tmp_path: Path, objective: str, parallel: str) -> None:
    data, chosen = preference_file(tmp_path, labelled=objective == "kto"), ["--objective", objective]
    single = train(tmp_path, "single", data, *chosen)
    result = train(tmp_path, "ranks", data, *chosen, *TWO, "--parallel", parallel)
    assert result.losses == pytest.approx(single.losses, rel=1e-4)
    evals = [(event.loss, event.reward_accuracy) for event in single.events_of(protocol.Eval)]
    found = [(event.loss, event.reward_accuracy) for event in result.events_of(protocol.Eval)]
    assert found == [pytest.approx(one, rel=1e-4) for one in evals]
    assert_same_weights(tmp_path, "single", "ranks")


@pytest.mark.parametrize("steps_per_generation", ["1", "3"])
def test_rewards_on_two_ranks_equal_a_single_process(tmp_path: Path, steps_per_generation: str) -> None:
    data, rewards = pairs_file(tmp_path), [*REWARDS, "--steps-per-generation", steps_per_generation]
    single = train(tmp_path, "single", data, *rewards)
    result = train(tmp_path, "ranks", data, *rewards, *TWO)
    first, expected = (one.events_of(protocol.Rollouts) for one in (result, single))
    assert [event.samples for event in first] == [event.samples for event in expected]
    assert any(event.reward_std > 0 for event in expected)
    assert result.losses == pytest.approx(single.losses, rel=1e-3, abs=1e-6)
    assert_same_weights(tmp_path, "single", "ranks")


def test_a_resumed_run_with_rewards_may_have_another_number_of_ranks(tmp_path: Path) -> None:
    data, rewards = pairs_file(tmp_path), [*REWARDS, "--steps-per-generation", "2"]
    train(tmp_path, "single", data, *rewards)
    train(tmp_path, "first", data, *rewards, *TWO)
    source = tmp_path / "first" / "checkpoints" / "step-00000003"  # within a generation of two steps
    train(tmp_path, "resumed", data, *rewards, "--resume", str(source))
    assert_same_weights(tmp_path, "single", "resumed")
