"""Queue: editing, restarts of the program, sweeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt
from PySide6.QtGui import QDropEvent
from pytestqt.qtbot import QtBot

from app.core.run_state import RunState
from app.pages.queue.sweep_dialog import SweepDialog
from tests.gui.conftest import MakeWindow, click, wait_for_state
from tests.gui.demo_run import write_run
from tests.gui.queue_window import OpenWindow, enqueue, items, select, states, wait_for_states, window_opener

_ = window_opener  # imported for the fixture `open_window`

# --- editing -------------------------------------------------------------------------------------


def test_items_are_moved_duplicated_and_removed_by_keyboard(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "a", "b", "c")
    table, alt = controller.window.queue.table, Qt.KeyboardModifier.AltModifier
    table.setFocus()
    select(controller, "c")

    def order() -> str:
        return "".join(item.name for item in items(controller))

    qtbot.keyClick(table, Qt.Key.Key_Up, alt)
    assert order() == "acb"
    assert [item.name for item in table.selected_rows()] == ["c"]
    qtbot.keyClick(table, Qt.Key.Key_Down, alt)
    assert order() == "abc"
    qtbot.keyClick(table, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier)
    assert order() == "abcc-2"
    assert [item.name for item in table.selected_rows()] == ["c-2"]
    qtbot.keyClick(table, Qt.Key.Key_Delete)
    assert order() == "abc"
    qtbot.keyClick(table, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert order() == "abcc-2"


def test_shortcuts_are_listed_before_the_page_is_shown(make_window: MakeWindow) -> None:
    controller = make_window()
    listed = {action.text(): action.shortcut().toString() for _, action in controller.window.table_shortcuts()}
    assert (listed["Move up"], listed["Undo remove"], listed["Duplicate"]) == ("Alt+Up", "Ctrl+Z", "Ctrl+D")


def test_the_settings_of_an_item_are_loaded_into_the_form(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "first", batch_size="4")
    enqueue(qtbot, controller, "second", batch_size="8", learning_rate="1e-4")
    select(controller, "first")
    controller.window.queue.queue_actions["to_form"].trigger()
    assert controller.form.run_name == "first"
    assert controller.form.changes() == {"batch_size": 4}


def test_a_row_is_moved_by_drag_and_drop(
    open_window: OpenWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "a", "b", "c")
    table = controller.window.queue.table
    select(controller, "a")
    monkeypatch.setattr(QDropEvent, "source", lambda self: table)
    below = table.visualRect(table.row_model.index(2, 0)).bottomLeft()
    action, button = Qt.DropAction.MoveAction, Qt.MouseButton.LeftButton
    event = QDropEvent(QPointF(below), action, QMimeData(), button, Qt.KeyboardModifier.NoModifier)
    table.dropEvent(event)
    assert [item.name for item in items(controller)] == ["b", "c", "a"]


def test_ended_items_are_compared_requeued_cleared_and_opened(
    open_window: OpenWindow, qtbot: QtBot, home: Path
) -> None:
    controller = open_window()
    page = controller.window.queue
    enqueue(qtbot, controller, "a", "bad", "b")
    click(qtbot, page.start_button)
    wait_for_states(qtbot, controller, "a:done bad:failed b:done")
    compared: list[list[Path]] = []
    page.compare_requested.connect(compared.append)
    qtbot.waitUntil(page.compare.isEnabled)
    select(controller, "a", "b")
    click(qtbot, page.compare)
    assert compared == [[home / "runs" / name for name in "ab"]]
    assert list(controller.window.runs.overlays.selected_colors) == compared[0]
    controller.window.show_page("queue")
    select(controller, "bad")
    page.queue_actions["put_back"].trigger()
    assert states(controller) == "a:done bad:waiting b:done"
    qtbot.wait(50)
    assert controller.queue_controller.hold_reason  # requeueing does not start the queue
    page.queue_actions["clear"].trigger()
    assert states(controller) == "bad:waiting"
    page.queue_actions["remove"].trigger()
    controller.queue_controller.start_queue()
    page.queue_actions["undo"].trigger()
    qtbot.wait(50)
    assert controller.queue_controller.hold_reason
    assert states(controller) == "bad:waiting"
    write_run(home / "runs" / "shown", "quickstart", ["builtin:python"], steps=20, every=5, gpu=False)
    items(controller)[0].run_dir = str(home / "runs" / "shown")
    select(controller, "bad")
    page.table.setFocus()
    qtbot.keyClick(page.table, Qt.Key.Key_Return, Qt.KeyboardModifier.AltModifier)
    qtbot.waitUntil(lambda: controller.viewed_run is not None)


def test_an_item_follows_its_renamed_run(open_window: OpenWindow, qtbot: QtBot, home: Path) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "old")
    item = items(controller)[0]
    item.state, item.run_dir = "done", str(home / "runs" / "old")
    controller.window.runs.folders.moved.emit(home / "runs" / "old", home / "runs" / "新 name")
    assert states(controller) == "新 name:done"
    assert Path(item.run_dir).name == "新 name"
    controller.window.runs.folders.moved.emit(home / "runs" / "新 name", None)
    assert item.run_dir == ""


def test_an_unwritable_folder_disables_the_queue(
    open_window: OpenWindow, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_path = tmp_path / "no folder"
    config_path.write_text("a file", encoding="utf-8")
    monkeypatch.setenv("TRAINDECK_CONFIG_DIR", str(config_path))
    controller = open_window()
    page = controller.window.queue
    qtbot.waitUntil(lambda: str(config_path) in page.sentence.text())
    assert not page.add.isEnabled()
    assert not controller.window.run_bar.queue.isEnabled()


def test_an_unreadable_queue_is_reported_and_opened_once_it_is_readable(
    open_window: OpenWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    file = tmp_path / "config" / "queue.json"
    file.mkdir(parents=True)  # cannot be read as a file, even by root
    controller = open_window()
    page = controller.window.queue
    qtbot.waitUntil(lambda: str(file) in page.sentence.text())
    assert "could not be read" in page.sentence.text()
    assert not page.add.isEnabled()
    assert controller._timer.isActive()
    assert not file.with_suffix(".lock").exists()
    file.rmdir()
    controller.window.show_page("plots")
    controller.window.show_page("queue")  # opens the queue again
    enqueue(qtbot, controller, "a")
    assert states(controller) == "a:waiting"


# --- restarts of the program ---------------------------------------------------------------------------------


def test_after_a_crash_of_the_program_the_queue_is_restored_and_paused(
    open_window: OpenWindow, qtbot: QtBot, home: Path
) -> None:
    first = open_window()
    enqueue(qtbot, first, "long", "good")
    first.queue_controller.start_queue()
    wait_for_state(qtbot, first, RunState.TRAINING)
    file = first.queue_controller.queue.path
    content = file.read_bytes()
    first.active_run.process.blockSignals(True)
    first.active_run.process.shutdown(grace_s=0.1)
    first.shutdown()
    file.write_bytes(content)  # as left by a crash
    write_run(home / "runs" / "long", "quickstart", ["builtin:python"], steps=3000, every=50, done=False)
    second = open_window()
    page = second.window.queue
    assert states(second) == "long:interrupted good:waiting"
    assert "do not start when the window opens" in page.sentence.text()
    qtbot.wait(200)
    assert second.active_run.machine.state is RunState.IDLE
    select(second, "long")
    assert "Interrupted at step" in page.details.text()
    page.queue_actions["resume"].trigger()
    wait_for_state(qtbot, second, RunState.TRAINING)
    assert "--resume" in second.active_run.process.arguments
    assert states(second) == "long:running good:waiting"
    second.active_run.stop()
    wait_for_states(qtbot, second, "long:stopped good:waiting")
    second.queue_controller.start_queue()
    wait_for_states(qtbot, second, "long:stopped good:done")


def test_a_run_that_finished_without_a_window_is_done(open_window: OpenWindow, qtbot: QtBot, home: Path) -> None:
    first = open_window()
    enqueue(qtbot, first, "a")
    items(first)[0].state, items(first)[0].run_dir = "running", str(home / "runs" / "a")
    first.queue_controller.queue.save()
    first.shutdown()
    write_run(home / "runs" / "a", "quickstart", ["builtin:python"], steps=300, every=5, gpu=False)
    second = open_window()
    assert states(second) == "a:done"
    assert items(second)[0].best_loss is not None


def test_a_queue_in_another_window_cannot_be_used_until_that_one_closes(open_window: OpenWindow, qtbot: QtBot) -> None:
    first = open_window()
    enqueue(qtbot, first, "a")
    second = open_window()
    page = second.window.queue
    assert "Another Traindeck window" in page.sentence.text()
    assert not second.window.run_bar.queue.isEnabled()
    assert json.loads(first.queue_controller.queue.path.read_text(encoding="utf-8"))["items"][0]["name"] == "a"
    first.shutdown()
    second.window.show_page("plots")
    second.window.show_page("queue")
    assert states(second) == "a:waiting"


# --- sweeps ------------------------------------------------------------------------------------------------


def test_a_sweep_queues_every_combination_of_values(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    controller.form.set_run_name("快")
    click(qtbot, controller.window.queue.sweep)
    dialog = controller.window.findChild(SweepDialog)
    assert dialog is not None
    first, second = dialog.editors
    first.typed.clear()
    qtbot.keyClicks(first.typed, "1e-3, 2e-3")
    second.knob.setCurrentIndex(second.names.index("batch_size"))
    second.knob.activated.emit(second.knob.currentIndex())
    assert second.typed.text() == "8, 16, 32"
    second.typed.clear()
    qtbot.keyClicks(second.typed, "4 8,16")
    assert dialog.count.text() == "Runs: 6"
    click(qtbot, dialog.add_button)
    assert [item.name for item in items(controller)][:3] == ["快-lr1e-3-bs4", "快-lr1e-3-bs8", "快-lr1e-3-bs16"]
    assert len(items(controller)) == 6
    assert items(controller)[5].changes["learning_rate"] == 2e-3
    assert items(controller)[5].changes["batch_size"] == 16
    assert not any("seed" in item.changes for item in items(controller))


def test_a_sweep_rejects_invalid_values_and_combinations(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    controller.window.queue.open_sweep_dialog()
    dialog = controller.window.findChild(SweepDialog)
    assert dialog is not None
    first, second = dialog.editors
    for text in ("1e-3, eleven", "-1", ""):
        first.typed.clear()
        qtbot.keyClicks(first.typed, text)
        first.typed.textEdited.emit(text)
        assert not dialog.add_button.isEnabled()
        assert first.error.text()
        assert first.typed.property("wrong")
    first.typed.setText("1e-3")
    second.knob.setCurrentIndex(second.names.index("n_heads"))
    second.knob.activated.emit(second.knob.currentIndex())
    second.typed.clear()
    qtbot.keyClicks(second.typed, "2, 3")
    assert not first.error.isVisible()
    assert dialog.list.count() == 2
    assert "head" in dialog.list.item(1).text()
    assert dialog.count.text() == "Runs: 1. Skipped (invalid): 1."
    click(qtbot, dialog.add_button)
    assert [item.changes["n_heads"] for item in items(controller)] == [2]


def test_a_sweep_quotes_the_invalid_values_and_suggests_choices(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    controller.window.queue.open_sweep_dialog()
    dialog = controller.window.findChild(SweepDialog)
    assert dialog is not None
    editor = dialog.editors[0]
    rate = "Allowed: a number > 0 and <= 10"
    for text, error in (
        ("1e-3, eleven, 2e-3", f"Not allowed: “eleven”. {rate}"),
        ("1e-3, -1", f"Not allowed: “-1”. {rate}"),
        ("a, b, c, d, 1e-3", f"Not allowed: “a”, “b”, “c”…. {rate}"),
        (" ", "Enter at least one value."),
        ("1e-3, 2e-3", ""),
    ):
        editor.typed.selectAll()
        qtbot.keyClicks(editor.typed, text)
        assert editor.error.text() == error
        assert bool(editor.typed.property("wrong")) == bool(error)
        assert dialog.add_button.isEnabled() == (not error)
    for name, values in (("optimizer", "adamw, adamw_8bit, muon"), ("packing", "true, false")):
        editor.knob.setCurrentIndex(editor.names.index(name))
        editor.knob.activated.emit(editor.knob.currentIndex())
        assert editor.typed.text() == values
        assert dialog.count.text() == f"Runs: {len(values.split(', '))}"
