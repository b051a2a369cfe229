"""Order and search of the runs table, run folders, and differences between configurations."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import psutil

from app.core.history import run_files, run_rows
from app.core.history.run_list import RunRow
from app.core.history.run_notes import RunNotes
from app.core.history.run_rows import matches_search, natural_sort_key, sort_rows
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunState, RunSummary


def row(name: str, started: float = 0.0, *, note: str = "", tags: tuple[str, ...] = (), archived: bool = False,
        state: RunState = "finished", preset: str = "", data: tuple[str, ...] = (), best_loss: float | None = None,
        step: int = 0) -> RunRow:  # fmt: skip
    run = RunSummary(Path("runs") / name, state, started, preset, list(data), step=step, best_loss=best_loss)
    return RunRow(run, RunNotes(note=note, tags=tags, archived=archived))


def search_rows(rows: list[RunRow], text: str) -> list[RunRow]:
    states = {"finished": "已完成"}
    return [row for row in rows if matches_search(row, text, states.get(row.run.state, row.run.state))]


def names(rows: list[RunRow]) -> list[str]:
    return [row.run.name for row in rows]


def test_numbers_in_names_sort_by_value() -> None:
    rows = [row("run 10"), row("Run 9"), row("run 1"), row("晚间"), row("2 first")]
    sorted_rows = sort_rows(rows, lambda row: natural_sort_key(row.run.name), descending=False)
    assert names(sorted_rows) == ["2 first", "run 1", "Run 9", "run 10", "晚间"]


def test_runs_without_a_value_are_last_in_both_directions() -> None:
    rows = [row("none"), row("low", best_loss=1.0), row("high", best_loss=2.0)]
    for descending, expected in ((False, ["low", "high", "none"]), (True, ["high", "low", "none"])):
        assert names(sort_rows(rows, lambda row: row.run.best_loss, descending=descending)) == expected


def test_equal_runs_are_sorted_newest_first() -> None:
    rows = [row("old", 1.0), row("new", 2.0)]
    for descending in (False, True):
        assert names(sort_rows(rows, lambda row: 0, descending=descending)) == ["new", "old"]


def test_the_search_covers_name_preset_data_tags_note_and_state() -> None:
    rows = [
        row(
            "晚间-长跑",
            preset="a6000",
            data=("D:/secret folder/Books.parquet",),
            tags=("Base",),
            note="学习率 HIGH",
        ),
        row("other", preset="cpu", state="failed"),
    ]
    for text in ("长跑", "A6000", "books", "base", "学习率", "high", "已完成", "a60 base"):
        assert names(search_rows(rows, text)) == ["晚间-长跑"], text
    assert names(search_rows(rows, "cpu")) == ["other"]
    assert search_rows(rows, "a6000 cpu") == []
    assert search_rows(rows, "secret") == []  # folders are not searched
    assert len(search_rows(rows, "  ")) == 2


def test_archived_runs_have_their_own_filter() -> None:
    rows = [row("a"), row("b", archived=True)]
    found = {
        archive_filter: [r.run.name for r in rows if run_rows.matches_archive_filter(r, archive_filter)]
        for archive_filter in run_rows.ARCHIVE_FILTERS
    }
    assert found == {"current": ["a"], "archived": ["b"], "all": ["a", "b"]}


def test_only_settings_that_differ_are_compared_and_a_missing_one_has_its_default() -> None:
    configs = [{"learning_rate": 3e-4, "seed": 1}, {"learning_rate": 1e-3, "seed": 1}, {"seed": 1}]
    [(knob, values)] = run_files.config_differences(configs)
    assert knob.name == "learning_rate"
    assert values == [3e-4, 1e-3, knob.default]
    assert run_files.config_differences([{"dropout": 0}, {"dropout": 0.0}]) == []


# --- folders -------------------------------------------------------------------------------------------


def make(root: Path, name: str) -> Path:
    path = root / name
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").write_text("preset: cpu\n", encoding="utf-8")
    return path


def test_existing_names_and_those_that_windows_does_not_allow_are_rejected(tmp_path: Path) -> None:
    run = make(tmp_path, "run")
    make(tmp_path, "other")
    problems = {"ok 名字": "", "run": "", "": "empty", "other": "taken"}
    problems |= dict.fromkeys(("a/b", "a:b", "CON", "com1.txt", "dot.", " blank", "x" * 81, ".."), "impossible")
    for name, problem in problems.items():
        assert run_files.name_problem(run, name) == problem, name


def test_a_running_or_missing_run_cannot_be_renamed(tmp_path: Path) -> None:
    run = make(tmp_path, "run")
    owner = {"pid": os.getpid(), "started": psutil.Process().create_time()}
    (run / "run.lock").write_text(json.dumps(owner), encoding="utf-8")
    assert run_files.name_problem(run, "new") == "running"
    assert run_files.name_problem(tmp_path / "gone", "new") == "gone"


def test_the_size_of_a_folder_counts_every_file_once(tmp_path: Path) -> None:
    run = make(tmp_path, "run")
    (run / "checkpoints" / "a").write_bytes(b"x" * 1000)
    (run / "b").write_bytes(b"x" * 10)
    linked = 0
    with contextlib.suppress(OSError):  # Windows without the right to create links
        (run / "link").symlink_to(run)
        linked = (run / "link").lstat().st_size
    assert list(run_files.iter_folder_size(run))[-1] == 1010 + len(f"preset: cpu{os.linesep}") + linked
    assert list(run_files.iter_folder_size(tmp_path / "gone")) == []


def test_checkpoints_are_listed_newest_first_without_damaged_manifests(tmp_path: Path) -> None:
    run = make(tmp_path, "run")
    for step in (5, 20, 10):
        folder = run / "checkpoints" / checkpoint_dir.folder_name(step)
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"x" * step)
        checkpoint_dir.write_manifest(folder, step, "regular", None)
    (folder / checkpoint_dir.MANIFEST).write_bytes(b"{")
    assert [saved.info.step for saved in run_files.iter_checkpoints(run)] == [20, 5]


def test_a_run_from_a_checkpoint_gets_an_unused_name_next_to_the_original(tmp_path: Path) -> None:
    run = make(tmp_path, "晚间 run")
    first = run_files.new_branch_path(run, 500)
    assert first == tmp_path / "晚间 run-from-500"
    first.mkdir()
    assert run_files.new_branch_path(run, 500).name == "晚间 run-from-500-2"
