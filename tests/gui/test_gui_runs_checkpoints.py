"""Runs page: comparison, overlays, and actions on checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QFile, Qt
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from app.pages.runs.dialogs import ComparisonDialog
from app.pages.runs.page import RunsPage
from app.pages.runs.table import SHOWN
from tests.gui.conftest import LEFT, MakeWindow, click, wait_for_state
from tests.gui.runs_page import add_run, message, open_page, press_button

# --- comparison and overlays ----------------------------------------------------------------------------------------


def test_a_comparison_lists_and_copies_settings_that_differ(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    paths = [add_run(home, "a", 1000, learning_rate=1e-3), add_run(home, "b", 2000, learning_rate=2e-3)]
    controller = make_window(language="zh")
    page = open_page(qtbot, controller, 2)
    page.table.select(paths[:1])
    assert not page.compare.isEnabled()
    page.table.select(paths)
    press_button(qtbot, controller, "compareRuns")
    qtbot.waitUntil(lambda: controller.window.findChild(ComparisonDialog) is not None)
    dialog = controller.window.findChild(ComparisonDialog)
    assert dialog is not None
    assert [row for row in dialog.rows if row[0] == "学习率"] == [["学习率", "1e-3", "2e-3"]]
    assert not [row for row in dialog.rows if row[0] in ("层数", "随机种子")]
    click(qtbot, dialog.copy_button)
    assert "学习率\t1e-3\t2e-3\n" in QGuiApplication.clipboard().text()
    dialog.close()


def test_selected_runs_are_overlaid_until_they_are_hidden_or_deleted(
    make_window: MakeWindow, qtbot: QtBot, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QFile, "moveToTrash", lambda path: False)
    paths = [add_run(home, name, 1000 * age) for age, name in enumerate(("a", "b", "c"))]
    controller = make_window()
    page = open_page(qtbot, controller, 3)
    page.table.select(paths[:2])
    press_button(qtbot, controller, "showRuns")
    overlays = controller.window.runs.overlays
    qtbot.waitUntil(lambda: [overlay.name for overlay in overlays.visible_overlays(None)] == ["a", "b"], timeout=10_000)
    store = overlays.visible_overlays(None)[0].store
    assert len(store.series("train_loss")[0]) == 12
    assert page.show_runs.text() == "Hide in plots"
    controller.window.show_page("plots")
    controller.window.show_page("runs")
    assert list(overlays.selected_colors) == paths[:2]
    index = page.proxy.index(0, SHOWN)
    qtbot.mouseClick(page.table.viewport(), LEFT, pos=page.table.visualRect(index).center())
    assert list(overlays.selected_colors) == [paths[1]]
    controller.window.runs.folders.rename(paths[1], "renamed")
    assert [overlay.name for overlay in overlays.visible_overlays(None)] == ["renamed"]
    controller.window.runs.folders.delete([home / "runs" / "renamed"], permanently=True)
    qtbot.waitUntil(lambda: overlays.selected_colors == {}, timeout=10_000)
    assert overlays.visible_overlays(None) == []


def test_the_displayed_run_is_not_overlaid_on_itself(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    paths = [add_run(home, name, 1000 * age) for age, name in enumerate(("a", "b"))]
    controller = make_window()
    open_page(qtbot, controller, 2)
    controller.window.runs.set_overlay_shown(paths, True)
    controller.open_run(paths[0])
    overlays = controller.window.runs.overlays
    qtbot.waitUntil(
        lambda: [overlay.name for overlay in overlays.visible_overlays(controller.window.runs._plotted_run)] == ["b"],
        timeout=10_000,
    )


def test_at_most_ten_runs_are_overlaid(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    paths = [add_run(home, f"run {number}", 1000 * number, steps=15) for number in range(11)]
    controller = make_window()
    page = open_page(qtbot, controller, 11)
    controller.window.runs.set_overlay_shown(paths, True)
    assert len(controller.window.runs.overlays.selected_colors) == 10
    assert "At most ten more runs" in message(page)


# --- checkpoints ---------------------------------------------------------------------------------------


def select_checkpoint(qtbot: QtBot, controller: Controller, path: Path, row: int) -> tuple[RunsPage, Path]:
    """Select one of the two checkpoints of a run. Returns the page and the checkpoint."""
    page = open_page(qtbot, controller, 1)
    page.table.select([path])
    checkpoints = page.details.checkpoints
    qtbot.waitUntil(lambda: len(checkpoints.model.rows) == 2)
    checkpoints.table.selectRow(row)
    return page, checkpoints.model.rows[row].path


def test_the_details_list_checkpoints_and_the_size_on_disk(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    path = add_run(home, "a", steps=60)
    page, _ = select_checkpoint(qtbot, make_window(), path, 0)
    model = page.details.checkpoints.model
    rows = [[model.data(model.index(row, column)) for column in range(4)] for row in range(2)]
    assert rows == [["60", "final", "–", "1.0 KiB"], ["20", "best", "2.5000", "2.0 KiB"]]
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    qtbot.waitUntil(lambda: page.details.facts["size"][1].text().startswith(f"{size / 1024:.1f} KiB"))
    assert not page.details.checkpoints.resume.isEnabled()  # the run is finished


def test_resuming_an_older_checkpoint_starts_a_new_run(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    path = add_run(home, "晚间 run", done=False)
    controller = make_window("echo")
    _, checkpoint = select_checkpoint(qtbot, controller, path, 1)
    press_button(qtbot, controller, "resumeFrom")
    wait_for_state(qtbot, controller, RunState.TRAINING)
    arguments = controller.active_run.process.arguments
    assert arguments[arguments.index("--resume") + 1] == str(checkpoint)
    assert arguments[arguments.index("--run-dir") + 1] == str(path.with_name("晚间 run-from-20"))


def test_resuming_the_newest_checkpoint_continues_the_run(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    path = add_run(home, "a", done=False)
    controller = make_window("echo")
    select_checkpoint(qtbot, controller, path, 0)
    press_button(qtbot, controller, "resumeFrom")
    wait_for_state(qtbot, controller, RunState.TRAINING)
    arguments = controller.active_run.process.arguments
    assert arguments[arguments.index("--resume") + 1] == str(path)
    assert "--run-dir" not in arguments


def test_generate_opens_the_chat_with_the_checkpoint(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    path = add_run(home, "a")
    controller = make_window()
    _, checkpoint = select_checkpoint(qtbot, controller, path, 1)
    press_button(qtbot, controller, "generateFrom")
    assert controller.window.tabs.currentWidget() is controller.window.pages["chat"]
    assert controller.window.chat.models.all_sessions[0].checkpoint == checkpoint


def test_export_opens_the_export_page_with_the_checkpoint(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    path = add_run(home, "a")
    controller = make_window()
    _, checkpoint = select_checkpoint(qtbot, controller, path, 1)
    press_button(qtbot, controller, "exportFrom")
    assert controller.window.tabs.currentWidget() is controller.window.pages["export"]
    assert controller.window.export.options.choice.selected_checkpoint == checkpoint


def test_a_run_is_found_and_opened_by_keyboard(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    path = add_run(home, "alone", 1000.0)
    add_run(home, "other", 2000.0)
    controller = make_window()
    page = open_page(qtbot, controller, 2)
    controller.window.activateWindow()
    controller.window.focus_search()
    qtbot.keyClicks(page.search, "alone")
    qtbot.waitUntil(lambda: len(page.table.shown_rows()) == 1)
    qtbot.keyClick(page.search, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: page.paths() == [path])
    qtbot.keyClick(page.table, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: controller.viewed_run is not None)
    assert controller.viewed_run is not None
    assert controller.viewed_run.summary.path == path
