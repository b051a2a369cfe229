"""Advice on speed: slow data loading or gradient synchronization, an idle GPU, a batch too small for the GPU."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.simulated_run import GIB, READY, SimulatedRun, config_with
from trainer_core import protocol


def test_waiting_for_data_suggests_more_workers() -> None:
    run = SimulatedRun().start_training().steps(6, data=50.0)
    assert run.codes == ["data_bound"]
    assert run.advice[0].params == {"percent": 34, "ms": 50.0, "workers": 2}
    assert run.advice[0].suggested_settings == {"num_workers": 4}
    assert run.advice[0].step == 360


def test_a_few_slow_batches_give_no_advice() -> None:
    run = SimulatedRun().start_training().steps(2, data=50.0).steps(1).steps(5, data=50.0).steps(1)
    assert run.codes == []


def test_slow_data_in_the_first_step_of_a_process_is_ignored() -> None:
    run = SimulatedRun()
    run.emit(READY)
    assert run.steps(1, data=500.0).codes == []


@pytest.mark.parametrize(
    ("knobs", "ready", "host", "suggested"),
    [
        ({"token_cache": False}, {}, {}, {"token_cache": True}),
        ({}, {"loader_workers": 0}, {}, {"num_workers": 2}),
        ({}, {"loader_workers": 4}, {}, {"prefetch_factor": 4}),  # at most half of the eight processors
        ({}, {"loader_workers": 0, "loader_reason": "cpu"}, {}, {}),  # training needs the processors
        ({}, {"loader_workers": 0, "loader_reason": "low_memory"}, {}, {}),
        ({}, {}, {"cpu": 0.99}, {}),
    ],
)
def test_suggested_settings_for_slow_data_depend_on_the_cause(
    knobs: dict[str, Any], ready: dict[str, Any], host: dict[str, Any], suggested: dict[str, Any]
) -> None:
    run = (
        SimulatedRun(config_with(**knobs))
        .start_training(msgspec.structs.replace(READY, **ready))
        .hardware(1, host=host)
    )
    assert run.steps(6, data=50.0).advice[0].suggested_settings == suggested


def test_data_advice_is_resolved_when_loading_is_fast_again() -> None:
    run = SimulatedRun().start_training().steps(6, data=50.0).steps(5)
    assert run.codes == ["data_bound", "-data_bound"]
    assert run.advice[1].params == run.advice[0].params


def test_a_gpu_idle_for_a_minute_gets_advice() -> None:
    run = SimulatedRun(config_with(compile="off")).start_training().hardware(20, utilization=0.3)
    assert run.codes == []
    run.hardware(15, utilization=0.3)
    assert run.codes == ["gpu_idle"]
    assert run.advice[0].suggested_settings == {"compile": "auto"}


def test_a_gpu_that_waits_for_data_is_not_reported_as_idle() -> None:
    assert SimulatedRun().start_training().steps(6, data=50.0).hardware(60, utilization=0.3).codes == ["data_bound"]


def test_slow_gradient_synchronization_is_reported_but_not_as_an_idle_gpu() -> None:
    run = SimulatedRun(config_with(nproc_per_node=2, gradient_accumulation_steps=4)).start_training()
    assert run.steps(8, sync=20.0).codes == []
    assert run.steps(8, sync=99.5).hardware(60, utilization=0.3).codes == ["sync_bound"]
    assert run.advice[0].params == {"percent": 50, "ms": 99.5, "ranks": 2, "steps": 4}
    assert run.steps(8).codes == ["sync_bound", "-sync_bound"]


def test_a_gpu_is_not_reported_as_idle_during_an_evaluation() -> None:
    run = SimulatedRun().start_training()
    run.emit(protocol.Phase(phase="evaluating"))
    assert run.hardware(60, utilization=0.1).codes == []


def test_a_small_batch_is_doubled_and_accumulation_halved() -> None:
    run = SimulatedRun().start_training().performance(2, mfu=0.08, memory_peak=2 * GIB)
    assert run.codes == ["batch_small"]
    assert run.advice[0].suggested_settings == {"batch_size": 16, "gradient_accumulation_steps": 2}
    assert run.advice[0].params == {"busy": 8, "memory": 17, "total_gib": 12.0, "batch_size": 8}


@pytest.mark.parametrize(("noise", "suggested"), [(500.0, {"batch_size": 16}), (10.0, None), (None, None)])
def test_a_larger_effective_batch_is_suggested_only_for_noisy_gradients(noise: float | None, suggested: Any) -> None:
    run = SimulatedRun(config_with(gradient_accumulation_steps=1)).start_training()
    run.performance(3, mfu=0.08, memory_peak=2 * GIB, gradient_noise=noise)
    assert [advice.suggested_settings for advice in run.advice] == ([suggested] if suggested else [])


@pytest.mark.parametrize("performance", [{"mfu": 0.35, "memory_peak": 2 * GIB}, {"mfu": 0.05, "memory_peak": 9 * GIB}])
def test_a_busy_or_full_gpu_gets_no_larger_batch(performance: dict[str, Any]) -> None:
    assert SimulatedRun().start_training().performance(5, **performance).codes == []


def test_utilization_is_used_if_mfu_is_unknown() -> None:
    partly_idle = SimulatedRun().start_training().hardware(40, utilization=0.4).performance(2, memory_peak=2 * GIB)
    assert "batch_small" in partly_idle.codes
    busy = SimulatedRun().start_training().hardware(40).performance(2, memory_peak=2 * GIB)
    assert busy.codes == []


def test_a_cpu_gets_no_gpu_advice() -> None:
    run = SimulatedRun(cpu=True).start_training().steps(50).hardware(50).performance(5, memory_peak=None, mfu=0.01)
    assert run.codes == []
