"""A run through the window, with a trainer that behaves well or badly."""

from __future__ import annotations

import sys
import time

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QMessageBox, QPushButton, QSystemTrayIcon
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow
from trainer_core import protocol


def click(qtbot: QtBot, button: QPushButton) -> None:
    assert button.isEnabled(), button.text()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def wait_for(qtbot: QtBot, controller: Controller, state: RunState, seconds: float = 20.0) -> None:
    qtbot.waitUntil(lambda: controller.active_run.machine.state is state, timeout=int(1000 * seconds))


def start(qtbot: QtBot, controller: Controller) -> None:
    click(qtbot, controller.window.run_bar.start)


def test_a_run_from_start_to_finish_fills_plots_log_and_figures(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ok")
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.FINISHED)
    bar, window = controller.window.run_bar, controller.window
    qtbot.waitUntil(lambda: bar.state_label.text() == "Finished")
    assert "step 20 of 20" in bar.status_label.text()
    assert "epoch 0.20" in bar.time_label.text()
    assert bar.start.isEnabled()
    assert not bar.stop.isEnabled()
    x, _ = controller.active_run.record.metrics.series("train_loss")
    assert list(x) == list(range(1, 21))
    qtbot.waitUntil(lambda: window.plots.tiles.tiles["eval"].value.text() == "1.5000")
    window.show_page("log")
    qtbot.waitUntil(lambda: "警告：一行输出" in window.log.text.toPlainText())
    window.log.level_buttons["output"].click()
    assert "警告：一行输出" not in window.log.text.toPlainText()
    window.log.search.setText("saved")
    assert window.log.text.toPlainText().count("Saved") == 1


def test_the_trainer_is_given_what_the_form_says(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("echo")
    controller.form.add_data(["D:/数据 集/a & b.txt"])
    controller.form.set_text("learning_rate", "1e-3")
    controller.form.set_run_name("我的:运行")
    start(qtbot, controller)
    given = controller.active_run.process.arguments
    assert given[given.index("--data") + 1] == "D:/数据 集/a & b.txt"
    assert given[given.index("--learning-rate") + 1] == "0.001"
    assert given[given.index("--run-dir") + 1].endswith("我的-运行")
    assert "--batch-size" not in given
    assert controller.window.setup.run_name.text() == ""  # the next run needs another one


def test_pause_resume_and_stop_go_to_the_trainer_and_back(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("echo")
    bar = controller.window.run_bar
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.TRAINING)
    assert controller.window.setup.fields[0].isEnabled()  # for the next run
    click(qtbot, bar.pause)
    wait_for(qtbot, controller, RunState.PAUSED)
    click(qtbot, bar.resume)
    wait_for(qtbot, controller, RunState.TRAINING)
    click(qtbot, bar.stop)
    wait_for(qtbot, controller, RunState.STOPPED)
    assert bar.resume.isEnabled()


def test_a_slow_stop_shows_what_it_does_and_a_countdown(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("slow_stop")
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.TRAINING)
    click(qtbot, controller.window.run_bar.stop)
    note = controller.window.run_bar.status_label
    qtbot.waitUntil(lambda: "saving a checkpoint; force-stops in" in note.text())
    assert "s" in note.text()
    wait_for(qtbot, controller, RunState.STOPPED)


def test_a_trainer_that_ignores_stop_is_ended_by_a_second_press(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ignored_stop")
    bar = controller.window.run_bar
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.TRAINING)
    click(qtbot, bar.stop)
    qtbot.waitUntil(lambda: bar.stop.isEnabled() and bar.stop.text() == "Force stop")
    click(qtbot, bar.stop)
    wait_for(qtbot, controller, RunState.STOPPED)
    assert not controller.active_run.process.is_running


@pytest.mark.parametrize(
    ("mode", "words"), [("abort", "last words before the crash"), ("traceback", "the roof fell in")]
)
def test_a_crash_shows_the_last_words(make_window: MakeWindow, qtbot: QtBot, mode: str, words: str) -> None:
    controller = make_window(mode)
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.CRASHED)
    banner = controller.window.banners.contents[0]
    assert "exited unexpectedly" in banner.format_text()
    assert words in banner.detail
    if mode == "abort" and sys.platform != "win32":  # there its code, 3, tells nothing
        assert "(code SIGABRT)" in banner.format_text()
        assert "a library encountered a fatal error" in banner.format_text()
    assert controller.window.run_bar.start.isEnabled()


@pytest.mark.parametrize(("language", "words"), [("en", "does not exist"), ("zh", "不存在")])
def test_an_error_is_told_in_the_windows_language(
    make_window: MakeWindow, qtbot: QtBot, language: str, words: str
) -> None:
    controller = make_window("error", language)
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.FAILED)
    assert words in controller.window.banners.contents[0].format_text()


def test_a_trainer_that_cannot_be_started_is_told(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ok")
    controller.active_run.process._command = ["/no/such/program"]
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.CRASHED)
    assert "could not be started" in controller.window.banners.contents[0].format_text()


def test_the_window_goes_on_breathing_under_a_flood_of_events(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("flood")
    gaps, last = [], [time.thread_time()]
    heart = QTimer(controller, interval=10)

    def beat() -> None:
        gaps.append(time.thread_time() - last[0])
        last[0] = time.thread_time()

    heart.timeout.connect(beat)
    heart.start()
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.FINISHED, 60.0)
    assert controller.active_run.machine.step == 200_000
    assert max(gaps) < 1.0  # a window that handles all at once stands still for seconds


# --- closing --------------------------------------------------------------------------------------------


def question(controller: Controller) -> QMessageBox:
    return next(box for box in controller.window.findChildren(QMessageBox) if box.isVisible())


def buttons(box: QMessageBox) -> dict[str, QPushButton]:
    return {button.text(): button for button in box.buttons() if isinstance(button, QPushButton)}


def test_closing_without_a_run_just_closes(make_window: MakeWindow) -> None:
    window = make_window("ok").window
    assert window.close()


def test_closing_during_a_run_asks_and_cancel_changes_nothing(
    make_window: MakeWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: False)
    controller = make_window("echo")
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.TRAINING)
    assert not controller.window.close()
    offered = buttons(question(controller))
    assert set(offered) == {"Stop and save", "Cancel"}  # without a tray, no hidden training
    click(qtbot, offered["Cancel"])
    assert controller.window.isVisible()
    assert controller.active_run.machine.state is RunState.TRAINING


def test_stop_and_save_closes_once_the_trainer_has_saved(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("slow_stop")
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.TRAINING)
    controller.window.close()
    click(qtbot, buttons(question(controller))["Stop and save"])
    qtbot.waitUntil(lambda: "force-stops in" in controller.window.run_bar.status_label.text())
    assert controller.window.isVisible()
    qtbot.waitUntil(lambda: not controller.window.isVisible(), timeout=20_000)
    assert controller.active_run.machine.state is RunState.STOPPED


def test_a_window_is_not_hidden_for_a_run_that_ended_while_it_asked(
    make_window: MakeWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: True)
    controller = make_window("echo")
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.TRAINING)
    controller.window.close()
    asked = buttons(question(controller))
    controller.active_run.process.send(protocol.Stop())
    wait_for(qtbot, controller, RunState.STOPPED)
    click(qtbot, asked["Continue in the tray"])
    assert controller.window.isVisible()


def test_a_run_can_go_on_in_the_tray(make_window: MakeWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: True)
    controller = make_window("echo")
    start(qtbot, controller)
    wait_for(qtbot, controller, RunState.TRAINING)
    controller.window.close()
    click(qtbot, buttons(question(controller))["Continue in the tray"])
    assert not controller.window.isVisible()
    assert controller.active_run.process.is_running
    controller.active_run.process.send(protocol.Stop())
    qtbot.waitUntil(controller.window.isVisible, timeout=20_000)  # it comes back when the run is over
    assert controller.active_run.machine.state is RunState.STOPPED
