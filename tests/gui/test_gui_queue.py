"""The queue of runs in the window: filled, reordered, worked off, and still there after a restart of the program."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from demo_run import write_run
from PySide6.QtCore import QMimeData, QPointF, Qt
from PySide6.QtGui import QDropEvent
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.queueing import Queueing
from app.state.queue import Item
from app.state.run_machine import RunState
from app.views.queue.sweep_dialog import SweepDialog
from tests.gui.conftest import MakeWindow

ROOT = Path(__file__).resolve().parents[2]
TRAINER = """
import faulthandler, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.process import fake_trainer as fake
from trainer_core import protocol
resumed = "--resume" in sys.argv
path = sys.argv[sys.argv.index("--resume" if resumed else "--run-dir") + 1]
name = Path(path).name
greeting = fake.hello()
greeting.config["restarts"], greeting.run_dir = 2, path
fake.say(greeting)
if "bad" in name:
    fake.say(protocol.Error(code="data.not_found", params={"path": "D:/gone.txt"}, exit_code=4))
    sys.exit(4)
fake.say(fake.checkpoint(4))
if "crash" in name and not resumed:
    fake.say(fake.step(5))
    faulthandler._read_null()
if "long" in name:
    fake.listen()
    fake.say(protocol.Phase(phase="training", step=4))
    fake.say(fake.step(5))
    while (command := fake.take_command(60.0)) is not None:
        if isinstance(command, protocol.Stop):
            fake.say(fake.done("stopped", 5))
            sys.exit(3)
    sys.exit(3)
fake.say(fake.step(20))
fake.say(protocol.Eval(step=20, loss=1.5, perplexity=4.5, tokens=10, seconds=0.1, best=True))
fake.say(fake.done("finished", 20))
"""
Open = Callable[..., Controller]


@pytest.fixture
def open_window(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> Open:
    """A window with its queue on show, whose trainer goes by the name of the run: bad, crash and long ones."""
    program = tmp_path / "trainer by name.py"
    program.write_text(TRAINER, encoding="utf-8")

    def make(**chosen: str) -> Controller:
        controller = make_window("ok", **chosen)
        controller.own.process._command = [sys.executable, "-u", "-X", "utf8", str(program), str(ROOT)]
        controller.window.show_page("queue")
        controller.window.activateWindow()
        qtbot.waitUntil(controller.window.isActiveWindow)
        return controller

    return make


def line_up(qtbot: QtBot, controller: Controller, *names: str, **values: str) -> None:
    """Set up a run of each name and press the button beside Start."""
    for name in names:
        controller.form.set_run_name(name)
        for knob, text in values.items():
            controller.form.set_text(knob, text)
        qtbot.mouseClick(controller.window.run_bar.queue, Qt.MouseButton.LeftButton)


def train(qtbot: QtBot, controller: Controller, name: str) -> None:
    """Start a run as a person does, and have it train."""
    controller.form.set_run_name(name)
    controller.start_run()
    qtbot.waitUntil(lambda: controller.own.machine.state is RunState.TRAINING, timeout=20_000)


def click(qtbot: QtBot, button: QPushButton) -> None:
    assert button.isVisible()
    assert button.isEnabled(), button.text()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def items(controller: Controller) -> list[Item]:
    return controller.queueing.queue.items


def states(controller: Controller) -> str:
    return " ".join(f"{item.name}:{item.state}" for item in items(controller))


def wait_for(qtbot: QtBot, controller: Controller, wanted: str) -> None:
    try:
        qtbot.waitUntil(lambda: states(controller) == wanted, timeout=20_000)
    finally:
        assert states(controller) == wanted


def cells(controller: Controller, row: int) -> list[str]:
    rows = controller.window.queue.table.rows
    return [rows.data(rows.index(row, column)) for column in range(rows.columnCount())]


def choose(controller: Controller, *names: str) -> None:
    controller.window.queue.table.select([item.id for item in items(controller) if item.name in names])


# --- filling it --------------------------------------------------------------------------------------------


def test_a_run_that_is_added_while_another_trains_starts_when_that_one_has_ended(
    open_window: Open, qtbot: QtBot
) -> None:
    controller = open_window()
    train(qtbot, controller, "now")
    line_up(qtbot, controller, "next", learning_rate="1e-3")
    assert controller.window.queue.sentence.text() == "“next” starts when this run ends."
    wait_for(qtbot, controller, "next:done")
    assert cells(controller, 0)[1:3] == ["Finished", "Learning rate 0.001  ·  quickstart"]
    assert cells(controller, 0)[4] == "best loss 1.5000"
    assert controller.own.record.metrics is not None
    assert Path(controller.own.machine.run_dir).name == "next"


def test_what_is_set_while_a_run_trains_does_not_change_that_run(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    train(qtbot, controller, "long-now")
    before = controller.own.process.arguments
    assert controller.window.setup._next.text() == "for the next run"
    line_up(qtbot, controller, "other", batch_size="4")
    assert controller.own.process.arguments == before
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
    click(qtbot, page.go)
    wait_for(qtbot, controller, "a:done b:done")
    assert page.sentence.text() == "Nothing waits."
    assert controller.window.tabs.tabText(list(controller.window.pages).index("queue")) == "Queue"


def test_a_shortcut_adds_too(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    controller.window.activateWindow()
    qtbot.waitUntil(controller.window.isActiveWindow)
    controller.form.set_run_name("typed")
    qtbot.keyClick(
        controller.window, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    )
    assert states(controller) == "typed:waiting"


def test_a_configuration_that_cannot_be_trained_is_not_added_and_says_why(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    button = controller.window.run_bar.queue
    controller.form.set_text("batch_size", "0")
    assert not button.isEnabled()
    assert "Batch size" in button.toolTip()
    controller.queueing.add()
    assert items(controller) == []
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
    controller.queueing.go_on()
    wait_for(qtbot, controller, "same-3:done same-2:done")


# --- working it off ----------------------------------------------------------------------------------------


def test_after_a_failure_the_next_one_starts(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "bad", "good")
    click(qtbot, controller.window.queue.go)
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
    click(qtbot, page.go)
    wait_for(qtbot, controller, "bad:failed good:waiting")
    qtbot.waitUntil(lambda: page.sentence.text() == "The queue waits, for a run failed.")
    click(qtbot, page.go)
    wait_for(qtbot, controller, "bad:failed good:done")


def test_a_person_who_stops_a_run_stops_the_queue(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "long", "good")
    page = controller.window.queue
    click(qtbot, page.go)
    qtbot.waitUntil(lambda: controller.own.machine.state is RunState.TRAINING, timeout=20_000)
    click(qtbot, controller.window.run_bar.stop)
    wait_for(qtbot, controller, "long:stopped good:waiting")
    qtbot.waitUntil(lambda: page.sentence.text() == "The queue waits, for a run was stopped.")
    choose(controller, "long")
    assert page.actions_["resume"].isEnabled()


def test_wait_lets_the_run_go_on_but_starts_no_other(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    train(qtbot, controller, "now")
    line_up(qtbot, controller, "next")
    page = controller.window.queue
    assert page.go.text() == "Wait"
    click(qtbot, page.go)
    qtbot.waitUntil(lambda: controller.own.machine.state is RunState.FINISHED, timeout=20_000)
    qtbot.wait(100)
    assert states(controller) == "next:waiting"


def test_a_restart_after_a_failure_that_passes_comes_before_the_next_run(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "crash", "good")
    click(qtbot, controller.window.queue.go)
    qtbot.waitUntil(lambda: controller.own.restarting.pending is not None, timeout=20_000)
    qtbot.waitUntil(lambda: cells(controller, 0)[1] == "Restarting")
    qtbot.wait(100)
    assert states(controller) == "crash:running good:waiting"
    controller.own.restart_now()
    wait_for(qtbot, controller, "crash:done good:done")


def test_a_restart_that_is_called_off_is_a_failure(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "crash", "good")
    click(qtbot, controller.window.queue.go)
    qtbot.waitUntil(lambda: controller.own.restarting.pending is not None, timeout=20_000)
    controller.own.cancel_restart()
    wait_for(qtbot, controller, "crash:failed good:done")
    assert items(controller)[0].resumable


def test_a_preset_that_is_gone_fails_its_item_with_a_sentence(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "old", "unknown", "good")
    items(controller)[0].preset = "no-such-preset"
    items(controller)[1].changes = {"knob_of_tomorrow": 3}
    click(qtbot, controller.window.queue.go)
    wait_for(qtbot, controller, "old:failed unknown:failed good:done")
    assert "no-such-preset" in cells(controller, 0)[4]
    assert "knob_of_tomorrow" in cells(controller, 1)[4]


def test_what_happens_is_told_to_whoever_wants_to_notify(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    told: list[str] = []
    queueing: Queueing = controller.queueing
    queueing.started.connect(lambda item: told.append(f"started {item.name}"))
    queueing.ended.connect(lambda item: told.append(f"{item.state} {item.name}"))
    queueing.emptied.connect(lambda batch: told.append(" ".join(item.name for item in batch)))
    line_up(qtbot, controller, "bad", "good")
    queueing.go_on()
    qtbot.waitUntil(lambda: len(told) == 5, timeout=20_000)
    assert told == ["started bad", "failed bad", "started good", "done good", "bad good"]


def test_a_window_in_the_tray_stays_there_until_the_queue_is_done(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "a", "b")
    hidden: list[bool] = []
    controller.queueing.started.connect(lambda item: hidden.append(controller.window.isHidden()))
    controller.queueing.go_on()
    qtbot.waitUntil(lambda: len(hidden) == 1)
    controller.window.hide()
    wait_for(qtbot, controller, "a:done b:done")
    assert hidden == [False, True]
    qtbot.waitUntil(controller.window.isVisible)


# --- putting it in order -------------------------------------------------------------------------------------


def test_keys_reorder_duplicate_remove_and_take_back(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "a", "b", "c")
    table, alt = controller.window.queue.table, Qt.KeyboardModifier.AltModifier
    table.setFocus()
    choose(controller, "c")

    def order() -> str:
        return "".join(item.name for item in items(controller))

    qtbot.keyClick(table, Qt.Key.Key_Up, alt)
    assert order() == "acb"
    assert [item.name for item in table.chosen()] == ["c"]
    qtbot.keyClick(table, Qt.Key.Key_Down, alt)
    assert order() == "abc"
    qtbot.keyClick(table, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier)
    assert order() == "abcc-2"
    assert [item.name for item in table.chosen()] == ["c-2"]
    qtbot.keyClick(table, Qt.Key.Key_Delete)
    assert order() == "abc"
    qtbot.keyClick(table, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
    assert order() == "abcc-2"


def test_the_settings_of_an_item_are_taken_into_the_form(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    line_up(qtbot, controller, "first", batch_size="4")
    line_up(qtbot, controller, "second", batch_size="8", learning_rate="1e-4")
    choose(controller, "first")
    controller.window.queue.actions_["to_form"].trigger()
    assert controller.form.run_name == "first"
    assert controller.form.changes() == {"batch_size": 4}


def test_a_row_is_dragged_to_another_place(open_window: Open, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = open_window()
    line_up(qtbot, controller, "a", "b", "c")
    table = controller.window.queue.table
    choose(controller, "a")
    monkeypatch.setattr(QDropEvent, "source", lambda self: table)
    below = table.visualRect(table.rows.index(2, 0)).bottomLeft()
    action, button = Qt.DropAction.MoveAction, Qt.MouseButton.LeftButton
    event = QDropEvent(QPointF(below), action, QMimeData(), button, Qt.KeyboardModifier.NoModifier)
    table.dropEvent(event)
    assert [item.name for item in items(controller)] == ["b", "c", "a"]


def test_what_has_ended_is_opened_put_back_in_line_compared_and_cleared(
    open_window: Open, qtbot: QtBot, own_folders: Path
) -> None:
    controller = open_window()
    page = controller.window.queue
    line_up(qtbot, controller, "a", "bad", "b")
    click(qtbot, page.go)
    wait_for(qtbot, controller, "a:done bad:failed b:done")
    compared: list[list[Path]] = []
    controller.queueing.compare_asked.connect(compared.append)
    qtbot.waitUntil(page.compare.isEnabled)
    choose(controller, "a", "b")
    click(qtbot, page.compare)
    assert compared == [[own_folders / "runs" / name for name in "ab"]]
    assert list(controller.runs.overlays.chosen) == compared[0]
    controller.window.show_page("queue")
    choose(controller, "bad")
    page.actions_["put_back"].trigger()
    assert states(controller) == "a:done bad:waiting b:done"
    qtbot.wait(50)
    assert controller.queueing.hold  # nothing starts only because it is in line again
    page.actions_["clear"].trigger()
    assert states(controller) == "bad:waiting"
    write_run(own_folders / "runs" / "shown", "quickstart", ["builtin:python"], steps=20, every=5, gpu=False)
    items(controller)[0].run_dir = str(own_folders / "runs" / "shown")
    choose(controller, "bad")
    page.table.setFocus()
    qtbot.keyClick(page.table, Qt.Key.Key_Return, Qt.KeyboardModifier.AltModifier)
    qtbot.waitUntil(lambda: controller.viewing is not None)


# --- restarts of the program ---------------------------------------------------------------------------------


def test_after_a_crash_of_the_program_nothing_is_lost_and_nothing_starts_by_itself(
    open_window: Open, qtbot: QtBot, own_folders: Path
) -> None:
    first = open_window()
    line_up(qtbot, first, "long", "good")
    first.queueing.go_on()
    qtbot.waitUntil(lambda: first.own.machine.state is RunState.TRAINING, timeout=20_000)
    file = first.queueing.queue.path
    as_it_was = file.read_bytes()
    first.own.process.blockSignals(True)
    first.own.process.shutdown(grace_s=0.1)
    first.leave()
    file.write_bytes(as_it_was)  # a program that crashes writes nothing at its end
    write_run(own_folders / "runs" / "long", "quickstart", ["builtin:python"], steps=3000, every=50, done=False)
    second = open_window()
    page = second.window.queue
    assert states(second) == "long:interrupted good:waiting"
    assert "nothing starts by itself" in page.sentence.text()
    qtbot.wait(200)
    assert second.own.machine.state is RunState.IDLE
    choose(second, "long")
    assert "Broken off" in page.details.text()
    page.actions_["resume"].trigger()
    qtbot.waitUntil(lambda: second.own.machine.state is RunState.TRAINING, timeout=20_000)
    assert "--resume" in second.own.process.arguments
    assert states(second) == "long:running good:waiting"
    second.own.stop()
    wait_for(qtbot, second, "long:stopped good:waiting")
    second.queueing.go_on()
    wait_for(qtbot, second, "long:stopped good:done")


def test_a_run_that_ended_well_while_no_window_watched_is_finished(
    open_window: Open, qtbot: QtBot, own_folders: Path
) -> None:
    first = open_window()
    line_up(qtbot, first, "a")
    items(first)[0].state, items(first)[0].run_dir = "running", str(own_folders / "runs" / "a")
    first.queueing.queue.save()
    first.leave()
    write_run(own_folders / "runs" / "a", "quickstart", ["builtin:python"], steps=300, every=5, gpu=False)
    second = open_window()
    assert states(second) == "a:done"
    assert items(second)[0].best_loss is not None


def test_a_queue_that_another_window_has_is_left_alone_until_that_one_closes(open_window: Open, qtbot: QtBot) -> None:
    first = open_window()
    line_up(qtbot, first, "a")
    second = open_window()
    page = second.window.queue
    assert "Another window of Traindeck has the queue" in page.sentence.text()
    assert not second.window.run_bar.queue.isEnabled()
    assert json.loads(first.queueing.queue.path.read_text(encoding="utf-8"))["items"][0]["name"] == "a"
    first.leave()
    second.window.show_page("plots")
    second.window.show_page("queue")
    assert states(second) == "a:waiting"


# --- sweeps ------------------------------------------------------------------------------------------------


def test_a_sweep_lines_up_every_pair_of_values(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    controller.form.set_run_name("快")
    click(qtbot, controller.window.queue.sweep)
    dialog = controller.window.findChild(SweepDialog)
    assert dialog is not None
    first, second = dialog.axes
    first.typed.clear()
    qtbot.keyClicks(first.typed, "1e-3, 2e-3")
    second.knob.setCurrentIndex(second.names.index("batch_size"))
    second.knob.activated.emit(second.knob.currentIndex())
    second.mode.setCurrentIndex(2)
    second.mode.activated.emit(2)
    for editor, text in ((second.low, "4"), (second.high, "16"), (second.steps, "3")):
        editor.clear()
        qtbot.keyClicks(editor, text)
    assert dialog.count.text() == "Runs: 6"
    qtbot.mouseClick(dialog.accept_, Qt.MouseButton.LeftButton)
    assert [item.name for item in items(controller)][:3] == ["快-lr1e-3-bs4", "快-lr1e-3-bs8", "快-lr1e-3-bs16"]
    assert len(items(controller)) == 6
    assert items(controller)[5].changes["learning_rate"] == 2e-3
    assert items(controller)[5].changes["batch_size"] == 16
    assert not any("seed" in item.changes for item in items(controller))


def test_a_sweep_refuses_what_no_run_takes_and_says_it_at_the_field(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window()
    controller.queueing.ask_sweep()
    dialog = controller.window.findChild(SweepDialog)
    assert dialog is not None
    first, second = dialog.axes
    for text in ("1e-3, eleven", "-1", ""):
        first.typed.clear()
        qtbot.keyClicks(first.typed, text)
        first.typed.textEdited.emit(text)
        assert not dialog.accept_.isEnabled()
        assert first.error.text()
    first.typed.setText("1e-3")
    second.knob.setCurrentIndex(second.names.index("n_heads"))
    second.knob.activated.emit(second.knob.currentIndex())
    second.typed.clear()
    qtbot.keyClicks(second.typed, "2, 3")
    assert not first.error.isVisible()
    assert dialog.list.count() == 2
    assert "head" in dialog.list.item(1).text()
    assert dialog.count.text() == "Runs: 1. 1 more cannot be trained and are left out."
    qtbot.mouseClick(dialog.accept_, Qt.MouseButton.LeftButton)
    assert [item.changes["n_heads"] for item in items(controller)] == [2]


def test_the_queue_speaks_chinese(open_window: Open, qtbot: QtBot) -> None:
    controller = open_window(language="zh")
    line_up(qtbot, controller, "a", learning_rate="1e-3")
    page = controller.window.queue
    assert cells(controller, 0)[1] == "等待中"
    assert page.go.text() == "继续"
    assert controller.window.tabs.tabText(list(controller.window.pages).index("queue")) == "队列（1）"
    controller.set_language("en")
    assert cells(controller, 0)[1] == "Waiting"
    assert page.policy.currentText() == "go on with the next"
