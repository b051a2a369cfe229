"""Advice about learning: numbers that are none, losses that jump, rise, part or stand still, data that is cut."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.unit.advising import CONFIG, READY, Series
from trainer_core import protocol


def changed(**knobs: Any) -> Any:
    return msgspec.structs.replace(CONFIG, **knobs)


def test_gradients_that_are_no_numbers_again_and_again_ask_for_a_lower_rate() -> None:
    run = Series().train().bad(2)
    assert run.codes == []
    run.bad(1)
    assert run.codes == ["not_finite"]
    assert run.said[0].suggested_settings == {"learning_rate": 1e-4}
    assert run.steps(30).codes == ["not_finite", "-not_finite"]


def test_bad_steps_far_from_each_other_or_mere_jumps_are_not_called_so() -> None:
    assert Series().train().bad(1).steps(15).bad(1).steps(15).bad(1).codes == []
    assert Series().train().bad(9, "spike").codes == []


def test_a_loss_that_jumps_and_stays_is_told_with_what_it_was() -> None:
    run = Series().train().losses(3.1, 3.2)
    assert run.codes == ["loss_spike"]
    assert run.said[0].params == {"step": 320, "loss": 3.2, "usual": 2.0}
    assert run.said[0].suggested_settings == {}
    unclipped = Series(changed(grad_clip=0.0)).train().losses(3.1, 3.2)
    assert unclipped.said[0].suggested_settings == {"grad_clip": 1.0}


def test_one_odd_batch_is_no_spike() -> None:
    assert Series().train().losses(3.5, 2.0, 2.0, 3.5, 2.0).codes == []


def test_while_the_learning_rate_warms_up_nothing_is_said_about_losses() -> None:
    run = Series(changed(warmup_steps=100_000)).train().losses(*[2.0 + 0.1 * rise for rise in range(60)])
    assert run.codes == []


def test_a_loss_that_climbs_after_the_warm_up_asks_for_a_third_of_the_rate() -> None:
    run = Series().train().losses(*[2.0 + 0.03 * rise for rise in range(30)])
    assert "rate_high" in run.codes
    advice = next(advice for advice in run.said if advice.code == "advice.rate_high")
    assert advice.suggested_settings == {"learning_rate": 1e-4}
    assert advice.params["before"] < advice.params["now"]  # type: ignore[operator]


def test_a_model_worse_than_guessing_after_the_warm_up_asks_for_it_even_if_it_recovers() -> None:
    run = Series(changed(warmup_steps=5000)).train()
    run.newest = 5000
    for number in range(25):
        run.step(60.0 - number)  # of a vocabulary of 8192 tokens guessing has a loss of 9
    assert run.codes == ["rate_high"]


def test_it_is_not_over_while_the_model_is_worse_than_guessing_and_is_when_it_learns() -> None:
    run = Series().train().losses(*[2.0 + 0.5 * rise for rise in range(20)])
    assert run.codes[-1] == "rate_high"
    run.losses(*[11.0 - 0.01 * fall for fall in range(40)])  # of a vocabulary of 8192 tokens guessing has 9
    assert "-rate_high" not in run.codes
    assert run.losses(*[8.0 - 0.01 * fall for fall in range(40)]).codes[-1] == "-rate_high"


def test_many_steps_left_out_ask_for_it_too() -> None:
    assert Series().train().steps(10, bad_steps=2).codes == ["rate_high"]


def test_gradients_cut_to_a_fraction_ask_for_it_only_where_nothing_is_learned() -> None:
    assert "rate_high" in Series().train().steps(40, grad_norm=20.0).codes
    falling = Series().train()
    for number in range(60):
        falling.step(2.0 * 0.99**number, grad_norm=20.0)
    assert falling.codes == []


@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_noisy_losses_that_fall_or_stand_are_healthy(noise: float) -> None:
    chance = random.Random(3)
    run = Series().train()
    for number in range(400):
        run.step(0.6 + 1.4 * 0.99**number + chance.gauss(0, noise), grad_norm=chance.uniform(0.3, 3.0))
    assert run.codes == []


def test_a_loss_close_to_nothing_may_double() -> None:
    assert Series().train().steps(100, loss=0.05).losses(*[0.004, 0.008] * 30).codes == []


def kept_best(run: Series, path: str) -> None:
    run.tell(protocol.Checkpoint(step=run.newest, path=path, bytes=1, seconds=1.0, kind="best", kept=[path]))


def test_learning_by_heart_is_told_with_the_best_checkpoint() -> None:
    run = Series().train().evaluations(2.2)
    kept_best(run, "step-00000300")
    for train, held_out in ((1.6, 2.3), (1.3, 2.4), (1.0, 2.5)):
        run.steps(10, loss=train).evaluations(held_out)
    assert run.codes == ["overfitting"]
    assert run.said[0].params == {"best": 2.2, "best_step": 300, "now": 2.5, "checkpoint": "step-00000300"}
    assert run.said[0].suggested_settings == {"max_steps": 300}


def test_an_eval_loss_that_sways_is_no_learning_by_heart() -> None:
    run = Series().train()
    for held_out in (2.2, 2.3, 2.19, 2.25, 2.18, 2.21):
        run.steps(10, loss=1.5).evaluations(held_out)
    assert run.codes == []


def test_both_losses_rising_is_something_else() -> None:
    run = Series().train().evaluations(2.2)
    for number in range(5):
        run.steps(10, loss=2.1 + 0.02 * number).evaluations(2.3 + 0.05 * number)
    assert "overfitting" not in run.codes


def test_a_loss_that_stands_still_at_a_high_rate_is_a_plateau() -> None:
    run = Series(changed(lr_schedule="constant")).train()
    for _ in range(6):
        run.steps(5).evaluations(2.2)
    assert run.codes == ["plateau"]
    assert run.said[0].suggested_settings == {"lr_schedule": "cosine"}
    assert run.steps(5).evaluations(2.1).codes == ["plateau", "-plateau"]


def test_a_plateau_is_not_over_because_an_evaluation_was_better_than_a_bad_one() -> None:
    run = Series(changed(lr_schedule="constant")).train()
    for loss in (1.3161, 1.3189, 1.3186, 1.3191, 1.3230, 1.3259, 1.3195, 1.3179, 1.3170, 1.3166, 1.3163):
        run.steps(5).evaluations(loss)
    assert run.codes == ["plateau"]
    assert run.said[0].params["before"] == 1.316
    assert run.steps(5).evaluations(1.3110).codes == ["plateau", "-plateau"]


def test_standing_still_at_the_end_of_a_schedule_is_how_it_ends() -> None:
    run = Series().train()
    for _ in range(8):
        run.steps(5, learning_rate=5e-5).evaluations(2.2)
    assert run.codes == []


def test_a_plateau_schedule_knows_it_by_itself() -> None:
    run = Series(changed(lr_schedule="plateau")).train()
    for _ in range(8):
        run.steps(5).evaluations(2.2)
    assert run.codes == []


def talks(**counts: Any) -> protocol.Ready:
    return msgspec.structs.replace(READY, task="sft", **counts)


def test_conversations_that_are_cut_ask_for_longer_sequences() -> None:
    run = Series()
    run.tell(talks(truncated=150, dropped=10))
    assert run.codes == ["truncated"]
    assert run.said[0].params == {"count": 160, "total": 1050, "percent": 15, "limit": 256}
    assert run.said[0].suggested_settings == {"max_seq_len": 512, "batch_size": 4, "gradient_accumulation_steps": 8}


def test_a_few_long_conversations_are_usual_and_plain_text_is_never_cut() -> None:
    run = Series()
    run.tell(talks(truncated=10))
    run.tell(READY)
    assert run.codes == []
