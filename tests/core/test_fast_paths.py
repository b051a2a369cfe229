"""What this machine can do is told at once; what is tried is compared with the reference, timed and remembered."""

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

from tests.core.engines import FP32, decoder, settings
from trainer_core import performance_texts, texts
from trainer_core.benchmark import run
from trainer_core.console.performance import FastPathReporter
from trainer_core.messages import is_known
from trainer_core.progress import NullReporter, StopRequested
from trainer_core.protocol import FastPath
from trainer_core.train.engine import available, compilation, fast_paths, measuring

CPU = torch.device("cpu")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine of two threads without a compiler, on which nothing was tried."""
    import torch._inductor.config  # reads CXX when it is imported, for all tests of this process

    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "nowhere"))
    small = {"hidden_dim": 32, "n_layers": 1, "max_seq_len": 64, "batch_size": 4, "vocab_size": 4096}
    monkeypatch.setitem(fast_paths._KNOBS, "cpu", small)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield tmp_path
    torch.set_num_threads(before)


def by_name(paths: list[FastPath]) -> dict[str, FastPath]:
    found = {path.name: path for path in paths}
    assert len(found) == len(paths)
    return found


def assert_worded(paths: dict[str, FastPath]) -> None:
    assert paths.keys() == {key.split(".")[1] for key in texts.catalogue("en") if key.startswith("fast_path.")}
    for path in paths.values():
        assert is_known(path.reason), path
        for language in ("en", "zh"):
            words = performance_texts.fast_path_reason(path, language)
            assert words, path
            assert "{" not in words, path


def test_every_path_is_told_with_a_reason_in_words(home: Path) -> None:
    for precision in ("fp32", "bf16", "fp16"):
        assert_worded(by_name(fast_paths.cached_paths(CPU, precision)))
    assert not (home / "cache").exists()


def test_what_is_missing_is_not_told_to_be_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = by_name(fast_paths.cached_paths(CPU, "fp32"))
    assert (paths["compile"].used, paths["compile"].reason) == (False, "path.no_compiler")
    for name in ("cuda_graphs", "flash2", "flash3", "tf32", "transfer"):
        assert (paths[name].used, paths[name].reason) == (False, "path.no_gpu"), name
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    assert by_name(fast_paths.cached_paths(CPU, "fp32"))["compile"].used


def test_what_is_tried_equals_the_reference_and_is_remembered(home: Path) -> None:
    measured = by_name(fast_paths.measure(CPU, NullReporter()))
    assert torch.get_num_threads() == 2
    assert_worded(measured)
    exact = ("fused_adamw", "varlen_attention", "padded_vocabulary", "activation_checkpointing")
    for name, tolerance in (*((name, 1e-5) for name in exact), ("precision", 0.05)):
        path = measured[name]
        assert path.error is not None, path
        assert path.error <= tolerance, path
        assert path.speedup, path
    assert measured["muon"].speedup
    assert measured["muon"].error is None, "another optimizer has other weights"
    again = measured["activation_checkpointing"]
    assert (again.used, again.reason) == (True, "path.trades"), "it fits, though what is computed again takes time"
    assert measured["compile"].reason == "path.no_compiler"
    known = by_name(fast_paths.cached_paths(CPU, "fp32"))
    assert {name: path for name, path in known.items() if path.speedup} == {
        name: path for name, path in measured.items() if path.speedup
    }
    assert msgspec.json.decode(msgspec.json.encode(list(known.values())), type=list[FastPath]) == list(known.values())


@pytest.mark.parametrize(("free", "rows"), [(5 * 2**30, 2), (20 * 2**30, 8)])
def test_a_card_with_little_room_is_tried_with_less(monkeypatch: pytest.MonkeyPatch, free: int, rows: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 24 * 2**30))
    config = fast_paths._config(torch.device("cuda"), optimizer="muon")
    assert (config.batch_size, config.optimizer) == (rows, "muon")


def test_what_was_tried_before_a_compiler_came_is_not_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not fast_paths.is_measured(CPU, "fp32")
    fast_paths.measure(CPU, NullReporter())
    assert fast_paths.is_measured(CPU, "fp32")
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    assert not fast_paths.is_measured(CPU, "fp32")


def test_a_benchmark_without_time_uses_earlier_measurements_and_knows_what_is_missing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def results() -> tuple[bool, bool]:
        paths, complete = run.fast_path_results(CPU, 60, FastPathReporter(print, "en"))
        return any(path.speedup for path in paths), complete

    assert results() == (False, False)
    fast_paths.measure(CPU, NullReporter())
    assert results() == (True, True)
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    assert results() == (True, False)


@pytest.mark.parametrize("damage", ["{", {"paths": [{"name": 3}]}, {"paths": 3}, 3])
def test_a_damaged_memory_is_as_none(home: Path, damage: Any) -> None:
    plain = fast_paths.cached_paths(CPU, "fp32")
    file = home / "cache" / "engine.json"
    measuring.MeasurementCache().store({"paths": []}, "paths", measuring.machine_key(CPU), "fp32")
    names = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(damage if isinstance(damage, str) else json.dumps(dict.fromkeys(names, damage)), encoding="utf-8")
    assert fast_paths.cached_paths(CPU, "fp32") == plain


def test_a_path_that_fails_says_why_and_the_others_are_tried(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(fast_paths._TRIALS, "fused_adamw", fails)
    measured = by_name(fast_paths.measure(CPU, NullReporter()))
    path = measured["fused_adamw"]
    assert (path.used, path.reason) == (False, "path.failed")
    assert "no such kernel" in str(path.params["reason"])
    assert measured["muon"].speedup


@pytest.mark.parametrize("error", [0.5, math.inf])
@pytest.mark.parametrize("name", ["fused_adamw", "muon", "precision"])
def test_a_path_that_differs_does_not_fit_however_fast_it_is(
    home: Path, name: str, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fast_paths._TRIALS, name, lambda *_: fast_paths.TrialResult(9.0, error, 0.1))
    path = by_name(fast_paths.measure(CPU, NullReporter()))[name]
    assert (path.used, path.reason, path.speedup) == (False, "path.differs", 9.0)
    assert path.params == {"error": error, "tolerance": 0.1}
    for told in (path, msgspec.json.decode(msgspec.json.encode(path), type=FastPath)):
        assert ("0.5" if error == 0.5 else "∞") in performance_texts.fast_path_reason(told, "en")


def test_an_optimizer_that_needs_fewer_steps_fits_though_its_updates_are_slower(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fast_paths._TRIALS, "muon", lambda *_: fast_paths.TrialResult(0.1))
    path = by_name(fast_paths.measure(CPU, NullReporter()))["muon"]
    assert (path.used, path.reason, path.speedup) == (True, "path.fewer_steps", 0.1)


@pytest.mark.parametrize(("gain", "fits"), [(0.99, True), (1.5, True), (0.9, False)])
def test_what_is_used_by_itself_fits_where_it_is_no_slower(
    home: Path, gain: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fast_paths._TRIALS, "padded_vocabulary", lambda *_: fast_paths.TrialResult(gain, 0.0))
    path = by_name(fast_paths.measure(CPU, NullReporter()))["padded_vocabulary"]
    assert (path.used, path.reason) == (fits, "path.on" if fits else "path.slower")


def test_a_trial_that_computes_wrongly_is_found_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: torch.optim.AdamW, *_: Any) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.mul_(2.0 if group["fused"] else 1.0)

    monkeypatch.setattr(torch.optim.AdamW, "step", wrong)
    assert by_name(fast_paths.measure(CPU, NullReporter()))["fused_adamw"].reason == "path.differs"


def test_a_run_claims_of_the_optimizer_only_what_was_found_when_it_was_tried(home: Path) -> None:
    config = settings(compile="off")

    def said() -> FastPath:
        return by_name(available.run_paths(config, decoder(config), CPU, FP32))["fused_adamw"]

    assert (said().used, said().reason, said().error) == (True, "path.found", None)
    measured = by_name(fast_paths.measure(CPU, NullReporter()))["fused_adamw"]
    assert said() == msgspec.structs.replace(measured, used=True)
    assert said().error is not None


class Stops(NullReporter):
    def poll(self) -> None:
        raise StopRequested


def test_a_stop_is_heard_and_nothing_is_remembered(home: Path) -> None:
    with pytest.raises(StopRequested):
        fast_paths.measure(CPU, Stops())
    assert torch.get_num_threads() == 2
    assert not (home / "cache" / "engine.json").exists()


def test_what_else_a_machine_does_now_and_then_changes_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, busy = [0.0], itertools.cycle([0.0, 4.0, 9.0, 1.0, 2.0])

    def way(takes: float) -> Callable[[], None]:
        def run() -> None:
            clock[0] += takes + next(busy)

        return run

    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock[0])  # type: ignore[attr-defined]
    taken = measuring.time_alternatives({"slow": way(2.0), "fast": way(1.0)}, CPU, NullReporter(), 1000.0)
    assert taken == {"slow": pytest.approx(2.0), "fast": pytest.approx(1.0)}
    assert clock[0] < 1000.0
