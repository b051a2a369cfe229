"""The window while setup completes its environment: progress, pause, mirrors, failures, and a start that waits."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMessageBox, QTextBrowser
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.installation import installation
from app.core.run_state import RunState
from app.pages.data.page import DataPage
from app.services import setup_job
from app.window import installation_controller
from app.window.installation_card import InstallationCard
from tests.gui.conftest import MakeWindow, click, wait_for_state
from tests.gui.setup_process import SetupProcess
from tests.gui.test_gui_interrupted import write_interrupted_run

GIB, MIB = 2**30, 2**20
PLAN = {
    "torch": "cu130", "reason": "driver 580.82, compute capability 8.6", "source": "PyPI", "bytes": 3 * GIB, "done": 0,
    "free": 120 * GIB, "needed": 7 * GIB, "mirror": "",
}  # fmt: skip
Open = Callable[..., Controller]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SetupProcess]:
    """An environment that is not complete, and the program that completes it."""
    folder = tmp_path / "packages 包"
    folder.mkdir()
    (folder / "traindeck.json").write_text(json.dumps({"window": True}), encoding="utf-8")
    program = SetupProcess(folder)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "prefix", str(folder))
        patch.setattr(setup_job, "LAUNCHER", program.path)
        yield program
    installation.read()


@pytest.fixture
def open_window(make_window: MakeWindow, setup: SetupProcess, qtbot: QtBot) -> Open:
    def open_window(**options: str) -> Controller:
        controller = make_window(**options)
        qtbot.waitUntil(lambda: len(setup.calls) == 1)
        return controller

    return open_window


def card_of(controller: Controller) -> InstallationCard:
    assert controller.installer is not None
    return controller.installer.card


def test_setup_starts_with_the_window_and_shows_its_progress(
    open_window: Open, setup: SetupProcess, qtbot: QtBot
) -> None:
    controller = open_window()
    card = card_of(controller)
    arguments, *_, language = setup.calls[0]
    assert (arguments, language) == (["setup", "--output", "json"], "en")
    setup.emit("stage", text="Downloading")
    setup.emit("plan", **PLAN)
    setup.emit("progress", done=GIB, total=3 * GIB, rate=50.0 * MIB, eta_s=41.0, file="torch")
    qtbot.waitUntil(lambda: "left" in card.amount.text())
    assert card.title.text() == "Setting up Traindeck"
    assert card.facts.text() == "Downloading"
    assert card.amount.text() == "1.0 GiB / 3.0 GiB  ·  50 MiB/s  ·  about 0:00:41 left"
    assert card.build.text() == "PyTorch cu130 from PyPI: driver 580.82, compute capability 8.6"
    assert card.disk.text() == "Disk: 7.0 GiB of 120.0 GiB free"
    assert card.progress.value() == round(card.progress.maximum() / 3)


def test_pause_ends_the_processes_and_continue_starts_another(
    open_window: Open, setup: SetupProcess, qtbot: QtBot
) -> None:
    controller = open_window()
    card = card_of(controller)
    click(qtbot, card.switch)
    qtbot.waitUntil(lambda: not setup.is_running(0))
    assert (card.title.text(), card.switch.text()) == ("Setup paused", "Continue")
    qtbot.wait(50)
    assert len(setup.calls) == 1
    click(qtbot, card.switch)
    qtbot.waitUntil(lambda: len(setup.calls) == 2)
    assert (card.title.text(), card.switch.text()) == ("Setting up Traindeck", "Pause")
    controller.shutdown()
    qtbot.waitUntil(lambda: not setup.is_running(1))


def test_a_failure_is_shown_with_the_buttons_that_help(open_window: Open, setup: SetupProcess, qtbot: QtBot) -> None:
    controller = open_window()
    controller.window.resize(900, 430)  # 1366 x 768 at 150 %
    card = card_of(controller)
    setup.emit("plan", **PLAN)
    setup.emit("text", text="<b>pip</b> says no")
    setup.emit("end", code=1, text="The disk is full. Free several GB and start again.")
    qtbot.waitUntil(card.failure.isVisible)
    assert card.failure.text() == "The disk is full. Free several GB and start again."
    assert (card.title.text(), card.switch.text()) == ("Setup failed", "Retry")
    assert card.choose_mirror.isVisible()
    qtbot.waitUntil(lambda: card.failure.height() >= card.failure.heightForWidth(card.failure.width()))
    click(qtbot, card.details)
    [log] = card.window().findChildren(QTextBrowser, "setupLogText")
    assert log.toPlainText() == "<b>pip</b> says no"
    click(qtbot, card.switch)
    qtbot.waitUntil(lambda: len(setup.calls) == 2)
    assert not card.failure.isVisible()
    setup.emit("text", text="trying again")
    qtbot.waitUntil(lambda: log.toPlainText() == "<b>pip</b> says no\ntrying again")
    setup.crash()
    qtbot.waitUntil(card.failure.isVisible)
    assert card.failure.text() == "The setup exited unexpectedly (code 1): Traceback: it broke"


def test_a_measured_mirror_is_chosen_and_setup_continues_from_it(
    open_window: Open, setup: SetupProcess, qtbot: QtBot
) -> None:
    card = card_of(open_window())
    setup.emit("plan", **PLAN)
    click(qtbot, card.choose_mirror)
    qtbot.waitUntil(lambda: len(setup.calls) == 2)
    assert setup.calls[1][0] == ["setup", "--output", "json", "--mirrors"]
    setup.emit_mirror("mirror", name="", label="PyPI", rate=0.5 * MIB)
    setup.emit_mirror("mirror", name="gone", label="Gone", rate=0)
    setup.emit_mirror("mirror", name="tsinghua", label="Tsinghua", rate=11.0 * MIB)
    setup.emit_mirror("end", code=0)
    qtbot.waitUntil(lambda: card.mirrors.currentIndex() == 0)
    texts = [card.mirrors.itemText(row) for row in range(3)]
    assert texts == ["PyPI  ·  512.0 KiB/s", "Gone  ·  no response", "Tsinghua  ·  11 MiB/s"]
    assert card.window().focusWidget() is card.mirrors
    qtbot.keyClick(card.mirrors, Qt.Key.Key_Down)
    qtbot.waitUntil(lambda: len(setup.calls) == 3)
    assert setup.calls[2][0] == ["setup", "--output", "json", "--mirror", "tsinghua"]
    qtbot.waitUntil(lambda: not setup.is_running(0))
    assert card.title.text() == "Setting up Traindeck"


def test_what_needs_packages_becomes_possible_as_they_are_installed(
    open_window: Open, setup: SetupProcess, qtbot: QtBot
) -> None:
    controller = open_window(preview="data", check="check")
    window, bar = controller.window, controller.window.run_bar
    data: DataPage = window.data
    window.show_page("data")
    assert not data.preview_button.isEnabled()
    assert data.preview_button.toolTip() == "Available when the setup has installed the packages for it"
    torch_reason = "Available when the setup has installed PyTorch"
    assert not bar.check.isEnabled()
    assert bar.check.toolTip() == torch_reason
    buttons = {"evaluate": window.evaluate.start, "export": window.export.start, "chat": window.chat.write}
    for page, button in buttons.items():
        window.show_page(page)
        assert not button.isEnabled()
        assert button.toolTip() == torch_reason
    setup.emit("ready", part="data")
    window.show_page("data")
    qtbot.waitUntil(data.preview_button.isEnabled)
    assert not bar.check.isEnabled()
    setup.emit("ready", part="all")
    setup.emit("end", code=0)
    qtbot.waitUntil(bar.check.isEnabled)
    assert window.export.start.toolTip() != torch_reason


def test_a_queued_start_begins_when_setup_has_finished(
    open_window: Open, setup: SetupProcess, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation_controller, "_CLOSE_DELAY_MS", 50)
    controller = open_window()
    bar, card = controller.window.run_bar, card_of(controller)
    click(qtbot, bar.start)
    qtbot.waitUntil(card.queued.isVisible)
    assert bar.status_label.text() == card.queued.text() == "Training starts when the setup has finished"
    assert not bar.start.isEnabled()
    click(qtbot, card.take_back)
    qtbot.waitUntil(bar.start.isEnabled)
    assert not card.queued.isVisible()
    assert not controller.queue_controller.queue.waiting
    click(qtbot, bar.start)
    setup.emit("ready", part="all")
    assert controller.active_run.machine.state is RunState.IDLE
    setup.emit("end", code=0)
    wait_for_state(qtbot, controller, RunState.FINISHED)
    qtbot.waitUntil(lambda: not card.isVisible())


def test_an_update_is_made_on_request_and_a_restart_never_interrupts_a_run(
    make_window: MakeWindow, setup: SetupProcess, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(sys.prefix, "traindeck.json").write_text(json.dumps({"complete": True}), encoding="utf-8")
    monkeypatch.setenv("TRAINDECK_UPDATE", "the requirements changed")
    controller = make_window("echo")
    card = card_of(controller)
    assert (card.title.text(), card.facts.text()) == ("Update available", "the requirements changed")
    click(qtbot, controller.window.run_bar.start)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    assert not setup.calls
    click(qtbot, card.switch)
    qtbot.waitUntil(lambda: len(setup.calls) == 1)
    assert card.title.text() == "Updating Traindeck"
    setup.emit("end", code=0, restart=True)
    qtbot.waitUntil(card.restart.isVisible)
    assert (card.title.text(), card.facts.text()) == ("The update is ready", "It takes effect when Traindeck restarts")
    assert not card.restart.isEnabled()
    assert card.restart.toolTip() == "Restart when the training has ended"
    click(qtbot, controller.window.run_bar.stop)
    qtbot.waitUntil(card.restart.isEnabled, timeout=20_000)
    click(qtbot, card.restart)
    assert controller.restart_arguments == []
    assert not controller.window.isVisible()


def test_an_update_waits_for_an_unfinished_run(
    make_window: MakeWindow, setup: SetupProcess, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    (setup.path.parent / "traindeck.json").write_text(json.dumps({"complete": True}), encoding="utf-8")
    monkeypatch.setenv("TRAINDECK_UPDATE", "torch 2.12.0 → 2.13.0")
    run = write_interrupted_run(home, "晚上")
    monkeypatch.setenv("TRAINDECK_UNFINISHED_RUN", "晚上")  # the launcher knows the versions of torch
    controller = make_window()
    card = card_of(controller)
    qtbot.waitUntil(lambda: not card.switch.isEnabled())
    assert card.facts.text() == "torch 2.12.0 → 2.13.0"
    assert "waits for run 晚上" in card.hint.text()
    shutil.rmtree(run)
    controller.window.show_page("runs")
    qtbot.waitUntil(card.switch.isEnabled)
    assert card.hint.isHidden()


def test_the_last_update_can_be_undone_by_a_click(make_window: MakeWindow, setup: SetupProcess, qtbot: QtBot) -> None:
    for folder in (setup.path.parent, setup.path.parent.with_name(".venv.old")):
        folder.mkdir(exist_ok=True)
        (folder / "traindeck.json").write_text(json.dumps({"complete": True}), encoding="utf-8")
    controller = make_window("echo")
    action = controller.window.menus.actions["undo_update"]
    assert action.isEnabled()
    click(qtbot, controller.window.run_bar.start)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    assert not action.isEnabled()
    click(qtbot, controller.window.run_bar.stop)
    qtbot.waitUntil(action.isEnabled, timeout=20_000)
    action.trigger()
    box = controller.window.findChild(QMessageBox, "undoUpdate")
    assert box is not None
    undo = next(button for button in box.buttons() if button.text() == "Undo and restart")
    click(qtbot, undo)
    assert controller.restart_arguments == ["setup", "--back", "--open"]
    assert not controller.window.isVisible()
