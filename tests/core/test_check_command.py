"""The `check` command: real steps in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.core.trainer_process import ROOT, TrainerResult, environment, finish, run, send, start, text_file
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.check import command, trial, trial_process
from trainer_core.check.trial_process import TrialRequest
from trainer_core.config import Config
from trainer_core.run_context import RunContext
from trainer_core.system.memory import SystemMemory, system_memory
from trainer_core.train.device import Precision
from trainer_core.train.model_shape import tuning_of
from trainer_core.wire import EventDispatcher

# fmt: off
TINY = (
    "--hidden-dim", "16", "--n-layers", "1", "--n-heads", "1", "--max-seq-len", "32", "--vocab-size", "320",
    "--batch-size", "4", "--max-epochs", "2", "--cpu-threads", "1", "--device", "cpu", "--compile", "off",
)
# Logits take nearly all memory, so that it halves with the micro-batch.
WIDE = (
    "--hidden-dim", "32", "--n-layers", "1", "--n-heads", "1", "--max-seq-len", "256", "--vocab-size", "16384",
    "--batch-size", "16", "--max-steps", "20", "--cpu-threads", "1", "--device", "cpu", "--compile", "off",
    "--chunked-loss", "off", "--activation-checkpointing", "full",
)
# fmt: on


def report_of(result: TrainerResult) -> protocol.CheckReport:
    (report,) = result.events_of(protocol.CheckReport)
    assert isinstance(report, protocol.CheckReport)
    return report


def codes(result: TrainerResult) -> list[str]:
    return [event.code for event in result.events_of(protocol.Warn)]


def chinese_output(home: Path, *arguments: str) -> str:
    """Plain output of a command in Chinese."""
    command = [sys.executable, "-m", "trainer_core", *arguments, "--output", "plain"]
    env = {**environment(home), "TRAINDECK_LANG": "zh"}
    process = subprocess.run(command, capture_output=True, env=env, cwd=home, timeout=60, check=True)
    return process.stdout.decode("utf-8")


def test_measurements_are_of_the_same_method() -> None:
    key = command._config_key(Config())
    methods: tuple[Any, ...] = ("full", "lora")
    for method in methods:
        assert tuning_of(Config(method=method)).keys() <= key.keys()
    assert command._config_key(Config(method="qlora")) != key


def test_a_small_model_fits_and_its_measurement_is_cached(tmp_path: Path) -> None:
    data = text_file(tmp_path)
    result = run(tmp_path, "check", *TINY, "--data", str(data))
    report = report_of(result)
    assert (result.code, report.verdict, report.alternatives, report.from_cache) == (0, "fits", [], False)
    assert report.chosen.fits
    assert 100 * 2**20 < report.chosen.peak == report.chosen.ram_peak < 2**30  # the size of Python and torch
    assert report.chosen.tokens_per_s
    assert report.memory_total == system_memory().total
    preview = run(tmp_path, "prepare", "--preview", *TINY, "--data", str(data)).events_of(protocol.DataReport)[0]
    assert (report.total_steps, report.tokens_per_step) == (preview.total_steps, 4 * 32)
    assert report.seconds == pytest.approx(report.total_steps * report.tokens_per_step / report.chosen.tokens_per_s)
    assert report.disk_needed > 4 * report.checkpoint_bytes  # three checkpoints, one temporary one and the cache
    cached = report_of(run(tmp_path, "check", *TINY, "--learning-rate", "1e-4", "--data", str(data)))
    assert cached.from_cache
    assert cached.chosen == report.chosen
    assert "可以运行 · CPU" in chinese_output(tmp_path, "check", *TINY, "--data", str(data))


def test_the_estimated_time_includes_padding(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [{"prompt": "How many?", "response": "many " * (25 if row % 8 == 0 else 1)} for row in range(400)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    report = report_of(run(tmp_path, "check", *TINY, "--data", str(path)))
    assert report.seconds
    assert report.chosen.tokens_per_s
    computed = report.seconds * report.chosen.tokens_per_s / report.total_steps
    assert 1.3 * report.tokens_per_step < computed <= 4 * 32
    packed = report_of(run(tmp_path, "check", *TINY, "--packing", "--data", str(path)))
    assert packed.seconds
    assert packed.chosen.tokens_per_s
    computed = packed.seconds * packed.chosen.tokens_per_s / packed.total_steps
    assert computed == pytest.approx(4 * 32, rel=0.02)


def test_only_the_check_of_a_long_run_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", sys.executable)  # a compiler that fails immediately
    settings = ("--data", str(text_file(tmp_path)), "--compile", "auto", "--chunked-loss", "off")

    def phases(epochs: str) -> set[str]:
        result = run(tmp_path, "check", *TINY, *settings, "--max-epochs", epochs)
        assert report_of(result).chosen.fits
        return {event.phase for event in result.events_of(protocol.Phase)}

    assert "compiling" not in phases("2")
    assert "compiling" in phases("10000")


def test_a_model_far_beyond_the_memory_is_rejected_by_estimate(tmp_path: Path) -> None:
    result = run(tmp_path, "check", *TINY, "--hidden-dim", "65536", "--n-layers", "24", "--max-steps", "5")
    report = report_of(result)
    assert (result.code, report.verdict, report.alternatives) == (5, "does_not_fit", [])
    assert report.chosen.peak is None
    assert report.parameters > 10**12
    assert {"check.nothing_fits", "check.disk"} <= set(codes(result))
    assert not result.events_of(protocol.Error)


def imports_data_kib() -> int:
    """Data memory of a trial after its imports, in KiB: 190,000 (CPU build of torch) or 760,000 (CUDA)."""
    status = "import trainer_core.check.trial; print(open('/proc/self/status').read())"
    result = subprocess.run([sys.executable, "-c", status], cwd=ROOT, capture_output=True, text=True, check=True)
    return next(int(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("VmData:"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_DATA")
@pytest.mark.parametrize("checkpointing", ["off", "auto"])
def test_out_of_memory_offers_a_smaller_micro_batch(tmp_path: Path, checkpointing: str) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = (imports_data_kib() + 600_000) * 1024
    process = start(tmp_path, "check", *WIDE, "--activation-checkpointing", checkpointing)
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (limit, hard))  # inherited by its child processes
    result = finish(process)
    report = report_of(result)
    assert (result.code, report.verdict, report.chosen.fits) == (5, "does_not_fit", False)
    alternative = report.alternatives[0]
    assert alternative.fits
    assert alternative.batch_size < 16
    assert alternative.batch_size * alternative.gradient_accumulation_steps == 16
    assert alternative.peak
    assert alternative.tokens_per_s
    speeds = [alternative.tokens_per_s for alternative in report.alternatives]
    assert speeds == sorted(speeds, reverse=True)


def test_a_stop_ends_the_check_and_its_child_process(tmp_path: Path) -> None:
    process = start(tmp_path, "check", *TINY, "--max-steps", "5", "--control", "stdin", stdin=-1)
    parent = psutil.Process(process.pid)
    while not (children := parent.children()):
        assert process.poll() is None
    send(process, protocol.Stop(id=7))
    result = finish(process)
    assert result.code == 3
    assert [event.id for event in result.events_of(protocol.Ack)] == [7]
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


class NoMemoryLeft(RunContext):
    """A run context during whose first phase the machine runs out of memory."""

    memory_exhausted = False

    def set_phase(self, *args: object, **kwargs: object) -> None:
        self.memory_exhausted = True


def test_the_child_process_is_ended_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    context = NoMemoryLeft(EventDispatcher(RecordingSink()))
    virtual_memory = psutil.virtual_memory

    def simulated_memory() -> object:
        memory = virtual_memory()
        return memory._replace(available=0) if context.memory_exhausted else memory

    monkeypatch.setattr(psutil, "virtual_memory", simulated_memory)
    config = Config(hidden_dim=16, n_layers=1, n_heads=1, max_seq_len=32, batch_size=4, device="cpu", compile="off")
    outcome = trial_process.run_trial_process(TrialRequest(config, 320, "sft", 10), context)
    assert not outcome.fits
    assert outcome.parameters


def test_errors_of_the_child_process_are_reported(tmp_path: Path) -> None:
    result = run(tmp_path, "check", *TINY, "--max-steps", "5", "--device", "cuda:7")
    assert (result.error.code, result.code) == ("device.not_available", 6)


def test_the_memory_of_the_child_process_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared libraries counted as used and as free memory, so free memory exceeded the total of a container."""
    config = Config(hidden_dim=16, n_layers=1, n_heads=1)
    cpu = torch.device("cpu")
    request = TrialRequest(config, 320, "pretrain", 10)
    precision = Precision("fp32", "cpu", None)
    info = psutil.Process().memory_info()
    used = info.rss - getattr(info, "shared", 0)
    total = 8 * 2**30
    for available, maximum in ((total - used, total), (total // 2, total // 2 + used + 2**24), (total, total)):
        monkeypatch.setattr(trial, "system_memory", lambda available=available: SystemMemory(total, available))
        assert available <= trial.estimate(config, request, [cpu], precision).memory_free <= maximum


def test_frozen_weights_count_as_training_stores_them() -> None:
    cpu = torch.device("cpu")
    request = TrialRequest(Config(), 320, "sft", 10)

    def needed(precision: str, **knobs: object) -> int:
        config = Config(hidden_dim=64, n_layers=1, lora_rank=4, **knobs)  # type: ignore[arg-type]
        return trial.estimate(config, request, [cpu], Precision.from_name(precision, cpu)).needed

    frozen = trial.estimate(
        Config(hidden_dim=64, n_layers=1), request, [cpu], Precision.from_name("fp32", cpu)
    ).parameters
    assert needed("fp32", method="lora") - needed("bf16", method="lora") == 2 * frozen
    assert needed("fp32") == needed("bf16")
