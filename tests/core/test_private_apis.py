"""Results do not depend on private APIs of torch, which only make Traindeck faster."""

from __future__ import annotations

import gc
import multiprocessing
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import dataloader

from tests.core.engines import CPU, FP32, ROWS, build_decoder, random_batch, tiny_model_config
from tests.core.trainer_process import ROOT, text_file
from tests.core.training import tiny_config
from trainer_core.data.loader import BatchLoader
from trainer_core.data.prepare import prepare
from trainer_core.progress import NullReporter
from trainer_core.train import optimizers
from trainer_core.train.device import native_bf16
from trainer_core.train.engine import compilation, select

WRAPPED_METHODS = ("zero_grad", "add_param_group", "state_dict", "load_state_dict")


def train_weights() -> list[torch.Tensor]:
    """Weights after three updates, each followed by saving and loading the optimizer state."""
    model = build_decoder(tiny_model_config())
    optimizer = optimizers.build_optimizer(model, tiny_model_config())
    for _ in range(3):
        model(random_batch().input_ids).square().mean().backward()
        optimizers.update(optimizer, torch.amp.GradScaler("cpu", enabled=False), torch.zeros(()))
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
    return [weight.detach() for weight in model.parameters()]


def test_optimizers_need_no_wrapped_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train_weights()
    for name in WRAPPED_METHODS:
        wrapped = getattr(torch.optim.Optimizer, name)
        assert hasattr(wrapped, "__wrapped__"), "`avoid_compiler_import` has nothing to do for this torch"
        monkeypatch.setattr(
            torch.optim.Optimizer, name, lambda self, *args, method=wrapped, **kwargs: method(self, *args, **kwargs)
        )
    optimizers.avoid_compiler_import()
    assert all(map(torch.equal, expected, train_weights()))


def test_loader_processes_end_without_shutdown_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = dataloader._MultiProcessingDataLoaderIter
    monkeypatch.setattr(iterator, "__del__", iterator._shutdown_workers)
    monkeypatch.delattr(iterator, "_shutdown_workers")
    config = tiny_config(tmp_path, text_file(tmp_path), num_workers=2)
    loader = BatchLoader(prepare(config, NullReporter()), config, "train", "cpu")
    assert next(loader.iterate_epoch(0)).input_ids.numel() > 0
    assert len(multiprocessing.active_children()) == 2
    loader.close()
    gc.collect()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("missing", ["torch._dynamo.mark_dynamic", "torch._functorch.config"])
def test_without_private_compiler_names_a_run_is_eager(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo

    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    monkeypatch.setattr(compilation, "is_cached", lambda key: True)
    if missing == "torch._dynamo.mark_dynamic":
        monkeypatch.delattr(torch._dynamo, "mark_dynamic")
    else:
        monkeypatch.setitem(sys.modules, "torch._functorch.config", None)
    model, config = build_decoder(tiny_model_config()), tiny_model_config(compile="on", cpu_threads=1)
    shape = {"rows": ROWS, "segments": False, "varying": True}
    engine = select.build_engine(config, model, CPU, FP32, NullReporter(), **shape, total_steps=3, recorded={})
    assert engine.switch is not None
    engine.switch.finish(random_batch())
    path = engine.fast_paths["compile"]
    assert (path.used, path.reason) == (False, "path.failed")
    assert torch.equal(engine.loss(random_batch()), engine.eager_loss(random_batch()))


def test_graphs_are_reset_without_reset_cudagraph_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", SimpleNamespace())
    compilation.reset_graphs()


def test_a_cpu_without_capability_functions_has_no_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert not native_bf16(CPU)


def test_the_torch_requirement_is_bounded_by_the_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (allowed,) = (requirement for requirement in project["dependencies"] if requirement.startswith("torch>"))
    tested = re.search(r"^torch==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert tested is not None
    assert allowed.endswith(f",<{tested[1]}.{int(tested[2]) + 1}")
