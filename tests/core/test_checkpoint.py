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
from trainer_core.models.decoder import Decoder, ModelConfig
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files
from trainer_core.train import checkpoint, checkpoint_writer, optimizers
from trainer_core.train.checkpoint import TrainState
from trainer_core.train.checkpoint_writer import RetentionPolicy
from trainer_core.train.numerics import GradientNoise, Plateau

NAME = "step-00000004"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run with one checkpoint."""
    made = RunDir(tmp_path / "run")
    made.create()
    fill(made.checkpoints / NAME, b"before")
    return made


def fill(folder: Path, content: bytes, step: int = 4) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    checkpoint_dir.write_manifest(folder, step, "regular", None)


def content(run: RunDir) -> bytes:
    return (run.checkpoints / NAME / "model.safetensors").read_bytes()


def test_a_replaced_checkpoint_is_restored_if_the_new_one_cannot_be_moved(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "other", b"after")
    really = files.replace

    def held_open(source: Path, target: Path, seconds: float = 10.0) -> None:
        if source.name.startswith(f"{checkpoint_dir.TEMPORARY_PREFIX}step"):
            raise PermissionError(13, "held open")
        really(source, target, seconds)

    monkeypatch.setattr(files, "replace", held_open)
    (tmp_path / "other").rename(tmp_path / NAME)
    with pytest.raises(Exception, match="held open"):
        checkpoint_writer.copy_checkpoint(run, tmp_path / NAME)
    assert content(run) == b"before"
    assert [entry.name for entry in run.checkpoints.iterdir()] == [NAME]


def test_a_kill_during_replacement_loses_no_checkpoint(run: RunDir) -> None:
    aside = run.checkpoints / f"{checkpoint_dir.TEMPORARY_PREFIX}replaced-{NAME}-123"
    (run.checkpoints / NAME).rename(aside)
    checkpoint_writer.remove_leftovers(run)
    assert content(run) == b"before"
    assert not aside.exists()


def test_leftovers_that_are_held_open_do_not_prevent_a_start(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(run.checkpoints / f"{checkpoint_dir.TEMPORARY_PREFIX}{NAME}-123", b"half")

    def held_open(path: Path, seconds: float = 10.0) -> None:
        raise PermissionError(13, "held open")

    monkeypatch.setattr(files, "remove_tree", held_open)
    checkpoint_writer.remove_leftovers(run)
    assert content(run) == b"before"


class HeldError(PermissionError):
    """What Windows says of a file that another program holds open."""

    winerror = 32


def names(run: RunDir) -> list[str]:
    return sorted(entry.name for entry in run.checkpoints.iterdir())


@pytest.mark.parametrize("where", ["rename", "removal"])
def test_rotation_leaves_a_held_checkpoint_to_a_later_save(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    fill(run.checkpoints / "step-00000006", b"after", step=6)

    def held_open(*_: object) -> None:
        raise HeldError(13, "held open")

    since = time.monotonic()
    with monkeypatch.context() as held:
        held.setattr(*((Path, "replace") if where == "rename" else (shutil, "rmtree")), held_open)
        removed = checkpoint_writer.rotate(run, RetentionPolicy(last=1, best=0))
    assert time.monotonic() - since < 4.0
    assert removed == ([] if where == "rename" else [NAME])
    assert len(names(run)) == 2
    checkpoint_writer.rotate(run, RetentionPolicy(last=1, best=0))
    assert names(run) == ["step-00000006"]


def state(optimizer: str, steps: int = 0) -> TrainState:
    """A small model with as many updates behind it."""
    config = Config(hidden_dim=16, n_layers=1, n_heads=2, max_seq_len=8, optimizer=optimizer)  # type: ignore[arg-type]
    torch.manual_seed(5)
    model = Decoder(ModelConfig.from_config(config, 64))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    made = TrainState(model, optimizers.build_optimizer(model, config), scaler)
    for step in range(steps):
        update(made, step)
    made.run_fingerprint = {"optimizer": optimizer}
    return made


def update(made: TrainState, step: int) -> None:
    ids = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(step))
    made.model(ids).square().mean().backward()
    optimizers.update(made.optimizer, made.scaler, torch.zeros(()))
    made.optimizer.zero_grad()


def save(folder: Path, made: TrainState) -> Path:
    run = RunDir(folder / "saved")
    run.create()
    made.counters.step = 3
    shape = json.dumps(hf_config.to_hf_config(made.model.config, 0, 0)).encode()
    content = checkpoint.build_content(made, {"config.json": shape})
    saved = checkpoint_writer.write(run, content, RetentionPolicy(last=1, best=0))
    return run.checkpoints / saved.path


def moments(made: TrainState) -> dict[str, Tensor]:
    """By weight and key."""
    return {
        f"{name} {key}": value
        for name, weight in made.model.named_parameters()
        for key, value in made.optimizer.state.get(weight, {}).items()
    }


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_either_optimizer_continues_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    whole, resumed = state(optimizer, 3), state(optimizer)
    checkpoint.load(save(tmp_path, whole), resumed)
    assert moments(whole).keys() == moments(resumed).keys()
    for step in (7, 8):
        update(whole, step)
        update(resumed, step)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("before", "after"), [("adamw", "muon"), ("muon", "adamw")])
def test_another_optimizer_restores_the_moments_that_both_have(tmp_path: Path, before: str, after: str) -> None:
    made, resumed = state(before, 3), state(after)
    folder = save(tmp_path, made)
    checkpoint.load(folder, resumed)
    old, new = moments(made), moments(resumed)
    assert {name.split()[0] for name in new} == {
        name for name, _ in made.model.named_parameters() if not name.endswith("_proj.weight")
    }
    assert all(torch.equal(new[name], old[name]) for name in new)
    assert checkpoint.read_run_fingerprint(folder)["optimizer"] == before  # by which a resume says it
    update(resumed, 4)
    assert all(weight.isfinite().all() for weight in resumed.model.parameters())


def test_the_state_of_the_parts_and_the_choices_of_the_engine_are_restored(tmp_path: Path) -> None:
    made, resumed = state("muon", 1), state("muon")
    made.parts, resumed.parts = (
        {"noise": GradientNoise(torch.device("cpu"))},
        {"noise": GradientNoise(torch.device("cpu")), "plateau": Plateau(Config())},
    )
    made.parts["noise"].load_state_dict({"mean": [1.0, 0.1 + 0.2, 2.0]})
    made.engine = {"compile": False, "threads": 2}
    checkpoint.load(save(tmp_path, made), resumed)
    assert resumed.engine == made.engine
    assert resumed.parts["noise"].state_dict() == {"mean": [1.0, 0.1 + 0.2, 2.0]}
