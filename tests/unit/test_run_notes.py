"""Notes, tags and archive flag of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.history import run_notes
from app.core.history.run_list import RunList
from app.core.history.run_notes import NOTES_FILE, RunNotes, parse_tags

NOTES = RunNotes(note="第一行\nsecond", tags=("长跑", "base line"), archived=True)


def test_written_notes_are_read_back(tmp_path: Path) -> None:
    run_notes.write_notes(tmp_path, NOTES)
    assert run_notes.read_notes(tmp_path) == NOTES


def test_a_run_without_a_notes_file_has_empty_notes(tmp_path: Path) -> None:
    assert run_notes.read_notes(tmp_path) == RunNotes()


def test_a_damaged_file_is_read_as_empty_notes(tmp_path: Path) -> None:
    damaged = (b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 100_000, b"x" * 2_000_000, b'{"note": 3}')
    for content in damaged:
        (tmp_path / NOTES_FILE).write_bytes(content)
        assert run_notes.read_notes(tmp_path) == RunNotes()


def test_a_damaged_file_is_renamed_instead_of_overwritten(tmp_path: Path) -> None:
    (tmp_path / NOTES_FILE).write_bytes(b'{"note": "half of a no')
    run_notes.write_notes(tmp_path, NOTES)
    (backup,) = tmp_path.glob(f"{NOTES_FILE}.damaged-*")
    assert backup.read_bytes() == b'{"note": "half of a no'
    assert run_notes.read_notes(tmp_path) == NOTES


def test_a_file_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / NOTES_FILE).mkdir()
    with pytest.raises(OSError, match=NOTES_FILE):
        run_notes.write_notes(tmp_path, NOTES)
    assert [path.name for path in tmp_path.iterdir()] == [NOTES_FILE]


def test_no_notes_are_written_for_a_run_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        run_notes.write_notes(tmp_path / "gone", NOTES)
    assert not (tmp_path / "gone").exists()


def test_tags_are_separated_by_commas_without_duplicates() -> None:
    assert parse_tags(" a,  two   words , A ,,中文，标签、b；c;d") == ("a", "two words", "中文", "标签", "b", "c", "d")
    assert parse_tags(" , ,") == ()


def test_a_refresh_reads_notes_that_another_window_changed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("preset: cpu\n", encoding="utf-8")
    history = RunList(tmp_path)
    history.refresh()
    assert history.notes(run) == RunNotes()
    history.set_notes(run, RunNotes(note="this window"))
    assert history.notes(run).note == "this window"
    run_notes.write_notes(run, RunNotes(note="another window"))
    history.refresh()
    assert history.notes(run).note == "another window"
