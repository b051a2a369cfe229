"""Queue: adding runs, and starting them in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.core.run_state import RunState
from app.theme.palette import SPACING
from tests.gui.conftest import activate, click, wait_for_state
from tests.gui.queue_window import (
    OpenWindow,
    enqueue,
    items,
    release,
    row_texts,
    select,
    start_training,
    states,
    wait_for_states,
    window_opener,
)

_ = window_opener  # imported for the fixture `open_window`

# --- adding --------------------------------------------------------------------------------------------


def test_a_run_added_during_training_starts_when_that_run_ends(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    start_training(qtbot, controller, "held")
    enqueue(qtbot, controller, "next", learning_rate="1e-3")
    assert controller.window.queue.sentence.text() == "“next” starts after this run."
    release(controller)
    wait_for_states(qtbot, controller, "next:done")
    assert row_texts(controller, 0)[1:3] == ["Finished", "Learning rate 1e-3  ·  quickstart"]
    assert row_texts(controller, 0)[4] == "best loss 1.5000"
    assert controller.active_run.record.metrics is not None
    assert Path(controller.active_run.machine.run_dir).name == "next"


def test_changing_the_form_does_not_affect_the_active_run(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    start_training(qtbot, controller, "long-now")
    before = controller.active_run.process.arguments
    assert controller.window.setup._next_run_note.text() == "for the next run"
    enqueue(qtbot, controller, "other", batch_size="4")
    assert controller.active_run.process.arguments == before
    assert items(controller)[0].changes == {"batch_size": 4}


def test_runs_added_while_idle_wait_until_the_queue_is_started(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    page = controller.window.queue
    assert page.table.empty.isVisible()
    assert "one after another" in page.table.empty.text()
    enqueue(qtbot, controller, "a", "b")
    assert not page.table.empty.isVisible()
    assert "Queue paused" in page.sentence.text()
    assert controller.window.tabs.tabText(list(controller.window.pages).index("queue")) == "Queue (2)"
    qtbot.wait(100)
    assert states(controller) == "a:waiting b:waiting"
    click(qtbot, page.start_button)
    wait_for_states(qtbot, controller, "a:done b:done")
    assert page.sentence.text() == "No queued runs."
    assert controller.window.tabs.tabText(list(controller.window.pages).index("queue")) == "Queue"


def test_a_shortcut_adds_a_run(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    activate(qtbot, controller.window)
    controller.window.show_page("plots")
    messages: list[str] = []
    controller.queue_controller.message_ready.connect(messages.append)
    controller.form.set_run_name("typed")
    qtbot.keyClick(
        controller.window, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    )
    assert states(controller) == "typed:waiting"
    assert messages == ["“typed” was added. Queued: 1."]


def test_an_invalid_configuration_is_not_added(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    button = controller.window.run_bar.queue
    controller.form.set_text("batch_size", "0")
    assert not button.isEnabled()
    assert "Batch size" in button.toolTip()
    messages: list[str] = []
    controller.queue_controller.message_ready.connect(messages.append)
    controller.window.menus.actions["add_to_queue"].trigger()
    assert items(controller) == []
    assert messages[0].startswith("Not added to the queue: Batch size must be")
    assert not controller.window.queue.sweep.isEnabled()
    controller.form.reset("batch_size")
    assert button.isEnabled()


def test_existing_names_get_a_number_when_added_and_when_started(
    open_window: OpenWindow, qtbot: QtBot, home: Path
) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "same", "same")
    assert states(controller) == "same:waiting same-2:waiting"
    (home / "runs" / "same").mkdir(parents=True)
    controller.queue_controller.start_queue()
    wait_for_states(qtbot, controller, "same-3:done same-2:done")


# --- running ----------------------------------------------------------------------------------------


def test_after_a_failed_run_the_next_one_starts(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "bad", "good")
    click(qtbot, controller.window.queue.start_button)
    wait_for_states(qtbot, controller, "bad:failed good:done")
    select(controller, "bad")
    assert "The data path D:/missing.txt does not exist." in controller.window.queue.details.text()
    assert items(controller)[0].exit_code == 4


def test_the_queue_can_pause_after_a_failure(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "bad", "good")
    page = controller.window.queue
    page.pause_after_failure.setFocus()
    qtbot.keyClick(page.pause_after_failure, Qt.Key.Key_Space)
    click(qtbot, page.start_button)
    wait_for_states(qtbot, controller, "bad:failed good:waiting")
    qtbot.waitUntil(lambda: page.sentence.text() == "Queue paused: a run failed.")
    click(qtbot, page.start_button)
    wait_for_states(qtbot, controller, "bad:failed good:done")


def test_stopping_a_run_pauses_the_queue(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "long", "good")
    page = controller.window.queue
    click(qtbot, page.start_button)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    click(qtbot, controller.window.run_bar.stop)
    wait_for_states(qtbot, controller, "long:stopped good:waiting")
    qtbot.waitUntil(lambda: page.sentence.text() == "Queue paused: a run was stopped.")
    select(controller, "long")
    assert page.queue_actions["resume"].isEnabled()


@pytest.mark.parametrize(("name", "state"), [("long-full", "failed"), ("long-abort", "failed"), ("long-last", "done")])
def test_stopping_a_run_pauses_the_queue_however_the_run_ends(
    open_window: OpenWindow, qtbot: QtBot, name: str, state: str
) -> None:
    controller = open_window()
    enqueue(qtbot, controller, name, "bad", "good")
    page = controller.window.queue
    click(qtbot, page.start_button)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    click(qtbot, controller.window.run_bar.stop)
    wait_for_states(qtbot, controller, f"{name}:{state} bad:waiting good:waiting")
    qtbot.wait(100)
    assert states(controller) == f"{name}:{state} bad:waiting good:waiting"
    assert page.sentence.text() == "Queue paused: a run was stopped."
    click(qtbot, page.start_button)  # the next failure does not pause the queue
    wait_for_states(qtbot, controller, f"{name}:{state} bad:failed good:done")


def test_a_missing_preset_after_a_stop_does_not_pause_the_queue_again(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "long", "old", "good")
    items(controller)[1].preset = "no-such-preset"
    click(qtbot, controller.window.queue.start_button)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    controller.active_run.stop()
    wait_for_states(qtbot, controller, "long:stopped old:waiting good:waiting")
    controller.queue_controller.start_queue()
    wait_for_states(qtbot, controller, "long:stopped old:failed good:done")


def test_a_paused_queue_does_not_affect_the_active_run(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    start_training(qtbot, controller, "held")
    enqueue(qtbot, controller, "next")
    page = controller.window.queue
    assert page.start_button.text() == "Pause queue"
    click(qtbot, page.start_button)
    release(controller)
    wait_for_state(qtbot, controller, RunState.FINISHED)
    qtbot.wait(100)
    assert states(controller) == "next:waiting"


def test_an_automatic_restart_precedes_the_next_run(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "crash", "good")
    click(qtbot, controller.window.queue.start_button)
    qtbot.waitUntil(lambda: controller.active_run.auto_restart.pending is not None, timeout=20_000)
    qtbot.waitUntil(lambda: row_texts(controller, 0)[1] == "Restarting")
    qtbot.wait(100)
    assert states(controller) == "crash:running good:waiting"
    controller.active_run.restart_now()
    wait_for_states(qtbot, controller, "crash:done good:done")


def test_a_cancelled_restart_is_a_failure(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "crash", "good")
    click(qtbot, controller.window.queue.start_button)
    qtbot.waitUntil(lambda: controller.active_run.auto_restart.pending is not None, timeout=20_000)
    controller.active_run.cancel_restart()
    wait_for_states(qtbot, controller, "crash:failed good:done")
    assert items(controller)[0].can_resume


def test_starting_another_run_instead_of_a_restart_ends_the_item(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "crash", "good")
    click(qtbot, controller.window.queue.start_button)
    qtbot.waitUntil(lambda: controller.active_run.auto_restart.pending is not None, timeout=20_000)
    start_training(qtbot, controller, "long-mine")
    assert states(controller) == "crash:failed good:waiting"
    assert (items(controller)[0].steps, items(controller)[0].can_resume) == (5, True)
    code = items(controller)[0].exit_code
    assert code not in (None, 0, 3)
    controller.active_run.stop()
    wait_for_state(qtbot, controller, RunState.STOPPED)
    controller.queue_controller.start_queue()
    wait_for_states(qtbot, controller, "crash:failed good:done")
    assert items(controller)[0].exit_code == code
    assert items(controller)[0].best_loss is None


def test_starting_another_run_instead_of_a_restart_can_pause_the_queue(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    controller.queue_controller.queue.after_failure = "hold"
    enqueue(qtbot, controller, "crash", "good")
    controller.queue_controller.start_queue()
    qtbot.waitUntil(lambda: controller.active_run.auto_restart.pending is not None, timeout=20_000)
    start_training(qtbot, controller, "long-mine")
    assert states(controller) == "crash:failed good:waiting"
    assert controller.queue_controller.hold_reason == "failed"


def test_a_restart_in_an_equivalent_path_is_the_same_item(open_window: OpenWindow, qtbot: QtBot, home: Path) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "crash")
    controller.queue_controller.start_queue()
    qtbot.waitUntil(lambda: controller.active_run.auto_restart.pending is not None, timeout=20_000)
    equivalent = home / "elsewhere" / ".." / "runs" / "crash"
    controller.active_run.machine.run_dir = str(equivalent)
    controller.active_run.restart_now()
    assert states(controller) == "crash:running"
    wait_for_states(qtbot, controller, "crash:done")


def test_missing_presets_and_unknown_settings_fail_their_items(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "old", "unknown", "good")
    items(controller)[0].preset = "no-such-preset"
    items(controller)[1].changes = {"knob_of_tomorrow": 3}
    click(qtbot, controller.window.queue.start_button)
    wait_for_states(qtbot, controller, "old:failed unknown:failed good:done")
    assert "no-such-preset" in row_texts(controller, 0)[4]
    assert "knob_of_tomorrow" in row_texts(controller, 1)[4]


def test_the_end_of_the_queue_is_signaled_once(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    states_when_emptied: list[str] = []
    controller.queue_controller.emptied.connect(lambda: states_when_emptied.append(states(controller)))
    enqueue(qtbot, controller, "bad", "good")
    controller.queue_controller.start_queue()
    wait_for_states(qtbot, controller, "bad:failed good:done")
    qtbot.waitUntil(lambda: bool(states_when_emptied))
    qtbot.wait(50)
    assert states_when_emptied == ["bad:failed good:done"]


def test_a_window_in_the_tray_stays_hidden_until_the_queue_is_empty(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    enqueue(qtbot, controller, "a", "b")
    hidden: list[bool] = []

    def hide() -> None:
        if controller.active_run.machine.state is RunState.STARTING:
            hidden.append(controller.window.isHidden())
            controller.window.hide()

    controller.active_run.state_changed.connect(hide)
    controller.queue_controller.start_queue()
    wait_for_states(qtbot, controller, "a:done b:done")
    assert hidden == [False, True]
    qtbot.waitUntil(controller.window.isVisible)


def test_the_data_column_is_wide_enough_for_its_text(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    controller.window.resize(1280, 720)
    controller.queue_controller.hold_reason = "paused"
    enqueue(qtbot, controller, "narrow", hidden_dim="96")
    table = controller.window.queue.table
    column = table.row_model.names.index("data")
    text = table.row_model.data(table.row_model.index(0, column))
    assert text == "Python standard library (built-in)"
    assert table.fontMetrics().horizontalAdvance(text) + 2 * SPACING <= table.columnWidth(column)
    assert table.horizontalHeader().length() <= table.viewport().width()


def test_the_queue_follows_the_language(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window(language="zh")
    enqueue(qtbot, controller, "a", learning_rate="1e-3")
    page = controller.window.queue
    assert row_texts(controller, 0)[1] == "排队中"
    assert page.start_button.text() == "启动队列"
    assert controller.window.tabs.tabText(list(controller.window.pages).index("queue")) == "队列（1）"
    controller.set_language("en")
    assert row_texts(controller, 0)[1] == "Queued"
    assert page.pause_after_failure.text() == "Pause after a failure"
