"""Tokens of a run, speed of the machine, and what a check measured, before the start."""

from __future__ import annotations

import pytest

from app.core.preview_keys import PreviewResult, check_key
from app.core.run_estimate import Measurement, estimate_flops, estimate_tokens, find_measurement
from trainer_core import protocol
from trainer_core.docgen.examples import EVENTS
from trainer_core.system import hardware
from trainer_core.system.hardware import GpuInfo

PREVIEW: protocol.DataReport = EVENTS[protocol.DataReport]
CHECK: protocol.CheckReport = EVENTS[protocol.CheckReport]
LORA = {"base_model": "org/name", "method": "lora", "max_epochs": 2}


def test_the_tokens_of_a_run_are_those_of_its_epochs_or_steps() -> None:
    assert estimate_tokens({"max_epochs": 2}, PREVIEW, 0) == 2 * PREVIEW.train_tokens
    steps = {"max_steps": 10, "batch_size": 3, "gradient_accumulation_steps": 2}
    assert estimate_tokens(steps, PREVIEW, 0) == 60 * PREVIEW.train_tokens / PREVIEW.samples_per_epoch


def test_without_a_preview_the_size_of_the_files_counts() -> None:
    assert estimate_tokens({"max_epochs": 3}, None, 4_000) == 3_000
    assert estimate_tokens({"max_epochs": 3}, None, 0) == 0
    assert estimate_tokens({"max_steps": 10}, None, 4_000) == 0


def test_the_time_of_a_check_is_that_of_its_data_and_settings() -> None:
    check = PreviewResult(check_key(LORA, ["a"]), protocol.CheckReport, CHECK)
    measured = Measurement("org/name", "lora", CHECK.chosen.peak or 0, CHECK.seconds or 0.0)
    assert measured.seconds > 0
    for same in (LORA, {**LORA, "base_model": "other", "method": "full"}):
        assert find_measurement(check, check_key(same, ["a"])) == measured
    for other in (check_key(LORA, ["b"]), check_key({**LORA, "max_epochs": 3}, ["a"])):
        found = find_measurement(check, other)
        assert found is not None
        assert (found.peak, found.seconds) == (measured.peak, 0.0)
    new_model = PreviewResult(check_key({}, ["a"]), protocol.CheckReport, CHECK)
    assert find_measurement(new_model, check_key({}, ["a"])) is None


def test_the_speed_of_a_gpu_is_a_share_of_its_peak_and_that_of_a_cpu_is_measured() -> None:
    machine = hardware.probe()
    rtx_3090 = GpuInfo(0, "NVIDIA GeForce RTX 3090", "GPU-0", 24 * 2**30, (8, 6))
    laptop = GpuInfo(0, "NVIDIA GeForce RTX 4090 Laptop GPU", "GPU-0", 16 * 2**30, (8, 9))
    assert estimate_flops(machine, rtx_3090) == pytest.approx(0.4 * 71.2e12, rel=0.01)
    assert estimate_flops(machine, laptop) == 0.0
    assert 1e8 < estimate_flops(machine, None) < 1e14
