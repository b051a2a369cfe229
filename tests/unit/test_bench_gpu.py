"""`bench.gpu` continues after a failing part and keeps earlier measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import gpu, results


def failing_part(folder: Path) -> gpu.Part:
    raise RuntimeError("the GPU is lost\nwith details")


def working_part(folder: Path) -> gpu.Part:
    targets = [gpu.Target("speed", 1.2, 1.3, "{:.1f} x"), gpu.Target("cost", 0.5, 0.6, limit="at most")]
    return gpu.Part(targets, ["a note"])


@pytest.fixture(autouse=True)
def results_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    return tmp_path


def test_a_failing_part_is_reported_and_the_next_one_runs(tmp_path: Path) -> None:
    measured = gpu.run_parts(["a", "b"], {"a": failing_part, "b": working_part}, tmp_path, "a GPU")
    text = "\n".join(gpu.format_lines(measured, "a GPU"))
    assert "the GPU is lost" in text
    assert "with details" not in text
    assert "1.3 x" in text


def test_targets_are_minima_or_maxima(tmp_path: Path) -> None:
    measured = gpu.run_parts(["b"], {"b": working_part}, tmp_path, "a GPU")
    table = gpu.format_lines(measured, "a GPU")[2]
    speed, cost = (line for line in table.splitlines() if line.startswith("| b"))
    assert "at least 1.2 x" in speed
    assert speed.endswith("yes |")
    assert "at most 0.50" in cost
    assert cost.rstrip(" |").endswith("NO")


def test_parts_that_are_not_measured_again_are_kept(results_folder: Path) -> None:
    gpu.run_parts(["b"], {"b": working_part}, results_folder, "a GPU")
    gpu.run_parts(["a"], {"a": failing_part}, results_folder, "a GPU")
    document = json.loads((results_folder / "gpu.json").read_text(encoding="utf-8"))
    assert document["parts"].keys() == {"a", "b"}


def test_measurements_of_another_gpu_are_marked(tmp_path: Path) -> None:
    gpu.run_parts(["b"], {"b": working_part}, tmp_path, "an older GPU")
    measured = gpu.run_parts(["a"], {"a": failing_part}, tmp_path, "a GPU")
    lines = gpu.format_lines(measured, "a GPU")
    assert lines[0] == "a GPU"
    assert "b: measured before, on an older GPU" in lines
    assert not any(line.startswith("a: measured before") for line in lines)


def test_a_missing_gpu_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu"])
    assert gpu.main() == 6
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
