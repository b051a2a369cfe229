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
from tests.unit.trial_results import FREE_BYTES, STATE_BYTES, trial_result
from trainer_core import protocol
from trainer_core.check import search
from trainer_core.check.command import with_current_memory
from trainer_core.check.search import TrialRun
from trainer_core.config import Config, ConfigLayer, resolve
from trainer_core.console import check as console_check
from trainer_core.messages import TraindeckError
from trainer_core.system import hardware

ROOT = Path(__file__).resolve().parents[2]


class Machine:
    """Simulated machine. Records the measured configurations.

    A sequence needs `bytes_each`. Selective activation checkpointing and chunked loss each halve this; full activation
    checkpointing divides it by four, in the checkpointed layers.
    """

    def __init__(self, bytes_each: int, speed: Callable[[Config], float] = lambda config: config.batch_size) -> None:
        self.bytes_each, self.speed = bytes_each, speed
        self.measured: list[Config] = []

    def __call__(self, config: Config) -> TrialRun:
        self.measured.append(config)
        mode, layers = config.checkpointing
        saved = {"off": 0.0, "selective": 0.5, "full": 0.75}[mode]
        share = 1 - saved * (layers or config.n_layers) / config.n_layers
        share *= 0.5 if config.chunked_loss == "on" else 1.0
        peak = int(STATE_BYTES + share * self.bytes_each * config.batch_size)
        return TrialRun(config, trial_result(peak if peak <= FREE_BYTES else None, self.speed(config)))


def settings(config: Config) -> tuple[int, int, str, str]:
    modes = config.activation_checkpointing, config.chunked_loss
    return config.batch_size, config.gradient_accumulation_steps, *modes


def alternatives(machine: Machine, config: Config) -> list[tuple[int, int, str, str]]:
    return [settings(trial.config) for trial in search.find_alternatives(machine(config), machine)]


@pytest.mark.parametrize(
    ("peak", "verdict"), [(None, "does_not_fit"), (1001, "does_not_fit"), (950, "tight"), (900, "fits"), (100, "fits")]
)
def test_a_tenth_of_the_memory_must_remain_free(peak: int | None, verdict: str) -> None:
    assert trial_result(peak).verdict == verdict


def test_the_first_smaller_micro_batch_that_leaves_memory_free_is_offered() -> None:
    assert alternatives(Machine(60), Config(batch_size=16)) == [(8, 2, "off", "auto")]


def test_settings_that_leave_little_memory_are_offered_if_nothing_better_fits() -> None:
    config = Config(batch_size=1, activation_checkpointing="selective", chunked_loss="on")
    assert alternatives(Machine(6800), config) == [(1, 1, "full", "on")]


def test_alternatives_keep_the_effective_batch() -> None:
    for batch_size, accumulation in ((15, 1), (12, 3), (7, 2), (6, 5)):
        machine = Machine(200)
        config = Config(batch_size=batch_size, gradient_accumulation_steps=accumulation)
        found = search.find_alternatives(machine(config), machine)
        assert found
        assert {trial.config.effective_batch for trial in found} == {batch_size * accumulation}


def test_if_no_micro_batch_fits_checkpointing_and_chunked_loss_are_offered() -> None:
    assert alternatives(Machine(10_000), Config(batch_size=8)) == []
    assert alternatives(Machine(2000), Config(batch_size=8)) == [(1, 8, "full", "auto")]
    assert alternatives(Machine(4800), Config(batch_size=8)) == [(1, 8, "full", "on")]
    assert alternatives(Machine(4000), Config(batch_size=1)) == [(1, 1, "full", "on")]


def test_nothing_is_measured_if_the_weights_alone_do_not_fit() -> None:
    machine = Machine(1)
    trial = TrialRun(Config(), trial_result(None, needed=FREE_BYTES + 1))
    assert search.find_alternatives(trial, machine) == []
    assert not machine.measured


def test_at_most_nine_configurations_are_measured() -> None:
    for bytes_each in (55, 60, 150, 300, 1500, 3000, 5000):
        machine = Machine(bytes_each)
        search.find_alternatives(machine(Config(batch_size=1024)), machine)
        assert len(machine.measured) <= 9


@pytest.mark.parametrize(
    ("bytes_each", "speed", "size"),
    [
        (10, lambda config: config.batch_size, 64),  # 64 sequences leave a tenth of the memory free, 128 do not
        (1, lambda config: config.batch_size, 128),  # the effective batch
        (1, lambda config: min(config.batch_size, 32), 32),  # larger ones are not faster
        (1, lambda config: -config.batch_size, 1),  # a CPU with a small cache
        (100, lambda config: config.batch_size, 8),  # the configured micro-batch does not fit
    ],
)
def test_the_fastest_micro_batch_that_leaves_memory_free_is_selected(
    bytes_each: int, speed: Callable[[Config], float], size: int
) -> None:
    machine = Machine(bytes_each, speed)
    found = search.find_automatic(
        Config(auto_batch=True, batch_size=16, gradient_accumulation_steps=8, compile="off"), machine
    )
    assert found.config.batch_size == size
    assert found.config.effective_batch == 128


def test_sizes_are_compared_uncompiled_and_the_selected_one_is_measured_as_configured() -> None:
    machine = Machine(10)
    found = search.find_automatic(Config(auto_batch=True, batch_size=16, gradient_accumulation_steps=8), machine)
    assert found.config.compile == "auto"
    assert [config.compile for config in machine.measured].count("auto") == 1


@pytest.mark.parametrize(
    ("bytes_each", "mode", "layers"),
    [
        (50, "off", 0),
        (99, "full", 22),
        (180, "full", 0),  # all layers
        (400, "full", 0),  # does not fit
    ],
)
def test_automatic_checkpointing_recomputes_as_few_layers_as_memory_allows(
    bytes_each: int, mode: str, layers: int
) -> None:
    config = Config(batch_size=16, n_layers=32, activation_checkpointing="auto", checkpointed_layers=5)
    assert search.find_automatic(config, Machine(bytes_each)).config.checkpointing == (mode, layers)


def test_if_nothing_fits_the_smallest_batch_is_reported() -> None:
    assert search.find_automatic(Config(auto_batch=True, batch_size=4), Machine(10_000)).config.batch_size == 1


def test_the_check_command_does_not_import_torch() -> None:
    script = "import sys, trainer_core.cli, trainer_core.check.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


# --- batch_size: auto -------------------------------------------------------------------------------------


def resolve_batch(*layers: dict[str, Any]) -> tuple[bool, int]:
    config = resolve([ConfigLayer("test", values) for values in layers])
    return config.auto_batch, config.batch_size


def test_auto_keeps_the_number_of_the_layer_below_and_a_number_replaces_auto() -> None:
    assert resolve_batch({"batch_size": "auto"}) == (True, 16)
    assert resolve_batch({"batch_size": 8}, {"batch_size": "auto"}) == (True, 8)
    assert resolve_batch({"batch_size": 8}, {"auto_batch": True}) == (True, 8)
    assert resolve_batch({"batch_size": "auto"}, {"batch_size": "4"}) == (False, 4)
    assert resolve_batch({"batch_size": 8, "auto_batch": True}) == (True, 8)
    with pytest.raises(TraindeckError, match="batch_size"):
        resolve_batch({"batch_size": "automatic"})


# --- report -----------------------------------------------------------------------------------------------


def measured_settings(size: int, peak: int | None, mode: str = "off") -> protocol.MeasuredSettings:
    return protocol.MeasuredSettings(
        batch_size=size, gradient_accumulation_steps=16 // size, activation_checkpointing=mode, chunked_loss="auto",
        fits=peak is not None, peak=peak, ram_peak=3, tokens_per_s=1234.5 if peak else None,
    )  # fmt: skip


def report(**changed: Any) -> protocol.CheckReport:
    values = {
        "verdict": "does_not_fit", "device": "NVIDIA", "chosen": measured_settings(16, None), "memory_total": 8 * 2**30,
        "memory_free": 7 * 2**30, "ram_total": 2**40, "ram_free": 2**39, "total_steps": 1000, "checkpoint_bytes": 2**30,
        "checkpoints": 3, "disk_needed": 2**32, "disk_free": 2**33, "parameters": 10, "tokens_per_step": 10,
    }  # fmt: skip
    return protocol.CheckReport(**{**values, **changed})


def test_alternatives_are_shown_with_their_flags() -> None:
    options = [measured_settings(16, 2**30, "full"), measured_settings(8, 2**29)]
    text = "\n".join(console_check.format_check_report(report(alternatives=options), "en"))
    assert "Does not fit · NVIDIA" in text
    assert "exceeds the 7.0 GiB free of 8.0 GiB" in text
    assert [line.split() for line in text.splitlines()[-2:]] == [
        ["1.0", "GiB", "1,234", "tokens/s", "--activation-checkpointing", "full"],
        ["512", "MiB", "1,234", "tokens/s", "--batch-size", "8", "--gradient-accumulation-steps", "2"],
    ]


def test_a_fitting_run_is_shown_with_memory_speed_time_and_disk() -> None:
    fits = report(verdict="fits", chosen=measured_settings(16, 2**31), seconds=3725.4, compile_s=41.6, from_cache=True)
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


def test_a_cached_result_that_does_not_fit_is_used_until_more_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()  # 36 GiB free, without a CUDA context
    monkeypatch.setattr(hardware, "free_vram", partial(hardware.free_vram, library=nvml))
    free = 36 * GIB - 400 * 2**20  # as measured in a process with a CUDA context
    cached = msgspec.structs.replace(
        trial_result(None), uuids=["0a0b1c2d-0000"], memory_free=free, memory_total=48 * GIB
    )
    assert with_current_memory(cached) is not None, "no more memory is free than before"
    assert with_current_memory(msgspec.structs.replace(cached, memory_free=30 * GIB)) is None, "more memory is free"
    current = with_current_memory(msgspec.structs.replace(cached, fits=True, peak=int(35.8 * GIB)))
    assert current is not None
    assert current.verdict == "does_not_fit", "the CUDA context needs memory in addition to the peak"
