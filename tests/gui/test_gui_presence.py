"""The run outside of the window: tray icon, messages of the desktop, and without a tray."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QMessageBox, QPushButton
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from app.window import tray_icon
from app.window.tray_icon import TrayIcon
from tests.gui.conftest import MakeWindow
from trainer_core import protocol

Said = list[tuple[str, str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """A desktop with a tray; what its messages said (title, text)."""
    shown: Said = []
    monkeypatch.setattr(tray_icon, "is_tray_available", lambda: True)
    monkeypatch.setattr(TrayIcon, "show_message", lambda self, title, text, bad=False: shown.append((title, text)))
    return shown


def begin(qtbot: QtBot, controller: Controller) -> TrayIcon:
    controller.window.menus.actions["start"].trigger()
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.TRAINING, timeout=20_000)
    presence = controller._close_controller.desktop_status
    presence.refresh()
    assert presence.tray is not None
    return presence.tray


def hide(controller: Controller) -> None:
    """Close the window, and keep training in the tray."""
    controller.window.close()
    [box] = [box for box in controller.window.findChildren(QMessageBox) if box.isVisible()]
    next(button for button in box.findChildren(QPushButton) if "tray" in button.text()).click()


def test_during_a_run_the_tray_tells_how_it_is_and_obeys(make_window: MakeWindow, qtbot: QtBot, said: Said) -> None:
    controller = make_window("echo")
    assert controller._close_controller.desktop_status.tray is None  # before a run there is nothing to show
    shown = begin(qtbot, controller)
    machine = controller.active_run.machine
    assert shown.icon.isVisible()
    spent = protocol.StepTime(data=1.0, transfer=0.0, forward=2.0, backward=4.0, optimizer=1.0, other=0.1)
    step = protocol.Step(
        step=1007, epoch=0.1, tokens=64, samples=7, loss=2.625, learning_rate=3e-4, tokens_per_s=1.0, samples_per_s=1.0,
        time_ms=spent,
    )  # fmt: skip
    controller.active_run.handle_event(step)
    controller._close_controller.desktop_status.refresh()
    assert shown.icon.toolTip().endswith("\nTraining · step 1,007 · loss 2.6250")
    assert shown.pause_action.isVisible()
    assert not shown.resume_action.isVisible()
    shown.pause_action.trigger()
    qtbot.waitUntil(lambda: machine.state is RunState.PAUSED)
    qtbot.waitUntil(shown.resume_action.isVisible)
    assert "Paused" in shown.icon.toolTip()
    controller.set_language("zh")
    controller._close_controller.desktop_status.refresh()
    assert shown.resume_action.text() == "继续"
    assert "已暂停" in shown.icon.toolTip()
    shown.resume_action.trigger()
    qtbot.waitUntil(lambda: machine.state is RunState.TRAINING)
    shown.stop_action.trigger()
    qtbot.waitUntil(lambda: machine.state is RunState.STOPPED, timeout=20_000)
    assert said == []  # who sees the window needs no message


def test_the_icon_leaves_when_somebody_sees_how_the_run_ended(
    make_window: MakeWindow, qtbot: QtBot, said: Said
) -> None:
    controller = make_window("echo")
    shown = begin(qtbot, controller)
    controller.window.activateWindow()
    controller.active_run.stop()
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.STOPPED, timeout=20_000)
    qtbot.waitUntil(lambda: not shown.icon.isVisible())


def test_a_failure_is_told_to_somebody_who_looks_elsewhere(make_window: MakeWindow, qtbot: QtBot, said: Said) -> None:
    controller = make_window("echo")
    begin(qtbot, controller)
    hide(controller)
    _, going_on = said.pop()
    assert "Training goes on" in going_on
    controller.active_run.process.kill()
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.CRASHED, timeout=20_000)
    if controller.active_run.auto_restart.pending is None:
        assert [text for _, text in said] == ["The trainer ended unexpectedly."]


@pytest.mark.parametrize("wanted", [True, False])
def test_the_end_is_told_once_unless_messages_are_switched_off(
    make_window: MakeWindow, qtbot: QtBot, said: Said, wanted: bool
) -> None:
    controller = make_window("ok", language="zh")
    switch = controller.window.menus.actions["notifications"]
    assert switch.isChecked()
    if not wanted:
        switch.trigger()
    controller.window.menus.actions["start"].trigger()
    controller.window.hide()
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.FINISHED, timeout=20_000)
    qtbot.waitUntil(lambda: bool(said) or not wanted, timeout=20_000)
    qtbot.wait(50)  # a second one would come now
    told = [text for _, text in said]
    assert [text.partition("：")[0] for text in told] == (["训练已完成"] if wanted else [])


def test_without_a_tray_a_run_is_as_ever(
    make_window: MakeWindow, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tray_icon, "is_tray_available", lambda: False)
    controller = make_window("ok")
    controller.window.menus.actions["start"].trigger()
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.FINISHED, timeout=20_000)
    assert controller._close_controller.desktop_status.tray is None
