"""`bench.gpu` continues after a failing part and keeps earlier measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import gpu, measure


def failing_part(folder: Path) -> gpu.Part:
    raise RuntimeError("CUDA error: device lost\nstack trace")


def working_part(folder: Path) -> gpu.Part:
    return gpu.Part([gpu.Target("speed", 1.2, 1.3, form="{:.1f} x"), gpu.Target("cost", 0.5, 0.6, "less")], ["warm"])


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    return tmp_path


def test_a_failing_part_is_reported_and_the_next_one_runs(results: Path) -> None:
    measured = gpu.run_parts(["a", "b"], {"a": failing_part, "b": working_part}, results, "GPU 2")
    text = "\n".join(gpu.lines(measured, "GPU 2"))
    assert "device lost" in text
    assert "stack trace" not in text
    assert "1.3 x" in text


def test_targets_are_minima_or_maxima(results: Path) -> None:
    measured = gpu.run_parts(["b"], {"b": working_part}, results, "GPU 2")
    speed, cost = (line for line in gpu.lines(measured, "GPU 2")[2].splitlines() if line.startswith("| b"))
    assert "at least 1.2 x" in speed
    assert speed.endswith("yes |")
    assert "at most 0.50" in cost
    assert cost.rstrip(" |").endswith("NO")


def test_parts_that_are_not_measured_again_are_kept(results: Path) -> None:
    gpu.run_parts(["b"], {"b": working_part}, results, "GPU 2")
    gpu.run_parts(["a"], {"a": failing_part}, results, "GPU 2")
    assert json.loads((results / "gpu.json").read_text(encoding="utf-8"))["parts"].keys() == {"a", "b"}


def test_measurements_of_another_gpu_are_marked(results: Path) -> None:
    gpu.run_parts(["b"], {"b": working_part}, results, "GPU 1")
    measured = gpu.run_parts(["a"], {"a": failing_part}, results, "GPU 2")
    lines = gpu.lines(measured, "GPU 2")
    assert lines[0] == "GPU 2"
    assert "b: measured before, on GPU 1" in lines
    assert not any(line.startswith("a: measured before") for line in lines)


def test_a_missing_gpu_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu"])
    assert gpu.main() == 6
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
