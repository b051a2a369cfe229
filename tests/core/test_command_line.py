"""The command line: selection of runs, errors before torch is loaded, output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.trainer_process import ROOT, TINY, environment, run, text_file
from trainer_core import protocol
from trainer_core.messages import TraindeckError
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir


def create_run(root: Path, name: str, t: float, *, trained: bool, failed: bool = False) -> RunDir:
    """Create a run directory that has trained or failed."""
    created = RunDir(root / name)
    created.create()
    created.config.write_text("preset: quickstart\n", encoding="utf-8")
    events: list[protocol.AnyEvent] = [protocol.Phase(phase="preparing", t=t)]
    if failed:
        events.append(protocol.Error(code="data.empty", t=t + 1))
    created.events.write_bytes(b"".join(map(protocol.encode, events)))
    if trained:
        folder = created.checkpoints / "step-00000005"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")
        checkpoint_dir.write_manifest(folder, 5, "regular", None)
    return created


def test_latest_ignores_runs_that_failed_before_training(tmp_path: Path) -> None:
    good = create_run(tmp_path, "good", 100.0, trained=True)
    create_run(tmp_path, "typo", 200.0, trained=False, failed=True)
    assert run_dir.find_run("latest", tmp_path).path == good.path
    killed = create_run(tmp_path, "killed early", 300.0, trained=False)
    assert run_dir.find_run("latest", tmp_path).path == killed.path, "a run without an error can be restarted"
    assert run_dir.find_run("latest", tmp_path, require_checkpoint=True).path == good.path


def test_the_run_used_for_latest_is_printed(tmp_path: Path) -> None:
    good, newest = (
        create_run(tmp_path / "runs", name, t, trained=t < 300) for name, t in (("good", 100.0), ("new", 300.0))
    )

    def read_stderr(*command: str) -> str:
        process = subprocess.run(
            [sys.executable, "-X", "utf8", "-m", "trainer_core", *command],
            capture_output=True, env=environment(tmp_path), cwd=tmp_path, timeout=60, check=False,
        )  # fmt: skip
        return process.stderr.decode()

    message = read_stderr("generate", "latest", "--prompt", "x")
    assert f"The newest run, {newest.path.name}, has no checkpoint yet." in message
    assert str(good.checkpoints / "step-00000005") in message
    assert str(newest.path) in read_stderr("runs", "verify")


def test_latest_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraindeckError, match="no run"):
        run_dir.find_run("latest", tmp_path)


def test_missing_data_creates_no_run(tmp_path: Path) -> None:
    result = run(tmp_path, "train", *TINY, "--data", str(tmp_path / "typo.txt"))
    assert (result.error.code, result.code) == ("data.not_found", 4)
    assert not (tmp_path / "runs").exists()


def test_the_written_configuration_repeats_the_run(tmp_path: Path) -> None:
    data = text_file(tmp_path)
    first = run(tmp_path, "train", *TINY, "--max-steps", "4", "--data", str(data), "--run-dir", "one")
    repeated = run(tmp_path, "train", "--config", "one/config.yaml", "--run-dir", "two")
    assert (first.code, repeated.code) == (0, 0)
    assert repeated.losses == first.losses
    weights = "checkpoints/step-00000004/model.safetensors"
    assert (tmp_path / "two" / weights).read_bytes() == (tmp_path / "one" / weights).read_bytes()


def test_a_gpu_preset_on_an_automatic_cpu_is_reported(tmp_path: Path) -> None:
    flags = (*TINY, "--data", str(text_file(tmp_path)), "--max-steps", "1", "--preset", "gpu")
    on_cpu = run(tmp_path, "train", *flags)  # `--device cpu` is among the flags
    assert "preset.for_gpu" not in [warning.code for warning in on_cpu.events_of(protocol.Warn)]
    without_gpus = {**environment(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.run(
        [sys.executable, "-m", "trainer_core", "train", *flags, "--device", "auto", "--output", "json"],
        capture_output=True, env=without_gpus, cwd=tmp_path, timeout=60, check=True,
    )  # fmt: skip
    assert b'"preset.for_gpu"' in process.stdout


def test_presets_models_and_runs_are_listed_as_json(tmp_path: Path) -> None:
    create_run(tmp_path / "runs", "one", 100.0, trained=True)
    for command in ("presets", "models", "runs"):
        process = subprocess.run(
            [sys.executable, "-m", "trainer_core", command, "--output", "json"],
            capture_output=True, env=environment(tmp_path), cwd=tmp_path, timeout=60, check=True,
        )  # fmt: skip
        assert all(json.loads(line)["name"] for line in process.stdout.splitlines())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
def test_the_window_without_a_display_suggests_the_command_line() -> None:
    headless = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    headless.pop("QT_QPA_PLATFORM", None)
    process = subprocess.run(
        [sys.executable, "-m", "app"], capture_output=True, text=True, env=headless, cwd=ROOT, timeout=60, check=False
    )
    assert process.returncode == 1
    assert "./train_gpu.sh train" in process.stderr
    assert "Traceback" not in process.stderr
    command = [sys.executable, "-m", "app", "--help"]
    help_process = subprocess.run(
        command, capture_output=True, text=True, env=headless, cwd=ROOT, timeout=60, check=False
    )
    assert help_process.returncode == 0
    assert "usage: traindeck" in help_process.stdout


LATE_HARDWARE_EVENT = """
from trainer_core import cli, protocol
from trainer_core.train import build

class LateMonitor(build.HardwareMonitor):
    def stop(self):  # a measurement in progress
        super().stop()
        host = protocol.Host(ram_used=1, ram_total=2, rss=1, cpu=0.0, disk_free=1)
        self._callback(protocol.Hardware(gpus=[], host=host))

build.HardwareMonitor = LateMonitor
cli.main()
"""


def test_done_is_the_last_event(tmp_path: Path) -> None:
    flags = ("--max-steps", "2", "--data", str(text_file(tmp_path)), "--run-dir", str(tmp_path / "run"))
    command = [sys.executable, "-c", LATE_HARDWARE_EVENT, "train", *TINY, *flags, "--output", "json"]
    process = subprocess.run(
        command, capture_output=True, env=environment(tmp_path), cwd=tmp_path, timeout=90, check=True
    )
    *before, last = (protocol.decode_event(line) for line in process.stdout.splitlines())
    assert isinstance(last, protocol.Done)
    assert any(isinstance(event, protocol.Hardware) for event in before)
