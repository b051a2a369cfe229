"""Runs page: search, sort, rename, notes, archive and delete."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from PySide6.QtCore import QFile, QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit, QWidget
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.history import run_notes
from app.core.history.run_notes import RunNotes
from app.core.run_state import RunState
from app.pages.runs.dialogs import DeleteDialog
from app.pages.runs.page import RunsPage
from app.pages.runs.table import RUN_COLUMNS
from tests.gui.conftest import LEFT, MakeWindow, click
from tests.gui.runs_page import add_run, focus_table, lock_run, message, names, open_page
from trainer_core.restart_policy import Restart

# --- search and sort -------------------------------------------------------------------------------------------


def test_the_search_filters_while_typing_and_keeps_the_selection(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    with_notes = add_run(home, "second", 2000)
    run_notes.write_notes(with_notes, RunNotes(note="学习率 halved", tags=("长跑",)))
    first = add_run(home, "first", 1000)
    page = open_page(qtbot, make_window(), 2)
    page.table.select([with_notes])
    for text in ("halved", "长跑", "sec"):
        page.search.clear()
        qtbot.waitUntil(lambda: len(names(page)) == 2)
        qtbot.keyClicks(page.search, text) if text.isascii() else page.search.setText(text)
        qtbot.waitUntil(lambda: names(page) == ["second"])
        assert page.paths() == [with_notes]
    page.search.setText("books first")
    qtbot.waitUntil(lambda: names(page) == ["first"])
    assert page.paths() == []
    page.search.setText("nothing of the kind")
    qtbot.waitUntil(page.empty.isVisible)
    assert "No matching runs" in page.empty.text()
    assert first.is_dir()


def test_the_sort_order_is_restored_in_the_next_window(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    for number, steps in enumerate((40, 120, 80)):
        add_run(home, f"run {number}", 1000.0 * number, steps=steps)
    controller = make_window()
    page = open_page(qtbot, controller, 3)
    assert names(page) == ["run 0", "run 1", "run 2"]
    header, column = page.table.horizontalHeader(), list(RUN_COLUMNS).index("step")
    position = QPoint(header.sectionViewportPosition(column) + 20, header.height() // 2)
    qtbot.mouseClick(header.viewport(), LEFT, pos=position)
    assert names(page) == ["run 0", "run 2", "run 1"]
    qtbot.mouseClick(header.viewport(), LEFT, pos=position)
    assert names(page) == ["run 1", "run 2", "run 0"]
    controller._save_settings()
    restored = open_page(qtbot, make_window(), 3)
    assert names(restored) == ["run 1", "run 2", "run 0"]


def test_column_order_and_widths_are_restored_in_the_next_window(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    add_run(home, "run", 1000.0)
    controller = make_window()
    controller.window.resize(1280, 720)
    page = open_page(qtbot, controller, 1)
    header, loss, step = page.table.horizontalHeader(), list(RUN_COLUMNS).index("loss"), list(RUN_COLUMNS).index("step")
    edge = QPoint(header.sectionViewportPosition(loss) + header.sectionSize(loss) - 1, header.height() // 2)
    drag(header.viewport(), edge, edge + QPoint(40, 0))
    width = header.sectionSize(loss)
    assert width > 100
    middle = QPoint(header.sectionViewportPosition(loss) + 30, header.height() // 2)
    drag(header.viewport(), middle, QPoint(header.sectionViewportPosition(step) + 10, middle.y()))
    assert header.visualIndex(loss) < header.visualIndex(step)
    controller._save_settings()
    restored = open_page(qtbot, make_window(), 1).table.horizontalHeader()
    assert restored.visualIndex(loss) < restored.visualIndex(step)
    assert restored.sectionSize(loss) == width


def drag(widget: QWidget, start: QPoint, end: QPoint) -> None:
    """Drag the mouse in several steps."""
    QTest.mousePress(widget, LEFT, Qt.KeyboardModifier.NoModifier, start)
    for step in range(1, 9):
        QTest.mouseMove(widget, start + (end - start) * step / 8)
    QTest.mouseRelease(widget, LEFT, Qt.KeyboardModifier.NoModifier, end)


def test_the_menu_sorts_without_a_selected_run(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    for number, steps in enumerate((40, 120, 80)):
        add_run(home, f"run {number}", 1000.0 * number, steps=steps)
    page = open_page(qtbot, make_window(), 3)
    assert page.more.isEnabled()
    assert page.table.sort_menu.menuAction() in page.table.menu.actions()
    focus_table(qtbot, page)
    for expected in (["run 0", "run 2", "run 1"], ["run 1", "run 2", "run 0"]):
        page.table.menu.popup(page.mapToGlobal(QPoint(0, 0)))
        qtbot.keyClick(page.table.menu, Qt.Key.Key_Up)  # the last entry, the sort menu
        qtbot.keyClick(page.table.menu, Qt.Key.Key_Right)
        qtbot.waitUntil(page.table.sort_menu.isVisible)
        page.table.sort_menu.setActiveAction(page.table.sort_menu.actions()[list(RUN_COLUMNS).index("step")])
        qtbot.keyClick(page.table.sort_menu, Qt.Key.Key_Return)
        assert names(page) == expected
        page.table.menu.hide()


# --- names, notes, the archive ---------------------------------------------------------------------------


def type_name(qtbot: QtBot, page: RunsPage, name: str) -> None:
    """Rename the selected run by keyboard."""
    focus_table(qtbot, page)
    qtbot.keyClick(page.table, Qt.Key.Key_F2)
    qtbot.waitUntil(lambda: page.table.is_editing)
    editor = page.table.viewport().findChild(QLineEdit)
    assert editor is not None
    editor.setText(name)
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: not page.table.is_editing)


def test_editing_a_name_renames_the_run_folder(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    run_notes.write_notes(add_run(home, "old"), RunNotes(note="kept"))
    page = open_page(qtbot, make_window(), 1)
    page.table.select([home / "runs" / "old"])
    type_name(qtbot, page, "新的 name")
    qtbot.waitUntil(lambda: names(page) == ["新的 name"])
    assert page.paths() == [home / "runs" / "新的 name"]
    assert page.details.note.toPlainText() == "kept"
    assert not (home / "runs" / "old").exists()


def test_an_invalid_name_is_rejected_with_a_message(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    add_run(home, "a", 1000)
    add_run(home, "b", 2000)
    page = open_page(qtbot, make_window(), 2)
    page.table.select([home / "runs" / "a"])
    for name, text in (("b", "named “b” already"), ("a:b", "on Windows"), ("nul", "Windows")):
        type_name(qtbot, page, name)
        qtbot.waitUntil(lambda text=text: text in message(page))
        page.show_message("")
    assert names(page) == ["a", "b"]


def assert_rename_and_delete_are_rejected(controller: Controller, page: RunsPage, path: Path) -> None:
    controller.window.runs.folders.rename(path, "other")
    assert "is training" in message(page)
    controller.window.runs.folders.confirm_delete([path])
    assert f"{path.name} is training. Stop it" in message(page)
    assert controller.window.findChild(DeleteDialog) is None
    assert path.is_dir()


def test_a_run_that_another_process_trains_is_not_renamed_or_deleted(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    path = add_run(home, "busy", done=False)
    controller = make_window()
    page = open_page(qtbot, controller, 1)
    page.table.select([path])
    lock_run(path)  # after the last refresh
    assert_rename_and_delete_are_rejected(controller, page, path)


def test_a_starting_run_is_not_renamed_or_deleted(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    path = add_run(home, "starting", done=False)  # not locked by its trainer yet
    controller = make_window("echo")
    page = open_page(qtbot, controller, 1)
    controller.active_run.start(["train"], path)
    controller.window.show_page("runs")
    assert controller.active_run.machine.state is RunState.STARTING
    assert_rename_and_delete_are_rejected(controller, page, path)


def test_note_and_tags_are_saved_when_another_run_is_selected(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    first, second = add_run(home, "first", 1000), add_run(home, "second", 2000)
    run_notes.write_notes(second, RunNotes(tags=("baseline",)))
    page = open_page(qtbot, make_window(), 2)
    page.table.select([first])
    qtbot.keyClicks(page.details.note, "as it was")
    qtbot.keyClicks(page.details.tags, "new, base")
    page.table.select([second])
    assert run_notes.read_notes(first) == RunNotes(note="as it was", tags=("new", "base"))
    assert page.details.note.toPlainText() == ""
    assert page.details.tags.text() == "baseline"
    qtbot.waitUntil(lambda: page.model.rows[0].notes.note == "as it was")
    page.table.select([first])
    assert page.details.note.toPlainText() == "as it was"


def test_archived_runs_are_hidden_until_restored(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    paths = [add_run(home, name, 1000 * age) for age, name in enumerate(("a", "b", "c"))]
    page = open_page(qtbot, make_window(), 3)
    page.table.select(paths[:2])
    page.run_actions["archive"].trigger()
    qtbot.waitUntil(lambda: names(page) == ["c"])
    assert run_notes.read_notes(paths[0]).archived
    page.archive_filter.setCurrentIndex(1)
    assert names(page) == ["a", "b"]
    page.table.select([paths[1]])
    assert page.run_actions["archive"].text() == "Unarchive"
    page.run_actions["archive"].trigger()
    qtbot.waitUntil(lambda: names(page) == ["a"])
    page.archive_filter.setCurrentIndex(2)
    assert names(page) == ["a", "b", "c"]


# --- deleting ----------------------------------------------------------------------------------------------


def wait_for_delete_dialog(qtbot: QtBot, controller: Controller) -> DeleteDialog:
    """Wait for a visible dialog. Returns the newest."""

    def visible() -> list[DeleteDialog]:
        return [dialog for dialog in controller.window.findChildren(DeleteDialog) if dialog.isVisible()]

    qtbot.waitUntil(lambda: bool(visible()))
    return visible()[-1]


def test_deleting_runs_names_them_and_moves_them_to_the_recycle_bin(
    make_window: MakeWindow, qtbot: QtBot, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(home.parent))  # not the user's own recycle bin
    paths = [add_run(home, name, 1000 * age) for age, name in enumerate(("a", "b", "c"))]
    controller = make_window()
    page = open_page(qtbot, controller, 3)
    page.table.select(paths[:2])
    focus_table(qtbot, page)
    qtbot.keyClick(page.table, Qt.Key.Key_Delete)
    dialog = wait_for_delete_dialog(qtbot, controller)
    assert "Move 2 runs" in dialog.text()
    assert dialog.informativeText() == "a\nb"
    assert paths[0].is_dir()
    click(qtbot, dialog.delete_button)
    qtbot.waitUntil(lambda: names(page) == ["c"], timeout=10_000)
    assert [path.exists() for path in paths] == [False, False, True]
    if sys.platform == "linux":
        assert (home.parent / "Trash" / "files" / "a" / "config.yaml").is_file()


def test_without_a_recycle_bin_a_second_dialog_deletes_permanently(
    make_window: MakeWindow, qtbot: QtBot, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QFile, "moveToTrash", lambda path: False)  # as on network drives
    path = add_run(home, "a")
    controller = make_window()
    page = open_page(qtbot, controller, 1)
    controller.window.runs.folders.confirm_delete([path])
    click(qtbot, wait_for_delete_dialog(qtbot, controller).delete_button)
    qtbot.waitUntil(lambda: "permanently" in wait_for_delete_dialog(qtbot, controller).text())
    assert path.is_dir()
    second = wait_for_delete_dialog(qtbot, controller)
    assert second.defaultButton() is not second.delete_button  # Enter does not delete
    click(qtbot, second.delete_button)
    qtbot.waitUntil(lambda: not path.exists() and names(page) == [], timeout=10_000)


def test_the_files_of_a_run_are_closed_immediately_before_it_is_deleted(
    make_window: MakeWindow, qtbot: QtBot, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(QFile, "moveToTrash", lambda path: calls.append(("bin", Path(path).name)))
    paths = [add_run(home, name, 1000 * age) for age, name in enumerate("ab")]
    controller = make_window()
    open_page(qtbot, controller, 2)
    runs = controller.window.runs
    runs.folders.closing.connect(lambda path: calls.append(("closing", path.name)))
    for path in paths:
        runs.folders.delete([path])
    qtbot.waitUntil(lambda: len(calls) == 4, timeout=10_000)
    assert calls == [("closing", "a"), ("bin", "a"), ("closing", "b"), ("bin", "b")]


def test_deleting_a_run_cancels_its_automatic_restart(
    make_window: MakeWindow, qtbot: QtBot, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(home.parent))
    paths = [add_run(home, name, 1000 * age, done=False) for age, name in enumerate("ab")]
    controller = make_window()
    page = open_page(qtbot, controller, 2)
    active_run, folders = controller.active_run, controller.window.runs.folders
    active_run.machine.run_dir, active_run.machine.state = str(paths[0]), RunState.CRASHED
    active_run.auto_restart.pending = pending = Restart(1, 2, 1000.0, "failure.launch", 20)
    active_run.auto_restart._due_at = time.monotonic() + 1000.0
    folders.delete([paths[1]])
    qtbot.waitUntil(lambda: names(page) == ["a"], timeout=10_000)
    assert active_run.auto_restart.pending is pending  # belongs to the other run
    folders.delete([paths[0]])
    assert active_run.auto_restart.pending is None  # before its files are deleted
    qtbot.waitUntil(lambda: names(page) == [], timeout=10_000)


# --- title and plots ------------------------------------------------------------------------------


def test_the_window_title_contains_the_name_of_the_run(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    path = add_run(home, "first name", done=False)
    controller = make_window()
    window, machine = controller.window, controller.active_run.machine
    page = open_page(qtbot, controller, 1)
    machine.run_dir, machine.state = str(path), RunState.STOPPED
    page.table.select([path])
    type_name(qtbot, page, "第二个名字")
    qtbot.waitUntil(lambda: window.windowTitle() == "第二个名字 – Traindeck")
    controller.set_language("zh")
    assert window.windowTitle() == "第二个名字 – Traindeck"
    controller.window.runs.folders._on_moved(path.with_name("第二个名字"), None)
    qtbot.waitUntil(lambda: window.windowTitle() == "Traindeck")


def overlay_names(controller: Controller) -> list[str]:
    return [run.name for run in controller.window.plots.painter.overlays]


@pytest.mark.parametrize("action", ["archive", "delete"])
def test_archived_and_deleted_runs_are_removed_from_the_plots(
    make_window: MakeWindow, qtbot: QtBot, home: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(home.parent))
    paths = [add_run(home, name, 1000 * age) for age, name in enumerate("ab")]
    controller = make_window()
    page = open_page(qtbot, controller, 2)
    page.table.select(paths)
    page.run_actions["show"].trigger()
    qtbot.waitUntil(lambda: overlay_names(controller) == ["a", "b"])
    page.table.select([paths[0]])
    page.run_actions[action].trigger()
    if action == "delete":
        click(qtbot, wait_for_delete_dialog(qtbot, controller).delete_button)
    qtbot.waitUntil(lambda: names(page) == ["b"] and overlay_names(controller) == ["b"], timeout=10_000)
    assert list(page.model.overlays) == [paths[1]]


def test_the_icon_of_the_displayed_run_has_the_color_of_its_curve(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    paths = [add_run(home, name, 1000 * age) for age, name in enumerate("ab")]
    controller = make_window()
    page = open_page(qtbot, controller, 2)
    controller.open_run(paths[0])
    page.table.select(paths)
    page.run_actions["show"].trigger()
    qtbot.waitUntil(lambda: overlay_names(controller) == ["b"])
    assert page.model.overlays[paths[0]] == "curve_a"
    assert page.model.overlays[paths[1]] == controller.window.plots.painter.overlays[0].color
    controller.open_run(paths[1])
    qtbot.waitUntil(lambda: overlay_names(controller) == ["a"])
    assert page.model.overlays[paths[1]] == "curve_a"
    assert page.model.overlays[paths[0]] == controller.window.plots.painter.overlays[0].color
