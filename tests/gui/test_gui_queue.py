"""The queue of runs in the window: filled, also while a run trains, and worked off."""

from __future__ import annotations

from pathlib import Path

import pytest
from lined_up import Open, cells, choose, click, items, let_go, line_up, states, train, wait_for, window_opener
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.core.run_state import RunState
from app.pages.queue.queue_controller import QueueController
from app.pages.queue.table import COLUMNS
from app.theme.palette import SPACING

_ = window_opener  # the fixture `open_window`

# --- filling it --------------------------------------------------------------------------------------------


def test_a_run_that_is_added_while_another_trains_starts_when_that_one_has_ended(
    open_window: Open, qtbot: QtBot
) -> None:
    controller = open_window()
    train(qtbot, controller, "held")
    line_up(qtbot, controller, "next", learning_rate="1e-3")
    assert controller.window.queue.sentence.text() == "“next” starts when this run ends."
    let_go(controller)
    wait_for(qtbot, controller, "next:done")
    assert cells(controller, 0)[1:3] == ["Finished", "Learning rate 1e-3  ·  quickstart"]
    assert cells(controller, 0)[4] == "best loss 1.5000"
    assert controller.active_run.record.metrics is not None
    assert Path(controller.active_run.machine.run_dir).name == "next"


def test_what_is_set_while_a_run_trains_does_not_change_that_run(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    train(qtbot, controller, "long-now")
    before = controller.active_run.process.arguments
    assert controller.window.setup._next_run_note.text() == "for the next run"
    line_up(qtbot, controller, "other", batch_size="4")
    assert controller.active_run.process.arguments == before
    assert items(controller)[0].changes == {"batch_size": 4}


def test_what_is_added_while_nothing_trains_waits_for_go_on(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    page = controller.window.queue
    assert page.table.empty.isVisible()
    assert "one after the other" in page.table.empty.text()
    line_up(qtbot, controller, "a", "b")
    assert not page.table.empty.isVisible()
    assert "The queue waits" in page.sentence.text()
    assert controller.window.tabs.tabText(list(controller.window.pages).index("queue")) == "Queue (2)"
    qtbot.wait(100)
    assert states(controller) == "a:waiting b:waiting"
    click(qtbot, page.start_button)
    wait_for(qtbot, controller, "a:done b:done")
    assert page.sentence.text() == "Nothing waits."
    assert controller.window.tabs.tabText(list(controller.window.pages).index("queue")) == "Queue"


def test_a_shortcut_adds_too(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    controller.window.activateWindow()
    qtbot.waitUntil(controller.window.isActiveWindow)
    controller.window.show_page("plots")
    told: list[str] = []
    controller.queue_controller.message_ready.connect(told.append)
    controller.form.set_run_name("typed")
    qtbot.keyClick(
        controller.window, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    )
    assert states(controller) == "typed:waiting"
    assert told == ["“typed” is in the queue. Waiting: 1."]


def test_a_configuration_that_cannot_be_trained_is_not_added_and_says_why(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    button = controller.window.run_bar.queue
    controller.form.set_text("batch_size", "0")
    assert not button.isEnabled()
    assert "Batch size" in button.toolTip()
    told: list[str] = []
    controller.queue_controller.message_ready.connect(told.append)
    controller.window.menus.actions["add_to_queue"].trigger()
    assert items(controller) == []
    assert told[0].startswith("Not added to the queue: Batch size must be")
    assert not controller.window.queue.sweep.isEnabled()
    controller.form.reset("batch_size")
    assert button.isEnabled()


def test_names_that_are_taken_get_a_number_when_added_and_when_started(
    open_window: Open, qtbot: QtBot, own_folders: Path
) -> None:
    controller = open_window()
    line_up(qtbot, controller, "same", "same")
    assert states(controller) == "same:waiting same-2:waiting"
    (own_folders / "runs" / "same").mkdir(parents=True)
    controller.queue_controller.start_queue()
    wait_for(qtbot, controller, "same-3:done same-2:done")


# --- working it off ----------------------------------------------------------------------------------------


def test_after_a_failure_the_next_one_starts(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "bad", "good")
    click(qtbot, controller.window.queue.start_button)
    wait_for(qtbot, controller, "bad:failed good:done")
    choose(controller, "bad")
    assert "The data path D:/gone.txt does not exist." in controller.window.queue.details.text()
    assert items(controller)[0].exit_code == 4


def test_or_the_queue_waits_after_a_failure(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "bad", "good")
    page = controller.window.queue
    page.policy.setFocus()
    qtbot.keyClick(page.policy, Qt.Key.Key_Down)
    click(qtbot, page.start_button)
    wait_for(qtbot, controller, "bad:failed good:waiting")
    qtbot.waitUntil(lambda: page.sentence.text() == "The queue waits, for a run failed.")
    click(qtbot, page.start_button)
    wait_for(qtbot, controller, "bad:failed good:done")


def test_a_person_who_stops_a_run_stops_the_queue(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "long", "good")
    page = controller.window.queue
    click(qtbot, page.start_button)
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.TRAINING, timeout=20_000)
    click(qtbot, controller.window.run_bar.stop)
    wait_for(qtbot, controller, "long:stopped good:waiting")
    qtbot.waitUntil(lambda: page.sentence.text() == "The queue waits, for a run was stopped.")
    choose(controller, "long")
    assert page.queue_actions["resume"].isEnabled()


@pytest.mark.parametrize(("name", "state"), [("long-full", "failed"), ("long-fall", "failed"), ("long-last", "done")])
def test_who_pressed_stop_stops_the_queue_however_the_run_ends(
    open_window: Open, qtbot: QtBot, name: str, state: str
) -> None:
    controller = open_window()
    line_up(qtbot, controller, name, "bad", "good")
    page = controller.window.queue
    click(qtbot, page.start_button)
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.TRAINING, timeout=20_000)
    click(qtbot, controller.window.run_bar.stop)
    wait_for(qtbot, controller, f"{name}:{state} bad:waiting good:waiting")
    qtbot.wait(100)
    assert states(controller) == f"{name}:{state} bad:waiting good:waiting"
    assert page.sentence.text() == "The queue waits, for a run was stopped."
    click(qtbot, page.start_button)  # that wish was about one process: the next failure is one, and the queue goes on
    wait_for(qtbot, controller, f"{name}:{state} bad:failed good:done")


def test_a_preset_that_is_gone_after_a_stop_does_not_stop_the_queue_again(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "long", "old", "good")
    items(controller)[1].preset = "no-such-preset"
    click(qtbot, controller.window.queue.start_button)
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.TRAINING, timeout=20_000)
    controller.active_run.stop()
    wait_for(qtbot, controller, "long:stopped old:waiting good:waiting")
    controller.queue_controller.start_queue()
    wait_for(qtbot, controller, "long:stopped old:failed good:done")


def test_wait_lets_the_run_go_on_but_starts_no_other(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    train(qtbot, controller, "held")
    line_up(qtbot, controller, "next")
    page = controller.window.queue
    assert page.start_button.text() == "Wait"
    click(qtbot, page.start_button)
    let_go(controller)
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.FINISHED, timeout=20_000)
    qtbot.wait(100)
    assert states(controller) == "next:waiting"


def test_a_restart_after_a_failure_that_passes_comes_before_the_next_run(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "crash", "good")
    click(qtbot, controller.window.queue.start_button)
    qtbot.waitUntil(lambda: controller.active_run.auto_restart.pending is not None, timeout=20_000)
    qtbot.waitUntil(lambda: cells(controller, 0)[1] == "Restarting")
    qtbot.wait(100)
    assert states(controller) == "crash:running good:waiting"
    controller.active_run.restart_now()
    wait_for(qtbot, controller, "crash:done good:done")


def test_a_restart_that_is_called_off_is_a_failure(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "crash", "good")
    click(qtbot, controller.window.queue.start_button)
    qtbot.waitUntil(lambda: controller.active_run.auto_restart.pending is not None, timeout=20_000)
    controller.active_run.cancel_restart()
    wait_for(qtbot, controller, "crash:failed good:done")
    assert items(controller)[0].can_resume


def test_a_person_who_starts_another_run_instead_of_a_restart_ends_the_item(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "crash", "good")
    click(qtbot, controller.window.queue.start_button)
    qtbot.waitUntil(lambda: controller.active_run.auto_restart.pending is not None, timeout=20_000)
    ended: list[str] = []
    controller.queue_controller.item_ended.connect(lambda item: ended.append(f"{item.name} {item.state}"))
    train(qtbot, controller, "long-mine")
    assert states(controller) == "crash:failed good:waiting"
    assert ended == ["crash failed"]
    assert (items(controller)[0].steps, items(controller)[0].can_resume) == (5, True)
    code = items(controller)[0].exit_code
    assert code not in (None, 0, 3)
    controller.active_run.stop()
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.STOPPED, timeout=20_000)
    controller.queue_controller.start_queue()
    wait_for(qtbot, controller, "crash:failed good:done")
    assert items(controller)[0].exit_code == code
    assert items(controller)[0].best_loss is None


def test_or_the_queue_waits_after_that_too_where_it_waits_after_failures(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    controller.queue_controller.set_after_failure("hold")
    line_up(qtbot, controller, "crash", "good")
    controller.queue_controller.start_queue()
    qtbot.waitUntil(lambda: controller.active_run.auto_restart.pending is not None, timeout=20_000)
    train(qtbot, controller, "long-mine")
    assert states(controller) == "crash:failed good:waiting"
    assert controller.queue_controller.hold_reason == "failed"


def test_a_restart_in_the_same_folder_by_another_name_is_the_same_item(
    open_window: Open, qtbot: QtBot, own_folders: Path
) -> None:
    controller = open_window()
    line_up(qtbot, controller, "crash")
    controller.queue_controller.start_queue()
    qtbot.waitUntil(lambda: controller.active_run.auto_restart.pending is not None, timeout=20_000)
    detour = own_folders / "elsewhere" / ".." / "runs" / "crash"  # as the trainer may call it in its greeting
    controller.active_run.machine.run_dir = str(detour)
    controller.active_run.restart_now()
    assert states(controller) == "crash:running"
    wait_for(qtbot, controller, "crash:done")


def test_a_preset_that_is_gone_fails_its_item_with_a_sentence(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "old", "unknown", "good")
    items(controller)[0].preset = "no-such-preset"
    items(controller)[1].changes = {"knob_of_tomorrow": 3}
    click(qtbot, controller.window.queue.start_button)
    wait_for(qtbot, controller, "old:failed unknown:failed good:done")
    assert "no-such-preset" in cells(controller, 0)[4]
    assert "knob_of_tomorrow" in cells(controller, 1)[4]


def test_what_happens_is_told_to_whoever_wants_to_notify(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    told: list[str] = []
    queueing: QueueController = controller.queue_controller
    queueing.item_started.connect(lambda item: told.append(f"started {item.name}"))
    queueing.item_ended.connect(lambda item: told.append(f"{item.state} {item.name}"))
    queueing.emptied.connect(lambda batch: told.append(" ".join(item.name for item in batch)))
    line_up(qtbot, controller, "bad", "good")
    queueing.start_queue()
    qtbot.waitUntil(lambda: len(told) == 5, timeout=20_000)
    assert told == ["started bad", "failed bad", "started good", "done good", "bad good"]


def test_a_window_in_the_tray_stays_there_until_the_queue_is_done(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "a", "b")
    hidden: list[bool] = []

    def hide() -> None:
        hidden.append(controller.window.isHidden())
        controller.window.hide()

    controller.queue_controller.item_started.connect(hide)
    controller.queue_controller.start_queue()
    wait_for(qtbot, controller, "a:done b:done")
    assert hidden == [False, True]
    qtbot.waitUntil(controller.window.isVisible)


def test_the_data_of_a_run_can_be_read_in_full(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    controller.window.resize(1280, 720)
    controller.queue_controller.hold_reason = "person"
    line_up(qtbot, controller, "narrow", hidden_dim="96")
    table = controller.window.queue.table
    column = COLUMNS.index("data")
    text = table.rows.data(table.rows.index(0, column))
    assert text == "Python standard library (built in)"
    assert table.fontMetrics().horizontalAdvance(text) + 2 * SPACING <= table.columnWidth(column)
    assert table.horizontalHeader().length() <= table.viewport().width()


def test_the_queue_speaks_chinese(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window(language="zh")
    line_up(qtbot, controller, "a", learning_rate="1e-3")
    page = controller.window.queue
    assert cells(controller, 0)[1] == "等待中"
    assert page.start_button.text() == "继续队列"
    assert controller.window.tabs.tabText(list(controller.window.pages).index("queue")) == "队列（1）"
    controller.set_language("en")
    assert cells(controller, 0)[1] == "Waiting"
    assert page.policy.currentText() == "go on with the next"
