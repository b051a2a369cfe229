"""The command line: selection of runs, errors before torch is loaded, output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.trainer import ROOT, TINY, environment, run, text_file
from trainer_core import protocol
from trainer_core.messages import TraindeckError
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir


def a_run(root: Path, name: str, t: float, *, trained: bool, failed: bool = False) -> RunDir:
    """A run as it lies on disk."""
    made = RunDir(root / name)
    made.create()
    made.config.write_text("preset: quickstart\n", encoding="utf-8")
    events: list[protocol.AnyEvent] = [protocol.Phase(phase="preparing", t=t)]
    if failed:
        events.append(protocol.Error(code="data.empty", t=t + 1))
    made.events.write_bytes(b"".join(map(protocol.encode, events)))
    if trained:
        folder = made.checkpoints / "step-00000005"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")
        checkpoint_dir.write_manifest(folder, 5, "regular", None)
    return made


def test_latest_ignores_runs_that_failed_before_training(tmp_path: Path) -> None:
    good = a_run(tmp_path, "good", 100.0, trained=True)
    a_run(tmp_path, "typo", 200.0, trained=False, failed=True)
    assert run_dir.find_run("latest", tmp_path).path == good.path
    killed = a_run(tmp_path, "killed early", 300.0, trained=False)
    assert run_dir.find_run("latest", tmp_path).path == killed.path, "it can be started over"
    assert run_dir.find_run("latest", tmp_path, require_checkpoint=True).path == good.path


def test_the_run_used_for_latest_is_printed(tmp_path: Path) -> None:
    good, newest = (a_run(tmp_path / "runs", name, t, trained=t < 300) for name, t in (("good", 100.0), ("new", 300.0)))

    def said(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-X", "utf8", "-m", "trainer_core", *command],
            capture_output=True, env=environment(tmp_path), cwd=tmp_path, timeout=60, check=False,
        )  # fmt: skip
        return done.stderr.decode()

    told = said("generate", "latest", "--prompt", "x")
    assert f"The newest run, {newest.path.name}, has no checkpoint yet." in told
    assert str(good.checkpoints / "step-00000005") in told
    assert str(newest.path) in said("runs", "verify")


def test_latest_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraindeckError, match="no run"):
        run_dir.find_run("latest", tmp_path)


def test_missing_data_creates_no_run(tmp_path: Path) -> None:
    ended = run(tmp_path, "train", *TINY, "--data", str(tmp_path / "typo.txt"))
    assert (ended.error.code, ended.code) == ("data.not_found", 4)
    assert not (tmp_path / "runs").exists()


def test_the_written_configuration_repeats_the_run(tmp_path: Path) -> None:
    data = text_file(tmp_path)
    first = run(tmp_path, "train", *TINY, "--max-steps", "4", "--data", str(data), "--run-dir", "one")
    again = run(tmp_path, "train", "--config", "one/config.yaml", "--run-dir", "two")
    assert (first.code, again.code) == (0, 0)
    assert again.losses == first.losses
    weights = "checkpoints/step-00000004/model.safetensors"
    assert (tmp_path / "two" / weights).read_bytes() == (tmp_path / "one" / weights).read_bytes()


def test_a_gpu_preset_on_an_automatic_cpu_is_reported(tmp_path: Path) -> None:
    flags = (*TINY, "--data", str(text_file(tmp_path)), "--max-steps", "1", "--preset", "gpu")
    asked = run(tmp_path, "train", *flags)  # `--device cpu` is among the flags
    assert "preset.for_gpu" not in [warning.code for warning in asked.of(protocol.Warn)]
    hidden = {**environment(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "trainer_core", "train", *flags, "--device", "auto", "--output", "json"],
        capture_output=True, env=hidden, cwd=tmp_path, timeout=60, check=True,
    )  # fmt: skip
    assert b'"preset.for_gpu"' in done.stdout


def test_presets_and_runs_are_listed_as_json(tmp_path: Path) -> None:
    a_run(tmp_path / "runs", "one", 100.0, trained=True)
    for command in ("presets", "runs"):
        done = subprocess.run(
            [sys.executable, "-m", "trainer_core", command, "--output", "json"],
            capture_output=True, env=environment(tmp_path), cwd=tmp_path, timeout=60, check=True,
        )  # fmt: skip
        assert all(json.loads(line)["name"] for line in done.stdout.splitlines())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
def test_the_window_without_a_display_suggests_the_command_line(tmp_path: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    bare.pop("QT_QPA_PLATFORM", None)
    done = subprocess.run(
        [sys.executable, "-m", "app"], capture_output=True, text=True, env=bare, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "./train_gpu.sh train" in done.stderr
    assert "Traceback" not in done.stderr
    command = [sys.executable, "-m", "app", "--help"]
    helped = subprocess.run(command, capture_output=True, text=True, env=bare, cwd=ROOT, timeout=60, check=False)
    assert helped.returncode == 0
    assert "usage: traindeck" in helped.stdout


LATE = """
from trainer_core import cli, protocol
from trainer_core.train import build

class Late(build.HardwareMonitor):
    def stop(self):  # a look that was under way
        super().stop()
        host = protocol.Host(ram_used=1, ram_total=2, rss=1, cpu=0.0, disk_free=1)
        self._callback(protocol.Hardware(gpus=[], host=host))

build.HardwareMonitor = Late
cli.main()
"""


def test_done_is_the_last_event(tmp_path: Path) -> None:
    flags = ("--max-steps", "2", "--data", str(text_file(tmp_path)), "--run-dir", str(tmp_path / "run"))
    command = [sys.executable, "-c", LATE, "train", *TINY, *flags, "--output", "json"]
    done = subprocess.run(command, capture_output=True, env=environment(tmp_path), cwd=tmp_path, timeout=90, check=True)
    *before, last = (protocol.decode_event(line) for line in done.stdout.splitlines())
    assert isinstance(last, protocol.Done)
    assert any(isinstance(event, protocol.Hardware) for event in before)
