"""Command `runs verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.test_checkpoint_dir import write_checkpoint
from trainer_core.cli import commands


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run named 日 1 with two checkpoints; the newer one has a changed and a truncated file."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    monkeypatch.setenv("TRAINDECK_LANG", "en")
    folder = tmp_path / "runs" / "日 1"
    write_checkpoint(folder / "checkpoints", 5)
    damaged = write_checkpoint(folder / "checkpoints", 6)
    (damaged / "state.json").write_bytes(b"[]")
    (damaged / "model.safetensors").write_bytes(b"short")
    (folder / "config.yaml").write_text("preset: cpu\n", encoding="utf-8")
    return folder


def verify(*arguments: str) -> Result:
    return CliRunner().invoke(commands, ["runs", "verify", *arguments])


EXPECTED = [
    "step-00000005  ok",
    "step-00000006  damaged",
    "  “model.safetensors” has the wrong size: 5/42 bytes",
    "  the content of “state.json” has changed",
]


def test_a_run_is_verified_by_its_name_or_folder(run: Path) -> None:
    for name in (run.name, str(run), "latest"):
        result = verify(name)
        assert (result.exit_code, result.stdout.splitlines()) == (1, EXPECTED), name


def test_one_checkpoint_is_verified_by_its_folder(run: Path) -> None:
    intact, damaged = (verify(str(run / "checkpoints" / name)) for name in ("step-00000005", "step-00000006"))
    assert (intact.exit_code, intact.output.splitlines()) == (0, EXPECTED[:1])
    assert (damaged.exit_code, damaged.output.splitlines()) == (1, EXPECTED[1:])


def test_a_renamed_checkpoint_is_verified(run: Path) -> None:
    moved = run.parent / "my model"
    (run / "checkpoints" / "step-00000005").rename(moved)
    assert verify(str(moved)).output.splitlines() == ["my model  ok"]


def test_json_output_lists_the_problem_of_each_file(run: Path) -> None:
    result = verify(run.name, "--output", "json")
    intact, damaged = map(json.loads, result.output.splitlines())
    assert result.exit_code == 1
    assert (intact["checkpoint"], intact["intact"]) == ("step-00000005", True)
    assert set(intact["files"].values()) == {None}
    assert damaged["intact"] is False
    assert damaged["files"]["state.json"] == "the content of “state.json” has changed"
    assert Path(damaged["path"]) == run / "checkpoints" / "step-00000006"


def test_output_is_translated(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINDECK_LANG", "zh")
    (run / "checkpoints" / "step-00000005" / "state.json").unlink()
    assert verify(run.name).output.splitlines() == [
        "step-00000005  已损坏",
        "  缺少“state.json”",
        "step-00000006  已损坏",
        "  “model.safetensors”的大小不正确：5/42 bytes",
        "  “state.json”的内容已改变",
    ]


def test_an_unknown_run_is_a_usage_error(run: Path) -> None:
    assert verify("nothing").exit_code == 2
