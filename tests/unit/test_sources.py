"""Summary and stamps of files and folders."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from app.core import sources
from app.core.sources import SourceSummary, summarize_sources


def write_file(path: Path, size: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_files_and_bytes_are_counted_and_the_most_frequent_format_is_first(tmp_path: Path) -> None:
    single = write_file(tmp_path / "一 个.csv", 100)
    for name in ("a.txt", "b.md", "下/c.txt.gz", "d.parquet", "picture.png", ".hidden.txt", ".git/config.txt"):
        write_file(tmp_path / "folder" / name)
    summary = summarize_sources([str(single), str(tmp_path / "folder")])
    assert replace(summary, modified_ns=0) == SourceSummary(files=5, bytes=140, formats=("text", "csv", "parquet"))


def test_a_selected_file_of_unknown_format_is_listed(tmp_path: Path) -> None:
    picture = str(write_file(tmp_path / "图 1.png"))
    summary = summarize_sources([picture, str(write_file(tmp_path / "a.txt"))])
    assert replace(summary, modified_ns=0) == SourceSummary(files=2, bytes=20, formats=("text",), unknown=(picture,))


def test_missing_and_inaccessible_sources_are_listed(tmp_path: Path) -> None:
    missing, impossible = str(tmp_path / "gone.txt"), "n" * 5000
    summary = summarize_sources([missing, str(write_file(tmp_path / "here.jsonl")), impossible])
    assert (summary.missing, summary.files, summary.formats) == ((missing, impossible), 1, ("jsonl",))


def test_a_folder_without_readable_files_is_a_problem(tmp_path: Path) -> None:
    assert summarize_sources([str(write_file(tmp_path / "相册" / "1.png").parent)]).has_problem


def test_a_summary_stops_at_the_limit_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_FILES", 5)
    for number in range(20):
        write_file(tmp_path / f"{number}.txt")
    summary = summarize_sources([str(tmp_path)])
    assert (summary.files, summary.truncated) == (5, True)


def test_a_changed_file_changes_the_summary_of_its_folder(tmp_path: Path) -> None:
    file = write_file(tmp_path / "sub" / "a.txt")
    before = summarize_sources([str(tmp_path)])
    assert summarize_sources([str(tmp_path)]) == before
    os.utime(file, ns=(before.modified_ns + 10**9,) * 2)
    assert summarize_sources([str(tmp_path)]) != before
