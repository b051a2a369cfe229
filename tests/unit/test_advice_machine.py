"""Advice about the machine: memory that overflows or ends, heat, power, other programs, battery, disk."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.advising import CONFIG, GIB, GPU, READY, Series
from trainer_core import protocol
from trainer_core.train.advice.rule import RunHistory

FULL = {"vram_used": int(11.9 * GIB), "torch_reserved": int(11.2 * GIB)}


def test_memory_that_spills_is_told_with_a_batch_that_fits() -> None:
    run = Series().train().looks(2, shared_used=GIB // 8).looks(3, shared_used=2 * GIB, **FULL)
    assert run.codes == ["vram_spill"]
    assert run.said[0].suggested_settings == {"batch_size": 4, "gradient_accumulation_steps": 8}
    assert run.said[0].params["spilled_gib"] == 1.9


@pytest.mark.parametrize(
    "gpu",
    [
        {"shared_used": 2 * GIB},  # it does not grow: the driver holds it, or another program
        {"shared_used": GIB // 8, **FULL},  # a full card is no fault
    ],
)
def test_shared_memory_alone_or_a_full_card_alone_is_no_spill(gpu: dict[str, Any]) -> None:
    assert Series().train().looks(20, **gpu).codes == []


def test_where_no_driver_tells_steps_that_become_slow_on_a_full_card_do() -> None:
    run = Series().train().looks(2, **FULL).steps(3, forward=300.0, backward=600.0)
    assert run.codes == ["vram_slow"]
    assert run.said[0].params == {"times": 9.5, "ms": 905, "total_gib": 12.0}
    assert Series().train().steps(5, forward=300.0, backward=600.0).codes == [], "there is room on the card"
    elsewhere = Series(spills=False).train().looks(2, **FULL).steps(3, forward=300.0, backward=600.0)
    assert elsewhere.codes == [], "this system refuses instead"


def test_page_locked_memory_of_the_first_save_is_no_spill() -> None:
    """It counts as shared memory, too, and a full card makes it no overflow."""
    run = Series().train().looks(2, **{**FULL, "shared_used": GIB // 8})
    run.tell(
        protocol.Checkpoint(step=run.newest, path="step-1", bytes=GIB, seconds=1.0, kind="regular", kept=["step-1"])
    )
    assert run.looks(4, **{**FULL, "shared_used": 2 * GIB}).codes == []
    for _ in range(3):  # later ones take none
        saved(run.looks(1, **{**FULL, "shared_used": 4 * GIB}), GIB, 1)
    assert run.codes == ["vram_spill"]


def test_the_smallest_batch_spills_into_checkpointed_activations() -> None:
    config = msgspec.structs.replace(CONFIG, batch_size=1)
    run = Series(config).train().looks(1, shared_used=0).looks(3, shared_used=2 * GIB, **FULL)
    assert run.said[0].suggested_settings == {"activation_checkpointing": "selective"}


def test_heat_that_lasts_is_told_with_degrees_and_clocks() -> None:
    run = Series().train().looks(20, throttle=["thermal"], temperature_c=88.0, clock_mhz=1500)
    assert run.codes == [], "not before it has lasted a minute"
    run.looks(20, throttle=["thermal"], temperature_c=88.0, clock_mhz=1500)
    assert run.codes == ["thermal"]
    assert run.said[0].params == {"degrees": 88, "mhz": 1500, "highest": 2500}


def test_a_card_at_its_power_limit_is_as_it_should_be() -> None:
    assert Series().train().looks(200, throttle=["power"], clock_mhz=2300).codes == []


@pytest.mark.parametrize(
    "gpu", [{"throttle": ["power_brake"]}, {"throttle": ["power"], "clock_mhz": 900}], ids=["brake", "slow"]
)
def test_a_card_that_gets_too_little_power_is_told(gpu: dict[str, Any]) -> None:
    assert Series().train().looks(40, **gpu).codes == ["power"]


def test_what_other_programs_hold_is_told() -> None:
    run = Series().train().looks(20, vram_used=11 * GIB, torch_reserved=6 * GIB)
    assert run.codes == ["gpu_shared"]
    assert run.said[0].params == {"others_gib": 4.5, "total_gib": 12.0}
    assert run.looks(20, vram_used=7 * GIB, torch_reserved=6 * GIB).codes == ["gpu_shared", "-gpu_shared"]


def test_a_second_gpu_of_the_machine_is_none_of_our_business() -> None:
    run = Series().train()
    for _ in range(50):
        other = msgspec.structs.replace(GPU, index=1, torch_reserved=None, throttle=["thermal"], vram_used=12 * GIB)
        run.tell(
            protocol.Hardware(gpus=[other, GPU], host=protocol.Host(ram_used=1, ram_total=9, rss=1, cpu=0, disk_free=9))
        )
    assert run.codes == []


def test_a_laptop_on_its_battery_is_told_until_it_is_plugged_in() -> None:
    run = Series(cpu=True).train().looks(5, host={"on_battery": True})
    assert run.codes == ["battery"]
    assert run.looks(3, host={"on_battery": False}).codes == ["battery", "-battery"]
    assert Series().train().looks(9, host={"on_battery": None}).codes == []


def test_a_computer_that_slept_is_told_for_how_long() -> None:
    run = Series(msgspec.structs.replace(CONFIG, keep_awake=False)).train().looks(2, host={"slept_s": 36000.0})
    assert run.codes == [], "it slept before the run"
    assert run.looks(2, host={"slept_s": 41400.0}).codes == ["slept"]
    assert run.said[0].params == {"minutes": 90}
    assert run.said[0].suggested_settings == {"keep_awake": True}


def test_sleep_in_a_pause_is_not_told() -> None:
    run = Series().train().looks(1, host={"slept_s": 0.0})
    run.tell(protocol.Phase(phase="paused"))
    run.looks(1, host={"slept_s": 5400.0})
    run.tell(protocol.Phase(phase="training"))
    assert run.looks(2, host={"slept_s": 5400.0}).codes == []


def test_a_clock_that_is_set_forward_is_no_sleep() -> None:
    run = Series().train().looks(1, host={"slept_s": 12.0})
    run.now += 5400
    assert run.looks(2, host={"slept_s": 12.0}).codes == []
    run.now += 5400
    assert run.looks(2, host={"slept_s": None}).codes == []


def test_memory_of_the_machine_that_ends_is_told_before_it_does() -> None:
    run = Series().train().looks(6, host={"ram_used": 31 * GIB})
    assert run.codes == ["ram_full"]
    assert run.said[0].suggested_settings == {"low_memory": True}
    alone = Series().train(msgspec.structs.replace(READY, loader_workers=0)).looks(6, host={"ram_used": 31 * GIB})
    assert alone.said[0].suggested_settings == {}, "without loader processes there is little to spare"


def saved(run: Series, size: int, kept: int) -> Series:
    names = [f"step-{number}" for number in range(kept)]
    run.tell(protocol.Checkpoint(step=run.newest, path=names[-1], bytes=size, seconds=1.0, kind="regular", kept=names))
    return run


def test_a_disk_without_room_for_the_next_checkpoint_is_told() -> None:
    run = saved(Series().train(), 2 * GIB, 3).looks(2, host={"disk_free": GIB})
    assert run.codes == ["disk_low"]
    assert run.said[0].params == {"free_gib": 1.0, "needed_gib": 2.0}
    assert run.said[0].suggested_settings == {"keep_last": 1}
    assert run.looks(2, host={"disk_free": 100 * GIB}).codes == ["disk_low", "-disk_low"]


def test_what_is_still_to_be_kept_counts_as_needed() -> None:
    room = {"disk_free": 5 * GIB}
    assert saved(Series().train(), 2 * GIB, 1).looks(3, host=room).codes == ["disk_low"], (
        "two more and one in the making"
    )
    assert saved(Series().train(), 2 * GIB, 3).looks(3, host=room).codes == []
    assert Series().train().looks(3, host={"disk_free": 1}).codes == [], "nobody knows yet how large one is"


def moved(run: Series, action: Any, batch: int, again: bool = False) -> Series:
    """Memory ends in the next step or, `again`, in the same one once more."""
    run.newest += 0 if again else 1
    run.tell(
        protocol.OomRecovery(
            step=run.newest, action=action, during="backward", batch_size=batch, gradient_accumulation_steps=32 // batch
        )
    )
    return run


def test_memory_that_ends_again_is_told_with_the_batch_that_worked() -> None:
    run = moved(Series().train(), "halved", 4).steps(1)
    assert run.codes == [], "once is how it finds what fits"
    moved(moved(run, "grown", 8), "halved", 4)
    assert run.codes == [], "whether it fits is known when the step is done"
    assert run.steps(1).codes == ["memory_moves"]
    assert run.said[0].suggested_settings == {"batch_size": 4, "gradient_accumulation_steps": 8}
    assert run.steps(120).codes == ["memory_moves", "-memory_moves"]


def test_a_step_that_is_made_to_fit_by_several_moves_is_no_advice_and_one_for_which_nothing_is_left_neither() -> None:
    run = Series().train()
    for batch in (4, 2, 1):
        moved(run, "halved", batch, again=batch < 4)
    assert run.codes == []
    assert run.steps(1).codes == []


def test_advice_keeps_the_effective_batch_where_halves_are_no_whole_numbers() -> None:
    run = Series(msgspec.structs.replace(CONFIG, batch_size=5, gradient_accumulation_steps=2)).train()
    for batch in (3, 2):
        moved(run, "halved", batch).steps(1)
    assert run.said[0].suggested_settings == {"batch_size": 2, "gradient_accumulation_steps": 5}
    assert RunHistory(msgspec.structs.replace(CONFIG, batch_size=7, gradient_accumulation_steps=1)).halve_batch() == {
        "batch_size": 1,
        "gradient_accumulation_steps": 7,
    }
