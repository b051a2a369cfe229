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

import msgspec
import psutil
import pytest
import torch
from torch import Tensor

from tests.core.engines import (
    LENGTH,
    ROWS,
    VOCAB_SIZE,
    build_decoder,
    build_engine,
    compile_key,
    fast_path,
    random_batch,
    tiny_model_config,
)
from tests.core.trainer_process import ROOT
from trainer_core.data.batch import Batch
from trainer_core.models import adapters
from trainer_core.models.decoder import Decoder
from trainer_core.progress import NullReporter, StopRequested
from trainer_core.system import child_process
from trainer_core.train.activation_checkpointing import checkpoint_activations
from trainer_core.train.device import Precision
from trainer_core.train.engine import compilation, measuring, select
from trainer_core.train.engine.compilation import CompileKey
from trainer_core.train.loss import batch_loss
from trainer_core.train.model_shape import tuning_of

TOLERANCE = measuring.TOLERANCE["fp32"]


def compiled_model(key: CompileKey) -> tuple[Any, measuring.LossOf, measuring.LossOf]:
    """A model with its compiled and its eager loss."""
    model = build_decoder(tiny_model_config(**{"n_layers": key.shape["n_layers"], "dropout": key.shape["dropout"]}))
    checkpoint_activations(model, key.checkpointing)
    compiled = compilation.compile_whole(model, key)
    return (
        model,
        lambda batch: compiled(batch.input_ids, batch.labels, batch.segments, batch.positions),
        lambda batch: batch_loss(model, batch),
    )


COMPILE_SCRIPT = """
import os, torch
from trainer_core.train.engine import compilation
assert " " in torch.__file__
compilation.fix_extensions()
assert torch.compile(lambda x: x.sin() + 1, fullgraph=True)(torch.ones(64)).shape == (64,)
"""


@pytest.mark.skipif(
    sys.platform == "win32", reason="symbolic links need privileges on Windows, and inductor quotes all paths there"
)
def test_compilation_works_if_the_path_of_torch_contains_a_space(compiler: Path, tmp_path: Path) -> None:
    link = tmp_path / "my traindeck"
    link.symlink_to(Path(torch.__file__).parents[1], target_is_directory=True)
    paths = os.pathsep.join([str(link), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-c", COMPILE_SCRIPT], env=environment, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.skipif(not torch.version.cuda, reason="only CUDA builds of torch look for a toolkit")
def test_a_cuda_toolkit_without_a_driver_causes_no_warning(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "-1"}
    program = "from trainer_core.train.engine import compilation; compilation.fix_extensions()"
    result = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_batches_of_any_width_share_one_graph_with_chunked_loss(compiler: Path) -> None:
    key = compile_key(tiny_model_config(n_layers=1), varying=True, chunk=2 * LENGTH + 5)
    model, compiled, eager = compiled_model(key)
    for length in (23, LENGTH, 16):
        example = random_batch(length)
        assert key.adapt(example) is not None
        with torch.compiler.set_stance("default" if length == 23 else "fail_on_recompile"):
            assert measuring.loss_difference(model, compiled, eager, example) < TOLERANCE


def test_compiled_packed_sequences_equal_eager_ones_with_dropout_and_selective_checkpointing(compiler: Path) -> None:
    key = compile_key(tiny_model_config(n_layers=1, dropout=0.3), segments=True, checkpointing="selective")
    model, compiled, eager = compiled_model(key)
    assert measuring.loss_difference(model, compiled, eager, random_batch(packed=True)) < TOLERANCE


def saved_elements(model: Decoder, loss: measuring.LossOf, example: Batch) -> int:
    """Elements that a forward pass saves for its backward, without the weights."""
    weights = {weight.data_ptr() for weight in model.parameters()}
    sizes: list[int] = []

    def record_size(tensor: Tensor) -> Tensor:
        sizes.append(0 if tensor.data_ptr() in weights else tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record_size, lambda tensor: tensor):
        loss(example)
    return sum(sizes)


def test_activation_memory_budget_changes_neither_loss_nor_gradients(
    compiler: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setattr(compilation, "is_cached", lambda key: True)  # skips the compilation in a child process
    config = tiny_model_config(compile="on", n_layers=1, activation_memory_budget=0.2)
    model = build_decoder(config)
    engine = build_engine(config, model=model)
    assert fast_path(engine, "compile").used
    assert measuring.loss_difference(model, engine.loss, engine.eager_loss, random_batch()) < TOLERANCE
    assert saved_elements(model, engine.loss, random_batch()) < 0.4 * saved_elements(
        model, engine.eager_loss, random_batch()
    ), "0.7 without a budget"


def test_compile_on_uses_compiled_code_and_caches_the_code(
    compiler: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    config = tiny_model_config(compile="on", n_layers=1, dropout=0.3, activation_checkpointing="full")
    model = build_decoder(config)
    engine = build_engine(config, model=model)
    compile_path = fast_path(engine, "compile")
    assert compile_path.used, compile_path
    assert compile_path.reason == "path.set"
    assert compile_path.error is not None
    assert compile_path.error < TOLERANCE
    assert engine.compile_s
    assert engine.choices["compile"] is True
    assert engine.compile_key is not None
    assert measuring.loss_difference(model, engine.loss, engine.eager_loss, random_batch()) < TOLERANCE
    with torch.compiler.set_stance("fail_on_recompile"):  # another shape is computed eagerly
        assert float(engine.loss(random_batch(LENGTH - 4)).detach()) > 0
    assert compilation.is_cached(engine.compile_key)
    monkeypatch.setattr(compilation.subprocess, "Popen", None)  # fails if a process is started
    second = build_engine(config, model=model, recorded=engine.choices)
    assert fast_path(second, "compile").used
    assert second.choices == engine.choices


def recorded_graphs() -> int:
    """Number of CUDA graphs recorded in this process."""
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(0, create_if_none_exists=False)
    return 0 if manager is None else sum(map(len, manager.roots.values()))


@pytest.mark.timeout(600)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_a_cuda_graph_is_correct_for_other_batches_and_weights(empty_cache: Path, name: str) -> None:
    device = torch.device("cuda", 0)
    if compilation.unavailable_reason(device) is not None:
        pytest.skip("needs a compiler")
    config = tiny_model_config(compile="on", cuda_graphs="on", n_layers=1, tf32=False)
    model = build_decoder(config).to(device)
    engine = select.build_engine(
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
    assert engine.switch is not None
    engine.switch.finish(random_batch().to(device))
    assert fast_path(engine, "cuda_graphs").used, fast_path(engine, "cuda_graphs")
    recorded = recorded_graphs()
    assert recorded > 0
    for number in range(5):
        example = random_batch()
        example = replace(example, input_ids=(example.input_ids + number) % VOCAB_SIZE).to(device)
        difference = measuring.loss_difference(model, engine.loss, engine.eager_loss, example, engine.precision)
        assert difference < measuring.TOLERANCE[name]
        for weight in model.parameters():
            weight.data.mul_(0.8)  # in place, like an update
    assert recorded_graphs() == recorded, "recorded again instead of replayed"
    engine.reset_graphs()


def test_the_compiler_process_runs_at_lower_priority() -> None:
    code = (
        "import subprocess, sys, psutil; from trainer_core.system import child_process; own = psutil.Process().nice();"
        "child_process.lower_priority(); below = subprocess.check_output([sys.executable, '-c',"
        "'import psutil; print(int(psutil.Process().nice()))']);"
        "print(int(own), int(psutil.Process().nice()), int(below))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    default, lowered, child = map(int, result.stdout.split())
    assert default != lowered == child
    command = [sys.executable, "-P", "-m", "trainer_core.train.engine.compilation"]
    with subprocess.Popen(
        command, cwd=ROOT, env=child_process.environment(), stdin=subprocess.PIPE
    ) as compiler_process:
        try:
            while not any(int(process.nice()) == lowered for process in process_tree(compiler_process.pid)):
                assert compiler_process.poll() is None
                time.sleep(0.05)
        finally:
            child_process.kill_child(compiler_process)


def process_tree(pid: int) -> list[psutil.Process]:
    """On Windows the started process is the launcher of the environment, and its child is Python."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def test_a_graph_is_used_for_batches_of_its_shape_only() -> None:
    fixed = compile_key(tiny_model_config())
    unsuitable = random_batch(LENGTH - 1), random_batch(rows=ROWS - 1), random_batch(packed=True)
    assert [fixed.adapt(example) is not None for example in (random_batch(), *unsuitable)] == [
        True,
        False,
        False,
        False,
    ]
    varying = compile_key(tiny_model_config(), varying=True, segments=True)
    for length, suitable in ((15, False), (16, True), (LENGTH, True), (LENGTH + 1, False)):
        for example in (random_batch(length, packed=True), random_batch(length)):
            assert (varying.adapt(example) is not None) == suitable


# --- failures -------------------------------------------------------------------------------


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of compiled code."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    return tmp_path


def assert_eager(engine: Any, reason: str) -> str:
    """Check that the run is eager; returns the text of the reason."""
    compile_path = fast_path(engine, "compile")
    assert (compile_path.used, compile_path.reason) == (False, reason)
    assert engine.choices["compile"] is False
    assert (engine.compile_s is None) == (reason == "path.no_compiler")
    assert torch.equal(engine.loss(random_batch()), engine.eager_loss(random_batch()))
    return str(compile_path.params.get("reason", ""))


def test_a_run_without_a_compiler_is_eager(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(empty_cache / "nowhere"))
    assert_eager(build_engine(tiny_model_config(compile="on")), "path.no_compiler")


def fake_compiler(folder: Path, text: str) -> str:
    if sys.platform == "win32" or shutil.which("sh") is None:
        pytest.skip("needs a shell script in place of a compiler")
    file = folder / "c++"
    file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    file.chmod(0o755)
    return str(file)


def test_a_run_is_eager_if_the_compiler_fails(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = 'case "$*" in *-version*) exec g++ "$@";; esac'
    monkeypatch.setenv("CXX", fake_compiler(empty_cache, f"{version}\necho 'error: nothing works' >&2; exit 1"))
    assert "nothing works" in assert_eager(build_engine(tiny_model_config(compile="on", n_layers=1)), "path.failed")


def test_a_compiler_that_takes_too_long_is_ended(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", fake_compiler(empty_cache, "sleep 600"))
    monkeypatch.setattr(compilation, "TIMEOUT_S", 0.3)
    before = psutil.Process().children(recursive=True)  # of earlier tests
    assert "took more than" in assert_eager(build_engine(tiny_model_config(compile="on")), "path.failed")
    assert psutil.Process().children(recursive=True) == before


class StopWhenFileExists(NullReporter):
    """Requests a stop as soon as a file exists, and records the processes that ran then."""

    def __init__(self, file: Path) -> None:
        self.file, self.running = file, list[psutil.Process]()
        self._before = psutil.Process().children(recursive=True)  # of earlier tests

    def poll(self) -> None:
        if self.file.exists():
            self.running = [
                process for process in psutil.Process().children(recursive=True) if process not in self._before
            ]
            raise StopRequested


def test_a_stop_during_compilation_leaves_no_process(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = empty_cache / "begun"
    monkeypatch.setenv("CXX", fake_compiler(empty_cache, f"touch '{started}'; sleep 600"))
    reporter = StopWhenFileExists(started)
    with pytest.raises(StopRequested):
        build_engine(tiny_model_config(compile="on", n_layers=1), reporter=reporter)
    assert len(reporter.running) >= 2  # the child process and its compiler
    _, alive = psutil.wait_procs(reporter.running, timeout=10)
    assert not alive


@pytest.mark.parametrize("chunk", [0, 16])
def test_a_compiled_adapter_with_dropout_equals_the_eager_one(compiler: Path, chunk: int) -> None:
    config = msgspec.structs.replace(tiny_model_config(), method="lora", lora_dropout=0.1)
    model, tuning = build_decoder(config), tuning_of(config)
    adapters.set_up_tuning(model, tuning)
    with torch.no_grad():
        for weight in adapters.adapter_weights(model).values():
            weight += 0.05 * torch.randn_like(weight)
    key = compile_key(config, chunk=chunk, tuning=tuning)
    compiled = compilation.compile_whole(model, key)
    error = measuring.loss_difference(
        model,
        lambda batch: compiled(batch.input_ids, batch.labels, batch.segments, batch.positions),
        lambda batch: batch_loss(model, batch),
        random_batch(),
    )
    assert error < TOLERANCE
