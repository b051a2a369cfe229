"""Helpers for tests of the queue: a window whose fake trainer behaves according to the name of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.queue import QueueItem
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow

ROOT = Path(__file__).resolve().parents[2]
TRAINER = """
import faulthandler, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.process import fake_trainer as fake
from trainer_core import protocol
FULL = {"path": "D:/runs", "needed_mib": 9, "free_mib": 1}
resumed = "--resume" in sys.argv
path = sys.argv[sys.argv.index("--resume" if resumed else "--run-dir") + 1]
name = Path(path).name
greeting = fake.hello()
greeting.config["restarts"], greeting.run_dir = 2, path
fake.emit(greeting)
if "bad" in name:
    fake.emit(protocol.Error(code="data.not_found", params={"path": "D:/gone.txt"}, exit_code=4))
    sys.exit(4)
fake.emit(fake.checkpoint(4))
if "crash" in name and not resumed:
    fake.emit(fake.step(5))
    faulthandler._read_null()
if "long" in name:
    fake.listen()
    fake.emit(protocol.Phase(phase="training", step=4))
    fake.emit(fake.step(5))
    while (command := fake.next_command(60.0)) is not None:
        if isinstance(command, protocol.Stop):
            if "full" in name:
                fake.emit(protocol.Error(code="disk.full", params=FULL, exit_code=7))
                sys.exit(7)
            if "fall" in name:
                faulthandler._read_null()
            fake.emit(fake.done("finished" if "last" in name else "stopped", 5))
            sys.exit(0 if "last" in name else 3)
    sys.exit(3)
if "held" in name:
    fake.emit(fake.step(5))
    while not Path(__file__).with_name("released").exists():
        time.sleep(0.02)
fake.emit(fake.step(20))
fake.emit(protocol.Eval(step=20, loss=1.5, perplexity=4.5, tokens=10, seconds=0.1, best=True))
fake.emit(fake.done("finished", 20))
"""
Open = Callable[..., Controller]


@pytest.fixture(name="open_window")
def window_opener(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> Open:
    """A window that displays the queue. Names of runs select the behavior of the trainer.

    bad: exits with an error. crash: crashes, unless resumed. held: trains until `release`. long: trains until stopped,
    then fails on a full disk (long-full), crashes (long-fall) or finishes (long-last)."""
    program = tmp_path / "fake trainer.py"
    program.write_text(TRAINER, encoding="utf-8")

    def make(**chosen: str) -> Controller:
        controller = make_window("ok", **chosen)
        controller.active_run.process._command = [sys.executable, "-u", "-X", "utf8", str(program), str(ROOT)]
        controller.window.show_page("queue")
        controller.window.activateWindow()
        qtbot.waitUntil(controller.window.isActiveWindow)
        return controller

    return make


def enqueue(qtbot: QtBot, controller: Controller, *names: str, **values: str) -> None:
    """Add a run of each name to the queue."""
    for name in names:
        controller.form.set_run_name(name)
        for knob, text in values.items():
            controller.form.set_text(knob, text)
        qtbot.mouseClick(controller.window.run_bar.queue, Qt.MouseButton.LeftButton)


def train(qtbot: QtBot, controller: Controller, name: str) -> None:
    """Start a run (long or held) and wait until it trains."""
    controller.form.set_run_name(name)
    controller.start_run()
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.TRAINING, timeout=20_000)


def release(controller: Controller) -> None:
    """Let the held runs finish."""
    Path(controller.active_run.process._command[4]).with_name("released").touch()


def click(qtbot: QtBot, button: QPushButton) -> None:
    assert button.isVisible()
    assert button.isEnabled(), button.text()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def items(controller: Controller) -> list[QueueItem]:
    return controller.queue_controller.queue.items


def states(controller: Controller) -> str:
    return " ".join(f"{item.name}:{item.state}" for item in items(controller))


def wait_for(qtbot: QtBot, controller: Controller, expected: str) -> None:
    try:
        qtbot.waitUntil(lambda: states(controller) == expected, timeout=20_000)
    finally:
        assert states(controller) == expected


def cells(controller: Controller, row: int) -> list[str]:
    model = controller.window.queue.model
    return [model.data(model.index(row, column)) for column in range(model.columnCount())]


def select(controller: Controller, *names: str) -> None:
    controller.window.queue.table.select([item.id for item in items(controller) if item.name in names])
