"""A run in the window, with fake trainers that finish, hang or fail."""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QMessageBox, QPushButton, QSystemTrayIcon
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow, click, wait_for_state
from trainer_core import protocol


def start(qtbot: QtBot, controller: Controller) -> None:
    click(qtbot, controller.window.run_bar.start)


def test_a_finished_run_has_plots_log_and_metrics(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ok")
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.FINISHED)
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


def test_the_trainer_gets_the_settings_of_the_form(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("echo")
    controller.form.add_data(["D:/数据 集/a & b.txt"])
    controller.form.set_text("learning_rate", "1e-3")
    controller.form.set_run_name("我的:运行")
    start(qtbot, controller)
    arguments = controller.active_run.process.arguments
    assert arguments[arguments.index("--data") + 1] == "D:/数据 集/a & b.txt"
    assert arguments[arguments.index("--learning-rate") + 1] == "0.001"
    assert arguments[arguments.index("--run-dir") + 1].endswith("我的-运行")
    assert "--batch-size" not in arguments
    assert controller.window.setup.run_name.text() == ""  # the next run needs another name


def test_the_buttons_pause_resume_and_stop_the_trainer(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("echo")
    bar = controller.window.run_bar
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    assert controller.window.setup.fields[0].isEnabled()  # for the next run
    click(qtbot, bar.pause)
    wait_for_state(qtbot, controller, RunState.PAUSED)
    click(qtbot, bar.resume)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    click(qtbot, bar.stop)
    wait_for_state(qtbot, controller, RunState.STOPPED)
    assert bar.resume.isEnabled()


def test_a_slow_stop_shows_its_phase_and_a_countdown(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("slow_stop")
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    click(qtbot, controller.window.run_bar.stop)
    status = controller.window.run_bar.status_label
    qtbot.waitUntil(lambda: "saving a checkpoint; force-stops in" in status.text())
    wait_for_state(qtbot, controller, RunState.STOPPED)


def test_a_second_stop_kills_a_trainer_that_ignores_the_first(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ignored_stop")
    bar = controller.window.run_bar
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    click(qtbot, bar.stop)
    qtbot.waitUntil(lambda: bar.stop.isEnabled() and bar.stop.text() == "Force stop")
    click(qtbot, bar.stop)
    wait_for_state(qtbot, controller, RunState.STOPPED)
    assert not controller.active_run.process.is_running


@pytest.mark.parametrize(
    ("mode", "output"), [("abort", "last output before the crash"), ("traceback", "uncaught test error")]
)
def test_a_crash_shows_the_last_output(make_window: MakeWindow, qtbot: QtBot, mode: str, output: str) -> None:
    controller = make_window(mode)
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.CRASHED)
    banner = controller.window.banners.contents[0]
    assert "exited unexpectedly" in banner.format_text()
    assert output in banner.detail
    if mode == "abort" and sys.platform != "win32":  # where exit code 3 has no name
        assert "(code SIGABRT)" in banner.format_text()
        assert "a library encountered a fatal error" in banner.format_text()
    assert controller.window.run_bar.start.isEnabled()


@pytest.mark.parametrize(("language", "text"), [("en", "does not exist"), ("zh", "不存在")])
def test_an_error_is_displayed_in_the_language_of_the_window(
    make_window: MakeWindow, qtbot: QtBot, language: str, text: str
) -> None:
    controller = make_window("error", language)
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.FAILED)
    assert text in controller.window.banners.contents[0].format_text()


def test_a_trainer_that_cannot_be_started_is_reported(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ok")
    controller.active_run.process._command = ["/no/such/program"]
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.CRASHED)
    assert "could not be started" in controller.window.banners.contents[0].format_text()


def test_the_window_stays_responsive_during_a_flood_of_events(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("flood")
    times_s = [time.thread_time()]  # processor time, which excludes the load of other processes
    timer = QTimer(controller, interval=10)
    timer.timeout.connect(lambda: times_s.append(time.thread_time()))
    timer.start()
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.FINISHED, 60.0)
    assert controller.active_run.machine.step == 200_000
    assert max(after - before for before, after in pairwise(times_s)) < 1.0


# --- closing --------------------------------------------------------------------------------------------


def question(controller: Controller) -> QMessageBox:
    return next(box for box in controller.window.findChildren(QMessageBox) if box.isVisible())


def buttons(box: QMessageBox) -> dict[str, QPushButton]:
    return {button.text(): button for button in box.buttons() if isinstance(button, QPushButton)}


def test_the_window_closes_without_a_question_if_no_run_is_active(make_window: MakeWindow) -> None:
    window = make_window("ok").window
    assert window.close()


def test_closing_during_a_run_can_be_cancelled(
    make_window: MakeWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: False)
    controller = make_window("echo")
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    assert not controller.window.close()
    answers = buttons(question(controller))
    assert set(answers) == {"Stop and save", "Cancel"}  # no tray, no hidden window
    click(qtbot, answers["Cancel"])
    assert controller.window.isVisible()
    assert controller.active_run.machine.state is RunState.TRAINING


def test_stop_and_save_closes_the_window_after_the_checkpoint(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("slow_stop")
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    controller.window.close()
    click(qtbot, buttons(question(controller))["Stop and save"])
    qtbot.waitUntil(lambda: "force-stops in" in controller.window.run_bar.status_label.text())
    assert controller.window.isVisible()
    qtbot.waitUntil(lambda: not controller.window.isVisible(), timeout=20_000)
    assert controller.active_run.machine.state is RunState.STOPPED


def test_the_window_is_not_hidden_if_the_run_ends_before_the_answer(
    make_window: MakeWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: True)
    controller = make_window("echo")
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    controller.window.close()
    answers = buttons(question(controller))
    controller.active_run.process.send(protocol.Stop())
    wait_for_state(qtbot, controller, RunState.STOPPED)
    click(qtbot, answers["Continue in the tray"])
    assert controller.window.isVisible()


def test_a_run_continues_in_the_tray_until_it_ends(
    make_window: MakeWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: True)
    controller = make_window("echo")
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    controller.window.close()
    click(qtbot, buttons(question(controller))["Continue in the tray"])
    assert not controller.window.isVisible()
    assert controller.active_run.process.is_running
    controller.active_run.process.send(protocol.Stop())
    qtbot.waitUntil(controller.window.isVisible, timeout=20_000)  # at the end of the run
    assert controller.active_run.machine.state is RunState.STOPPED


@pytest.mark.parametrize(
    ("answer", "arguments"),
    [
        ("Cancel", None),
        ("Continue in the tray", None),
        ("", None),
        ("Stop and save", ["setup", "--back", "--open"]),
    ],
)
def test_a_restart_that_is_cancelled_does_not_follow_a_later_close(
    make_window: MakeWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, answer: str, arguments: list[str] | None
) -> None:
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: True)
    controller = make_window("echo")
    controller.help_controller.ask_to_undo_update()
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    update = controller.window.findChild(QMessageBox, "undoUpdate")
    assert update is not None
    click(qtbot, buttons(update)["Undo and restart"])
    box = question(controller)
    if answer:
        click(qtbot, buttons(box)[answer])
    else:
        box.close()
    controller.active_run.process.send(protocol.Stop())
    wait_for_state(qtbot, controller, RunState.STOPPED)
    controller.window.close()
    assert not controller.window.isVisible()
    assert controller.restart_arguments == arguments


def test_the_end_of_a_run_with_a_checkpoint_offers_a_chat_with_its_model(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ok")
    bar = controller.window.finished_run_bar
    start(qtbot, controller)
    assert not bar.isVisible()
    qtbot.waitUntil(bar.isVisible)
    run = Path(controller.active_run.machine.run_dir)
    assert bar.text.text() == f"The model of {run.name} is saved."
    controller.set_language("zh")
    assert bar.text.text() == f"{run.name} 的模型已保存。"
    click(qtbot, bar.buttons["closeFinished"])
    assert not bar.isVisible()
    start(qtbot, controller)
    qtbot.waitUntil(bar.isVisible)
    controller.window.chat.prompt.setPlainText("typed before")
    click(qtbot, bar.buttons["primary"])
    assert controller.window.page == "chat"
    assert controller.window.chat.prompt.toPlainText() == "typed before"
    assert not bar.isVisible()


def test_a_run_that_failed_offers_no_chat(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("error")
    start(qtbot, controller)
    wait_for_state(qtbot, controller, RunState.FAILED)
    qtbot.wait(300)
    assert not controller.window.finished_run_bar.isVisible()
