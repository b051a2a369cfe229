"""Search for settings that fit and for the fastest batch size, on a simulated machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.fake_nvml import GIB, FakeNvml
from trainer_core import protocol
from trainer_core.check import search
from trainer_core.check.command import with_current_memory
from trainer_core.check.search import TrialRun
from trainer_core.check.trial_process import TrialResult
from trainer_core.config import Config, ConfigLayer, resolve
from trainer_core.console import check as console_check
from trainer_core.messages import TraindeckError
from trainer_core.system import hardware

ROOT = Path(__file__).resolve().parents[2]
FREE, TOTAL, STATE = 1000, 1000, 100  # STATE: of weights, gradients and moments


def outcome(peak: int | None, speed: float | None = 1.0, needed: int = STATE) -> TrialResult:
    return TrialResult(
        fits=peak is not None, device="made up", memory_total=TOTAL, memory_free=FREE, needed=needed,
        parameters=1, checkpoint_bytes=1, peak=peak, ram_peak=peak, tokens_per_s=speed if peak is not None else None,
    )  # fmt: skip


class Machine:
    """A machine with `bytes_each` per sequence; checkpointing needs a half or a quarter. Records the measurements."""

    def __init__(self, bytes_each: int, speed: Callable[[Config], float] = lambda config: config.batch_size) -> None:
        self.bytes_each, self.speed = bytes_each, speed
        self.asked: list[Config] = []

    def __call__(self, config: Config) -> TrialRun:
        self.asked.append(config)
        part = {"off": 1.0, "selective": 0.5, "full": 0.25}[config.activation_checkpointing]
        part *= 0.5 if config.chunked_loss == "on" else 1.0
        peak = int(STATE + part * self.bytes_each * config.batch_size)
        return TrialRun(config, outcome(peak if peak <= FREE else None, self.speed(config)))


def settings(tried: TrialRun) -> tuple[int, int, str, str]:
    config = tried.config
    modes = config.activation_checkpointing, config.chunked_loss
    return config.batch_size, config.gradient_accumulation_steps, *modes


def offered(machine: Machine, config: Config) -> list[tuple[int, int, str, str]]:
    return [settings(one) for one in search.find_alternatives(machine(config), machine)]


@pytest.mark.parametrize(
    ("peak", "judged"), [(None, "does_not_fit"), (1001, "does_not_fit"), (950, "tight"), (900, "fits"), (100, "fits")]
)
def test_a_tenth_of_the_memory_must_remain_free(peak: int | None, judged: str) -> None:
    assert outcome(peak).verdict == judged


def test_the_first_smaller_micro_batch_that_leaves_memory_free_is_offered() -> None:
    assert offered(Machine(60), Config(batch_size=16)) == [(8, 2, "off", "auto")]


def test_settings_that_leave_little_memory_are_offered_if_nothing_better_fits() -> None:
    config = Config(batch_size=1, activation_checkpointing="selective", chunked_loss="on")
    assert offered(Machine(6800), config) == [(1, 1, "full", "on")]


def test_alternatives_keep_the_effective_batch() -> None:
    for size, times in ((15, 1), (12, 3), (7, 2), (6, 5)):
        machine = Machine(200)
        found = search.find_alternatives(machine(Config(batch_size=size, gradient_accumulation_steps=times)), machine)
        assert found
        assert {one.config.effective_batch for one in found} == {size * times}


def test_if_no_micro_batch_fits_checkpointing_and_chunked_loss_are_offered() -> None:
    assert offered(Machine(10_000), Config(batch_size=8)) == []
    assert offered(Machine(2000), Config(batch_size=8)) == [(1, 8, "full", "auto")]
    assert offered(Machine(4800), Config(batch_size=8)) == [(1, 8, "full", "on")]
    assert offered(Machine(4000), Config(batch_size=1)) == [(1, 1, "full", "on")]


def test_nothing_is_measured_if_weights_alone_are_too_large() -> None:
    machine = Machine(1)
    hopeless = TrialRun(Config(), outcome(None, needed=FREE + 1))
    assert search.find_alternatives(hopeless, machine) == []
    assert not machine.asked


def test_at_most_seven_configurations_are_measured() -> None:
    for bytes_each in (55, 60, 150, 300, 1500, 3000, 5000):
        machine = Machine(bytes_each)
        search.find_alternatives(machine(Config(batch_size=1024)), machine)
        assert len(machine.asked) <= 7


@pytest.mark.parametrize(
    ("bytes_each", "speed", "size"),
    [
        (10, lambda config: config.batch_size, 64),  # 64 x 10 + 100 leave a tenth; 128 do not
        (1, lambda config: config.batch_size, 128),  # all of the effective batch
        (1, lambda config: min(config.batch_size, 32), 32),  # no faster beyond
        (1, lambda config: -config.batch_size, 1),  # a CPU whose cache is small
        (100, lambda config: config.batch_size, 8),  # the configured one does not fit
    ],
)
def test_the_fastest_micro_batch_that_leaves_memory_free_is_selected(
    bytes_each: int, speed: Callable[[Config], float], size: int
) -> None:
    machine = Machine(bytes_each, speed)
    found = search.find_fastest(Config(batch_size=16, gradient_accumulation_steps=8, compile="off"), machine)
    assert found.config.batch_size == size
    assert found.config.effective_batch == 128


def test_sizes_are_compared_uncompiled_and_the_selected_one_is_measured_as_configured() -> None:
    machine = Machine(10)
    found = search.find_fastest(Config(batch_size=16, gradient_accumulation_steps=8), machine)
    assert found.config.compile == "auto"
    assert [config.compile for config in machine.asked].count("auto") == 1


def test_if_nothing_fits_the_smallest_batch_is_reported() -> None:
    assert search.find_fastest(Config(batch_size=4), Machine(10_000)).config.batch_size == 1


def test_the_check_command_does_not_import_torch() -> None:
    asked = "import sys, trainer_core.cli, trainer_core.check.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], cwd=ROOT, check=False).returncode == 0


# --- batch_size: auto -------------------------------------------------------------------------------------


def resolved(*layers: dict[str, Any]) -> tuple[bool, int]:
    config = resolve([ConfigLayer("a test", values) for values in layers])
    return config.auto_batch, config.batch_size


def test_auto_keeps_the_number_of_the_layer_below_and_a_number_replaces_auto() -> None:
    assert resolved({"batch_size": "auto"}) == (True, 16)
    assert resolved({"batch_size": 8}, {"batch_size": "auto"}) == (True, 8)
    assert resolved({"batch_size": 8}, {"auto_batch": True}) == (True, 8)
    assert resolved({"batch_size": "auto"}, {"batch_size": "4"}) == (False, 4)
    assert resolved({"batch_size": 8, "auto_batch": True}) == (True, 8)
    with pytest.raises(TraindeckError, match="batch_size"):
        resolved({"batch_size": "automatic"})


# --- report -----------------------------------------------------------------------------------------------


def trial(size: int, peak: int | None, mode: str = "off") -> protocol.MeasuredSettings:
    return protocol.MeasuredSettings(
        batch_size=size, gradient_accumulation_steps=16 // size, activation_checkpointing=mode, chunked_loss="auto",
        fits=peak is not None, peak=peak, ram_peak=3, tokens_per_s=1234.5 if peak else None,
    )  # fmt: skip


def report(**more: Any) -> protocol.CheckReport:
    plain = {
        "verdict": "does_not_fit", "device": "NVIDIA", "chosen": trial(16, None), "memory_total": 8 * 2**30,
        "memory_free": 7 * 2**30, "ram_total": 2**40, "ram_free": 2**39, "total_steps": 1000, "checkpoint_bytes": 2**30,
        "checkpoints": 3, "disk_needed": 2**32, "disk_free": 2**33, "parameters": 10, "tokens_per_step": 10,
    }  # fmt: skip
    return protocol.CheckReport(**{**plain, **more})


def test_alternatives_are_shown_with_their_flags() -> None:
    offers = [trial(16, 2**30, "full"), trial(8, 2**29)]
    told = "\n".join(console_check.format_check_report(report(alternatives=offers), "en"))
    assert "Does not fit · NVIDIA" in told
    assert "exceeds the 7.0 GiB free of 8.0 GiB" in told
    assert [line.split() for line in told.splitlines()[-2:]] == [
        ["1.0", "GiB", "1,234", "tokens/s", "--activation-checkpointing", "full"],
        ["512", "MiB", "1,234", "tokens/s", "--batch-size", "8", "--gradient-accumulation-steps", "2"],
    ]


def test_a_fitting_run_is_shown_with_memory_speed_time_and_disk() -> None:
    fits = report(verdict="fits", chosen=trial(16, 2**31), seconds=3725.4, compile_s=41.6, from_cache=True)
    assert console_check.format_check_report(fits, "en") == [
        "Fits · NVIDIA",
        "Settings  batch size 16 × 1",
        "VRAM      peak 2.0 GiB, 7.0 GiB free, 8.0 GiB total",
        "Speed     1,234 tokens/s · compiling takes 42 s",
        "Time      about 1:02:05 for 1,000 steps",
        "Disk      4.0 GiB needed, 8.0 GiB free (4 checkpoints of 1.0 GiB)",
        "Measured earlier. Use --again to measure again.",
    ]
    assert console_check.format_check_report(fits, "zh")[2] == "显存  峰值 2.0 GiB，可用 7.0 GiB，共 8.0 GiB"


# --- cached measurements ---------------------------------------------------------------------------


def test_a_result_that_did_not_fit_is_used_until_more_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeNvml()  # 36 GiB free, without a CUDA context
    monkeypatch.setattr(hardware, "free_vram", partial(hardware.free_vram, library=card))
    in_torch = 36 * GIB - 400 * 2**20  # as measured in a process with a CUDA context
    tried = msgspec.structs.replace(outcome(None), uuids=["0a0b1c2d-0000"], memory_free=in_torch, memory_total=48 * GIB)
    assert with_current_memory(tried) is not None, "the card is as full as it was"
    assert with_current_memory(msgspec.structs.replace(tried, memory_free=30 * GIB)) is None, "more is free: try again"
    known = with_current_memory(msgspec.structs.replace(tried, fits=True, peak=int(35.8 * GIB)))
    assert known is not None
    assert known.verdict == "does_not_fit", "CUDA takes memory beside the peak"
