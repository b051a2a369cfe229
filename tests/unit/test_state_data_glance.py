"""What files seem to be, by their names and sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core import source_summary
from app.core.source_summary import SourceSummary, summarize_sources


def write(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_files_and_folders_are_summed_up_and_the_most_frequent_format_comes_first(tmp_path: Path) -> None:
    single = write(tmp_path / "一 个.csv", 100)
    for name in ("a.txt", "b.md", "下/c.txt.gz", "d.parquet", "picture.png"):
        write(tmp_path / "folder" / name)
    seen = summarize_sources([str(single), str(tmp_path / "folder")])
    assert seen == SourceSummary(files=5, bytes=140, formats=("text", "csv", "parquet"))


def test_a_file_that_was_chosen_itself_and_whose_name_tells_no_kind_is_named(tmp_path: Path) -> None:
    picture = str(write(tmp_path / "图 1.png"))
    seen = summarize_sources([picture, str(write(tmp_path / "a.txt"))])
    assert seen == SourceSummary(files=2, bytes=20, formats=("text",), unknown=(picture,))


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / ".git" / "config.txt")
    write(tmp_path / ".hidden.txt")
    write(tmp_path / "seen.txt")
    assert summarize_sources([str(tmp_path)]).files == 1


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.txt")
    seen = summarize_sources([gone, str(write(tmp_path / "here.jsonl"))])
    assert (seen.missing, seen.files, seen.formats) == ((gone,), 1, ("jsonl",))


def test_what_cannot_even_be_asked_for_counts_as_missing() -> None:
    impossible = "n" * 5000
    assert summarize_sources([impossible]).missing == (impossible,)


def test_a_folder_with_very_many_files_is_not_counted_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_summary, "MAX_FILES", 5)
    for number in range(20):
        write(tmp_path / f"{number}.txt")
    seen = summarize_sources([str(tmp_path)])
    assert (seen.files, seen.truncated) == (5, True)


def test_who_is_not_wanted_any_more_stops(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / f"{number}.txt")
    seen = summarize_sources([str(tmp_path)], should_continue=lambda: False)
    assert (seen.files, seen.truncated) == (0, True)


def test_a_folder_of_pictures_holds_nothing_that_can_be_read(tmp_path: Path) -> None:
    assert summarize_sources([str(write(tmp_path / "相册" / "1.png").parent)]).has_problem
