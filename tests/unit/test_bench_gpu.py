"""`bench.gpu` continues after a failing part and keeps earlier measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import gpu, results
from bench.processes import Events
from tests.events import step
from tests.unit.simulated_run import GPU, HOST
from trainer_core import protocol
from trainer_core.base_model.catalogue import CatalogueModel, Shape


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


def tiny_model(name: str, head_dim: int = 16) -> CatalogueModel:
    shape = Shape(
        model_type="qwen3", hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=head_dim, vocab_size=1024, tie_word_embeddings=True,
    )  # fmt: skip
    return CatalogueModel(
        id=f"org/{name}", purpose={}, license="", context=128, parameters=0, download_bytes=0, shape=shape, source=""
    )


def test_a_small_model_is_fine_tuned_and_measured_on_a_cpu(tmp_path: Path) -> None:
    lora, qlora = gpu.TUNINGS[0], gpu.TUNINGS[-1]
    small: dict[str, Any] = {"device": "cpu", "max_seq_len": 128, "batch_size": 8, "learning_rate": 1e-2}
    tunings = [
        gpu.Tuning(tiny_model("lora"), msgspec.structs.replace(lora.config, **small), lora.targets),
        gpu.Tuning(tiny_model("qlora"), msgspec.structs.replace(qlora.config, **small), qlora.targets),
        gpu.Tuning(tiny_model("impossible", head_dim=15), lora.config, lora.targets),
    ]
    part = gpu.fine_tuning(tunings, 200, 30, tmp_path)
    assert not any("failed" in note for note in part.notes[:2]), part.notes
    speed, first_step, vram, *unknown = part.targets
    assert speed.reached is not None
    assert speed.reached > 100
    measured = part.document["lora"]
    assert first_step.reached == measured["first_step_s"]
    assert list(measured["phases"]) == ["starting", "loading", "preparing", "first step"]
    assert sum(measured["phases"].values()) == pytest.approx(first_step.reached, abs=0.5)
    assert "loading" in part.notes[0]
    assert vram.reached is None  # no GPU
    assert part.notes[2].startswith("impossible failed: ")
    assert [target.reached for target in unknown] == [None, None]
    assert not list(tmp_path.glob("*lora"))  # the models are removed


def decode(*events: protocol.Event) -> Events:
    return Events(json.loads(msgspec.json.encode(event)) for event in events)


def test_a_run_that_does_not_learn_fails() -> None:
    falling = decode(*(step(number, loss=10.0 - number / 10, grad_norm=0.5) for number in range(1, 21)))
    losses, norms = gpu.require_learning(falling)
    assert losses == pytest.approx((9.75, 8.15))
    assert norms == (0.5, 0.5)
    constant = decode(*(step(number, loss=10.0, grad_norm=0.5) for number in range(1, 21)))
    without_gradient = decode(*(step(number, loss=10.0 - number / 10, grad_norm=0.0) for number in range(1, 21)))
    for events in (constant, without_gradient):
        with pytest.raises(RuntimeError, match="does not learn"):
            gpu.require_learning(events)


def test_peak_vram_includes_what_torch_did_not_allocate() -> None:
    gpus = [msgspec.structs.replace(GPU, vram_used=used, torch_reserved=1000) for used in (1300, 1400)]
    other = msgspec.structs.replace(GPU, vram_used=9000, torch_reserved=None)
    samples = [protocol.Hardware(gpus=[other, one], host=HOST) for one in gpus]
    done = protocol.Done(reason="finished", steps=1, total_steps=1, peak_vram=2000)
    assert gpu.peak_vram(decode(*samples, done)) == 2400
    assert gpu.peak_vram(decode(done)) is None
