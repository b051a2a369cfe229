"""The order and the search of the table of runs, their differences, and the rules for their folders."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import psutil
import pytest

from app.core.history import run_files, run_rows
from app.core.history.config_diff import config_differences, format_tsv
from app.core.history.run_notes import RunNotes
from app.core.history.run_rows import RUN_COLUMNS, RunRow, matches_search, sort_rows, tags_by_frequency
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


def test_numbers_in_names_count_as_numbers() -> None:
    rows = [row("run 10"), row("Run 9"), row("run 1"), row("晚间"), row("2 first")]
    assert names(sort_rows(rows, "name", descending=False)) == ["2 first", "run 1", "Run 9", "run 10", "晚间"]


@pytest.mark.parametrize("descending", [False, True])
def test_runs_without_a_value_stand_last_in_both_directions(descending: bool) -> None:
    rows = [row("none"), row("low", best_loss=1.0), row("high", best_loss=2.0)]
    expected = ["high", "low"] if descending else ["low", "high"]
    assert names(sort_rows(rows, "loss", descending=descending)) == [*expected, "none"]


def test_equal_runs_stand_newest_first() -> None:
    rows = [row("old", 1.0, preset="cpu"), row("new", 2.0, preset="cpu")]
    for descending in (False, True):
        assert names(sort_rows(rows, "preset", descending=descending)) == ["new", "old"]


def test_every_column_can_be_sorted_by() -> None:
    rows = [row("a", 1.0, tags=("x",), data=("D:/a.txt",), best_loss=1.0), row("b", 2.0, state="running")]
    for column in RUN_COLUMNS:
        assert sorted(names(sort_rows(rows, column, descending=True))) == ["a", "b"]


def test_runs_on_the_plots_come_first() -> None:
    rows = [row("a", 3.0), row("b", 2.0)]
    assert names(sort_rows(rows, "shown", descending=False, overlays=[rows[1].path])) == ["b", "a"]


def test_the_search_looks_at_name_preset_data_tags_note_and_state() -> None:
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
    assert search_rows(rows, "secret") == []  # the folder is not on show
    assert len(search_rows(rows, "  ")) == 2


def test_the_archive_is_a_shelf_of_its_own() -> None:
    rows = [row("a"), row("b", archived=True)]
    found = {
        shelf: [r.run.name for r in rows if run_rows.matches_archive_filter(r, shelf)]
        for shelf in run_rows.ARCHIVE_FILTERS
    }
    assert found == {"current": ["a"], "archived": ["b"], "all": ["a", "b"]}


def test_the_tags_in_use_are_offered_the_most_used_first() -> None:
    assert tags_by_frequency([row("a", tags=("x", "y")), row("b", tags=("y",)), row("c", tags=("b",))]) == [
        "y",
        "b",
        "x",
    ]


def test_only_settings_that_differ_are_listed_and_a_missing_one_is_its_default() -> None:
    found = config_differences([{"learning_rate": 3e-4, "seed": 1}, {"learning_rate": 1e-3, "seed": 1}, {"seed": 1}])
    (one,) = found
    assert one.knob.name == "learning_rate"
    assert one.values == (3e-4, 1e-3, one.knob.default)
    assert config_differences([{"dropout": 0}, {"dropout": 0.0}]) == []


def test_a_table_to_paste_has_one_line_a_row_whatever_stands_in_it() -> None:
    assert format_tsv([["a", "b\tc"], ["d\ne", ""]]) == "a\tb c\nd e\t\n"


# --- folders -------------------------------------------------------------------------------------------


def make(root: Path, name: str) -> Path:
    path = root / name
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").write_text("preset: cpu\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("ok 名字", ""), ("", "empty"), ("a/b", "impossible"), ("a:b", "impossible"), ("CON", "impossible"),
        ("com1.txt", "impossible"), ("dot.", "impossible"), (" blank", "impossible"), ("x" * 81, "impossible"),
        ("..", "impossible"), ("other", "taken"), ("run", ""),
    ],
)  # fmt: skip
def test_names_that_windows_refuses_or_that_exist_are_refused(tmp_path: Path, name: str, problem: str) -> None:
    run = make(tmp_path, "run")
    make(tmp_path, "other")
    assert run_files.name_problem(run, name) == problem


def test_a_run_that_is_being_trained_keeps_its_name(tmp_path: Path) -> None:
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
    with contextlib.suppress(OSError):  # Windows without the right to make links
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


def test_a_new_run_from_a_checkpoint_gets_a_free_name_beside_its_origin(tmp_path: Path) -> None:
    run = make(tmp_path, "晚间 run")
    first = run_files.new_branch_path(run, 500)
    assert first == tmp_path / "晚间 run-from-500"
    first.mkdir()
    assert run_files.new_branch_path(run, 500).name == "晚间 run-from-500-2"
