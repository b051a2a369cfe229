"""Advice on the machine: memory, temperature, power, other programs, battery, sleep, disk space."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.simulated_run import GIB, GPU, READY, SimulatedRun, config_with
from trainer_core import protocol
from trainer_core.train.advice.rule import RunHistory

FULL: dict[str, Any] = {"vram_used": int(11.9 * GIB), "torch_reserved": int(11.2 * GIB)}


def save_checkpoint(run: SimulatedRun, size: int = GIB, kept: int = 1) -> SimulatedRun:
    names = [f"step-{number}" for number in range(kept)]
    run.emit(
        protocol.Checkpoint(step=run.last_step, path=names[-1], bytes=size, seconds=1.0, kind="regular", kept=names)
    )
    return run


def test_spilled_gpu_memory_suggests_half_the_batch() -> None:
    run = SimulatedRun().start_training().hardware(2, shared_used=GIB // 8).hardware(3, shared_used=2 * GIB, **FULL)
    assert run.codes == ["vram_spill"]
    assert run.advice[0].suggested_settings == {"batch_size": 4, "gradient_accumulation_steps": 8}
    assert run.advice[0].params["spilled_gib"] == 1.9


@pytest.mark.parametrize(
    "gpu",
    [
        {"shared_used": 2 * GIB},  # constant, so it belongs to the driver or another program
        {"shared_used": GIB // 8, **FULL},  # full, but nothing is spilled
    ],
)
def test_constant_shared_memory_or_a_full_gpu_alone_is_not_a_spill(gpu: dict[str, Any]) -> None:
    assert SimulatedRun().start_training().hardware(20, **gpu).codes == []


def test_slow_steps_on_a_full_gpu_are_reported_where_shared_memory_is_unknown() -> None:
    run = SimulatedRun().start_training().hardware(2, **FULL).steps(3, forward=300.0, backward=600.0)
    assert run.codes == ["vram_slow"]
    assert run.advice[0].params == {"times": 9.5, "ms": 905, "total_gib": 12.0}
    assert SimulatedRun().start_training().steps(5, forward=300.0, backward=600.0).codes == [], (
        "the GPU has free memory"
    )
    without_spilling = (
        SimulatedRun(can_spill=False).start_training().hardware(2, **FULL).steps(3, forward=300.0, backward=600.0)
    )
    assert without_spilling.codes == [], "this driver does not spill"


def test_page_locked_memory_of_the_first_save_is_not_a_spill() -> None:
    """Windows counts page-locked memory as shared memory."""
    run = SimulatedRun().start_training().hardware(2, **{**FULL, "shared_used": GIB // 8})
    save_checkpoint(run)
    assert run.hardware(4, **{**FULL, "shared_used": 2 * GIB}).codes == []
    for _ in range(3):  # later checkpoints allocate none
        save_checkpoint(run.hardware(1, **{**FULL, "shared_used": 4 * GIB}))
    assert run.codes == ["vram_spill"]


def test_a_spill_at_batch_size_1_suggests_activation_checkpointing() -> None:
    config = config_with(batch_size=1)
    run = SimulatedRun(config).start_training().hardware(1, shared_used=0).hardware(3, shared_used=2 * GIB, **FULL)
    assert run.advice[0].suggested_settings == {"activation_checkpointing": "selective"}


def test_lasting_thermal_throttling_is_reported_with_temperature_and_clocks() -> None:
    run = SimulatedRun().start_training().hardware(20, throttle=["thermal"], temperature_c=88.0, clock_mhz=1500)
    assert run.codes == [], "shorter than a minute"
    run.hardware(20, throttle=["thermal"], temperature_c=88.0, clock_mhz=1500)
    assert run.codes == ["thermal"]
    assert run.advice[0].params == {"degrees": 88, "limit_w": 250, "mhz": 1500, "highest": 2500}


def test_a_gpu_at_its_power_limit_gets_no_advice() -> None:
    assert SimulatedRun().start_training().hardware(200, throttle=["power"], clock_mhz=2300).codes == []


@pytest.mark.parametrize(
    "gpu", [{"throttle": ["power_brake"]}, {"throttle": ["power"], "clock_mhz": 900}], ids=["brake", "slow"]
)
def test_a_gpu_slowed_by_its_power_supply_is_reported(gpu: dict[str, Any]) -> None:
    assert SimulatedRun().start_training().hardware(40, **gpu).codes == ["power"]


def test_gpu_memory_of_other_programs_is_reported() -> None:
    run = SimulatedRun().start_training().hardware(20, vram_used=11 * GIB, torch_reserved=6 * GIB)
    assert run.codes == ["gpu_shared"]
    assert run.advice[0].params == {"others_gib": 4.5, "total_gib": 12.0}
    assert run.hardware(20, vram_used=7 * GIB, torch_reserved=6 * GIB).codes == ["gpu_shared", "-gpu_shared"]


def test_a_gpu_that_the_run_does_not_use_is_ignored() -> None:
    run = SimulatedRun().start_training()
    for _ in range(50):
        other = msgspec.structs.replace(GPU, index=1, torch_reserved=None, throttle=["thermal"], vram_used=12 * GIB)
        run.emit(
            protocol.Hardware(gpus=[other, GPU], host=protocol.Host(ram_used=1, ram_total=9, rss=1, cpu=0, disk_free=9))
        )
    assert run.codes == []


def test_battery_advice_is_resolved_when_plugged_in() -> None:
    run = SimulatedRun(cpu=True).start_training().hardware(5, host={"on_battery": True})
    assert run.codes == ["battery"]
    assert run.hardware(3, host={"on_battery": False}).codes == ["battery", "-battery"]
    assert SimulatedRun().start_training().hardware(9, host={"on_battery": None}).codes == []


def test_sleep_during_training_is_reported_with_its_duration() -> None:
    run = SimulatedRun(config_with(keep_awake=False)).start_training().hardware(2, host={"slept_s": 36000.0})
    assert run.codes == [], "the sleep was before the run"
    assert run.hardware(2, host={"slept_s": 41400.0}).codes == ["slept"]
    assert run.advice[0].params == {"minutes": 90}
    assert run.advice[0].suggested_settings == {"keep_awake": True}


def test_sleep_during_a_pause_is_ignored() -> None:
    run = SimulatedRun().start_training().hardware(1, host={"slept_s": 0.0})
    run.emit(protocol.Phase(phase="paused"))
    run.hardware(1, host={"slept_s": 5400.0})
    run.emit(protocol.Phase(phase="training"))
    assert run.hardware(2, host={"slept_s": 5400.0}).codes == []


def test_a_clock_change_is_not_sleep() -> None:
    run = SimulatedRun().start_training().hardware(1, host={"slept_s": 12.0})
    run.now += 5400
    assert run.hardware(2, host={"slept_s": 12.0}).codes == []
    run.now += 5400
    assert run.hardware(2, host={"slept_s": None}).codes == []


def test_nearly_full_system_memory_is_reported() -> None:
    run = SimulatedRun().start_training().hardware(6, host={"ram_used": 31 * GIB})
    assert run.codes == ["ram_full"]
    assert run.advice[0].suggested_settings == {"low_memory": True}
    without_workers = (
        SimulatedRun()
        .start_training(msgspec.structs.replace(READY, loader_workers=0))
        .hardware(6, host={"ram_used": 31 * GIB})
    )
    assert without_workers.advice[0].suggested_settings == {}, "low_memory affects only loader processes"


def test_a_disk_too_full_for_the_next_checkpoint_is_reported() -> None:
    run = save_checkpoint(SimulatedRun().start_training(), 2 * GIB, 3).hardware(2, host={"disk_free": GIB})
    assert run.codes == ["disk_low"]
    assert run.advice[0].params == {"free_gib": 1.0, "needed_gib": 2.0}
    assert run.advice[0].suggested_settings == {"keep_last": 1}
    assert run.hardware(2, host={"disk_free": 100 * GIB}).codes == ["disk_low", "-disk_low"]


def test_space_for_all_kept_checkpoints_is_needed() -> None:
    free = {"disk_free": 5 * GIB}
    assert save_checkpoint(SimulatedRun().start_training(), 2 * GIB, 1).hardware(3, host=free).codes == ["disk_low"], (
        "two more will be kept, and a third exists while it is saved"
    )
    assert save_checkpoint(SimulatedRun().start_training(), 2 * GIB, 3).hardware(3, host=free).codes == []
    assert SimulatedRun().start_training().hardware(3, host={"disk_free": 1}).codes == [], (
        "the size of a checkpoint is unknown"
    )


def recover(run: SimulatedRun, action: Any, batch: int, same_step: bool = False) -> SimulatedRun:
    """Emit an OOM recovery in the next step or, with `same_step`, in the current one."""
    run.last_step += 0 if same_step else 1
    run.emit(
        protocol.OomRecovery(
            step=run.last_step,
            action=action,
            during="backward",
            batch_size=batch,
            gradient_accumulation_steps=32 // batch,
        )
    )
    return run


def test_repeated_oom_suggests_the_batch_that_fitted() -> None:
    run = recover(SimulatedRun().start_training(), "halved", 4).steps(1)
    assert run.codes == [], "one recovery is not enough"
    recover(recover(run, "grown", 8), "halved", 4)
    assert run.codes == [], "the step has not completed"
    assert run.steps(1).codes == ["repeated_oom"]
    assert run.advice[0].suggested_settings == {"batch_size": 4, "gradient_accumulation_steps": 8}
    assert run.steps(120).codes == ["repeated_oom", "-repeated_oom"]


def test_several_recoveries_of_one_step_give_no_advice() -> None:
    run = SimulatedRun().start_training()
    for batch in (4, 2, 1):
        recover(run, "halved", batch, same_step=batch < 4)
    assert run.codes == []
    assert run.steps(1).codes == []


def test_suggested_sizes_keep_the_effective_batch() -> None:
    run = SimulatedRun(config_with(batch_size=5, gradient_accumulation_steps=2)).start_training()
    for batch in (3, 2):
        recover(run, "halved", batch).steps(1)
    assert run.advice[0].suggested_settings == {"batch_size": 2, "gradient_accumulation_steps": 5}
    assert RunHistory(config_with(batch_size=7, gradient_accumulation_steps=1)).halve_batch() == {
        "batch_size": 1,
        "gradient_accumulation_steps": 7,
    }
