"""Detection of bad steps, gradient noise and plateaus."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from trainer_core.config import Config
from trainer_core.train import numerics
from trainer_core.train.numerics import BadStepRecord, GradientMonitor, GradientNoise, PlateauSchedule
from trainer_core.train.schedule import Schedule

CPU = torch.device("cpu")


def judge(monitor: GradientMonitor, *norms: float, first: int = 1) -> list[float]:
    """Judge steps with these gradient norms; returns the flags."""
    return [float(monitor.judge(torch.tensor(norm), step, (step, -step), 7)) for step, norm in enumerate(norms, first)]


def warmed_up_monitor(**knobs: Any) -> GradientMonitor:
    """A monitor after 30 steps with a norm of 2."""
    monitor = GradientMonitor(Config(**knobs), CPU)
    assert judge(monitor, *[2.0] * 30) == [0.0] * 30
    return monitor


def test_a_spike_is_reported_with_its_batch_and_the_running_mean() -> None:
    monitor = warmed_up_monitor(spike_factor=5.0)
    assert judge(monitor, 9.9, 14.0, 2.0, first=31) == [0.0, 1.0, 0.0]
    (bad_step,) = monitor.read()
    assert bad_step == BadStepRecord(32, "spike", 14.0, pytest.approx(2.0, rel=0.2), epoch=7, samples=(32, -32))  # type: ignore[arg-type]
    assert monitor.read() == []
    assert monitor.total == 1


@pytest.mark.parametrize("norm", [math.nan, math.inf, -math.inf])
def test_a_norm_that_is_not_finite_is_bad_from_the_first_step(norm: float) -> None:
    monitor = GradientMonitor(Config(spike_factor=0.0), CPU)
    assert judge(monitor, norm, 1.0) == [1.0, 0.0]
    assert monitor.read() == [BadStepRecord(1, "not_finite", None, None, 7, (1, -1))]


def test_no_spikes_are_detected_during_warmup() -> None:
    assert judge(GradientMonitor(Config(spike_factor=2.0), CPU), *[1.0, 9.0, 30.0, 3.0]) == [0.0] * 4


def test_spike_factor_zero_disables_spike_detection() -> None:
    assert judge(warmed_up_monitor(spike_factor=0.0), 1e30) == [0.0]


def test_bad_norms_do_not_enter_the_mean() -> None:
    monitor = warmed_up_monitor(spike_factor=5.0)
    assert judge(monitor, *[1e6, math.nan] * 10, 11.0) == [1.0] * 21
    assert {bad_step.usual for bad_step in monitor.read()} == {2.0}


def test_consecutive_bad_steps_are_counted_until_a_good_one() -> None:
    monitor = GradientMonitor(Config(), CPU)
    judge(monitor, 1.0, math.nan, math.nan, math.nan)
    monitor.read()
    assert monitor.in_a_row == 3
    judge(monitor, math.nan, first=5)
    monitor.read()
    assert monitor.in_a_row == 4
    judge(monitor, 1.0, first=6)
    monitor.read()
    assert (monitor.in_a_row, monitor.total) == (0, 4)


def test_unread_steps_are_collected_before_the_buffer_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "_ROWS", 8)
    monitor = GradientMonitor(Config(), CPU)
    judge(monitor, *[math.nan if step % 5 == 0 else 1.0 for step in range(1, 31)])
    assert [bad_step.step for bad_step in monitor.read()] == [5, 10, 15, 20, 25, 30]


def test_fp16_overflows_are_separate_until_the_scale_is_minimal() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    monitor = GradientMonitor(Config(), CPU, scaler)
    judge(monitor, math.inf)
    assert monitor.read() == []
    assert (monitor.overflows, monitor.in_a_row, monitor.total) == (1, 0, 0)
    scaler.scale(torch.ones(()))  # the scaler creates its state at the first use
    scaler.update(1.0)
    judge(monitor, math.inf, first=2)
    assert [bad_step.kind for bad_step in monitor.read()] == ["not_finite"]
    assert (monitor.overflows, monitor.in_a_row, monitor.total) == (1, 1, 1)


@pytest.mark.parametrize("stop_step", [5, 25, 60])
def test_a_restored_monitor_continues_exactly(stop_step: int) -> None:
    generator = torch.Generator().manual_seed(0)
    norms = torch.rand(100, generator=generator).mul(3).exp().tolist()
    norms[30], norms[59] = math.nan, 900.0
    uninterrupted = GradientMonitor(Config(spike_factor=3.0), CPU)
    flags = judge(uninterrupted, *norms)
    stopped, resumed = GradientMonitor(Config(spike_factor=3.0), CPU), GradientMonitor(Config(spike_factor=3.0), CPU)
    before = judge(stopped, *norms[:stop_step])
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert before + judge(resumed, *norms[stop_step:], first=stop_step + 1) == flags
    assert resumed.read() == uninterrupted.read()
    assert resumed.state_dict() == uninterrupted.state_dict()
    assert sum(flags) > 3


def test_loading_a_state_discards_unread_steps() -> None:
    monitor = warmed_up_monitor()
    state = monitor.state_dict()
    judge(monitor, math.nan, 5.0, 1e9)
    monitor.load_state_dict(state)
    assert monitor.read() == []
    assert monitor.state_dict() == state


def record_gradients(noise: GradientNoise, sizes: list[int], steps: int, scale: float = 1.0) -> None:
    """Record steps with random token gradients: squared norm of the mean 4, trace of the covariance 800."""
    generator = torch.Generator().manual_seed(3)
    mean = torch.full((400,), 0.1)
    weight = torch.nn.Parameter(torch.zeros(400))
    total = sum(sizes)
    for _ in range(steps):
        summed = torch.zeros(400)
        for number, size in enumerate(sizes):
            summed += (mean + math.sqrt(2 / size) * torch.randn(400, generator=generator)) * size / total
            if number == 0:
                weight.grad = summed * scale
                noise.record_first([weight.grad], size)
        noise.record_last(summed.norm(), total)


@pytest.mark.parametrize("sizes", [[16, 16], [10, 40, 30]])
def test_the_noise_scale_is_the_trace_of_the_covariance_over_the_squared_mean(sizes: list[int]) -> None:
    noise = GradientNoise(CPU)
    record_gradients(noise, sizes, 300)
    assert noise.read() == pytest.approx(800 / 4, rel=0.15)


def test_the_noise_scale_does_not_depend_on_loss_scaling() -> None:
    plain, scaled = GradientNoise(CPU), GradientNoise(CPU, torch.amp.GradScaler("cpu", init_scale=1024.0))
    record_gradients(plain, [16, 16], 20)
    record_gradients(scaled, [16, 16], 20, scale=1024.0)
    assert scaled.read() == pytest.approx(plain.read(), rel=1e-4)


def test_one_micro_batch_and_overflows_measure_no_noise() -> None:
    noise = GradientNoise(CPU)
    noise.record_last(torch.tensor(1.0), 10)
    assert noise.read() is None
    record_gradients(noise, [16, 16], 20)
    before = noise.state_dict()
    noise.record_first([], 5)
    noise.record_last(torch.tensor(math.nan), 10)
    assert noise.state_dict() == before


def test_the_noise_scale_continues_from_a_checkpoint() -> None:
    noise, restored = GradientNoise(CPU), GradientNoise(CPU)
    record_gradients(noise, [16, 16], 20)
    restored.load_state_dict(json.loads(json.dumps(noise.state_dict())))
    assert restored.read() == noise.read() is not None


def build_plateau(**knobs: Any) -> tuple[PlateauSchedule, Config]:
    config = Config(lr_schedule="plateau", plateau_patience=2, plateau_factor=0.5, warmup_steps=0, **knobs)
    return PlateauSchedule(config), config


def test_a_plateau_lowers_the_learning_rate_repeatedly() -> None:
    plateau, config = build_plateau()
    lowered = [plateau.observe(is_best) for is_best in (True, True, False, True, *[False] * 4, True)]
    assert lowered == [False] * 5 + [True, False, True, False]
    assert Schedule(config, 100).learning_rate(50, 50, plateau.scale) == pytest.approx(config.learning_rate / 4)


def test_the_learning_rate_has_a_minimum() -> None:
    plateau, _ = build_plateau(min_learning_rate_ratio=0.3)
    lowered = [plateau.observe(is_best=False) for _ in range(12)]
    assert sum(lowered) == 2
    assert plateau.scale == 0.3


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_other_schedules_ignore_evaluations(schedule: str) -> None:
    plateau = PlateauSchedule(Config(lr_schedule=schedule, plateau_patience=1))  # type: ignore[arg-type]
    assert not any(plateau.observe(is_best=False) for _ in range(5))
    assert plateau.scale == 1.0


def test_a_run_ends_after_evaluations_in_a_row_that_were_not_the_best() -> None:
    plateau = PlateauSchedule(Config(early_stop_patience=2))
    restored = PlateauSchedule(Config(early_stop_patience=2))
    ended = []
    for is_best in (True, False, True, False, False):
        restored.load_state_dict(json.loads(json.dumps(plateau.state_dict())))
        restored.observe(is_best), plateau.observe(is_best)
        ended.append(plateau.ends_run)
        assert restored.ends_run == plateau.ends_run
    assert ended == [False] * 4 + [True]


def test_a_plateau_continues_from_a_checkpoint() -> None:
    plateau, config = build_plateau()
    plateau.observe(is_best=True), plateau.observe(is_best=False)
    restored = PlateauSchedule(config)
    restored.load_state_dict(json.loads(json.dumps(plateau.state_dict())))
    assert restored.observe(is_best=False)
    assert restored.scale == 0.5


def test_the_plateau_schedule_has_a_warmup() -> None:
    config = Config(lr_schedule="plateau", warmup_steps=10, learning_rate=1.0, max_steps=100)
    schedule = Schedule(config, samples_per_epoch=50)
    assert [schedule.learning_rate(step, step) for step in (1, 5, 10, 11, 100)] == [0.1, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_monitors_never_synchronize_with_a_gpu() -> None:
    device = torch.device("cuda")
    monitor, noise = GradientMonitor(Config(), device), GradientNoise(device)
    weight = torch.nn.Parameter(torch.zeros(8, device=device))
    weight.grad = torch.ones(8, device=device)
    norm = torch.tensor(math.nan, device=device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        noise.record_first([weight.grad], 4)
        noise.record_last(norm, 8)
        flag = monitor.judge(norm, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(flag) == 1.0
    assert [bad_step.kind for bad_step in monitor.read()] == ["not_finite"]
