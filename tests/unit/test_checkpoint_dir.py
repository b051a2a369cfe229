"""Checkpoint folders: verification and rotation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer_core.runs import checkpoint_dir
from trainer_core.runs.checkpoint_dir import MANIFEST, CheckpointInfo, folder_name
from trainer_core.system import files


def write_checkpoint(root: Path, step: int, kind: str = "regular", loss: float | None = None) -> Path:
    folder = root / folder_name(step)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights" * step)
    (folder / "state.json").write_bytes(b"{}")
    checkpoint_dir.write_manifest(folder, step, kind, loss)
    return folder


def test_an_intact_checkpoint_is_valid(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 5, "best", 1.5)
    assert checkpoint_dir.find_problem(folder) is None
    assert checkpoint_dir.read_info(folder) == CheckpointInfo(folder, 5, "best", 1.5, 7 * 5 + 2)


def test_a_changed_byte_is_detected_by_its_hash(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 5)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[3] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    assert checkpoint_dir.find_problem(folder) == "the content of “model.safetensors” has changed"
    assert checkpoint_dir.find_problem(folder, hashes=False) is None


def test_a_truncated_or_missing_file_is_detected_without_hashing(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 5)
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
def test_a_damaged_manifest_is_a_problem_without_an_exception(tmp_path: Path, manifest: bytes) -> None:
    folder = write_checkpoint(tmp_path, 5)
    (folder / MANIFEST).write_bytes(manifest)
    assert checkpoint_dir.find_problem(folder)
    info = checkpoint_dir.read_info(folder)
    assert info is None or info.bytes == 0


@pytest.mark.parametrize("loss", ['"low"', "[1]", "{}"])
def test_a_manifest_with_an_invalid_loss_is_not_read(tmp_path: Path, loss: str) -> None:
    folder = write_checkpoint(tmp_path, 5)
    text = (folder / MANIFEST).read_text(encoding="utf-8").replace('"eval_loss": null', f'"eval_loss": {loss}')
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    assert checkpoint_dir.read_info(folder) is None


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_non_finite_loss_counts_as_not_measured(tmp_path: Path, loss: float) -> None:
    info = checkpoint_dir.read_info(write_checkpoint(tmp_path, 5, loss=loss))
    assert info is not None
    assert info.eval_loss is None


def test_a_folder_in_place_of_a_file_is_a_problem(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 5)
    (folder / "state.json").unlink()
    (folder / "state.json").mkdir()
    assert checkpoint_dir.find_problem(folder) == "“state.json” is missing"


def test_latest_valid_skips_damaged_checkpoints(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 90)
    newest_valid = write_checkpoint(tmp_path, 100)
    damaged = write_checkpoint(tmp_path, 110)
    (damaged / "model.safetensors").write_bytes(b"")
    (tmp_path / f"{checkpoint_dir.TEMPORARY_PREFIX}step-00000120").mkdir()
    (tmp_path / "notes").mkdir()
    found, skipped = checkpoint_dir.latest_valid(tmp_path)
    assert found == newest_valid
    assert [path for path, _ in skipped] == [damaged]


def test_latest_valid_of_a_missing_folder_is_none(tmp_path: Path) -> None:
    assert checkpoint_dir.latest_valid(tmp_path / "absent") == (None, [])


def test_checkpoints_are_sorted_by_step_beyond_eight_digits(tmp_path: Path) -> None:
    for step in (999_999_999, 20, 3):
        write_checkpoint(tmp_path, step) if step < 100 else (tmp_path / folder_name(step)).mkdir()
    assert [folder.name for folder in checkpoint_dir.list_checkpoints(tmp_path)] == [
        "step-00000003",
        "step-00000020",
        "step-999999999",
    ]


def info(step: int, loss: float | None = None, kind: str = "regular") -> CheckpointInfo:
    return CheckpointInfo(Path(folder_name(step)), step, kind, loss, 1)


def expired_steps(infos: list[CheckpointInfo], keep_last: int, keep_best: int) -> list[int]:
    return [expired.step for expired in checkpoint_dir.select_expired(infos, keep_last, keep_best)]


def test_rotation_keeps_the_last_best_and_final_checkpoints() -> None:
    infos = [info(1, 3.0), info(2, 1.0), info(3, kind="final"), info(4, 2.0), info(5, 4.0), info(6), info(7, 5.0)]
    assert expired_steps(infos, keep_last=2, keep_best=2) == [1, 5]
    assert expired_steps(infos, keep_last=1, keep_best=0) == [1, 2, 4, 5, 6]


def test_rotation_does_not_depend_on_the_order() -> None:
    infos = [info(3, 1.0), info(1, 2.0), info(2, 3.0)]
    assert expired_steps(infos, keep_last=1, keep_best=1) == [1, 2]


def test_the_first_of_equally_good_checkpoints_is_the_best() -> None:
    assert expired_steps([info(1, 1.0), info(2, 1.0), info(3, 9.0)], keep_last=1, keep_best=1) == [2]


def test_rotation_does_not_count_damaged_checkpoints() -> None:
    infos = [info(1, 3.0), info(2, 1.0), info(3, 2.0), info(4)]
    damaged = {infos[1].path, infos[3].path}
    expired = checkpoint_dir.select_expired(infos, 1, 1, damaged)
    assert [checkpoint.step for checkpoint in expired] == [1, 2], (
        "step 3 is the last and the best valid one; 4 is newer"
    )
    assert checkpoint_dir.select_expired(infos, 1, 0, {checkpoint.path for checkpoint in infos}) == [], (
        "without a valid checkpoint, all are kept"
    )


def test_verify_files_reports_the_problem_of_each_file(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 5)
    (folder / "model.safetensors").unlink()
    (folder / "state.json").write_bytes(b"[]")
    assert checkpoint_dir.verify_files(folder) == {
        "model.safetensors": "“model.safetensors” is missing",
        "state.json": "the content of “state.json” has changed",
    }


@pytest.mark.parametrize("name", ["../state.json", "/etc/passwd", "a/b", "..", ""])
def test_a_manifest_cannot_list_files_outside_the_folder(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path, 5)
    entry = {name: {"bytes": 2, "sha256": files.sha256(folder / "state.json")}}
    manifest = {"step": 5, "kind": "regular", "eval_loss": None, "files": entry}
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    assert checkpoint_dir.find_problem(folder) is not None


def test_the_cached_verification_detects_changes(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 5)
    assert checkpoint_dir.find_problem_cached(folder) is None
    (folder / "state.json").write_bytes(b"[]")
    assert checkpoint_dir.find_problem_cached(folder) == "the content of “state.json” has changed"


@pytest.mark.parametrize("bit", [0, 3, 5])
def test_any_flipped_bit_in_a_manifest_is_detected(tmp_path: Path, bit: int) -> None:
    folder = write_checkpoint(tmp_path, 5, loss=1.25)
    written = (folder / MANIFEST).read_bytes()
    for offset in range(len(written)):
        changed = bytearray(written)
        changed[offset] ^= 1 << bit
        (folder / MANIFEST).write_bytes(changed)
        assert checkpoint_dir.find_problem(folder) is not None, bytes(changed)
