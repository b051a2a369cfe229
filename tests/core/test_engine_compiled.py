"""A compiled model has the loss and gradients of the eager one; where compiling fails, eager goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

from tests.core.engines import LENGTH, ROWS, VOCABULARY, batch, build, decoder, path, recipe, settings
from tests.core.trainer import ROOT
from trainer_core.data.loader import Batch
from trainer_core.models.decoder import Decoder
from trainer_core.progress import NullReporter, StopRequested
from trainer_core.system import child_process
from trainer_core.train.activation_checkpointing import checkpoint_activations
from trainer_core.train.device import Precision
from trainer_core.train.engine import compilation, trials
from trainer_core.train.engine import select as building
from trainer_core.train.engine.compilation import CompileKey
from trainer_core.train.loss import batch_loss

TOLERANCE = trials.TOLERANCE["fp32"]


def made(how: CompileKey) -> tuple[Any, trials.LossOf, trials.LossOf]:
    """A model with its compiled and its plain loss."""
    model = decoder(settings(**{"n_layers": how.shape["n_layers"], "dropout": how.shape["dropout"]}))
    checkpoint_activations(model, how.checkpointing)
    compiled = compilation.compile_whole(model, how)
    return (
        model,
        lambda batch: compiled(batch.input_ids, batch.labels, batch.segments, batch.positions),
        lambda batch: batch_loss(model, batch),
    )


COMPILES = """
import os, torch
from trainer_core.train.engine import compilation
assert " " in torch.__file__
compilation.fix_extensions()
assert torch.compile(lambda x: x.sin() + 1, fullgraph=True)(torch.ones(64)).shape == (64,)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there, and inductor quotes all paths")
def test_torch_in_a_folder_with_a_space_in_its_name_compiles(compiler: Path, tmp_path: Path) -> None:
    place = tmp_path / "my traindeck"
    place.symlink_to(Path(torch.__file__).parents[1], target_is_directory=True)
    paths = os.pathsep.join([str(place), str(ROOT)])
    given = {**os.environ, "PYTHONPATH": paths, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", COMPILES], env=given, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(not torch.version.cuda, reason="only CUDA builds of torch look for a toolkit")
def test_a_cuda_toolkit_without_a_driver_is_not_warned_of_among_our_words(tmp_path: Path) -> None:
    given = {**os.environ, "CUDA_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "-1"}
    program = "from trainer_core.train.engine import compilation; compilation.fix_extensions()"
    done = subprocess.run([sys.executable, "-c", program], env=given, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_conversations_of_any_width_with_the_loss_in_parts_by_one_graph(compiler: Path) -> None:
    how = recipe(settings(n_layers=1), varying=True, chunk=2 * LENGTH + 5)
    model, compiled, plain = made(how)
    for length in (23, LENGTH, 16):
        example = batch(length)
        assert how.fits(example)
        with torch.compiler.set_stance("default" if length == 23 else "fail_on_recompile"):
            assert trials.loss_difference(model, compiled, plain, example) < TOLERANCE


def test_packed_sequences_with_dropout_and_selective_checkpointing(compiler: Path) -> None:
    model, compiled, plain = made(recipe(settings(n_layers=1, dropout=0.3), segments=True, checkpointing="selective"))
    assert trials.loss_difference(model, compiled, plain, batch(packed=True)) < TOLERANCE


def kept(model: Decoder, loss: trials.LossOf, given: Batch) -> int:
    """Numbers that a forward pass holds for its backward, beside the weights."""
    weights = {weight.data_ptr() for weight in model.parameters()}
    held: list[int] = []

    def hold(tensor: Tensor) -> Tensor:
        held.append(0 if tensor.data_ptr() in weights else tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        loss(given)
    return sum(held)


def test_a_budget_for_what_is_kept_changes_neither_loss_nor_gradients(
    compiler: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setattr(compilation, "is_cached", lambda key: True)  # once is enough here
    config = settings(compile="on", n_layers=1, activation_memory_budget=0.2)
    model = decoder(config)
    built = build(config, model=model)
    assert path(built, "compile").used
    assert trials.loss_difference(model, built.loss, built.eager_loss, batch()) < TOLERANCE
    assert kept(model, built.loss, batch()) < 0.4 * kept(model, built.eager_loss, batch()), "without it 0.7"


def test_an_engine_that_was_told_to_compile(compiler: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    config = settings(compile="on", n_layers=1, dropout=0.3, activation_checkpointing="full")
    model = decoder(config)
    built = build(config, model=model)
    said = path(built, "compile")
    assert said.used, said
    assert said.reason == "path.set"
    assert said.error is not None
    assert said.error < TOLERANCE
    assert built.compile_s
    assert built.choices["compile"] is True
    assert built.compile_key is not None
    assert trials.loss_difference(model, built.loss, built.eager_loss, batch()) < TOLERANCE
    with torch.compiler.set_stance("fail_on_recompile"):  # a shape that it was not made for is computed eagerly
        assert float(built.loss(batch(LENGTH - 4)).detach()) > 0
    assert compilation.is_cached(built.compile_key)
    monkeypatch.setattr(compilation.subprocess, "Popen", None)  # the second time nothing is started
    again = build(config, model=model, recorded=built.choices)
    assert path(again, "compile").used
    assert again.choices == built.choices


def recorded_graphs() -> int:
    """Forward passes that are recorded in this process."""
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(0, create_if_none_exists=False)
    return 0 if manager is None else sum(map(len, manager.roots.values()))


@pytest.mark.timeout(600)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_a_recorded_graph_is_right_for_other_batches_and_other_weights(own_cache: Path, name: str) -> None:
    device = torch.device("cuda", 0)
    if compilation.unavailable_reason(device) is not None:
        pytest.skip("needs a compiler")
    config = settings(compile="on", cuda_graphs="on", n_layers=1, tf32=False)
    model = decoder(config).to(device)
    built = building.build_engine(
        config, model, device, Precision.from_name(name, device), NullReporter(), batch(), 3, None
    )
    assert built.switch is not None
    built.switch.finish(batch().to(device))
    assert path(built, "cuda_graphs").used, path(built, "cuda_graphs")
    recorded = recorded_graphs()
    assert recorded > 0
    for number in range(5):
        given = batch()
        given = replace(given, input_ids=(given.input_ids + number) % VOCABULARY).to(device)
        difference = trials.loss_difference(model, built.loss, built.eager_loss, given, built.precision)
        assert difference < trials.TOLERANCE[name]
        for weight in model.parameters():
            weight.data.mul_(0.8)  # in place, as an update changes them
    assert recorded_graphs() == recorded, "it was recorded anew rather than played"
    built.reset_graphs()


def test_compiling_steps_back_for_what_a_person_does_meanwhile() -> None:
    """With the compilers that it starts: they take every processor there is."""
    code = (
        "import subprocess, sys, psutil; from trainer_core.system import child_process; own = psutil.Process().nice();"
        "child_process.lower_priority(); below = subprocess.check_output([sys.executable, '-c',"
        "'import psutil; print(int(psutil.Process().nice()))']);"
        "print(int(own), int(psutil.Process().nice()), int(below))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    usual, own, below = map(int, done.stdout.split())
    assert usual != own == below
    command = [sys.executable, "-P", "-m", "trainer_core.train.engine.compilation"]
    with subprocess.Popen(command, cwd=ROOT, env=child_process.environment(), stdin=subprocess.PIPE) as compiling_apart:
        try:
            while not any(int(process.nice()) == own for process in with_children(compiling_apart.pid)):
                assert compiling_apart.poll() is None
                time.sleep(0.05)
        finally:
            child_process.kill_tree(compiling_apart)


def with_children(pid: int) -> list[psutil.Process]:
    """On Windows what was started is the launcher of an environment, and its child the program."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def test_a_graph_is_chosen_by_shape_alone() -> None:
    fixed = recipe(settings())
    assert fixed.fits(batch())
    assert not fixed.fits(batch(LENGTH - 1))
    assert not fixed.fits(batch(rows=ROWS - 1))
    assert not fixed.fits(batch(packed=True))
    varying = recipe(settings(), varying=True, segments=True)
    assert [varying.fits(batch(length, packed=True)) for length in (15, 16, LENGTH, LENGTH + 1)] == [
        False,
        True,
        True,
        False,
    ]


# --- where it does not work -------------------------------------------------------------------------------


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing was compiled here before."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    return tmp_path


def says_why_not(built: Any, reason: str) -> str:
    """Its words; the run goes on all the same."""
    said = path(built, "compile")
    assert (said.used, said.reason) == (False, reason)
    assert built.choices["compile"] is False
    assert (built.compile_s is None) == (reason == "path.no_compiler")
    assert torch.equal(built.loss(batch()), built.eager_loss(batch()))
    return str(said.params.get("reason", ""))


def test_no_compiler(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(own_cache / "nowhere"))
    says_why_not(build(settings(compile="on")), "path.no_compiler")


def script(folder: Path, text: str) -> str:
    if sys.platform == "win32" or shutil.which("sh") is None:
        pytest.skip("needs a shell that stands for a compiler")
    place = folder / "c++"
    place.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    place.chmod(0o755)
    return str(place)


def test_a_compiler_that_fails(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = 'case "$*" in *-version*) exec g++ "$@";; esac'
    monkeypatch.setenv("CXX", script(own_cache, f"{version}\necho 'error: nothing works' >&2; exit 1"))
    assert "nothing works" in says_why_not(build(settings(compile="on", n_layers=1)), "path.failed")


def test_a_compiler_that_takes_too_long(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", script(own_cache, "sleep 600"))
    monkeypatch.setattr(compilation, "TIMEOUT_S", 0.3)
    assert "took more than" in says_why_not(build(settings(compile="on")), "path.failed")
    assert not psutil.Process().children(recursive=True)


class StopsWhen(NullReporter):
    """Is asked to stop as soon as a file is there, and knows which processes ran then."""

    def __init__(self, file: Path) -> None:
        self.file, self.running = file, list[psutil.Process]()

    def poll(self) -> None:
        if self.file.exists():
            self.running = psutil.Process().children(recursive=True)
            raise StopRequested


def test_a_stop_while_the_compiler_works_leaves_no_process(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = own_cache / "begun"
    monkeypatch.setenv("CXX", script(own_cache, f"touch '{begun}'; sleep 600"))
    reporter = StopsWhen(begun)
    with pytest.raises(StopRequested):
        build(settings(compile="on", n_layers=1), reporter=reporter)
    assert len(reporter.running) >= 2  # ours and its compiler
    _, alive = psutil.wait_procs(reporter.running, timeout=10)
    assert not alive
