"""Table of the runs: search, filter and order."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.core.history.run_list import RunRow
from app.core.history.run_notes import RunNotes
from app.pages.runs.table import RUN_COLUMNS, RunsModel, RunsProxy, RunsTable
from app.theme.palette import LIGHT
from trainer_core.runs.run_dir import RunState, RunSummary


def row(name: str, started: float = 0.0, *, note: str = "", tags: tuple[str, ...] = (), archived: bool = False,
        state: RunState = "finished", preset: str = "", data: tuple[str, ...] = (), best_loss: float | None = None,
        step: int = 0) -> RunRow:  # fmt: skip
    run = RunSummary(Path("runs") / name, state, started, preset, list(data), step=step, best_loss=best_loss)
    return RunRow(run, RunNotes(note=note, tags=tags, archived=archived))


def make_table(qtbot: QtBot, *rows: RunRow) -> tuple[RunsTable, RunsModel, RunsProxy]:
    model = RunsModel(LIGHT)
    proxy = RunsProxy(model)
    table = RunsTable(model, proxy)
    table.setParent(None)
    qtbot.addWidget(table)
    model.set_rows(rows)
    return table, model, proxy


def names(table: RunsTable) -> list[str]:
    return [row.run.name for row in table.shown_rows()]


def sort(table: RunsTable, column: str, *, descending: bool = False) -> list[str]:
    order = Qt.SortOrder.DescendingOrder if descending else Qt.SortOrder.AscendingOrder
    table.sortByColumn(list(RUN_COLUMNS).index(column), order)
    return names(table)


def test_numbers_in_names_sort_by_value(qtbot: QtBot) -> None:
    table, *_ = make_table(qtbot, row("run 10"), row("Run 9"), row("run 1"), row("晚间"), row("2 first"))
    assert sort(table, "name") == ["2 first", "run 1", "Run 9", "run 10", "晚间"]


def test_runs_without_a_value_are_last_and_equal_runs_newest_first_in_both_directions(qtbot: QtBot) -> None:
    rows = row("new", 2.0), row("low", 1.0, best_loss=1.0), row("high", 0.0, best_loss=2.0), row("old", -1.0)
    table, *_ = make_table(qtbot, *rows)
    assert sort(table, "loss") == ["low", "high", "new", "old"]
    assert sort(table, "loss", descending=True) == ["high", "low", "new", "old"]


def test_the_search_covers_name_preset_data_tags_note_and_state(qtbot: QtBot) -> None:
    searched = row(
        "晚间-长跑", preset="a6000", data=("D:/secret folder/Books.parquet",), tags=("Base",), note="学习率 HIGH"
    )
    table, _, proxy = make_table(qtbot, searched, row("other", preset="cpu", state="failed"))
    for text, expected in (
        *((text, ["晚间-长跑"]) for text in ("长跑", "A6000", "books", "base", "学习率", "high", "finish", "a60 base")),
        ("cpu", ["other"]),
        ("a6000 cpu", []),
        ("secret", []),  # folders are not searched
        ("  ", ["晚间-长跑", "other"]),
    ):
        proxy.set_filter(text, archived=False)
        assert names(table) == expected, text


def test_archived_runs_have_their_own_filter(qtbot: QtBot) -> None:
    table, _, proxy = make_table(qtbot, row("a", 2.0), row("b", 1.0, archived=True))
    for archived, expected in ((False, ["a"]), (True, ["b"]), (None, ["a", "b"])):
        proxy.set_filter("", archived)
        assert names(table) == expected


def test_selection_and_current_row_are_kept_when_other_runs_are_added_or_removed(qtbot: QtBot) -> None:
    first, second, third = row("first", 3.0), row("second", 2.0), row("third", 1.0)
    table, model, _ = make_table(qtbot, first, second, third)
    table.select([second.path, third.path])
    changes: list[list[Path]] = []
    table.selection_changed.connect(lambda: changes.append(table.selected_keys()))
    model.set_rows([row("newest", 4.0), first, row("second", 2.0, note="changed"), third])
    assert table.selected_keys() == [second.path, third.path]
    assert table.currentIndex().data() == "second"
    assert changes == []
    model.set_rows([first, third])
    assert table.selected_keys() == [third.path]
    assert changes[-1] == [third.path]
    model.set_rows([])
    assert (names(table), table.selected_keys()) == ([], [])
