"""The `check` command: real steps in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from tests.core.trainer import ROOT, Ended, environment, finish, run, start, text_file
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.check import trial, trial_process
from trainer_core.check.trial_process import TrialRequest
from trainer_core.config import Config
from trainer_core.run_context import RunContext
from trainer_core.system.memory import SystemMemory, system_memory
from trainer_core.train.device import Precision
from trainer_core.wire import EventDispatcher

# fmt: off
TINY = (
    "--hidden-dim", "16", "--n-layers", "1", "--n-heads", "1", "--max-seq-len", "32", "--vocab-size", "320",
    "--batch-size", "4", "--max-epochs", "2", "--cpu-threads", "1", "--device", "cpu", "--compile", "off",
)
# Nearly all memory is that of logits, which halves with the micro-batch.
WIDE = (
    "--hidden-dim", "32", "--n-layers", "1", "--n-heads", "1", "--max-seq-len", "256", "--vocab-size", "16384",
    "--batch-size", "16", "--max-steps", "20", "--cpu-threads", "1", "--device", "cpu", "--compile", "off",
    "--chunked-loss", "off", "--activation-checkpointing", "full",
)
# fmt: on


def report_of(ended: Ended) -> protocol.CheckReport:
    (report,) = ended.of(protocol.CheckReport)
    assert isinstance(report, protocol.CheckReport)
    return report


def codes(ended: Ended) -> list[str]:
    return [event.code for event in ended.of(protocol.Warn)]


def in_chinese(home: Path, *arguments: str) -> str:
    """What a terminal shows."""
    command = [sys.executable, "-m", "trainer_core", *arguments, "--output", "plain"]
    chinese = {**environment(home), "TRAINDECK_LANG": "zh"}
    shown = subprocess.run(command, capture_output=True, env=chinese, cwd=home, timeout=60, check=True)
    return shown.stdout.decode("utf-8")


def test_a_small_model_fits_and_its_measurement_is_cached(tmp_path: Path) -> None:
    data = text_file(tmp_path)
    ended = run(tmp_path, "check", *TINY, "--data", str(data))
    report = report_of(ended)
    assert (ended.code, report.verdict, report.alternatives, report.from_cache) == (0, "fits", [], False)
    assert report.chosen.fits
    assert 100 * 2**20 < report.chosen.peak == report.chosen.ram_peak < 2**30  # Python and torch alone are so large
    assert report.chosen.tokens_per_s
    assert report.memory_total == system_memory().total
    looked = run(tmp_path, "prepare", "--preview", *TINY, "--data", str(data)).of(protocol.DataReport)[0]
    assert (report.total_steps, report.tokens_per_step) == (looked.total_steps, 4 * 32)
    assert report.seconds == pytest.approx(report.total_steps * report.tokens_per_step / report.chosen.tokens_per_s)
    assert report.disk_needed > 4 * report.checkpoint_bytes  # three that are kept, one in the making, and the cache
    again = report_of(run(tmp_path, "check", *TINY, "--learning-rate", "1e-4", "--data", str(data)))
    assert again.from_cache
    assert again.chosen == report.chosen
    assert "可以运行 · CPU" in in_chinese(tmp_path, "check", *TINY, "--data", str(data))


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
    monkeypatch.setenv("CXX", sys.executable)  # a compiler that is there, and fails at once
    settings = ("--data", str(text_file(tmp_path)), "--compile", "auto", "--chunked-loss", "off")

    def phases(epochs: str) -> set[str]:
        ended = run(tmp_path, "check", *TINY, *settings, "--max-epochs", epochs)
        assert report_of(ended).chosen.fits
        return {event.phase for event in ended.of(protocol.Phase)}

    assert "compiling" not in phases("2")
    assert "compiling" in phases("10000")


def test_a_model_far_beyond_the_memory_is_rejected_by_estimate(tmp_path: Path) -> None:
    ended = run(tmp_path, "check", *TINY, "--hidden-dim", "65536", "--n-layers", "24", "--max-steps", "5")
    report = report_of(ended)
    assert (ended.code, report.verdict, report.alternatives) == (5, "does_not_fit", [])
    assert report.chosen.peak is None
    assert report.parameters > 10**12
    assert {"check.nothing_fits", "check.disk"} <= set(codes(ended))
    assert not ended.of(protocol.Error)


def memory_of_imports() -> int:
    """KiB of data memory of a trial before it begins: 190,000 with torch's CPU build, 760,000 with a CUDA build."""
    status = "import trainer_core.check.trial; print(open('/proc/self/status').read())"
    ended = subprocess.run([sys.executable, "-c", status], cwd=ROOT, capture_output=True, text=True, check=True)
    return next(int(line.split()[1]) for line in ended.stdout.splitlines() if line.startswith("VmData:"))


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of a process's memory that its allocator meets")
def test_out_of_memory_offers_a_smaller_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = (memory_of_imports() + 600_000) * 1024
    process = start(tmp_path, "check", *WIDE)
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (limit, hard))  # its children inherit it
    ended = finish(process)
    report = report_of(ended)
    assert (ended.code, report.verdict, report.chosen.fits) == (5, "does_not_fit", False)
    first = report.alternatives[0]
    assert first.fits
    assert first.batch_size < 16
    assert first.batch_size * first.gradient_accumulation_steps == 16
    assert first.peak
    assert first.tokens_per_s
    speeds = [offer.tokens_per_s for offer in report.alternatives]
    assert speeds == sorted(speeds, reverse=True)


def test_a_stop_ends_the_check_and_its_child_process(tmp_path: Path) -> None:
    process = start(tmp_path, "check", *TINY, "--max-steps", "5", "--control", "stdin", stdin=-1)
    me = psutil.Process(process.pid)
    while not (children := me.children()):
        assert process.poll() is None
    assert process.stdin is not None
    process.stdin.write(protocol.encode(protocol.Stop(id=7)))
    process.stdin.flush()
    ended = finish(process)
    assert ended.code == 3
    assert [event.id for event in ended.of(protocol.Ack)] == [7]
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


class _NoMemoryLeft(RunContext):
    """A session whose machine runs out of memory as soon as steps begin."""

    short = False

    def set_phase(self, *about: object, **more: object) -> None:
        self.short = True


def test_the_child_process_is_ended_before_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    session = _NoMemoryLeft(EventDispatcher(RecordingSink()))
    really = psutil.virtual_memory

    def seen() -> object:
        memory = really()
        return memory._replace(available=0) if session.short else memory

    monkeypatch.setattr(psutil, "virtual_memory", seen)
    tiny = Config(hidden_dim=16, n_layers=1, n_heads=1, max_seq_len=32, batch_size=4, device="cpu", compile="off")
    outcome = trial_process.run_trial_process(TrialRequest(tiny, 320, "sft", 10), session)
    assert not outcome.fits
    assert outcome.parameters


def test_errors_of_the_child_process_are_reported(tmp_path: Path) -> None:
    ended = run(tmp_path, "check", *TINY, "--max-steps", "5", "--device", "cuda:7")
    assert (ended.error.code, ended.code) == ("device.not_available", 6)


def test_the_memory_of_the_child_process_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container of 1.4 GiB had 1.5 GiB free: libraries were taken for used memory and for free memory."""
    config = Config(hidden_dim=16, n_layers=1, n_heads=1)
    cpu = torch.device("cpu")
    request = TrialRequest(config, 320, "pretrain", 10)
    precision = Precision("fp32", "cpu", None)
    info = psutil.Process().memory_info()
    used = info.rss - getattr(info, "shared", 0)
    total = 8 * 2**30
    for available, most in ((total - used, total), (total // 2, total // 2 + used + 2**24), (total, total)):
        monkeypatch.setattr(trial, "system_memory", lambda available=available: SystemMemory(total, available))
        assert available <= trial.estimate(config, request, [cpu], precision).memory_free <= most
