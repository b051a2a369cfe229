"""Tray icon and desktop notifications of a run."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QMessageBox, QPushButton, QSystemTrayIcon
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow, wait_for_state
from trainer_core import protocol

Messages = list[str]


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Messages:
    """Texts of the notifications, on a desktop with a tray."""
    texts: Messages = []
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: True)
    monkeypatch.setattr(QSystemTrayIcon, "showMessage", lambda self, title, text, kind: texts.append(text))
    return texts


def start_run(qtbot: QtBot, controller: Controller) -> QSystemTrayIcon:
    """Start a run. Returns its tray icon."""
    controller.window.menus.actions["start"].trigger()
    wait_for_state(qtbot, controller, RunState.TRAINING)
    status = controller.desktop_status
    status.refresh()
    assert status.tray is not None
    return status.tray


def test_the_tray_icon_shows_the_status_and_controls_the_run(
    make_window: MakeWindow, qtbot: QtBot, messages: Messages
) -> None:
    controller = make_window("echo")
    status = controller.desktop_status
    assert status.tray is None
    tray = start_run(qtbot, controller)
    assert tray.isVisible()
    time_ms = protocol.StepTime(data=1.0, transfer=0.0, forward=2.0, backward=4.0, optimizer=1.0, other=0.1)
    step = protocol.Step(
        step=1007, epoch=0.1, tokens=64, samples=7, loss=2.625, learning_rate=3e-4, tokens_per_s=1.0, samples_per_s=1.0,
        time_ms=time_ms,
    )  # fmt: skip
    controller.active_run.handle_event(step)
    status.refresh()
    assert tray.toolTip().endswith("\nTraining · step 1,007 · loss 2.6250")
    actions = {action.text(): action for action in tray.contextMenu().actions()}
    actions["Pause"].trigger()
    wait_for_state(qtbot, controller, RunState.PAUSED)
    qtbot.waitUntil(actions["Resume"].isEnabled)
    assert "Paused" in tray.toolTip()
    controller.set_language("zh")
    status.refresh()
    assert actions["Resume"].text() == "继续"
    assert "已暂停" in tray.toolTip()
    actions["Resume"].trigger()
    wait_for_state(qtbot, controller, RunState.TRAINING)
    actions["Stop"].trigger()
    wait_for_state(qtbot, controller, RunState.STOPPED)
    assert messages == []  # the window is active


def test_the_tray_icon_is_hidden_when_the_window_is_active_after_the_end(
    make_window: MakeWindow, qtbot: QtBot, messages: Messages
) -> None:
    controller = make_window("echo")
    tray = start_run(qtbot, controller)
    controller.window.activateWindow()
    controller.active_run.stop()
    wait_for_state(qtbot, controller, RunState.STOPPED)
    qtbot.waitUntil(lambda: not tray.isVisible())


def test_a_crash_in_the_background_is_notified(make_window: MakeWindow, qtbot: QtBot, messages: Messages) -> None:
    controller = make_window("echo")
    start_run(qtbot, controller)
    controller.window.close()
    [box] = [box for box in controller.window.findChildren(QMessageBox) if box.isVisible()]
    next(button for button in box.findChildren(QPushButton) if "tray" in button.text()).click()
    assert "Training continues" in messages.pop()
    controller.active_run.process.kill()
    wait_for_state(qtbot, controller, RunState.CRASHED)
    assert controller.active_run.auto_restart.pending is None
    assert messages == ["The trainer exited unexpectedly."]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_end_is_notified_once_if_notifications_are_enabled(
    make_window: MakeWindow, qtbot: QtBot, messages: Messages, enabled: bool
) -> None:
    controller = make_window("ok", language="zh")
    notifications = controller.window.menus.actions["notifications"]
    assert notifications.isChecked()
    if not enabled:
        notifications.trigger()
    controller.window.menus.actions["start"].trigger()
    controller.window.hide()
    wait_for_state(qtbot, controller, RunState.FINISHED)
    qtbot.waitUntil(lambda: bool(messages) or not enabled, timeout=20_000)
    qtbot.wait(50)  # a second notification would appear now
    assert [text.partition("：")[0] for text in messages] == (["训练完成"] if enabled else [])


def test_a_run_works_without_a_tray(make_window: MakeWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QSystemTrayIcon, "isSystemTrayAvailable", lambda: False)
    controller = make_window("ok")
    controller.window.menus.actions["start"].trigger()
    wait_for_state(qtbot, controller, RunState.FINISHED)
    assert controller.desktop_status.tray is None
