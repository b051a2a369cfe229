"""Summary and stamps of files and folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core import sources
from app.core.sources import SourceStampCache, SourceSummary, source_stamp, summarize_sources


def write(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_files_are_totalled_with_the_most_frequent_format_first(tmp_path: Path) -> None:
    single = write(tmp_path / "一 个.csv", 100)
    for name in ("a.txt", "b.md", "下/c.txt.gz", "d.parquet", "picture.png", ".hidden.txt", ".git/config.txt"):
        write(tmp_path / "folder" / name)
    summary = summarize_sources([str(single), str(tmp_path / "folder")])
    assert summary == SourceSummary(files=5, bytes=140, formats=("text", "csv", "parquet"))


def test_a_selected_file_of_unknown_format_is_listed(tmp_path: Path) -> None:
    picture = str(write(tmp_path / "图 1.png"))
    summary = summarize_sources([picture, str(write(tmp_path / "a.txt"))])
    assert summary == SourceSummary(files=2, bytes=20, formats=("text",), unknown=(picture,))


def test_missing_and_inaccessible_sources_are_listed(tmp_path: Path) -> None:
    missing, impossible = str(tmp_path / "gone.txt"), "n" * 5000
    summary = summarize_sources([missing, str(write(tmp_path / "here.jsonl")), impossible])
    assert (summary.missing, summary.files, summary.formats) == ((missing, impossible), 1, ("jsonl",))


def test_a_folder_without_readable_files_is_a_problem(tmp_path: Path) -> None:
    assert summarize_sources([str(write(tmp_path / "相册" / "1.png").parent)]).has_problem


def test_a_summary_ends_at_the_limit_or_when_it_is_outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_FILES", 5)
    for number in range(20):
        write(tmp_path / f"{number}.txt")
    summary = summarize_sources([str(tmp_path)])
    assert (summary.files, summary.truncated) == (5, True)
    summary = summarize_sources([str(tmp_path)], lambda: False)
    assert (summary.files, summary.truncated) == (0, True)


def test_a_stamp_changes_with_its_file_or_the_files_of_its_folder(tmp_path: Path) -> None:
    file = write(tmp_path / "sub" / "a.txt")
    before = source_stamp(str(file)), source_stamp(str(tmp_path))
    write(file, 20)
    after = source_stamp(str(file)), source_stamp(str(tmp_path))
    assert before[0] != after[0]
    assert before[1] != after[1]
    write(file.parent / "b.txt", 0)
    assert source_stamp(str(tmp_path)) != after[1]
    assert source_stamp(str(file)) == after[0]
    assert source_stamp("builtin:python") == source_stamp(str(tmp_path / "gone")) == source_stamp("n" * 5000)


def test_stamps_are_cached_for_some_seconds_unless_refreshed(tmp_path: Path) -> None:
    now = [0.0]
    file, stamps = write(tmp_path / "a.txt"), SourceStampCache(lambda: now[0])
    first = stamps.get([str(file)])
    write(file, 20)
    assert stamps.get([str(file)]) == first
    second = stamps.get([str(file)], refresh=True)
    assert second != first
    write(file, 30)
    now[0] = 60.0
    assert stamps.get([str(file)]) not in (first, second)
