"""Checkpoint folders: damage is found, and rotation keeps what it promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer_core.runs import checkpoint_dir
from trainer_core.runs.checkpoint_dir import MANIFEST, CheckpointInfo, folder_name
from trainer_core.system import files


def make(root: Path, step: int, kind: str = "regular", loss: float | None = None) -> Path:
    folder = root / folder_name(step)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights" * step)
    (folder / "state.json").write_bytes(b"{}")
    checkpoint_dir.write_manifest(folder, step, kind, loss)
    return folder


def test_a_whole_checkpoint_is_found_whole(tmp_path: Path) -> None:
    folder = make(tmp_path, 5, "best", 1.5)
    assert checkpoint_dir.find_problem(folder) is None
    assert checkpoint_dir.read_info(folder) == CheckpointInfo(folder, 5, "best", 1.5, 7 * 5 + 2)


def test_a_changed_byte_is_found_by_its_hash_only(tmp_path: Path) -> None:
    folder = make(tmp_path, 5)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[3] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    assert checkpoint_dir.find_problem(folder) == "the content of “model.safetensors” has changed"
    assert checkpoint_dir.find_problem(folder, hashes=False) is None


def test_a_cut_or_missing_file_is_found_without_hashing(tmp_path: Path) -> None:
    folder = make(tmp_path, 5)
    (folder / "model.safetensors").write_bytes(b"wei")
    assert checkpoint_dir.find_problem(folder, hashes=False) == "“model.safetensors” has the wrong size: 3/35 bytes"
    (folder / "model.safetensors").unlink()
    assert checkpoint_dir.find_problem(folder, hashes=False) == "“model.safetensors” is missing"


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{}",
        b'{"step": 1, "kind": "regular", "eval_loss": null, "files": {}}',
        b'{"step": 1, "kind": "regular", "eval_loss": null, "files": []}',
        b'{"step": 1, "kind": "regular", "eval_loss": null, "files": ["model.safetensors"]}',
        b'{"step": 1, "kind": "regular", "eval_loss": null, "files": {"model.safetensors": 3}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_manifest_is_a_problem_and_never_an_exception(tmp_path: Path, manifest: bytes) -> None:
    folder = make(tmp_path, 5)
    (folder / MANIFEST).write_bytes(manifest)
    assert checkpoint_dir.find_problem(folder)
    info = checkpoint_dir.read_info(folder)
    assert info is None or info.bytes == 0


@pytest.mark.parametrize("loss", ['"low"', "[1]", "{}"])
def test_a_manifest_with_a_senseless_loss_is_not_read(tmp_path: Path, loss: str) -> None:
    folder = make(tmp_path, 5)
    text = (folder / MANIFEST).read_text(encoding="utf-8").replace('"eval_loss": null', f'"eval_loss": {loss}')
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    assert checkpoint_dir.read_info(folder) is None


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_counts_as_not_measured(tmp_path: Path, loss: float) -> None:
    info = checkpoint_dir.read_info(make(tmp_path, 5, loss=loss))
    assert info is not None
    assert info.eval_loss is None


def test_a_folder_without_manifest_is_a_problem(tmp_path: Path) -> None:
    folder = make(tmp_path, 5)
    (folder / MANIFEST).unlink()
    assert MANIFEST in (checkpoint_dir.find_problem(folder) or "")
    assert checkpoint_dir.read_info(folder) is None


def test_a_folder_where_a_file_should_be_is_a_problem(tmp_path: Path) -> None:
    folder = make(tmp_path, 5)
    (folder / "state.json").unlink()
    (folder / "state.json").mkdir()
    assert checkpoint_dir.find_problem(folder) == "“state.json” is missing"


def test_the_latest_is_the_newest_that_is_whole(tmp_path: Path) -> None:
    make(tmp_path, 90)
    good = make(tmp_path, 100)
    damaged = make(tmp_path, 110)
    (damaged / "model.safetensors").write_bytes(b"")
    (tmp_path / f"{checkpoint_dir.TEMPORARY_PREFIX}step-00000120").mkdir()
    (tmp_path / "notes").mkdir()
    found, skipped = checkpoint_dir.latest_valid(tmp_path)
    assert found == good
    assert [path for path, _ in skipped] == [damaged]


def test_there_is_no_latest_where_there_is_nothing(tmp_path: Path) -> None:
    assert checkpoint_dir.latest_valid(tmp_path / "absent") == (None, [])


def test_checkpoints_are_listed_by_step_also_beyond_eight_digits(tmp_path: Path) -> None:
    for step in (999_999_999, 20, 3):
        make(tmp_path, step) if step < 100 else (tmp_path / folder_name(step)).mkdir()
    assert [folder.name for folder in checkpoint_dir.list_checkpoints(tmp_path)] == [
        "step-00000003",
        "step-00000020",
        "step-999999999",
    ]


def info(step: int, loss: float | None = None, kind: str = "regular") -> CheckpointInfo:
    return CheckpointInfo(Path(folder_name(step)), step, kind, loss, 1)


def removed(infos: list[CheckpointInfo], keep_last: int, keep_best: int) -> list[int]:
    return [gone.step for gone in checkpoint_dir.select_expired(infos, keep_last, keep_best)]


def test_rotation_keeps_the_last_the_best_and_the_final_ones() -> None:
    infos = [info(1, 3.0), info(2, 1.0), info(3, kind="final"), info(4, 2.0), info(5, 4.0), info(6), info(7, 5.0)]
    assert removed(infos, keep_last=2, keep_best=2) == [1, 5]
    assert removed(infos, keep_last=1, keep_best=0) == [1, 2, 4, 5, 6]


def test_rotation_does_not_care_in_which_order_it_is_told() -> None:
    infos = [info(3, 1.0), info(1, 2.0), info(2, 3.0)]
    assert removed(infos, keep_last=1, keep_best=1) == [1, 2]


def test_of_equally_good_checkpoints_the_first_is_the_best() -> None:
    assert removed([info(1, 1.0), info(2, 1.0), info(3, 9.0)], keep_last=1, keep_best=1) == [2]


def test_rotation_removes_nothing_while_there_are_few() -> None:
    assert removed([info(1), info(2)], keep_last=2, keep_best=1) == []


def test_the_manifest_covers_every_file_but_itself(tmp_path: Path) -> None:
    folder = make(tmp_path, 2)
    checkpoint_dir.write_manifest(folder, 2, "final", None)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    assert set(manifest["files"]) == {"model.safetensors", "state.json"}


def test_a_damaged_checkpoint_takes_no_place_that_a_whole_one_needs() -> None:
    infos = [info(1, 3.0), info(2, 1.0), info(3, 2.0), info(4)]
    damaged = {infos[1].path, infos[3].path}
    gone = checkpoint_dir.select_expired(infos, 1, 1, damaged)
    assert [one.step for one in gone] == [1, 2], "3 is the last and the best; 4 is newer, and may be looked into"
    assert checkpoint_dir.select_expired(infos, 1, 0, {one.path for one in infos}) == [], "without a whole one all stay"


def test_what_is_wrong_is_said_of_every_file(tmp_path: Path) -> None:
    folder = make(tmp_path, 5)
    (folder / "model.safetensors").unlink()
    (folder / "state.json").write_bytes(b"[]")
    assert checkpoint_dir.verify_files(folder) == {
        "model.safetensors": "“model.safetensors” is missing",
        "state.json": "the content of “state.json” has changed",
    }


@pytest.mark.parametrize("name", ["../state.json", "/etc/passwd", "a/b", "..", ""])
def test_a_manifest_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path, 5)
    entry = {name: {"bytes": 2, "sha256": files.sha256(folder / "state.json")}}
    manifest = {"step": 5, "kind": "regular", "eval_loss": None, "files": entry}
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    assert checkpoint_dir.find_problem(folder) is not None


def test_a_file_is_hashed_again_when_it_has_changed(tmp_path: Path) -> None:
    folder = make(tmp_path, 5)
    assert checkpoint_dir.find_problem_cached(folder) is None
    (folder / "state.json").write_bytes(b"[]")
    assert checkpoint_dir.find_problem_cached(folder) == "the content of “state.json” has changed"


@pytest.mark.parametrize("bit", [0, 3, 5])
def test_a_bit_that_has_flipped_anywhere_in_a_manifest_is_found(tmp_path: Path, bit: int) -> None:
    folder = make(tmp_path, 5, loss=1.25)
    written = (folder / MANIFEST).read_bytes()
    for place in range(len(written)):
        changed = bytearray(written)
        changed[place] ^= 1 << bit
        (folder / MANIFEST).write_bytes(changed)
        assert checkpoint_dir.find_problem(folder) is not None, bytes(changed)


def test_a_manifest_without_a_hash_of_its_own_still_counts(tmp_path: Path) -> None:
    folder = make(tmp_path, 5)
    manifest = json.loads((folder / MANIFEST).read_bytes())
    del manifest["sha256"]
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    assert checkpoint_dir.find_problem(folder) is None
