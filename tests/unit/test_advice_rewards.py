"""Advice on learning from rewards."""

from __future__ import annotations

import pytest

from tests.unit.simulated_run import RewardedRun
from trainer_core import protocol


def test_a_healthy_run_has_no_advice() -> None:
    assert RewardedRun().rollouts(40).codes == []


def test_a_loss_near_zero_is_no_plateau_and_no_spike() -> None:
    run = RewardedRun().rollouts(20)
    for loss in (0.3, -0.2, 0.4, 0.35):
        run.step(loss)
    for step in range(12):
        run.emit(protocol.Eval(step=step, loss=2.0 + step, perplexity=7.0, tokens=9, seconds=1.0, reward=0.5))
    assert run.codes == []


def test_prompts_without_signal_suggest_larger_groups() -> None:
    run = RewardedRun().rollouts(3, no_signal_ratio=0.95, scores={"exact": 0.03}, reward=0.03)
    assert run.codes == ["no_signal"]
    assert run.advice[0].params["percent"] == 95
    assert run.advice[0].suggested_settings == {"group_size": 16}
    assert run.rollouts().codes == ["no_signal", "-no_signal"]


def test_equal_rewards_of_right_answers_are_success() -> None:
    assert RewardedRun().rollouts(5, no_signal_ratio=1.0, scores={"exact": 0.99}, reward=0.99).codes == []


@pytest.mark.parametrize(
    ("rewards", "scores", "reward"),
    [
        (["exact", "-0.5*regex:sorry"], {"exact": 1.0, "regex:sorry": 0.0}, 1.0),
        (["exact", "0.2*length:1-40"], {"exact": 1.0, "length:1-40": 0.8}, 1.16),
    ],
)
def test_success_is_measured_by_the_highest_reward(rewards: list[str], scores: dict[str, float], reward: float) -> None:
    run = RewardedRun(rewards=rewards)
    assert run.rollouts(5, no_signal_ratio=1.0, scores=scores, reward=reward).codes == []


def test_a_low_entropy_is_reported_only_while_answers_are_wrong() -> None:
    run = RewardedRun().rollouts(4).rollouts(3, entropy=0.05)
    assert run.codes == ["entropy_collapse"]
    assert run.advice[0].params == {"before": 0.8, "now": 0.05}
    assert RewardedRun().rollouts(4).rollouts(5, entropy=0.05, scores={"exact": 0.95}, reward=0.95).codes == []


def test_a_large_divergence_suggests_a_larger_penalty() -> None:
    run = RewardedRun(method="lora", kl_beta=0.02).rollouts(3, kl=0.9)
    assert run.codes == ["kl_runaway"]
    assert run.advice[0].suggested_settings == {"kl_beta": 0.06}
    assert RewardedRun().rollouts(3, kl=0.9).codes == []


def test_answers_that_grow_are_reported() -> None:
    run = RewardedRun().rollouts(4).rollouts(3, answer_tokens=80.0)
    assert run.codes == ["long_answers"]
    assert run.advice[0].params == {"before": 30, "now": 80}
    assert RewardedRun().rollouts(4, answer_tokens=3.0).rollouts(3, answer_tokens=9.0).codes == []


def test_answers_that_do_not_end_suggest_a_higher_limit_if_there_is_room() -> None:
    run = RewardedRun().rollouts(3, truncated_ratio=0.6)
    assert run.codes == ["answers_cut_off"]
    assert run.advice[0].suggested_settings == {"rollout_max_new_tokens": 200}
    full = RewardedRun(rollout_max_new_tokens=200).rollouts(3, truncated_ratio=0.6)
    assert full.advice[0].suggested_settings == {}
