"""Runs found, named, noted, archived and deleted."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from PySide6.QtCore import QFile, QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit, QWidget
from pytestqt.qtbot import QtBot
from runs_page import LEFT, add, focus, hold, names, open_page, said

from app.controller import Controller
from app.core.history import run_notes
from app.core.history.run_notes import RunNotes
from app.core.history.run_rows import RUN_COLUMNS
from app.core.run_state import RunState
from app.pages.runs.dialogs import DeleteDialog
from app.pages.runs.page import RunsPage
from tests.gui.conftest import MakeWindow
from trainer_core.restart_policy import Restart

# --- finding -------------------------------------------------------------------------------------------


def test_the_search_filters_while_one_types_and_keeps_the_selection(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    noted = add(own_folders, "second", 2000)
    run_notes.write_notes(noted, RunNotes(note="学习率 halved", tags=("长跑",)))
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
    header, column = page.table.horizontalHeader(), RUN_COLUMNS.index("step")
    at = QPoint(header.sectionViewportPosition(column) + 20, header.height() // 2)
    qtbot.mouseClick(header.viewport(), LEFT, pos=at)
    assert names(page) == ["run 0", "run 2", "run 1"]
    qtbot.mouseClick(header.viewport(), LEFT, pos=at)
    assert names(page) == ["run 1", "run 2", "run 0"]
    qtbot.mouseClick(page.toggle_details, LEFT)
    assert not page.details.isVisible()
    controller._save_settings()
    again = open_page(qtbot, make_window(), 3)
    assert names(again) == ["run 1", "run 2", "run 0"]
    assert not again.details.isVisible()


def test_columns_that_were_moved_and_made_wider_come_back(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    add(own_folders, "run", 1000.0)
    controller = make_window()
    controller.window.resize(1280, 720)
    page = open_page(qtbot, controller, 1)
    header, loss, step = page.table.horizontalHeader(), RUN_COLUMNS.index("loss"), RUN_COLUMNS.index("step")
    edge = QPoint(header.sectionViewportPosition(loss) + header.sectionSize(loss) - 1, header.height() // 2)
    drag(header.viewport(), edge, edge + QPoint(40, 0))
    wide = header.sectionSize(loss)
    assert wide > 100
    middle = QPoint(header.sectionViewportPosition(loss) + 30, header.height() // 2)
    drag(header.viewport(), middle, QPoint(header.sectionViewportPosition(step) + 10, middle.y()))
    assert header.visualIndex(loss) < header.visualIndex(step)
    controller._save_settings()
    again = open_page(qtbot, make_window(), 1).table.horizontalHeader()
    assert again.visualIndex(loss) < again.visualIndex(step)
    assert again.sectionSize(loss) == wide


def drag(over: QWidget, start: QPoint, end: QPoint) -> None:
    """In steps, as a hand does it."""
    QTest.mousePress(over, LEFT, Qt.KeyboardModifier.NoModifier, start)
    for part in range(1, 9):
        QTest.mouseMove(over, start + (end - start) * part / 8)
    QTest.mouseRelease(over, LEFT, Qt.KeyboardModifier.NoModifier, end)


def test_the_menu_sorts_too_without_a_run_that_is_chosen(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    for number, steps in enumerate((40, 120, 80)):
        add(own_folders, f"run {number}", 1000.0 * number, steps=steps)
    page = open_page(qtbot, make_window(), 3)
    assert page.more.isEnabled()
    assert page.sort_menu.menuAction() in page.menu.actions()
    focus(qtbot, page)
    for expected in (["run 0", "run 2", "run 1"], ["run 1", "run 2", "run 0"]):
        page.menu.popup(page.mapToGlobal(QPoint(0, 0)))
        qtbot.keyClick(page.menu, Qt.Key.Key_Up)  # the last one: by what
        qtbot.keyClick(page.menu, Qt.Key.Key_Right)
        qtbot.waitUntil(page.sort_menu.isVisible)
        page.sort_menu.setActiveAction(page.sort_menu.columns["step"])
        qtbot.keyClick(page.sort_menu, Qt.Key.Key_Return)
        assert names(page) == expected
        page.menu.hide()
    page.sort_menu.aboutToShow.emit()
    assert page.sort_menu.columns["step"].isChecked()


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
    run_notes.write_notes(add(own_folders, "old"), RunNotes(note="kept"))
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


def refuses_to_touch(controller: Controller, page: RunsPage, path: Path) -> None:
    controller.runs_controller.rename(path, "other")
    assert "is being trained" in said(page)
    controller.runs_controller.confirm_delete([path])
    assert f"{path.name} is being trained and stays" in said(page)
    assert controller.window.findChild(DeleteDialog) is None
    assert path.is_dir()


def test_a_run_that_is_being_trained_is_neither_renamed_nor_deleted(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    path = add(own_folders, "busy", done=False)
    controller = make_window()
    page = open_page(qtbot, controller, 1)
    page.select([path])
    hold(path)  # after the last look
    refuses_to_touch(controller, page, path)


def test_a_run_of_this_window_that_just_starts_is_neither_renamed_nor_deleted(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    path = add(own_folders, "young", done=False)  # its trainer holds no lock yet
    controller = make_window("echo")
    page = open_page(qtbot, controller, 1)
    controller.active_run.start(["train"], path)
    controller.window.show_page("runs")
    assert controller.active_run.machine.state is RunState.STARTING
    refuses_to_touch(controller, page, path)


def test_a_note_and_tags_are_kept_when_another_run_is_chosen(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    first, second = add(own_folders, "first", 1000), add(own_folders, "second", 2000)
    run_notes.write_notes(second, RunNotes(tags=("baseline",)))
    page = open_page(qtbot, make_window(), 2)
    page.select([first])
    qtbot.keyClicks(page.details.note, "as it was")
    qtbot.keyClicks(page.details.tags, "new, base")
    assert page.details.tags._completer.currentCompletion() == "baseline"
    page.select([second])
    assert run_notes.read_notes(first) == RunNotes(note="as it was", tags=("new", "base"))
    assert page.details.note.toPlainText() == ""
    assert page.details.tags.text() == "baseline"
    qtbot.waitUntil(lambda: page.table.proxy.rows[0].notes.note == "as it was")
    page.select([first])
    assert page.details.note.toPlainText() == "as it was"


def test_archived_runs_leave_the_table_and_come_back(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    paths = [add(own_folders, name, 1000 * age) for age, name in enumerate(("a", "b", "c"))]
    page = open_page(qtbot, make_window(), 3)
    page.select(paths[:2])
    page.run_actions["archive"].trigger()
    qtbot.waitUntil(lambda: names(page) == ["c"])
    assert run_notes.read_notes(paths[0]).archived
    page.archive_filter.setCurrentIndex(1)
    assert names(page) == ["a", "b"]
    page.select([paths[1]])
    assert page.run_actions["archive"].text() == "Take out of the archive"
    page.run_actions["archive"].trigger()
    qtbot.waitUntil(lambda: names(page) == ["a"])
    page.archive_filter.setCurrentIndex(2)
    assert names(page) == ["a", "b", "c"]


# --- deleting ----------------------------------------------------------------------------------------------


def question(qtbot: QtBot, controller: Controller) -> DeleteDialog:
    def newest() -> DeleteDialog | None:
        found = [asked for asked in controller.window.findChildren(DeleteDialog) if asked.isVisible()]
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
    qtbot.mouseClick(asked.delete_button, LEFT)
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
    controller.runs_controller.confirm_delete([path])
    qtbot.mouseClick(question(qtbot, controller).delete_button, LEFT)
    qtbot.waitUntil(lambda: "for good" in question(qtbot, controller).text())
    assert path.is_dir()
    second = question(qtbot, controller)
    assert second.defaultButton() is not second.delete_button  # Enter deletes nothing
    qtbot.mouseClick(second.delete_button, LEFT)
    qtbot.waitUntil(lambda: not path.exists() and names(page) == [], timeout=10_000)


def test_runs_deleted_while_others_still_go_are_gone_too_and_all_is_told(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(own_folders.parent))
    paths = [add(own_folders, name, 1000 * age) for age, name in enumerate("abcd")]
    controller = make_window()
    page = open_page(qtbot, controller, 4)
    runs, gone = controller.runs_controller, []
    runs.run_moved.connect(lambda old, new: gone.append((old, new)))
    runs._delete(paths[:2], runs._run_deleter.move_to_trash)
    runs._delete(paths[1:3], runs._run_deleter.move_to_trash)  # one of them twice
    qtbot.waitUntil(lambda: names(page) == ["d"], timeout=10_000)
    assert {old for old, new in gone if new is None} == set(paths[:3])
    assert [path.exists() for path in paths] == [False, False, False, True]
    assert controller.window.findChild(DeleteDialog) is None


def test_files_of_a_run_that_waits_for_its_deletion_are_closed_when_its_turn_comes(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(QFile, "moveToTrash", lambda path: seen.append(("bin", Path(path).name)))
    paths = [add(own_folders, name, 1000 * age) for age, name in enumerate("ab")]
    controller = make_window()
    open_page(qtbot, controller, 2)
    runs = controller.runs_controller
    runs.folder_closing.connect(lambda path: seen.append(("leaving", path.name)))
    for path in paths:
        runs._delete([path], runs._run_deleter.move_to_trash)
    qtbot.waitUntil(lambda: len(seen) == 4, timeout=10_000)
    assert seen == [("leaving", "a"), ("bin", "a"), ("leaving", "b"), ("bin", "b")]


def test_a_run_that_would_restart_by_itself_does_not_once_it_is_being_deleted(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(own_folders.parent))
    paths = [add(own_folders, name, 1000 * age, done=False) for age, name in enumerate("ab")]
    controller = make_window()
    page = open_page(qtbot, controller, 2)
    own, runs = controller.active_run, controller.runs_controller
    own.machine.run_dir, own.machine.state = str(paths[0]), RunState.CRASHED
    own.auto_restart.pending = waiting = Restart(1, 2, 1000.0, "failure.launch", 20)
    own.auto_restart._due_at = time.monotonic() + 1000.0
    runs._delete([paths[1]], runs._run_deleter.move_to_trash)
    qtbot.waitUntil(lambda: names(page) == ["a"], timeout=10_000)
    assert own.auto_restart.pending is waiting  # another run's affair
    runs._delete([paths[0]], runs._run_deleter.move_to_trash)
    assert own.auto_restart.pending is None  # before anything of it is gone
    assert paths[0].is_dir()
    qtbot.waitUntil(lambda: names(page) == [], timeout=10_000)


# --- where else a run is seen ------------------------------------------------------------------------------


def test_the_title_bears_the_name_that_a_run_has_now(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    path = add(own_folders, "first name", done=False)
    controller = make_window()
    window, own = controller.window, controller.active_run
    page = open_page(qtbot, controller, 1)
    own.machine.run_dir, own.machine.state = str(path), RunState.STOPPED
    page.select([path])
    type_name(qtbot, page, "第二个名字")
    qtbot.waitUntil(lambda: window.windowTitle() == "第二个名字 – Traindeck")
    controller.set_language("zh")
    assert window.windowTitle() == "第二个名字 – Traindeck"
    controller.runs_controller._on_run_folder_moved(path.with_name("第二个名字"), None)
    qtbot.waitUntil(lambda: window.windowTitle() == "Traindeck")


def overlaid(controller: Controller) -> list[str]:
    return [run.name for run in controller.window.plots._state.overlays]


@pytest.mark.parametrize("leaves", ["archive", "delete"])
def test_a_run_that_is_put_away_leaves_the_plots(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(own_folders.parent))
    paths = [add(own_folders, name, 1000 * age) for age, name in enumerate("ab")]
    controller = make_window()
    page = open_page(qtbot, controller, 2)
    page.select(paths)
    page.run_actions["show"].trigger()
    qtbot.waitUntil(lambda: overlaid(controller) == ["a", "b"])
    page.select([paths[0]])
    page.run_actions[leaves].trigger()
    if leaves == "delete":
        qtbot.mouseClick(question(qtbot, controller).delete_button, LEFT)
    qtbot.waitUntil(lambda: names(page) == ["b"] and overlaid(controller) == ["b"], timeout=10_000)
    assert list(page.model.overlays) == [paths[1]]


def test_the_eye_of_the_run_on_show_has_the_colour_of_its_curve(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    paths = [add(own_folders, name, 1000 * age) for age, name in enumerate("ab")]
    controller = make_window()
    page = open_page(qtbot, controller, 2)
    controller.open_run(paths[0])
    page.select(paths)
    page.run_actions["show"].trigger()
    qtbot.waitUntil(lambda: overlaid(controller) == ["b"])
    assert page.model.overlays[paths[0]] == "curve_a"
    assert page.model.overlays[paths[1]] == controller.window.plots._state.overlays[0].color
    controller.open_run(paths[1])
    qtbot.waitUntil(lambda: overlaid(controller) == ["a"])
    assert page.model.overlays[paths[1]] == "curve_a"
    assert page.model.overlays[paths[0]] == controller.window.plots._state.overlays[0].color
