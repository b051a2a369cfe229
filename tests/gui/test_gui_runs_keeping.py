"""Runs found, named, noted, archived, deleted, compared, laid over the plots, and gone on from."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from demo_run import write_run
from PySide6.QtCore import QFile, QPoint, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog, QLineEdit, QPushButton
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.state import run_notes
from app.state.run_machine import RunState
from app.state.run_notes import RunNotes
from app.state.run_rows import COLUMNS
from app.views.runs.comparing import Comparison
from app.views.runs.model import NAME, SHOWN
from app.views.runs.page import RunsPage
from app.views.runs.questions import DeleteQuestion
from tests.core.trainer import TINY, run, text_file
from tests.gui.conftest import MakeWindow
from trainer_core import checkpoint_dir

LEFT = Qt.MouseButton.LeftButton


def add(home: Path, name: str, age_s: float = 1000.0, *, done: bool = True, steps: int = 60, **knobs: object) -> Path:
    """A run with checkpoints at its third and at its end; `knobs`: settings that it had."""
    made = write_run(
        home / "runs" / name, "cpu", ["D:/资料/books.jsonl"], steps=steps, every=5, gpu=False, done=done, age_s=age_s
    )
    third = made.checkpoints / checkpoint_dir.folder_name(steps // 3)
    third.mkdir()
    (third / "model.safetensors").write_bytes(b"\0" * 2048)
    checkpoint_dir.write_manifest(third, steps // 3, "best", 2.5)
    config = yaml.safe_load(made.config.read_text(encoding="utf-8"))
    made.config.write_text(yaml.safe_dump({**config, **knobs}, allow_unicode=True), encoding="utf-8")
    return made.path


def hold(path: Path) -> None:
    """As if this process trained the run."""
    owner = {"pid": os.getpid(), "started": psutil.Process().create_time()}
    (path / "run.lock").write_text(json.dumps(owner), encoding="utf-8")


def open_page(qtbot: QtBot, controller: Controller, count: int) -> RunsPage:
    page = controller.window.runs
    controller.window.show_page("runs")
    qtbot.waitUntil(lambda: len(page.model.all_rows) == count, timeout=10_000)
    return page


def focus(qtbot: QtBot, page: RunsPage) -> None:
    """Keys go to the table."""
    page.window().activateWindow()
    page.table.setFocus()
    qtbot.waitUntil(page.table.hasFocus)


def names(page: RunsPage) -> list[str]:
    return [run.name for run in page.model.runs]


def press(qtbot: QtBot, controller: Controller, name: str) -> None:
    pressed = controller.window.findChild(QPushButton, name)
    assert pressed is not None
    assert pressed.isEnabled()
    qtbot.mouseClick(pressed, LEFT)


def said(page: RunsPage) -> str:
    return page.told.text.text() if page.told.isVisible() else ""


# --- finding -------------------------------------------------------------------------------------------


def test_the_search_filters_while_one_types_and_keeps_the_selection(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    noted = add(own_folders, "second", 2000)
    run_notes.write(noted, RunNotes(note="学习率 halved", tags=("长跑",)))
    first = add(own_folders, "first", 1000)
    page = open_page(qtbot, make_window(), 2)
    page.select([noted])
    for text in ("halved", "长跑", "sec"):
        page.search.clear()
        qtbot.waitUntil(lambda: len(names(page)) == 2)
        qtbot.keyClicks(page.search, text) if text.isascii() else page.search.setText(text)
        qtbot.waitUntil(lambda: names(page) == ["second"])
        assert page.paths() == [noted]
    page.search.setText("books first")
    qtbot.waitUntil(lambda: names(page) == ["first"])
    assert page.paths() == []
    page.search.setText("nothing of the kind")
    qtbot.waitUntil(page.empty.isVisible)
    assert "No run is found" in page.empty.text()
    assert first.is_dir()


def test_a_click_on_a_header_sorts_and_the_next_window_remembers_it(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    for number, steps in enumerate((40, 120, 80)):
        add(own_folders, f"run {number}", 1000.0 * number, steps=steps)
    controller = make_window()
    page = open_page(qtbot, controller, 3)
    assert names(page) == ["run 0", "run 1", "run 2"]
    header, column = page.table.horizontalHeader(), COLUMNS.index("step")
    at = QPoint(header.sectionViewportPosition(column) + 20, header.height() // 2)
    qtbot.mouseClick(header.viewport(), LEFT, pos=at)
    assert names(page) == ["run 0", "run 2", "run 1"]
    qtbot.mouseClick(header.viewport(), LEFT, pos=at)
    assert names(page) == ["run 1", "run 2", "run 0"]
    controller._save_settings()
    assert names(open_page(qtbot, make_window(), 3)) == ["run 1", "run 2", "run 0"]


# --- names, notes, the archive ---------------------------------------------------------------------------


def type_name(qtbot: QtBot, page: RunsPage, name: str) -> None:
    """F2, the name, Enter."""
    focus(qtbot, page)
    qtbot.keyClick(page.table, Qt.Key.Key_F2)
    qtbot.waitUntil(lambda: page.table.is_editing)
    editor = page.table.viewport().findChild(QLineEdit)
    assert editor is not None
    editor.setText(name)
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not page.table.is_editing)


def test_a_name_typed_in_the_table_renames_the_folder(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    run_notes.write(add(own_folders, "old"), RunNotes(note="kept"))
    page = open_page(qtbot, make_window(), 1)
    page.select([own_folders / "runs" / "old"])
    type_name(qtbot, page, "新的 name")
    qtbot.waitUntil(lambda: names(page) == ["新的 name"])
    assert page.paths() == [own_folders / "runs" / "新的 name"]
    assert page.details.note.toPlainText() == "kept"
    assert not (own_folders / "runs" / "old").exists()


@pytest.mark.parametrize(("name", "sentence"), [("b", "called “b” already"), ("a:b", "on Windows"), ("nul", "Windows")])
def test_a_name_that_cannot_be_is_refused_in_words(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path, name: str, sentence: str
) -> None:
    add(own_folders, "a", 1000)
    add(own_folders, "b", 2000)
    page = open_page(qtbot, make_window(), 2)
    page.select([own_folders / "runs" / "a"])
    type_name(qtbot, page, name)
    qtbot.waitUntil(lambda: sentence in said(page))
    assert names(page) == ["a", "b"]


def test_a_run_that_is_being_trained_is_neither_renamed_nor_deleted(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    path = add(own_folders, "busy", done=False)
    controller = make_window()
    page = open_page(qtbot, controller, 1)
    page.select([path])
    hold(path)  # after the last look
    controller.runs.rename(path, "other")
    assert "is being trained" in said(page)
    controller.runs.ask_deleting([path])
    assert "busy is being trained and stays" in said(page)
    assert controller.window.findChild(DeleteQuestion) is None
    assert path.is_dir()


def test_a_note_and_tags_are_kept_when_another_run_is_chosen(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    first, second = add(own_folders, "first", 1000), add(own_folders, "second", 2000)
    run_notes.write(second, RunNotes(tags=("baseline",)))
    page = open_page(qtbot, make_window(), 2)
    page.select([first])
    qtbot.keyClicks(page.details.note, "as it was")
    qtbot.keyClicks(page.details.tags, "new, base")
    assert page.details.tags._completer.currentCompletion() == "baseline"
    page.select([second])
    assert run_notes.read(first) == RunNotes(note="as it was", tags=("new", "base"))
    assert page.details.note.toPlainText() == ""
    assert page.details.tags.text() == "baseline"
    qtbot.waitUntil(lambda: page.model.rows[0].notes.note == "as it was")
    page.select([first])
    assert page.details.note.toPlainText() == "as it was"


def test_archived_runs_leave_the_table_and_come_back(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    paths = [add(own_folders, name, 1000 * age) for age, name in enumerate(("a", "b", "c"))]
    page = open_page(qtbot, make_window(), 3)
    page.select(paths[:2])
    page.runs_actions["archive"].trigger()
    qtbot.waitUntil(lambda: names(page) == ["c"])
    assert run_notes.read(paths[0]).archived
    page.shelf.setCurrentIndex(1)
    assert names(page) == ["a", "b"]
    page.select([paths[1]])
    assert page.runs_actions["archive"].text() == "Take out of the archive"
    page.runs_actions["archive"].trigger()
    qtbot.waitUntil(lambda: names(page) == ["a"])
    page.shelf.setCurrentIndex(2)
    assert names(page) == ["a", "b", "c"]


# --- deleting ----------------------------------------------------------------------------------------------


def question(qtbot: QtBot, controller: Controller) -> DeleteQuestion:
    def newest() -> DeleteQuestion | None:
        found = [asked for asked in controller.window.findChildren(DeleteQuestion) if asked.isVisible()]
        return found[-1] if found else None

    qtbot.waitUntil(lambda: newest() is not None)
    found = newest()
    assert found is not None
    return found


def test_runs_go_to_the_recycle_bin_after_a_question_that_tells_their_size(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(own_folders.parent))  # not the bin of whoever runs this
    paths = [add(own_folders, name, 1000 * age) for age, name in enumerate(("a", "b", "c"))]
    (paths[0] / "large").write_bytes(b"\0" * 3 * 1024 * 1024)
    controller = make_window()
    page = open_page(qtbot, controller, 3)
    page.select(paths[:2])
    focus(qtbot, page)
    qtbot.keyClick(page.table, Qt.Key.Key_Delete)
    asked = question(qtbot, controller)
    assert "Move 2 runs" in asked.text()
    qtbot.waitUntil(lambda: "On disk: 3." in asked.informativeText() and "…" not in asked.informativeText())
    assert paths[0].is_dir()
    qtbot.mouseClick(asked.delete, LEFT)
    qtbot.waitUntil(lambda: names(page) == ["c"], timeout=10_000)
    assert [path.exists() for path in paths] == [False, False, True]
    if sys.platform == "linux":
        assert (own_folders.parent / "Trash" / "files" / "a" / "large").is_file()


def test_without_a_recycle_bin_a_second_question_deletes_for_good(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QFile, "moveToTrash", lambda path: False)  # as on network disks
    path = add(own_folders, "a")
    controller = make_window()
    page = open_page(qtbot, controller, 1)
    controller.runs.ask_deleting([path])
    qtbot.mouseClick(question(qtbot, controller).delete, LEFT)
    qtbot.waitUntil(lambda: "for good" in question(qtbot, controller).text())
    assert path.is_dir()
    second = question(qtbot, controller)
    assert second.defaultButton() is not second.delete  # Enter deletes nothing
    qtbot.mouseClick(second.delete, LEFT)
    qtbot.waitUntil(lambda: not path.exists() and names(page) == [], timeout=10_000)


# --- comparing, plots ----------------------------------------------------------------------------------------


def test_a_comparison_shows_the_settings_that_differ_and_copies_them(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    paths = [add(own_folders, "a", 1000, learning_rate=1e-3), add(own_folders, "b", 2000, learning_rate=2e-3)]
    controller = make_window(language="zh")
    page = open_page(qtbot, controller, 2)
    page.select(paths[:1])
    assert not page.compare.isEnabled()
    page.select(paths)
    press(qtbot, controller, "compareRuns")
    qtbot.waitUntil(lambda: controller.window.findChild(Comparison) is not None)
    shown = controller.window.findChild(Comparison)
    assert shown is not None
    assert [row for row in shown.rows if row[0] == "学习率"] == [["学习率", "0.001", "0.002"]]
    assert not [row for row in shown.rows if row[0] in ("层数", "随机种子")]
    qtbot.mouseClick(shown.copy, LEFT)
    assert "学习率\t0.001\t0.002\n" in QGuiApplication.clipboard().text()
    shown.close()


def test_chosen_runs_are_laid_over_the_plots_until_they_are_gone(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QFile, "moveToTrash", lambda path: False)
    paths = [add(own_folders, name, 1000 * age) for age, name in enumerate(("a", "b", "c"))]
    controller = make_window()
    page = open_page(qtbot, controller, 3)
    page.select(paths[:2])
    press(qtbot, controller, "showRuns")
    kept = controller.runs.overlays
    qtbot.waitUntil(lambda: [one.name for one in kept.of_plots(None)] == ["a", "b"], timeout=10_000)
    store = kept.of_plots(None)[0].store
    assert len(store.series("train_loss")[0]) == 12
    assert page.show_runs.text() == "Hide in plots"
    controller.window.show_page("plots")
    controller.window.show_page("runs")
    assert list(kept.chosen) == paths[:2]
    index = page.model.index(0, SHOWN)
    qtbot.mouseClick(page.table.viewport(), LEFT, pos=page.table.visualRect(index).center())
    assert list(kept.chosen) == [paths[1]]
    controller.runs.rename(paths[1], "renamed")
    assert [one.name for one in kept.of_plots(None)] == ["renamed"]
    controller.runs._deleting.for_good([own_folders / "runs" / "renamed"])
    qtbot.waitUntil(lambda: kept.chosen == {}, timeout=10_000)
    assert kept.of_plots(None) == []


def test_the_run_that_the_plots_show_anyway_is_not_laid_over_itself(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    paths = [add(own_folders, name, 1000 * age) for age, name in enumerate(("a", "b"))]
    controller = make_window()
    open_page(qtbot, controller, 2)
    controller.runs.show_in_plots(paths, True)
    controller.open_run(paths[0])
    kept = controller.runs.overlays
    qtbot.waitUntil(lambda: [one.name for one in kept.of_plots(controller.runs._on_plots)] == ["b"], timeout=10_000)


def test_the_plots_have_room_for_ten_runs_and_say_so(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    paths = [add(own_folders, f"run {number}", 1000 * number, steps=15) for number in range(11)]
    controller = make_window()
    page = open_page(qtbot, controller, 11)
    controller.runs.show_in_plots(paths, True)
    assert len(controller.runs.overlays.chosen) == 10
    assert "room for ten" in said(page)


# --- from a checkpoint ---------------------------------------------------------------------------------------


def choose_checkpoint(qtbot: QtBot, page: RunsPage, path: Path, row: int) -> Path:
    page.select([path])
    listed = page.details.checkpoints
    qtbot.waitUntil(lambda: len(listed.model.saved) == 2)
    listed.table.selectRow(row)
    return listed.model.saved[row].info.path


def test_the_details_list_checkpoints_and_the_size_on_disk(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    path = add(own_folders, "a", steps=60)
    page = open_page(qtbot, make_window(), 1)
    choose_checkpoint(qtbot, page, path, 0)
    model = page.details.checkpoints.model
    rows = [[model.data(model.index(row, column)) for column in range(4)] for row in range(2)]
    assert rows == [["60", "final", "–", "1.0 KiB"], ["20", "best", "2.5000", "2.0 KiB"]]
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    qtbot.waitUntil(lambda: page.details.facts["size"][1].text().startswith(f"{size / 1024:.1f} KiB"))
    assert not page.details.checkpoints.resume.isEnabled()  # a finished run has nowhere to go on to from its end


def test_resume_from_an_older_checkpoint_trains_in_a_new_run(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    path = add(own_folders, "晚间 run", done=False)
    controller = make_window("echo")
    page = open_page(qtbot, controller, 1)
    checkpoint = choose_checkpoint(qtbot, page, path, 1)
    press(qtbot, controller, "resumeFrom")
    qtbot.waitUntil(lambda: controller.own.machine.state is RunState.TRAINING, timeout=20_000)
    given = controller.own.process.arguments
    assert given[given.index("--resume") + 1] == str(checkpoint)
    assert given[given.index("--run-dir") + 1] == str(path.with_name("晚间 run-from-20"))


def test_resume_from_the_newest_checkpoint_goes_on_with_the_run_itself(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    path = add(own_folders, "a", done=False)
    controller = make_window("echo")
    page = open_page(qtbot, controller, 1)
    choose_checkpoint(qtbot, page, path, 0)
    press(qtbot, controller, "resumeFrom")
    qtbot.waitUntil(lambda: controller.own.machine.state is RunState.TRAINING, timeout=20_000)
    given = controller.own.process.arguments
    assert given[given.index("--resume") + 1] == str(path)
    assert "--run-dir" not in given


def test_generate_from_here_opens_the_page_with_that_checkpoint(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    path = add(own_folders, "a")
    controller = make_window()
    page = open_page(qtbot, controller, 1)
    checkpoint = choose_checkpoint(qtbot, page, path, 1)
    press(qtbot, controller, "generateFrom")
    assert controller.window.tabs.currentWidget() is controller.window.pages["try"]
    assert controller.trier.voices[0].choice.checkpoint == checkpoint


def test_a_real_checkpoint_is_exported_and_its_folder_offered(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_folders.mkdir(parents=True, exist_ok=True)
    flags = (*TINY, "--max-steps", "2", "--eval-steps", "0", "--sample-steps", "0")
    data = ("--data", str(text_file(own_folders)), "--run-dir", str(own_folders / "runs" / "真 run"))
    assert run(own_folders, "train", *flags, *data).code == 0
    target = own_folders.parent / "模型 export"
    target.mkdir()
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(target))
    controller = make_window()
    page = open_page(qtbot, controller, 1)
    page.select([own_folders / "runs" / "真 run"])
    qtbot.waitUntil(page.details.checkpoints.export.isEnabled)
    press(qtbot, controller, "exportFrom")
    assert not page.details.checkpoints.export.isEnabled()
    qtbot.waitUntil(lambda: "Exported to" in said(page), timeout=30_000)
    assert (target / "model.safetensors").is_file()
    assert page.told_folder.isVisible()
    press(qtbot, controller, "exportFrom")  # that folder is not empty any more
    qtbot.waitUntil(lambda: (target / "真 run-step-00000002" / "README.md").is_file(), timeout=30_000)


def test_a_checkpoint_that_lacks_files_is_told_in_words(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    path = add(own_folders, "a")
    controller = make_window()
    page = open_page(qtbot, controller, 1)
    checkpoint = choose_checkpoint(qtbot, page, path, 1)
    controller.runs.exporter.start(checkpoint, own_folders.parent / "out")
    qtbot.waitUntil(lambda: "is damaged: config.json is missing" in said(page), timeout=30_000)
    assert not (own_folders.parent / "out").exists()


def test_enter_opens_the_selected_run(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    path = add(own_folders, "a")
    controller = make_window()
    page = open_page(qtbot, controller, 1)
    page.select([path])
    focus(qtbot, page)
    page.table.setCurrentIndex(page.model.index(0, NAME))
    qtbot.keyClick(page.table, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: controller.viewing is not None and controller.viewing.loaded == 1.0, timeout=10_000)
    assert controller.viewing is not None
    assert controller.viewing.summary.path == path
