"""Advice about speed: data that comes late, a GPU that waits, a batch too small for the card."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.advising import CONFIG, GIB, READY, Series
from trainer_core import protocol


def changed(**knobs: Any) -> Any:
    return msgspec.structs.replace(CONFIG, **knobs)


def test_a_run_that_waits_for_data_is_told_how_long_and_gets_more_workers() -> None:
    run = Series().train().steps(6, data=50.0)
    assert run.codes == ["data_bound"]
    assert run.said[0].params == {"percent": 34, "ms": 50.0, "workers": 2}
    assert run.said[0].suggested_settings == {"num_workers": 4}
    assert run.said[0].step == 360


def test_a_few_late_batches_are_no_matter() -> None:
    run = Series().train().steps(2, data=50.0).steps(1).steps(5, data=50.0).steps(1)
    assert run.codes == []


def test_the_first_steps_of_a_process_do_not_count() -> None:
    run = Series()
    run.tell(READY)
    assert run.steps(1, data=500.0).codes == []


@pytest.mark.parametrize(
    ("knobs", "ready", "host", "fix"),
    [
        ({"token_cache": False}, {}, {}, {"token_cache": True}),
        ({}, {"loader_workers": 0}, {}, {"num_workers": 2}),
        ({}, {"loader_workers": 4}, {}, {"prefetch_factor": 4}),  # of eight processors four are enough
        ({}, {"loader_workers": 0, "loader_reason": "cpu"}, {}, {}),  # training itself needs the processors
        ({}, {"loader_workers": 0, "loader_reason": "low_memory"}, {}, {}),
        ({}, {}, {"cpu": 0.99}, {}),
    ],
)
def test_what_mends_late_data_depends_on_why_it_is_late(
    knobs: dict[str, Any], ready: dict[str, Any], host: dict[str, Any], fix: dict[str, Any]
) -> None:
    run = Series(changed(**knobs)).train(msgspec.structs.replace(READY, **ready)).looks(1, host=host)
    assert run.steps(6, data=50.0).said[0].suggested_settings == fix


def test_data_that_comes_in_time_again_is_said_once() -> None:
    run = Series().train().steps(6, data=50.0).steps(5)
    assert run.codes == ["data_bound", "-data_bound"]
    assert run.said[1].params == run.said[0].params


def test_an_idle_gpu_is_told_after_a_minute_with_what_would_keep_it_busy() -> None:
    run = Series(changed(compile="off")).train().looks(20, utilization=0.3)
    assert run.codes == []
    run.looks(15, utilization=0.3)
    assert run.codes == ["gpu_idle"]
    assert run.said[0].suggested_settings == {"compile": "auto"}


def test_a_gpu_that_waits_for_data_is_not_called_idle_too() -> None:
    assert Series().train().steps(6, data=50.0).looks(60, utilization=0.3).codes == ["data_bound"]


def test_gradients_that_take_long_to_add_up_are_told_and_the_gpu_is_not_called_idle() -> None:
    run = Series(changed(ranks=2, gradient_accumulation_steps=4)).train()
    assert run.steps(8, sync=20.0).codes == []
    assert run.steps(8, sync=99.5).looks(60, utilization=0.3).codes == ["sync_bound"]
    assert run.said[0].params == {"percent": 50, "ms": 99.5, "ranks": 2, "steps": 4}
    assert run.steps(8).codes == ["sync_bound", "-sync_bound"]


def test_a_gpu_is_not_called_idle_during_an_evaluation() -> None:
    run = Series().train()
    run.tell(protocol.Phase(phase="evaluating"))
    assert run.looks(60, utilization=0.1).codes == []


def test_a_small_batch_is_doubled_and_accumulation_halved() -> None:
    run = Series().train().performance(2, mfu=0.08, memory_peak=2 * GIB)
    assert run.codes == ["batch_small"]
    assert run.said[0].suggested_settings == {"batch_size": 16, "gradient_accumulation_steps": 2}
    assert run.said[0].params == {"busy": 8, "memory": 17, "total_gib": 12.0, "batch_size": 8}


@pytest.mark.parametrize(("noise", "fix"), [(500.0, {"batch_size": 16}), (10.0, None), (None, None)])
def test_an_update_grows_only_where_its_noise_says_that_it_gains(noise: float | None, fix: Any) -> None:
    run = Series(changed(gradient_accumulation_steps=1)).train()
    run.performance(3, mfu=0.08, memory_peak=2 * GIB, gradient_noise=noise)
    assert [advice.suggested_settings for advice in run.said] == ([fix] if fix else [])


@pytest.mark.parametrize("used", [{"mfu": 0.35, "memory_peak": 2 * GIB}, {"mfu": 0.05, "memory_peak": 9 * GIB}])
def test_a_card_that_is_busy_or_full_gets_no_larger_batch(used: dict[str, Any]) -> None:
    assert Series().train().performance(5, **used).codes == []


def test_without_a_known_peak_the_utilization_tells() -> None:
    quiet = Series().train().looks(40, utilization=0.4).performance(2, memory_peak=2 * GIB)
    assert "batch_small" in quiet.codes
    busy = Series().train().looks(40).performance(2, memory_peak=2 * GIB)
    assert busy.codes == []


def test_a_cpu_gets_no_advice_about_cards() -> None:
    run = Series(cpu=True).train().steps(50).looks(50).performance(5, memory_peak=None, mfu=0.01)
    assert run.codes == []
