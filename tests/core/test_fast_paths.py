"""Fast paths of a machine: listed immediately, then measured against the reference and cached."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tests.core.engines import FP32, build_decoder, tiny_model_config
from trainer_core import performance_texts, texts
from trainer_core.benchmark import run
from trainer_core.messages import is_known
from trainer_core.progress import NullReporter, StopRequested
from trainer_core.protocol import FastPath
from trainer_core.system.result_cache import MeasurementCache
from trainer_core.train.engine import compilation, fast_paths, measuring

CPU = torch.device("cpu")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with two threads, without a compiler and without measurements."""
    import torch._inductor.config  # reads CXX when it is imported, for all tests of this process

    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "nowhere"))
    small = {"hidden_dim": 32, "n_layers": 1, "max_seq_len": 64, "batch_size": 4, "vocab_size": 4096}
    monkeypatch.setitem(fast_paths._KNOBS, "cpu", small)
    monkeypatch.setattr(fast_paths, "_BUDGET_S", 0.01)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield tmp_path
    torch.set_num_threads(before)


def paths_by_name(paths: list[FastPath]) -> dict[str, FastPath]:
    by_name = {path.name: path for path in paths}
    assert len(by_name) == len(paths)
    return by_name


def assert_has_texts(paths: dict[str, FastPath]) -> None:
    assert paths.keys() == {key.split(".")[1] for key in texts.catalogue("en") if key.startswith("fast_path.")}
    for path in paths.values():
        assert is_known(path.reason), path
        for language in ("en", "zh"):
            text = performance_texts.fast_path_reason(path, language)
            assert text, path
            assert "{" not in text, path


def test_every_path_has_a_reason_in_both_languages(home: Path) -> None:
    for precision in ("fp32", "bf16", "fp16"):
        assert_has_texts(paths_by_name(fast_paths.cached_paths(CPU, precision)))
    assert not (home / "cache").exists()


def test_missing_hardware_and_compilers_are_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = paths_by_name(fast_paths.cached_paths(CPU, "fp32"))
    assert (paths["compile"].used, paths["compile"].reason) == (False, "path.no_compiler")
    for name in ("cuda_graphs", "flash2", "flash3", "tf32", "transfer"):
        assert (paths[name].used, paths[name].reason) == (False, "path.no_gpu"), name
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    assert paths_by_name(fast_paths.cached_paths(CPU, "fp32"))["compile"].used


def test_measured_paths_equal_the_reference_and_are_cached(home: Path) -> None:
    measured = paths_by_name(fast_paths.measure(CPU, NullReporter(), print))
    assert torch.get_num_threads() == 2
    assert_has_texts(measured)
    exact = ("fused_adamw", "varlen_attention", "chunked_loss", "activation_checkpointing")
    for name, tolerance in (*((name, 1e-5) for name in exact), ("precision", 0.05)):
        path = measured[name]
        assert path.error is not None, path
        assert path.error <= tolerance, path
        assert path.speedup, path
    for name in ("muon", "padded_vocabulary"):
        assert measured[name].speedup
        assert measured[name].error is None, "the results differ by design"
    checkpointing = measured["activation_checkpointing"]
    assert (checkpointing.used, checkpointing.reason) == (True, "path.trades"), "saves memory although it is slower"
    assert measured["compile"].reason == "path.no_compiler"
    cached = paths_by_name(fast_paths.cached_paths(CPU, "fp32"))
    assert {name: path for name, path in cached.items() if path.speedup} == {
        name: path for name, path in measured.items() if path.speedup
    }
    assert msgspec.json.decode(msgspec.json.encode(list(cached.values())), type=list[FastPath]) == list(cached.values())


def test_a_short_benchmark_uses_cached_measurements(home: Path) -> None:
    def measured() -> bool:
        return any(path.speedup for path in run.fast_path_results(CPU, 60, print))

    assert not measured()
    fast_paths.measure(CPU, NullReporter(), print)
    assert measured()


@pytest.mark.parametrize("damage", ["{", {"paths": [{"name": 3}]}, {"paths": 3}, 3])
def test_a_damaged_cache_is_ignored(home: Path, damage: Any) -> None:
    expected = fast_paths.cached_paths(CPU, "fp32")
    file = home / "cache" / "engine.json"
    MeasurementCache().store({"paths": []}, "paths", measuring.machine_key(CPU), "fp32")
    entries = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(damage if isinstance(damage, str) else json.dumps(dict.fromkeys(entries, damage)), encoding="utf-8")
    assert fast_paths.cached_paths(CPU, "fp32") == expected


def test_a_failing_path_reports_the_reason_and_the_others_are_measured(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(fast_paths._TRIALS, "fused_adamw", fail)
    measured = paths_by_name(fast_paths.measure(CPU, NullReporter(), print))
    path = measured["fused_adamw"]
    assert (path.used, path.reason) == (False, "path.failed")
    assert "no such kernel" in str(path.params["reason"])
    assert measured["muon"].speedup


def unmeasured_path(name: str) -> FastPath:
    """A path of this machine before it is measured."""
    return fast_paths.machine_paths(CPU, "fp32")[name]


@pytest.mark.parametrize("error", [0.5, math.inf])
def test_a_path_with_different_results_is_not_used(error: float) -> None:
    for name in ("fused_adamw", "muon", "precision"):
        path = fast_paths.judge(unmeasured_path(name), 9.0, error, 0.1)
        assert (path.used, path.reason, path.speedup) == (False, "path.differs", 9.0)
        assert path.params == {"error": error, "tolerance": 0.1}
        for decoded in (path, msgspec.json.decode(msgspec.json.encode(path), type=FastPath)):
            assert ("0.5" if error == 0.5 else "∞") in performance_texts.fast_path_reason(decoded, "en")


def test_an_optimizer_that_needs_fewer_steps_is_used_despite_slower_updates() -> None:
    path = fast_paths.judge(unmeasured_path("muon"), 0.1, None, 0.0)
    assert (path.used, path.reason, path.speedup) == (True, "path.fewer_steps", 0.1)


def test_a_default_path_is_used_unless_slower_and_an_optional_path_only_if_faster() -> None:
    for name, speedup, used, reason in (
        ("padded_vocabulary", 0.99, True, "path.on"),
        ("padded_vocabulary", 0.9, False, "path.slower"),
        ("precision", 1.01, False, "path.slower"),
        ("precision", 1.5, True, "path.by_name"),
    ):
        path = fast_paths.judge(unmeasured_path(name), speedup, 0.0, 0.0)
        assert (path.used, path.reason) == (used, reason), (name, speedup)


def test_a_trial_with_wrong_results_is_detected(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: torch.optim.AdamW, *_: Any) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.mul_(2.0 if group["fused"] else 1.0)

    monkeypatch.setattr(torch.optim.AdamW, "step", wrong)
    assert paths_by_name(fast_paths.measure(CPU, NullReporter(), print))["fused_adamw"].reason == "path.differs"


def test_a_run_reports_the_measured_error_of_the_optimizer(home: Path) -> None:
    config = tiny_model_config(compile="off")

    def reported() -> FastPath:
        return fast_paths.run_paths(config, build_decoder(config), CPU, FP32)["fused_adamw"]

    assert (reported().used, reported().reason, reported().error) == (True, "path.found", None)
    measured = paths_by_name(fast_paths.measure(CPU, NullReporter(), print))["fused_adamw"]
    assert reported() == msgspec.structs.replace(measured, used=True)
    assert reported().error is not None


class StopAtFirstPoll(NullReporter):
    def poll(self) -> None:
        raise StopRequested


def test_a_stop_ends_the_measurement_and_stores_nothing(home: Path) -> None:
    with pytest.raises(StopRequested):
        fast_paths.measure(CPU, StopAtFirstPoll(), print)
    assert torch.get_num_threads() == 2
    assert not (home / "cache" / "engine.json").exists()


def test_occasional_load_does_not_change_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    now, delays = [0.0], itertools.cycle([0.0, 4.0, 9.0, 1.0, 2.0])

    def sleep_for(seconds: float) -> Callable[[], None]:
        def run() -> None:
            now[0] += seconds + next(delays)

        return run

    monkeypatch.setattr(measuring.time, "perf_counter", lambda: now[0])  # type: ignore[attr-defined]
    timings = measuring.time_alternatives({"slow": sleep_for(2.0), "fast": sleep_for(1.0)}, CPU, NullReporter(), 1000.0)
    assert timings == {"slow": pytest.approx(2.0), "fast": pytest.approx(1.0)}
    assert now[0] < 1000.0
