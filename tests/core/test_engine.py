"""Selection of threads, attention, chunked loss and compilation, and the switch to compiled code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.core.engines import ROWS, batch, build, decoder, path, settings
from trainer_core.progress import NullReporter
from trainer_core.system import hardware
from trainer_core.train.device import Precision
from trainer_core.train.engine import compilation, engine, measuring, select


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with four threads and an empty cache."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(hardware, "usable_threads", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield tmp_path
    torch.set_num_threads(before)


# --- selection by rules -----------------------------------------------------------------------------------


def test_selection_preserves_weights_gradients_and_random_states() -> None:
    config = settings(dropout=0.2, chunked_loss="on", attention="flash", compile="off")
    model = decoder(config).eval()
    weights = [weight.detach().clone() for weight in model.parameters()]
    gradients = [torch.randn_like(weight) for weight in model.parameters()]
    for weight, gradient in zip(model.parameters(), gradients, strict=True):
        weight.grad = gradient
    kept = [gradient.clone() for gradient in gradients]
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    built = build(config, model=model)
    assert path(built, "chunked_loss").used
    assert path(built, "attention").choice == "flash"
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[union-attr]
    assert not model.training
    for weight, old, gradient, copy in zip(model.parameters(), weights, gradients, kept, strict=True):
        assert torch.equal(weight, old)
        assert weight.grad is gradient
        assert torch.equal(gradient, copy)


def test_a_short_run_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    built = build(settings(), steps=50)
    assert built.switch is None
    assert path(built, "compile").reason == "path.not_worth"
    assert path(built, "threads").reason == "path.all"
    assert built.choices == {"threads": 2, "attention": "sdpa", "chunk": 0, "compile": False}


# --- settings, and choices of earlier processes -------------------------------------------------------


def test_cpu_threads_of_the_settings_override_the_checkpoint() -> None:
    built = build(settings(cpu_threads=2, compile="off"), recorded={"threads": 1})
    assert torch.get_num_threads() == built.choices["threads"] == 2
    assert (path(built, "threads").reason, path(built, "threads").choice) == ("path.set", "2 threads")


def test_choices_of_a_checkpoint_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    recorded = {"threads": 1, "attention": "flash", "chunk": 64, "compile": False}
    built = build(settings(), recorded=recorded)
    assert built.choices == recorded
    assert torch.get_num_threads() == 1
    assert built.chunk == 64
    for name in ("threads", "attention", "chunked_loss", "compile"):
        assert path(built, name).reason == "path.recorded", name


def test_more_threads_than_this_machine_has_are_not_repeated() -> None:
    built = build(settings(compile="off"), recorded={"threads": 99})
    assert built.choices["threads"] == 2
    assert path(built, "threads").reason != "path.recorded"


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: ("path.no_compiler", {}))
    assert path(build(settings()), "compile").reason == "path.no_compiler"
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    assert path(build(settings()), "compile").reason == "path.not_worth"


LONG = 10_000_000  # steps, enough that compilation pays


class NoCompiler:
    """A background compiler that finishes or fails immediately."""

    failure = ""

    def __init__(self, key: compilation.CompileKey) -> None:
        pass

    def wait(self, reporter: Any) -> None:
        if self.failure:
            raise compilation.CompileFailed(self.failure)

    def close(self) -> None:
        pass


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> type[NoCompiler]:
    """Compiled code is eager code, timed as twice as fast."""

    class Own(NoCompiler):
        pass

    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    monkeypatch.setattr(engine, "BackgroundCompiler", Own)
    monkeypatch.setattr(compilation, "compile_whole", compilation.full_loss)
    monkeypatch.setattr(measuring, "time_alternatives", lambda *_, **__: {"slow": 1.0, "fast": 0.5})
    return Own


def test_a_long_run_starts_eagerly_and_switches_at_a_step_fixed_at_its_start(compiler: Any) -> None:
    built = build(settings(), steps=LONG, switch=False)
    assert built.compiled is None
    assert built.switch is not None
    assert built.choices["compile_step"] == built.switch.step > 100
    said = path(built, "compile")
    assert (said.used, said.reason, said.params) == (True, "path.from_step", {"step": built.switch.step + 1})
    built.switch.finish(batch())
    assert built.compiled is not None
    assert path(built, "compile").reason == "path.on"
    for step in (0, built.choices["compile_step"] - 1, built.choices["compile_step"] + 5):
        resumed = build(settings(), steps=LONG, recorded=built.choices, step=step, switch=False)
        assert resumed.switch is not None
        assert resumed.switch.step == built.choices["compile_step"]


def test_compile_on_switches_before_the_first_step(compiler: Any) -> None:
    built = build(settings(compile="on"), switch=False)
    assert built.switch is not None
    assert built.switch.step == 0


def test_the_same_command_repeats_the_decision_without_timing(compiler: Any, monkeypatch: Any) -> None:
    first = build(settings(), steps=LONG)
    monkeypatch.setattr(measuring, "time_alternatives", None)  # nothing is timed again
    second = build(settings(), steps=LONG)
    assert second.choices == first.choices
    assert path(second, "compile").used
    assert path(second, "compile").speedup == 2.0


@pytest.mark.parametrize("faster", [True, False])
@pytest.mark.parametrize("before", [1, 0])
def test_a_decision_made_after_the_checkpoint_is_repeated(
    compiler: Any, monkeypatch: Any, faster: bool, before: int
) -> None:
    """The run was killed after the switch and resumes from a checkpoint before it, or of the same step."""
    started = build(settings(), steps=LONG, switch=False)
    recorded = dict(started.choices)
    monkeypatch.setattr(measuring, "time_alternatives", lambda *_, **__: {"slow": 1.0, "fast": 0.5 if faster else 1.0})
    assert started.switch is not None
    started.switch.finish(batch())
    monkeypatch.setattr(measuring, "time_alternatives", None)
    step = recorded["compile_step"] - before
    resumed = build(settings(), steps=LONG, recorded=recorded, step=step, switch=False)
    assert resumed.choices == recorded
    assert resumed.switch is not None
    assert resumed.switch.step == recorded["compile_step"]
    resumed.switch.finish(batch())
    assert path(resumed, "compile") == path(started, "compile")
    assert (resumed.compiled is not None) == faster


def test_other_ranks_repeat_the_decision_of_rank_0(compiler: Any) -> None:
    for chosen in (True, False):
        built = build(settings(), steps=LONG, switch=False)
        assert built.switch is not None
        built.switch.finish(batch(), {"compile": chosen})
        assert (built.compiled is not None) == built.choices["compile"] == chosen


def test_a_failed_compilation_is_tried_again_at_the_next_start(compiler: Any) -> None:
    compiler.failure = "no space left"
    for _ in range(2):
        said = path(build(settings(), steps=LONG), "compile")
        assert (said.reason, said.params) == ("path.failed", {"reason": "no space left"})


def test_compiled_code_that_differs_is_rejected_and_not_tried_again(compiler: Any, monkeypatch: Any) -> None:
    def twice(model: Any, key: Any) -> Any:
        return lambda *inputs: 2 * compilation.full_loss(model, key)(*inputs)

    monkeypatch.setattr(compilation, "compile_whole", twice)
    first = build(settings(), steps=LONG)
    assert path(first, "compile").reason == "path.differs"
    assert path(first, "compile").params["error"] == pytest.approx(1.0, abs=0.01)
    again = build(settings(), steps=LONG, switch=False)
    assert (again.switch, path(again, "compile").reason) == (None, "path.differs")


def test_undivided_sequences_of_a_divided_run_are_compiled(compiler: Any) -> None:
    built = build(settings(), steps=LONG, example=batch(packed=True))
    assert built.compiled is not None
    assert built.compile_key is not None
    assert built.compile_key.adapt(batch()) is not None
    torch.testing.assert_close(built.loss(batch()), built.eager_loss(batch()))


def test_compiled_code_is_used_only_if_faster(compiler: Any, monkeypatch: Any) -> None:
    for layers, seconds, reason in ((2, 0.5, "path.on"), (1, 1.0, "path.slower")):
        monkeypatch.setattr(measuring, "time_alternatives", lambda *_, fast=seconds, **__: {"slow": 1.0, "fast": fast})
        built = build(settings(n_layers=layers), steps=LONG)
        said = path(built, "compile")
        assert (said.reason, said.speedup, said.used) == (reason, 1.0 / seconds, reason == "path.on")
        assert (built.compiled is not None) == built.choices["compile"] == said.used


def test_if_the_child_process_runs_out_of_memory_the_run_compiles_itself(compiler: Any) -> None:
    compiler.failure = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert path(build(settings(), steps=LONG), "compile").reason == "path.on"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rejected_cuda_graphs_hold_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    config = settings(hidden_dim=256, max_seq_len=512, batch_size=32, cuda_graphs="on", compile="auto")
    monkeypatch.setattr(measuring, "speedup", lambda *_: 0.5)
    model = decoder(config).to(device)
    made = select.build_engine(
        config,
        model,
        device,
        Precision.from_name("fp32", device),
        NullReporter(),
        rows=32,
        segments=False,
        varying=False,
        total_steps=LONG,
        recorded={},
    )
    assert made.switch is not None
    made.switch.finish(batch(512, 32).to(device))
    assert made.fast_paths["cuda_graphs"].reason == "path.slower"
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 256 * 2**20


@pytest.mark.parametrize("damage", ["{", "[]", "null", '{"name": 3}'])
def test_a_damaged_decision_is_measured_again(home: Path, damage: str, compiler: Any) -> None:
    whole = build(settings(), steps=LONG)
    (file,) = (home / "cache" / "compiled" / "traindeck").iterdir()
    stored = file.read_text(encoding="utf-8")
    file.write_text(damage, encoding="utf-8")
    again = build(settings(), steps=LONG)
    assert again.choices == whole.choices
    assert file.read_text(encoding="utf-8") == stored


def test_a_decision_that_cannot_be_stored_is_no_failure(home: Path, compiler: Any) -> None:
    (home / "cache").write_text("no folder", encoding="utf-8")
    assert build(settings(), steps=LONG).choices["compile"]


# --- comparison with the reference ---------------------------------------------------------------------------


def test_results_that_are_not_finite_have_an_infinite_error() -> None:
    ones, broken = torch.ones(3), torch.tensor([1.0, float("nan"), 1.0])
    assert measuring.relative_error([ones, broken], [ones, ones]) == float("inf")
    assert measuring.relative_error([ones, ones], [ones, broken]) == float("inf")
    assert measuring.relative_error([ones / 0], [ones]) == float("inf")
    assert measuring.relative_error([ones, ones * 1.5], [ones, ones]) == pytest.approx(0.5, abs=0.01)
    model = decoder(settings())

    def plain(batch: Any) -> Tensor:
        return model(batch.input_ids).square().sum()

    def no_number(batch: Any) -> Tensor:
        return plain(batch) + torch.full((), float("nan"))  # with the right gradients

    assert measuring.loss_difference(model, plain, plain, batch()) < 1e-5
    assert measuring.loss_difference(model, no_number, plain, batch()) == float("inf")


def test_many_logits_select_the_chunked_loss() -> None:
    config = settings(compile="off", vocab_size=64, max_seq_len=32)
    small = build(config)
    assert path(small, "chunked_loss").reason == "path.not_needed"
    rows = 4 * 2**20 // (4 * 64) // 32 + 1  # one sequence more than 4 MiB of logits
    large = build(settings(compile="off", batch_size=rows), example=batch(rows=rows))
    assert path(large, "chunked_loss").used
    assert ROWS * 32 < large.chunk < rows * 32
