"""How a run computes is chosen once, the same again, and only among what equals the reference."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from tests.core.engines import CPU, ROWS, batch, build, decoder, path, settings
from trainer_core.machine import hardware
from trainer_core.report import Quiet
from trainer_core.train.device import Precision
from trainer_core.train.engine import build as building
from trainer_core.train.engine import choosing_compile, choosing_simple, compiling, engine, measuring, trials
from trainer_core.train.engine.choosing import Choosing


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine of four threads that was never measured."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setattr(hardware, "usable_threads", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield tmp_path
    torch.set_num_threads(before)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was timed, each time; one thread is found to be twice as fast as two."""
    asked: list[list[str]] = []

    def seconds(ways: dict[str, Any], *_: Any, **__: Any) -> dict[str, float]:
        asked.append(list(ways))
        return {name: 0.001 * int(name) if name.isdigit() else 0.01 for name in ways}

    monkeypatch.setattr(measuring, "seconds", seconds)
    return asked


def long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in ("may_take", "may_measure"):
        monkeypatch.setattr(Choosing, rule, lambda self, seconds: True)


# --- what leaves no trace -----------------------------------------------------------------------------------


def test_choosing_leaves_weights_gradients_and_generators_as_they_are() -> None:
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


def test_in_a_short_run_nothing_is_measured(measured: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "missing", lambda device: None)
    built = build(settings(), steps=50)
    assert measured == []
    assert path(built, "compile").reason == "path.not_worth"
    assert path(built, "threads").reason == "path.all"
    assert built.choices == {"threads": 2, "attention": "sdpa", "chunk": 0, "compile": False}


@pytest.mark.parametrize(("steps", "tried"), [(2, False), (200, True)])
def test_few_large_micro_batches_are_not_measured_however_long_they_take(
    steps: int, tried: bool, measured: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Choosing, "rough_s", lambda self: 30.0)
    build(settings(compile="off"), steps=steps)
    assert bool(measured) == tried


# --- what a person sets, and what was chosen before -------------------------------------------------------


def test_threads_that_a_person_sets_win(measured: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    long_enough(monkeypatch)
    built = build(settings(cpu_threads=2, compile="off"), recorded={"threads": 1})
    assert torch.get_num_threads() == built.choices["threads"] == 2
    assert (path(built, "threads").reason, path(built, "threads").choice) == ("path.set", "2 threads")
    assert measured == []


def test_the_fastest_threads_are_taken(measured: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    long_enough(monkeypatch)
    built = build(settings(compile="off"))
    assert torch.get_num_threads() == built.choices["threads"] == 1
    said = path(built, "threads")
    assert (said.reason, said.choice, said.gain) == ("path.quickest", "1 thread", 2.0)


@pytest.mark.parametrize(
    ("threads", "cores", "steps", "counts"),
    [
        (4, 2, 500, ["2", "4"]),  # two threads a core
        (4, 4, 500, ["2", "4"]),  # half of them may be faster cores
        (2, 2, 500, []),  # half of two is slower
        (2, 1, 500, ["1", "2"]),
        (4, 2, 100, []),  # over before it pays
    ],
)
def test_where_there_is_much_to_do_half_of_the_threads_are_tried_in_many_micro_batches(
    threads: int, cores: int, steps: int, counts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    long_enough(monkeypatch)
    asked: list[list[str]] = []

    def seconds(ways: dict[str, Any], *_: Any, **__: Any) -> dict[str, float]:
        asked.append(list(ways))
        return {name: 2.0 if name != "2" else 1.0 for name in ways}

    monkeypatch.setattr(measuring, "seconds", seconds)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: cores)
    torch.set_num_threads(threads)
    built = build(settings(compile="off"), steps=steps)
    assert [ways for ways in asked if ways != ["eager"]] == ([counts] if counts else [])
    said = path(built, "threads")
    assert said.reason == ("path.quickest" if counts else "path.all")
    assert said.choice == f"{2 if counts else threads} threads"


def test_a_checkpoint_says_how_its_run_computes(measured: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    long_enough(monkeypatch)
    monkeypatch.setattr(compiling, "missing", lambda device: None)
    recorded = {"threads": 1, "attention": "flash", "chunk": 64, "compile": False}
    built = build(settings(), recorded=recorded)
    assert built.choices == recorded
    assert torch.get_num_threads() == 1
    assert built.chunk == 64
    for name in ("threads", "attention", "chunked_loss", "compile"):
        assert path(built, name).reason == "path.recorded", name
    assert measured == []


def test_threads_that_this_machine_does_not_have_are_chosen_anew() -> None:
    built = build(settings(compile="off"), recorded={"threads": 99})
    assert built.choices["threads"] == 2
    assert path(built, "threads").reason != "path.recorded"


def test_the_same_command_chooses_the_same_again(measured: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    long_enough(monkeypatch)
    monkeypatch.setattr(compiling, "missing", lambda device: None)
    first = build(settings())
    assert measured
    measured.clear()
    torch.set_num_threads(2)
    second = build(settings())
    assert measured == []
    assert second.choices == first.choices
    assert second.fast_paths == first.fast_paths
    torch.set_num_threads(2)
    build(settings(batch_size=2), example=batch(rows=2))
    assert measured, "another shape is measured by itself"


def test_another_compiler_is_another_choice(measured: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "missing", lambda device: ("path.no_compiler", {}))
    assert path(build(settings()), "compile").reason == "path.no_compiler"
    monkeypatch.setattr(compiling, "missing", lambda device: None)
    assert path(build(settings()), "compile").reason == "path.not_worth"


def worth_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """In runs of any length, with a compiler that has nothing to do."""
    monkeypatch.setattr(compiling, "missing", lambda device: None)
    monkeypatch.setattr(choosing_compile, "_not_worth", lambda job: None)
    monkeypatch.setattr(compiling, "fill_cache", lambda *_: None)


def test_what_failed_is_tried_again_at_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    worth_compiling(monkeypatch)

    attempts: list[int] = []

    def fails(*_: Any) -> None:
        attempts.append(1)
        raise compiling.CompileFailed("no space left")

    monkeypatch.setattr(compiling, "fill_cache", fails)
    for count in (1, 2):
        said = path(build(settings()), "compile")
        assert (said.reason, said.params) == ("path.failed", {"reason": "no space left"})
        assert len(attempts) == count


def test_what_differed_is_told_again_in_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    worth_compiling(monkeypatch)

    def twice(model: Any, recipe: Any) -> Any:
        return lambda *inputs: 2 * compiling.whole(model, recipe)(*inputs)

    monkeypatch.setattr(compiling, "compile_whole", twice)
    first = build(settings())
    assert path(first, "compile").reason == "path.differs"
    assert path(first, "compile").params["error"] == pytest.approx(1.0, abs=0.01)
    monkeypatch.setattr(compiling, "compile_whole", None)  # not tried again
    second = build(settings())
    assert (path(second, "compile").reason, path(second, "compile").params) == (
        "path.differs",
        path(first, "compile").params,
    )


def test_a_resumed_run_compiles_what_it_began_with_whatever_its_next_batch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    worth_compiling(monkeypatch)
    monkeypatch.setattr(compiling, "compile_whole", compiling.whole)
    monkeypatch.setattr(measuring, "seconds", lambda *_, **__: {"slow": 1.0, "fast": 0.5})
    first = build(settings(), example=batch(packed=True))
    assert first.recipe is not None
    for example in (batch(packed=True), batch(), batch(rows=1), batch(rows=1, packed=True)):
        again = build(settings(), example=example, recorded=first.choices)
        assert again.recipe == first.recipe
        assert path(again, "compile").used
        assert again.choices == first.choices
    other = build(settings(batch_size=1), example=batch(rows=1), recorded=first.choices)
    assert other.recipe is not None
    assert (other.recipe.rows, other.recipe.segments) == (1, False)


def test_what_is_faster_and_equal_is_taken_and_what_is_slower_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    worth_compiling(monkeypatch)
    monkeypatch.setattr(compiling, "compile_whole", compiling.whole)
    for steps, seconds, reason in ((3, 0.5, "path.on"), (4, 1.0, "path.slower")):
        monkeypatch.setattr(measuring, "seconds", lambda *_, fast=seconds, **__: {"slow": 1.0, "fast": fast})
        built = build(settings(), steps=steps)
        said = path(built, "compile")
        assert (said.reason, said.gain, said.used) == (reason, 1.0 / seconds, reason == "path.on")
        assert (built.compiled is not None) == built.choices["compile"] == said.used


def test_where_memory_ends_in_the_process_that_compiles_the_run_itself_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside a run there is less memory than in it."""
    worth_compiling(monkeypatch)
    monkeypatch.setattr(compiling, "compile_whole", compiling.whole)
    monkeypatch.setattr(measuring, "seconds", lambda *_, **__: {"slow": 1.0, "fast": 0.5})

    def too_little(*_: Any) -> None:
        raise compiling.CompileFailed("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(compiling, "fill_cache", too_little)
    assert path(build(settings()), "compile").reason == "path.on"


def test_a_micro_batch_that_fits_neither_eager_nor_compiled_is_not_the_one_to_build_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the first step would be halved, and all others computed without what was compiled for the whole."""
    long_enough(monkeypatch)
    monkeypatch.setattr(compiling, "missing", lambda device: None)
    monkeypatch.setattr(compiling, "fill_cache", lambda *_: None)

    def too_large(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(engine.Engine, "eager_loss", too_large)
    monkeypatch.setattr(compiling, "compile_whole", lambda *_: too_large)
    with pytest.raises(MemoryError):
        build(settings(cpu_threads=2, compile="auto"), steps=10_000_000)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_that_were_tried_in_vain_hold_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    config = settings(hidden_dim=256, max_seq_len=512, batch_size=32, cuda_graphs="auto", compile="on")
    monkeypatch.setattr(choosing_compile, "_why_no_graphs", lambda job: None)
    times = Choosing.time
    slower = {"slow": 1.0, "fast": 2.0}
    monkeypatch.setattr(
        Choosing,
        "time",
        lambda self, ways, *rest, **more: slower if "slow" in ways else times(self, ways, *rest, **more),
    )
    model = decoder(config).to(device)
    made = building.build(config, model, device, Precision.named("fp32", device), Quiet(), batch(512, 32), 3, None)
    assert [path.reason for path in made.fast_paths if path.name == "cuda_graphs"] == ["path.slower"]
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < 256 * 2**20


def remembered(home: Path) -> dict[str, Any]:
    return json.loads((home / "cache" / "engine.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        '"text"',
        {"choices": "text", "paths": []},
        {"choices": {"threads": "many", "chunk": None}, "paths": []},
        {"choices": {"chunk": -5}, "paths": []},
        {"choices": {}, "paths": [{"name": 3}]},
        3,
    ],
)
def test_a_damaged_memory_is_harmless(home: Path, damage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(compile="off")
    whole = build(config)
    file = home / "cache" / "engine.json"
    if isinstance(damage, str):
        file.write_text(damage, encoding="utf-8")
    else:
        file.write_text(json.dumps(dict.fromkeys(remembered(home), damage)), encoding="utf-8")
    again = build(config)
    assert again.choices == whole.choices
    assert torch.equal(again.loss(batch()), whole.loss(batch()))


def test_damaged_costs_of_compiling_are_harmless(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "missing", lambda device: None)
    measuring.Memory().remember({"first_s": "long", "again_s": None}, "compile", measuring.machine(CPU))
    assert path(build(settings()), "compile").reason == "path.not_worth"


def test_a_memory_that_cannot_be_written_is_harmless(home: Path) -> None:
    (home / "cache").write_text("no folder", encoding="utf-8")
    assert build(settings(compile="off")).choices["threads"] == 2


# --- nothing that differs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gain", "memory", "reason"),
    [(1.5, False, "path.on"), (0.9, False, "path.slower"), (0.9, True, "path.saves"), (1.5, True, "path.on")],
)
def test_a_loss_in_parts_is_faster_or_saves_much_memory(
    gain: float, memory: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {"slow": gain}
    monkeypatch.setattr(measuring, "seconds", lambda ways, *_, **__: {name: taken.get(name, 1.0) for name in ways})
    if memory:
        monkeypatch.setitem(choosing_simple._SAVES_BYTES, "cpu", 1)
    built = build(settings(compile="off"), thorough=True)
    said = path(built, "chunked_loss")
    assert (said.used, said.reason, said.gain) == (reason != "path.slower", reason, gain)
    assert (built.chunk > 0) == (built.choices["chunk"] > 0) == said.used


def test_a_loss_in_parts_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = engine.batch_loss
    monkeypatch.setattr(
        engine, "batch_loss", lambda *given, chunk=0, **more: right(*given, chunk=chunk, **more) * (1.1 if chunk else 1)
    )
    built = build(settings(compile="off", chunked_loss="on"))
    assert path(built, "chunked_loss").reason == "path.differs"
    assert built.chunk == built.choices["chunk"] == 0


def test_a_difference_that_is_no_number_is_never_small() -> None:
    ones, broken = torch.ones(3), torch.tensor([1.0, float("nan"), 1.0])
    assert measuring.difference([ones, broken], [ones, ones]) == float("inf")
    assert measuring.difference([ones, ones], [ones, broken]) == float("inf")
    assert measuring.difference([ones / 0], [ones]) == float("inf")
    assert measuring.difference([ones, ones * 1.5], [ones, ones]) == pytest.approx(0.5, abs=0.01)
    model = decoder(settings())

    def plain(batch: Any) -> Tensor:
        return model(batch.input_ids).square().sum()

    def no_number(batch: Any) -> Tensor:
        return plain(batch) + torch.full((), float("nan"))  # with the right gradients

    assert trials.loss_difference(model, plain, plain, batch()) < 1e-5
    assert trials.loss_difference(model, no_number, plain, batch()) == float("inf")


def test_a_batch_of_many_logits_has_its_loss_in_parts() -> None:
    config = settings(compile="off", vocab_size=64, max_seq_len=32)
    small = build(config)
    assert path(small, "chunked_loss").reason == "path.not_needed"
    rows = 4 * 2**20 // (4 * 64) // 32 + 1  # one sequence more than 4 MiB of logits
    large = build(settings(compile="off", batch_size=rows), example=batch(rows=rows))
    assert path(large, "chunked_loss").used
    assert ROWS * 32 < large.chunk < rows * 32
