"""Advice on learning: non-finite gradients, loss spikes, learning rate, overfitting, plateaus, truncated data."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.unit.simulated_run import READY, SimulatedRun, config_with
from trainer_core import protocol


def test_repeated_non_finite_gradients_suggest_a_lower_rate() -> None:
    run = SimulatedRun().start_training().bad_steps(2)
    assert run.codes == []
    run.bad_steps(1)
    assert run.codes == ["not_finite"]
    assert run.advice[0].suggested_settings == {"learning_rate": 1e-4}
    assert run.steps(30).codes == ["not_finite", "-not_finite"]


def test_rare_non_finite_gradients_and_gradient_spikes_give_no_advice() -> None:
    assert SimulatedRun().start_training().bad_steps(1).steps(15).bad_steps(1).steps(15).bad_steps(1).codes == []
    assert SimulatedRun().start_training().bad_steps(9, "spike").codes == []


def test_a_lasting_loss_spike_is_reported_with_the_usual_loss() -> None:
    run = SimulatedRun().start_training().losses(3.1, 3.2)
    assert run.codes == ["loss_spike"]
    assert run.advice[0].params == {"step": 320, "loss": 3.2, "usual": 2.0}
    assert run.advice[0].suggested_settings == {}
    unclipped = SimulatedRun(config_with(grad_clip=0.0)).start_training().losses(3.1, 3.2)
    assert unclipped.advice[0].suggested_settings == {"grad_clip": 1.0}


def test_one_unusual_batch_is_not_a_loss_spike() -> None:
    assert SimulatedRun().start_training().losses(3.5, 2.0, 2.0, 3.5, 2.0).codes == []


def test_losses_during_warm_up_give_no_advice() -> None:
    run = SimulatedRun(config_with(warmup_steps=100_000)).start_training().losses(*[2.0 + 0.1 * i for i in range(60)])
    assert run.codes == []


def test_a_rising_loss_after_warm_up_suggests_a_third_of_the_rate() -> None:
    run = SimulatedRun().start_training().losses(*[2.0 + 0.03 * i for i in range(30)])
    assert "rate_high" in run.codes
    advice = next(advice for advice in run.advice if advice.code == "advice.rate_high")
    assert advice.suggested_settings == {"learning_rate": 1e-4}
    assert advice.params["before"] < advice.params["now"]  # type: ignore[operator]


def test_a_loss_above_random_guessing_gives_rate_advice_even_while_it_falls() -> None:
    run = SimulatedRun(config_with(warmup_steps=5000)).start_training()
    run.last_step = 5000
    for number in range(25):
        run.step(60.0 - number)  # random guessing among 8192 tokens has a loss of 9
    assert run.codes == ["rate_high"]


def test_rate_advice_is_resolved_once_the_loss_is_below_random_guessing() -> None:
    run = SimulatedRun().start_training().losses(*[2.0 + 0.5 * i for i in range(20)])
    assert run.codes[-1] == "rate_high"
    run.losses(*[11.0 - 0.01 * i for i in range(40)])  # random guessing: 9
    assert "-rate_high" not in run.codes
    assert run.losses(*[8.0 - 0.01 * i for i in range(40)]).codes[-1] == "-rate_high"


def test_many_skipped_steps_give_rate_advice() -> None:
    assert SimulatedRun().start_training().steps(10, bad_steps=2).codes == ["rate_high"]


def test_hard_clipped_gradients_give_rate_advice_only_if_the_loss_does_not_fall() -> None:
    assert "rate_high" in SimulatedRun().start_training().steps(40, grad_norm=20.0).codes
    falling = SimulatedRun().start_training()
    for number in range(60):
        falling.step(2.0 * 0.99**number, grad_norm=20.0)
    assert falling.codes == []


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_noisy_losses_that_fall_or_stay_give_no_advice(noise: float) -> None:
    rng = random.Random(3)
    run = SimulatedRun().start_training()
    for number in range(400):
        run.step(0.6 + 1.4 * 0.99**number + rng.gauss(0, noise), grad_norm=rng.uniform(0.3, 3.0))
    assert run.codes == []


def test_a_loss_near_zero_that_doubles_is_not_a_spike() -> None:
    assert SimulatedRun().start_training().steps(100, loss=0.05).losses(*[0.004, 0.008] * 30).codes == []


def test_overfitting_advice_names_the_best_checkpoint() -> None:
    run = SimulatedRun().start_training().evals(2.2)
    name = "step-00000300"
    run.emit(protocol.Checkpoint(step=run.last_step, path=name, bytes=1, seconds=1.0, kind="best", kept=[name]))
    for train, eval_loss in ((1.6, 2.3), (1.3, 2.4), (1.0, 2.5)):
        run.steps(10, loss=train).evals(eval_loss)
    assert run.codes == ["overfitting"]
    assert run.advice[0].params == {"best": 2.2, "best_step": 300, "now": 2.5, "checkpoint": name}
    assert run.advice[0].suggested_settings == {"max_steps": 300}


def test_a_varying_eval_loss_is_not_overfitting() -> None:
    run = SimulatedRun().start_training()
    for eval_loss in (2.2, 2.3, 2.19, 2.25, 2.18, 2.21):
        run.steps(10, loss=1.5).evals(eval_loss)
    assert run.codes == []


def test_a_rising_train_loss_is_not_overfitting() -> None:
    run = SimulatedRun().start_training().evals(2.2)
    for number in range(5):
        run.steps(10, loss=2.1 + 0.02 * number).evals(2.3 + 0.05 * number)
    assert "overfitting" not in run.codes


def test_a_constant_loss_at_a_high_rate_is_a_plateau() -> None:
    run = SimulatedRun(config_with(lr_schedule="constant")).start_training()
    for _ in range(6):
        run.steps(5).evals(2.2)
    assert run.codes == ["plateau"]
    assert run.advice[0].suggested_settings == {"lr_schedule": "cosine"}
    assert run.steps(5).evals(2.1).codes == ["plateau", "-plateau"]


def test_a_plateau_is_resolved_only_by_a_new_best_loss() -> None:
    run = SimulatedRun(config_with(lr_schedule="constant")).start_training()
    for loss in (1.3161, 1.3189, 1.3186, 1.3191, 1.3230, 1.3259, 1.3195, 1.3179, 1.3170, 1.3166, 1.3163):
        run.steps(5).evals(loss)
    assert run.codes == ["plateau"]
    assert run.advice[0].params["before"] == 1.316
    assert run.steps(5).evals(1.3110).codes == ["plateau", "-plateau"]


def test_a_constant_loss_at_the_end_of_a_schedule_is_not_a_plateau() -> None:
    run = SimulatedRun().start_training()
    for _ in range(8):
        run.steps(5, learning_rate=5e-5).evals(2.2)
    assert run.codes == []


def test_a_plateau_schedule_gets_no_plateau_advice() -> None:
    run = SimulatedRun(config_with(lr_schedule="plateau")).start_training()
    for _ in range(8):
        run.steps(5).evals(2.2)
    assert run.codes == []


def sft_data(**counts: Any) -> protocol.Ready:
    return msgspec.structs.replace(READY, task="sft", **counts)


def test_truncated_conversations_suggest_longer_sequences() -> None:
    run = SimulatedRun()
    run.emit(sft_data(truncated=150, dropped=10))
    assert run.codes == ["truncated"]
    assert run.advice[0].params == {"count": 160, "total": 1050, "percent": 15, "limit": 256}
    assert run.advice[0].suggested_settings == {"max_seq_len": 512, "batch_size": 4, "gradient_accumulation_steps": 8}


def test_a_few_long_conversations_and_plain_text_give_no_advice() -> None:
    run = SimulatedRun()
    run.emit(sft_data(truncated=10))
    run.emit(READY)
    assert run.codes == []
