"""Replacement, rotation and loading of checkpoints."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trainer_core.config import Config
from trainer_core.models import hf_config
from trainer_core.models.decoder import Decoder
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files
from trainer_core.train import checkpoint, checkpoint_writer, optimizers
from trainer_core.train.checkpoint import TrainState
from trainer_core.train.checkpoint_writer import RetentionPolicy
from trainer_core.train.model_shape import model_config_of
from trainer_core.train.numerics import GradientNoise, PlateauSchedule

NAME = "step-00000004"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run with one checkpoint."""
    run = RunDir(tmp_path / "run")
    run.create()
    write_checkpoint(run.checkpoints / NAME, b"before")
    return run


def write_checkpoint(folder: Path, weights: bytes, step: int = 4) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(weights)
    checkpoint_dir.write_manifest(folder, step, "regular", None)


def read_weights(run: RunDir) -> bytes:
    return (run.checkpoints / NAME / "model.safetensors").read_bytes()


def test_a_replaced_checkpoint_is_restored_if_the_new_one_cannot_be_moved(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "other", b"after")
    replace = files.replace

    def held_open(source: Path, target: Path, seconds: float = 10.0) -> None:
        if source.name.startswith(f"{checkpoint_dir.TEMPORARY_PREFIX}step"):
            raise PermissionError(13, "held open")
        replace(source, target, seconds)

    monkeypatch.setattr(files, "replace", held_open)
    (tmp_path / "other").rename(tmp_path / NAME)
    with pytest.raises(Exception, match="held open"):
        checkpoint_writer.copy_checkpoint(run, tmp_path / NAME)
    assert read_weights(run) == b"before"
    assert [entry.name for entry in run.checkpoints.iterdir()] == [NAME]


def test_a_kill_during_replacement_loses_no_checkpoint(run: RunDir) -> None:
    aside = run.checkpoints / f"{checkpoint_dir.TEMPORARY_PREFIX}replaced-{NAME}-123"
    (run.checkpoints / NAME).rename(aside)
    checkpoint_writer.remove_leftovers(run)
    assert read_weights(run) == b"before"
    assert not aside.exists()


def test_leftovers_that_are_held_open_do_not_prevent_a_start(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(run.checkpoints / f"{checkpoint_dir.TEMPORARY_PREFIX}{NAME}-123", b"half")

    def held_open(path: Path, seconds: float = 10.0) -> None:
        raise PermissionError(13, "held open")

    monkeypatch.setattr(files, "remove_tree", held_open)
    checkpoint_writer.remove_leftovers(run)
    assert read_weights(run) == b"before"


class SharingViolationError(PermissionError):
    """Raised on Windows for a file that another program holds open."""

    winerror = 32


def checkpoint_names(run: RunDir) -> list[str]:
    return sorted(entry.name for entry in run.checkpoints.iterdir())


@pytest.mark.parametrize("operation", ["rename", "removal"])
def test_rotation_leaves_a_held_checkpoint_to_a_later_save(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    write_checkpoint(run.checkpoints / "step-00000006", b"after", step=6)

    def held_open(*_: object) -> None:
        raise SharingViolationError(13, "held open")

    since = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(*((Path, "replace") if operation == "rename" else (shutil, "rmtree")), held_open)
        removed = checkpoint_writer.rotate(run, RetentionPolicy(last=1, best=0))
    assert time.monotonic() - since < 4.0
    assert removed == ([] if operation == "rename" else [NAME])
    assert len(checkpoint_names(run)) == 2
    checkpoint_writer.rotate(run, RetentionPolicy(last=1, best=0))
    assert checkpoint_names(run) == ["step-00000006"]


def build_state(optimizer: str, steps: int = 0) -> TrainState:
    """Training state of a small model after this number of updates."""
    config = Config(hidden_dim=16, n_layers=1, n_heads=2, mlp_dim=256, max_seq_len=8, optimizer=optimizer)  # type: ignore[arg-type]
    torch.manual_seed(5)
    model = Decoder(model_config_of(config, 64))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    state = TrainState(model, optimizers.build_optimizer(model, config), scaler)
    for step in range(steps):
        update(state, step)
    state.run_fingerprint = {"optimizer": optimizer}
    return state


def update(state: TrainState, step: int) -> None:
    ids = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(step))
    state.model(ids).square().mean().backward()
    optimizers.update(state.optimizer, state.scaler, torch.zeros(()))
    state.optimizer.zero_grad()


def save(folder: Path, state: TrainState) -> Path:
    run = RunDir(folder / "saved")
    run.create()
    state.counters.step = 3
    shape = json.dumps(hf_config.to_hf_config(state.model.config, 0, 0)).encode()
    content = checkpoint.build_content(state, {"config.json": shape})
    saved = checkpoint_writer.write(run, content, RetentionPolicy(last=1, best=0))
    return run.checkpoints / saved.path


def moments(state: TrainState) -> dict[str, Tensor]:
    """Optimizer state by weight and key."""
    return {
        f"{name} {key}": value
        for name, weight in state.model.named_parameters()
        for key, value in state.optimizer.state.get(weight, {}).items()
    }


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit", "muon"])
def test_each_optimizer_resumes_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    uninterrupted, resumed = build_state(optimizer, 3), build_state(optimizer)
    checkpoint.load(save(tmp_path, uninterrupted), resumed)
    assert moments(uninterrupted).keys() == moments(resumed).keys()
    for step in (7, 8):
        update(uninterrupted, step)
        update(resumed, step)
    for expected, actual in zip(uninterrupted.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(expected, actual)


@pytest.mark.parametrize(("before", "after"), [("adamw", "muon"), ("muon", "adamw")])
def test_another_optimizer_restores_the_moments_that_both_optimizers_have(
    tmp_path: Path, before: str, after: str
) -> None:
    state, resumed = build_state(before, 3), build_state(after)
    folder = save(tmp_path, state)
    checkpoint.load(folder, resumed)
    old, new = moments(state), moments(resumed)
    assert {name.split()[0] for name in new} == {
        name for name, _ in state.model.named_parameters() if not name.endswith("_proj.weight")
    }
    assert all(torch.equal(new[name], old[name]) for name in new)
    assert checkpoint.read_run_fingerprint(folder)["optimizer"] == before  # a resume reports the change
    update(resumed, 4)
    assert all(weight.isfinite().all() for weight in resumed.model.parameters())


def test_the_state_of_the_parts_and_the_choices_of_the_engine_are_restored(tmp_path: Path) -> None:
    state, resumed = build_state("muon", 1), build_state("muon")
    state.parts, resumed.parts = (
        {"noise": GradientNoise(torch.device("cpu"))},
        {"noise": GradientNoise(torch.device("cpu")), "plateau": PlateauSchedule(Config())},
    )
    state.parts["noise"].load_state_dict({"mean": [1.0, 0.1 + 0.2, 2.0]})
    state.engine = {"compile": False, "threads": 2}
    checkpoint.load(save(tmp_path, state), resumed)
    assert resumed.engine == state.engine
    assert resumed.parts["noise"].state_dict() == {"mean": [1.0, 0.1 + 0.2, 2.0]}
