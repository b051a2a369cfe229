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

from tests.core.engines import (
    LONG_RUN,
    FakeBackgroundCompiler,
    build_decoder,
    build_engine,
    fast_path,
    random_batch,
    tiny_model_config,
)
from trainer_core.progress import NullReporter
from trainer_core.system import hardware
from trainer_core.train.device import Precision
from trainer_core.train.engine import compilation, measuring, select
from trainer_core.train.engine import engine as engine_module


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with four threads and an empty cache."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(hardware, "usable_threads", lambda: 4)
    random_states = torch.get_num_threads()
    torch.set_num_threads(2)
    yield tmp_path
    torch.set_num_threads(random_states)


# --- selection by rules -----------------------------------------------------------------------------------


def test_selection_preserves_weights_gradients_and_random_states() -> None:
    config = tiny_model_config(dropout=0.2, chunked_loss="on", attention="flash", compile="off")
    model = build_decoder(config).eval()
    weights = [weight.detach().clone() for weight in model.parameters()]
    gradients = [torch.randn_like(weight) for weight in model.parameters()]
    for weight, gradient in zip(model.parameters(), gradients, strict=True):
        weight.grad = gradient
    gradient_copies = [gradient.clone() for gradient in gradients]
    random_states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    engine = build_engine(config, model=model)
    assert fast_path(engine, "chunked_loss").used
    assert fast_path(engine, "attention").choice == "flash"
    assert torch.equal(random_states[0], torch.get_rng_state())
    assert random_states[1:] == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[union-attr]
    assert not model.training
    for weight, expected, gradient, expected_gradient in zip(
        model.parameters(), weights, gradients, gradient_copies, strict=True
    ):
        assert torch.equal(weight, expected)
        assert weight.grad is gradient
        assert torch.equal(gradient, expected_gradient)


def test_a_short_run_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    engine = build_engine(tiny_model_config(), steps=50)
    assert engine.switch is None
    assert fast_path(engine, "compile").reason == "path.not_worth"
    assert fast_path(engine, "threads").reason == "path.all"
    assert engine.choices == {"threads": 2, "attention": "sdpa", "chunk": 0, "compile": False}


def test_conversations_are_not_compiled_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code would compute their padding."""
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    config = tiny_model_config()
    narrow = random_batch(length=config.max_seq_len // 2)
    engine = build_engine(config, steps=LONG_RUN, example=narrow)
    assert engine.switch is None
    assert fast_path(engine, "compile").reason == "path.padding"


# --- settings, and choices of earlier processes -------------------------------------------------------


def test_cpu_threads_of_the_settings_override_the_checkpoint() -> None:
    engine = build_engine(tiny_model_config(cpu_threads=2, compile="off"), recorded={"threads": 1})
    assert torch.get_num_threads() == engine.choices["threads"] == 2
    assert (fast_path(engine, "threads").reason, fast_path(engine, "threads").choice) == ("path.set", "2 threads")


def test_choices_of_a_checkpoint_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    recorded = {"threads": 1, "attention": "flash", "chunk": 64, "compile": False}
    engine = build_engine(tiny_model_config(), recorded=recorded)
    assert engine.choices == recorded
    assert torch.get_num_threads() == 1
    assert engine.chunk == 64
    for name in ("threads", "attention", "chunked_loss", "compile"):
        assert fast_path(engine, name).reason == "path.recorded", name


def test_more_threads_than_this_machine_has_are_not_repeated() -> None:
    engine = build_engine(tiny_model_config(compile="off"), recorded={"threads": 99})
    assert engine.choices["threads"] == 2
    assert fast_path(engine, "threads").reason != "path.recorded"


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: ("path.no_compiler", {}))
    assert fast_path(build_engine(tiny_model_config()), "compile").reason == "path.no_compiler"
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    assert fast_path(build_engine(tiny_model_config()), "compile").reason == "path.not_worth"


@pytest.fixture
def fake_compiler(monkeypatch: pytest.MonkeyPatch) -> type[FakeBackgroundCompiler]:
    """Compiled code is eager code, timed as twice as fast."""

    class Compiler(FakeBackgroundCompiler):
        pass

    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    monkeypatch.setattr(engine_module, "BackgroundCompiler", Compiler)
    monkeypatch.setattr(compilation, "compile_whole", compilation.full_loss)
    monkeypatch.setattr(measuring, "time_alternatives", lambda *_, **__: {"slow": 1.0, "fast": 0.5})
    return Compiler


def test_a_long_run_starts_eagerly_and_switches_at_a_step_fixed_at_its_start(fake_compiler: Any) -> None:
    engine = build_engine(tiny_model_config(), steps=LONG_RUN, switch=False)
    assert engine.compiled is None
    assert engine.switch is not None
    assert engine.choices["compile_step"] == engine.switch.step > 100
    path = fast_path(engine, "compile")
    assert (path.used, path.reason, path.params) == (True, "path.from_step", {"step": engine.switch.step + 1})
    engine.switch.finish(random_batch())
    assert engine.compiled is not None
    assert fast_path(engine, "compile").reason == "path.on"
    for step in (0, engine.choices["compile_step"] - 1, engine.choices["compile_step"] + 5):
        resumed = build_engine(tiny_model_config(), steps=LONG_RUN, recorded=engine.choices, step=step, switch=False)
        assert resumed.switch is not None
        assert resumed.switch.step == engine.choices["compile_step"]


def test_compile_on_switches_before_the_first_step(fake_compiler: Any) -> None:
    engine = build_engine(tiny_model_config(compile="on"), switch=False)
    assert engine.switch is not None
    assert engine.switch.step == 0


def test_the_same_command_repeats_the_decision_without_timing(fake_compiler: Any, monkeypatch: Any) -> None:
    first = build_engine(tiny_model_config(), steps=LONG_RUN)
    monkeypatch.setattr(measuring, "time_alternatives", None)  # fails if anything is timed again
    second = build_engine(tiny_model_config(), steps=LONG_RUN)
    assert second.choices == first.choices
    assert fast_path(second, "compile").used
    assert fast_path(second, "compile").speedup == 2.0


@pytest.mark.parametrize("faster", [True, False])
@pytest.mark.parametrize("random_states", [1, 0])
def test_a_decision_made_after_the_checkpoint_is_repeated(
    fake_compiler: Any, monkeypatch: Any, faster: bool, random_states: int
) -> None:
    """The run was killed after the switch and resumes from a checkpoint before it, or of the same step."""
    started = build_engine(tiny_model_config(), steps=LONG_RUN, switch=False)
    recorded = dict(started.choices)
    monkeypatch.setattr(measuring, "time_alternatives", lambda *_, **__: {"slow": 1.0, "fast": 0.5 if faster else 1.0})
    assert started.switch is not None
    started.switch.finish(random_batch())
    monkeypatch.setattr(measuring, "time_alternatives", None)
    step = recorded["compile_step"] - random_states
    resumed = build_engine(tiny_model_config(), steps=LONG_RUN, recorded=recorded, step=step, switch=False)
    assert resumed.choices == recorded
    assert resumed.switch is not None
    assert resumed.switch.step == recorded["compile_step"]
    resumed.switch.finish(random_batch())
    assert fast_path(resumed, "compile") == fast_path(started, "compile")
    assert (resumed.compiled is not None) == faster


def test_other_ranks_repeat_the_decision_of_rank_0(fake_compiler: Any) -> None:
    for use_compiled in (True, False):
        engine = build_engine(tiny_model_config(), steps=LONG_RUN, switch=False)
        assert engine.switch is not None
        engine.switch.finish(random_batch(), {"compile": use_compiled})
        assert (engine.compiled is not None) == engine.choices["compile"] == use_compiled


def test_a_failed_compilation_is_tried_again_at_the_next_start(fake_compiler: Any) -> None:
    fake_compiler.failure = "no space left"
    for _ in range(2):
        path = fast_path(build_engine(tiny_model_config(), steps=LONG_RUN), "compile")
        assert (path.reason, path.params) == ("path.failed", {"reason": "no space left"})


def test_compiled_code_that_differs_is_rejected_and_not_tried_again(fake_compiler: Any, monkeypatch: Any) -> None:
    def double_loss(model: Any, key: Any) -> Any:
        return lambda *inputs: 2 * compilation.full_loss(model, key)(*inputs)

    monkeypatch.setattr(compilation, "compile_whole", double_loss)
    first = build_engine(tiny_model_config(), steps=LONG_RUN)
    assert fast_path(first, "compile").reason == "path.differs"
    assert fast_path(first, "compile").params["error"] == pytest.approx(1.0, abs=0.01)
    second = build_engine(tiny_model_config(), steps=LONG_RUN, switch=False)
    assert (second.switch, fast_path(second, "compile").reason) == (None, "path.differs")


def test_sequences_of_one_document_use_the_code_compiled_for_packed_ones(fake_compiler: Any) -> None:
    engine = build_engine(tiny_model_config(), steps=LONG_RUN, example=random_batch(packed=True))
    assert engine.compiled is not None
    assert engine.compile_key is not None
    assert engine.compile_key.adapt(random_batch()) is not None
    torch.testing.assert_close(engine.loss(random_batch()), engine.eager_loss(random_batch()))


def test_compiled_code_is_used_only_if_faster(fake_compiler: Any, monkeypatch: Any) -> None:
    for layers, seconds, reason in ((2, 0.5, "path.on"), (1, 1.0, "path.slower")):
        monkeypatch.setattr(measuring, "time_alternatives", lambda *_, fast=seconds, **__: {"slow": 1.0, "fast": fast})
        engine = build_engine(tiny_model_config(n_layers=layers), steps=LONG_RUN)
        path = fast_path(engine, "compile")
        assert (path.reason, path.speedup, path.used) == (reason, 1.0 / seconds, reason == "path.on")
        assert (engine.compiled is not None) == engine.choices["compile"] == path.used


def test_a_run_compiles_in_its_own_process_if_the_child_process_runs_out_of_memory(fake_compiler: Any) -> None:
    fake_compiler.failure = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert fast_path(build_engine(tiny_model_config(), steps=LONG_RUN), "compile").reason == "path.on"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rejected_cuda_graphs_hold_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    config = tiny_model_config(hidden_dim=256, max_seq_len=512, batch_size=32, cuda_graphs="on", compile="auto")
    monkeypatch.setattr(measuring, "speedup", lambda *_: 0.5)
    model = build_decoder(config).to(device)
    engine = select.build_engine(
        config,
        model,
        device,
        Precision.from_name("fp32", device),
        NullReporter(),
        rows=32,
        segments=False,
        varying=False,
        total_steps=LONG_RUN,
        recorded={},
    )
    assert engine.switch is not None
    engine.switch.finish(random_batch(512, 32).to(device))
    assert engine.fast_paths["cuda_graphs"].reason == "path.slower"
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 256 * 2**20


@pytest.mark.parametrize("damage", ["{", "[]", "null", '{"name": 3}'])
def test_a_damaged_decision_is_measured_again(home: Path, damage: str, fake_compiler: Any) -> None:
    first = build_engine(tiny_model_config(), steps=LONG_RUN)
    (file,) = (home / "cache" / "compiled" / "traindeck").iterdir()
    stored = file.read_text(encoding="utf-8")
    file.write_text(damage, encoding="utf-8")
    second = build_engine(tiny_model_config(), steps=LONG_RUN)
    assert second.choices == first.choices
    assert file.read_text(encoding="utf-8") == stored


def test_a_decision_that_cannot_be_stored_does_not_fail_the_run(home: Path, fake_compiler: Any) -> None:
    (home / "cache").write_text("no folder", encoding="utf-8")
    assert build_engine(tiny_model_config(), steps=LONG_RUN).choices["compile"]


# --- comparison with the reference ---------------------------------------------------------------------------


def test_results_that_are_not_finite_have_an_infinite_error() -> None:
    ones, not_finite = torch.ones(3), torch.tensor([1.0, float("nan"), 1.0])
    assert measuring.relative_error([ones, not_finite], [ones, ones]) == float("inf")
    assert measuring.relative_error([ones, ones], [ones, not_finite]) == float("inf")
    assert measuring.relative_error([ones / 0], [ones]) == float("inf")
    assert measuring.relative_error([ones, ones * 1.5], [ones, ones]) == pytest.approx(0.5, abs=0.01)
    model = build_decoder(tiny_model_config())

    def square_sum(batch: Any) -> Tensor:
        return model(batch.input_ids).square().sum()

    def not_finite(batch: Any) -> Tensor:
        return square_sum(batch) + torch.full((), float("nan"))  # the gradients are unchanged

    assert measuring.loss_difference(model, square_sum, square_sum, random_batch()) < 1e-5
    assert measuring.loss_difference(model, not_finite, square_sum, random_batch()) == float("inf")


def test_many_logits_select_the_chunked_loss() -> None:
    config = tiny_model_config(compile="off", vocab_size=64, max_seq_len=32)
    small = build_engine(config)
    assert fast_path(small, "chunked_loss").reason == "path.not_needed"
    rows = 4 * 2**20 // (4 * 64) // 32 + 1  # one sequence more than 4 MiB of logits
    large = build_engine(tiny_model_config(compile="off", batch_size=rows), example=random_batch(rows=rows))
    assert fast_path(large, "chunked_loss").used
    assert large.chunk * 64 * 4 == 32 * 2**20
