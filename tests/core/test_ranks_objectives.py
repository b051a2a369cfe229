"""Learning from preferences and rewards on two ranks equals training in a single process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.core.rank_processes import run_ranks
from tests.core.trainer_process import TINY, TrainerResult, run, text_file
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


RISING = """
from trainer_core.train.evaluate import AnswerQuality


class Pass:
    def run(self, *_):
        return protocol.Eval(step=step(), loss=float(step()), perplexity=None, tokens=1, seconds=0.0)


step = lambda: trainer.state.counters.step
with join(info, 30.0 if not rank else None) as group:
    values = {"eval_steps": 1, "cpu_threads": 1, "compile": "off"}
    trainer, sink = trainer_of(group, lr_schedule="plateau", plateau_patience=1, early_stop_patience=3, **values)
    trainer.evaluation_pass = Pass
    trainer.sample_writer.answer_held_out = lambda _: AnswerQuality(0.0, 0.0, 1, 0, 0, reward=float(step()))
    trainer.run()
    counters = trainer.state.counters
    print(json.dumps([counters.step, counters.best_loss, counters.best_reward, trainer.plateau.scale]))
"""


def test_all_ranks_judge_an_evaluation_by_the_reward(tmp_path: Path) -> None:
    """The loss rises with the reward, so it never improves."""
    text_file(tmp_path)
    assert [json.loads(found) for found in run_ranks(tmp_path, RISING)] == 2 * [[6, 6.0, 6.0, 1.0]]
