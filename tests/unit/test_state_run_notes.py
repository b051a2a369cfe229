"""Notes, tags and the archive of a run, in its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.core.history import run_notes
from app.core.history.run_list import RunHistory
from app.core.history.run_notes import NOTES_FILE, RunNotes, parse_tags

NOTES = RunNotes(note="第一行\nsecond", tags=("长跑", "base line"), archived=True)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    run_notes.write_notes(tmp_path, NOTES)
    assert run_notes.read_notes(tmp_path) == NOTES


def test_a_run_without_notes_has_empty_ones(tmp_path: Path) -> None:
    assert run_notes.read_notes(tmp_path) == RunNotes()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 100_000, b"x" * 2_000_000, b'{"note": 3}']
)
def test_damage_costs_no_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NOTES_FILE).write_bytes(content)
    assert run_notes.read_notes(tmp_path) == RunNotes()


def test_a_value_of_the_wrong_type_costs_that_value_only(tmp_path: Path) -> None:
    (tmp_path / NOTES_FILE).write_text('{"note": "kept", "tags": 7, "archived": true}', encoding="utf-8")
    assert run_notes.read_notes(tmp_path) == RunNotes(note="kept", archived=True)


def test_a_damaged_file_is_put_aside_rather_than_overwritten(tmp_path: Path) -> None:
    (tmp_path / NOTES_FILE).write_bytes(b'{"note": "half of a no')
    run_notes.write_notes(tmp_path, NOTES)
    (aside,) = tmp_path.glob(f"{NOTES_FILE}.damaged-*")
    assert aside.read_bytes() == b'{"note": "half of a no'
    assert run_notes.read_notes(tmp_path) == NOTES


def test_what_a_later_version_wrote_beside_ours_stays(tmp_path: Path) -> None:
    (tmp_path / NOTES_FILE).write_text('{"note": "a", "stars": 5}', encoding="utf-8")
    run_notes.write_notes(tmp_path, RunNotes(note="b"))
    assert json.loads((tmp_path / NOTES_FILE).read_text(encoding="utf-8"))["stars"] == 5


def test_a_note_makes_no_folder_for_a_run_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        run_notes.write_notes(tmp_path / "gone", NOTES)
    assert not (tmp_path / "gone").exists()


def test_tags_are_divided_by_commas_and_each_is_there_once() -> None:
    assert parse_tags(" a,  two   words , A ,,中文，标签、b；c;d") == ("a", "two words", "中文", "标签", "b", "c", "d")
    assert parse_tags(" , ,") == ()
    assert len(parse_tags(",".join(map(str, range(100))))) == 30


def test_the_history_finds_notes_that_changed_on_disk(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("preset: cpu\n", encoding="utf-8")
    history = RunHistory(tmp_path)
    history.refresh()
    assert history.notes(run) == RunNotes()
    history.set_notes(run, RunNotes(note="ours"))
    assert history.notes(run).note == "ours"
    run_notes.write_notes(run, RunNotes(note="of another window"))
    history.refresh()
    assert history.notes(run).note == "of another window"
