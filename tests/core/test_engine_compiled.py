"""Compiled models have the loss and gradients of eager ones; if compilation fails, the run stays eager."""

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

from tests.core.engines import LENGTH, ROWS, VOCABULARY, batch, build, compile_key, decoder, path, settings
from tests.core.trainer import ROOT
from trainer_core.data.loader import Batch
from trainer_core.models.decoder import Decoder
from trainer_core.progress import NullReporter, StopRequested
from trainer_core.system import child_process
from trainer_core.train.activation_checkpointing import checkpoint_activations
from trainer_core.train.device import Precision
from trainer_core.train.engine import compilation, measuring, select
from trainer_core.train.engine.compilation import CompileKey
from trainer_core.train.loss import batch_loss

TOLERANCE = measuring.TOLERANCE["fp32"]


def compiled_model(key: CompileKey) -> tuple[Any, measuring.LossOf, measuring.LossOf]:
    """A model with its compiled and its eager loss."""
    model = decoder(settings(**{"n_layers": key.shape["n_layers"], "dropout": key.shape["dropout"]}))
    checkpoint_activations(model, key.checkpointing)
    compiled = compilation.compile_whole(model, key)
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
def test_compilation_works_if_the_path_of_torch_contains_a_space(compiler: Path, tmp_path: Path) -> None:
    place = tmp_path / "my traindeck"
    place.symlink_to(Path(torch.__file__).parents[1], target_is_directory=True)
    paths = os.pathsep.join([str(place), str(ROOT)])
    given = {**os.environ, "PYTHONPATH": paths, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", COMPILES], env=given, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(not torch.version.cuda, reason="only CUDA builds of torch look for a toolkit")
def test_a_cuda_toolkit_without_a_driver_causes_no_warning(tmp_path: Path) -> None:
    given = {**os.environ, "CUDA_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "-1"}
    program = "from trainer_core.train.engine import compilation; compilation.fix_extensions()"
    done = subprocess.run([sys.executable, "-c", program], env=given, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_batches_of_any_width_share_one_graph_with_chunked_loss(compiler: Path) -> None:
    key = compile_key(settings(n_layers=1), varying=True, chunk=2 * LENGTH + 5)
    model, compiled, plain = compiled_model(key)
    for length in (23, LENGTH, 16):
        example = batch(length)
        assert key.adapt(example) is not None
        with torch.compiler.set_stance("default" if length == 23 else "fail_on_recompile"):
            assert measuring.loss_difference(model, compiled, plain, example) < TOLERANCE


def test_packed_sequences_with_dropout_and_selective_checkpointing(compiler: Path) -> None:
    key = compile_key(settings(n_layers=1, dropout=0.3), segments=True, checkpointing="selective")
    model, compiled, plain = compiled_model(key)
    assert measuring.loss_difference(model, compiled, plain, batch(packed=True)) < TOLERANCE


def saved_numbers(model: Decoder, loss: measuring.LossOf, given: Batch) -> int:
    """Elements that a forward pass saves for its backward, without the weights."""
    weights = {weight.data_ptr() for weight in model.parameters()}
    held: list[int] = []

    def hold(tensor: Tensor) -> Tensor:
        held.append(0 if tensor.data_ptr() in weights else tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        loss(given)
    return sum(held)


def test_activation_memory_budget_changes_neither_loss_nor_gradients(
    compiler: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setattr(compilation, "is_cached", lambda key: True)  # once is enough here
    config = settings(compile="on", n_layers=1, activation_memory_budget=0.2)
    model = decoder(config)
    built = build(config, model=model)
    assert path(built, "compile").used
    assert measuring.loss_difference(model, built.loss, built.eager_loss, batch()) < TOLERANCE
    assert saved_numbers(model, built.loss, batch()) < 0.4 * saved_numbers(model, built.eager_loss, batch()), (
        "without it 0.7"
    )


def test_compile_on_uses_compiled_code_and_caches_it(
    compiler: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    assert measuring.loss_difference(model, built.loss, built.eager_loss, batch()) < TOLERANCE
    with torch.compiler.set_stance("fail_on_recompile"):  # a shape that it was not made for is computed eagerly
        assert float(built.loss(batch(LENGTH - 4)).detach()) > 0
    assert compilation.is_cached(built.compile_key)
    monkeypatch.setattr(compilation.subprocess, "Popen", None)  # the second time nothing is started
    again = build(config, model=model, recorded=built.choices)
    assert path(again, "compile").used
    assert again.choices == built.choices


def recorded_graphs() -> int:
    """Number of CUDA graphs recorded in this process."""
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(0, create_if_none_exists=False)
    return 0 if manager is None else sum(map(len, manager.roots.values()))


@pytest.mark.timeout(600)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_a_cuda_graph_is_correct_for_other_batches_and_weights(own_cache: Path, name: str) -> None:
    device = torch.device("cuda", 0)
    if compilation.unavailable_reason(device) is not None:
        pytest.skip("needs a compiler")
    config = settings(compile="on", cuda_graphs="on", n_layers=1, tf32=False)
    model = decoder(config).to(device)
    built = select.build_engine(
        config,
        model,
        device,
        Precision.from_name(name, device),
        NullReporter(),
        rows=ROWS,
        segments=False,
        varying=False,
        total_steps=3,
        recorded={},
    )
    assert built.switch is not None
    built.switch.finish(batch().to(device))
    assert path(built, "cuda_graphs").used, path(built, "cuda_graphs")
    recorded = recorded_graphs()
    assert recorded > 0
    for number in range(5):
        given = batch()
        given = replace(given, input_ids=(given.input_ids + number) % VOCABULARY).to(device)
        difference = measuring.loss_difference(model, built.loss, built.eager_loss, given, built.precision)
        assert difference < measuring.TOLERANCE[name]
        for weight in model.parameters():
            weight.data.mul_(0.8)  # in place, as an update changes them
    assert recorded_graphs() == recorded, "recorded again instead of replayed"
    built.reset_graphs()


def test_the_compiler_process_runs_at_lower_priority() -> None:
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
    with subprocess.Popen(
        command, cwd=ROOT, env=child_process.environment(), stdin=subprocess.PIPE
    ) as compiler_process:
        try:
            while not any(int(process.nice()) == own for process in with_children(compiler_process.pid)):
                assert compiler_process.poll() is None
                time.sleep(0.05)
        finally:
            child_process.kill_tree(compiler_process)


def with_children(pid: int) -> list[psutil.Process]:
    """On Windows the started process is the launcher of the environment, and its child is Python."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def test_whether_a_graph_fits_depends_on_the_shape_alone() -> None:
    fixed = compile_key(settings())
    misfits = batch(LENGTH - 1), batch(rows=ROWS - 1), batch(packed=True)
    assert [fixed.adapt(one) is not None for one in (batch(), *misfits)] == [True, False, False, False]
    varying = compile_key(settings(), varying=True, segments=True)
    for length, fits in ((15, False), (16, True), (LENGTH, True), (LENGTH + 1, False)):
        for given in (batch(length, packed=True), batch(length)):
            assert (varying.adapt(given) is not None) == fits


# --- failures -------------------------------------------------------------------------------


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of compiled code."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    return tmp_path


def assert_eager(built: Any, reason: str) -> str:
    """Checks that the run stays eager; returns the reason in words."""
    said = path(built, "compile")
    assert (said.used, said.reason) == (False, reason)
    assert built.choices["compile"] is False
    assert (built.compile_s is None) == (reason == "path.no_compiler")
    assert torch.equal(built.loss(batch()), built.eager_loss(batch()))
    return str(said.params.get("reason", ""))


def test_a_run_without_a_compiler_is_eager(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(own_cache / "nowhere"))
    assert_eager(build(settings(compile="on")), "path.no_compiler")


def script(folder: Path, text: str) -> str:
    if sys.platform == "win32" or shutil.which("sh") is None:
        pytest.skip("needs a shell script in place of a compiler")
    place = folder / "c++"
    place.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    place.chmod(0o755)
    return str(place)


def test_if_the_compiler_fails_the_run_is_eager(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = 'case "$*" in *-version*) exec g++ "$@";; esac'
    monkeypatch.setenv("CXX", script(own_cache, f"{version}\necho 'error: nothing works' >&2; exit 1"))
    assert "nothing works" in assert_eager(build(settings(compile="on", n_layers=1)), "path.failed")


def test_a_compiler_that_takes_too_long_is_ended(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", script(own_cache, "sleep 600"))
    monkeypatch.setattr(compilation, "TIMEOUT_S", 0.3)
    before = psutil.Process().children(recursive=True)  # of earlier tests
    assert "took more than" in assert_eager(build(settings(compile="on")), "path.failed")
    assert psutil.Process().children(recursive=True) == before


class StopsAt(NullReporter):
    """Requests a stop as soon as a file exists, and records the processes that ran then."""

    def __init__(self, file: Path) -> None:
        self.file, self.running = file, list[psutil.Process]()
        self._before = psutil.Process().children(recursive=True)  # of earlier tests

    def poll(self) -> None:
        if self.file.exists():
            self.running = [one for one in psutil.Process().children(recursive=True) if one not in self._before]
            raise StopRequested


def test_a_stop_during_compilation_leaves_no_process(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = own_cache / "begun"
    monkeypatch.setenv("CXX", script(own_cache, f"touch '{begun}'; sleep 600"))
    reporter = StopsAt(begun)
    with pytest.raises(StopRequested):
        build(settings(compile="on", n_layers=1), reporter=reporter)
    assert len(reporter.running) >= 2  # ours and its compiler
    _, alive = psutil.wait_procs(reporter.running, timeout=10)
    assert not alive
