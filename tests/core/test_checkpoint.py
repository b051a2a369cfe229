"""A checkpoint is a transaction: whatever fails on the way, what was saved before is still there."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from trainer_core import checkpoint_dir, files
from trainer_core.run_dir import RunDir
from trainer_core.train import checkpoint

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


def test_a_checkpoint_comes_back_when_its_successor_cannot_take_its_place(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "other", b"after")
    really = files.replace

    def held_open(source: Path, target: Path, seconds: float = 10.0) -> None:
        if source.name.startswith(f"{checkpoint_dir.WORKING_PREFIX}step"):
            raise PermissionError(13, "held open")
        really(source, target, seconds)

    monkeypatch.setattr(files, "replace", held_open)
    (tmp_path / "other").rename(tmp_path / NAME)
    with pytest.raises(Exception, match="held open"):
        checkpoint.adopt(run, tmp_path / NAME)
    assert content(run) == b"before"
    assert [entry.name for entry in run.checkpoints.iterdir()] == [NAME]


def test_a_kill_while_a_checkpoint_is_replaced_loses_neither_of_them(run: RunDir) -> None:
    aside = run.checkpoints / f"{checkpoint_dir.WORKING_PREFIX}replaced-{NAME}-123"
    (run.checkpoints / NAME).rename(aside)
    checkpoint.clean(run)
    assert content(run) == b"before"
    assert not aside.exists()


def test_litter_that_is_held_open_does_not_keep_a_run_from_starting(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(run.checkpoints / f"{checkpoint_dir.WORKING_PREFIX}{NAME}-123", b"half")

    def held_open(path: Path, seconds: float = 10.0) -> None:
        raise PermissionError(13, "held open")

    monkeypatch.setattr(files, "remove_tree", held_open)
    checkpoint.clean(run)
    assert content(run) == b"before"


class HeldError(PermissionError):
    """What Windows says of a file that another program holds open."""

    winerror = 32


def names(run: RunDir) -> list[str]:
    return sorted(entry.name for entry in run.checkpoints.iterdir())


@pytest.mark.parametrize("where", ["rename", "removal"])
def test_rotation_hardly_waits_for_a_held_checkpoint_and_removes_it_at_a_later_save(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    fill(run.checkpoints / "step-00000006", b"after", step=6)

    def held_open(*_: object) -> None:
        raise HeldError(13, "held open")

    since = time.monotonic()
    with monkeypatch.context() as held:
        held.setattr(*((Path, "replace") if where == "rename" else (shutil, "rmtree")), held_open)
        removed = checkpoint.rotate(run, keep_last=1, keep_best=0)
    assert time.monotonic() - since < 4.0
    assert removed == ([] if where == "rename" else [NAME])
    assert len(names(run)) == 2
    checkpoint.rotate(run, keep_last=1, keep_best=0)
    assert names(run) == ["step-00000006"]
