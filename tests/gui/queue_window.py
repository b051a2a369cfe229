"""Helpers for tests of the queue: a window whose fake trainer acts on the name of the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.queue import QueueItem
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow, activate, click, replace_trainer, wait_for_state

TRAINER = """
import faulthandler, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.process import fake_trainer as fake
from trainer_core import protocol
DISK_FULL = {"path": "D:/runs", "needed_mib": 9, "free_mib": 1}
resumed = "--resume" in sys.argv
path = sys.argv[sys.argv.index("--resume" if resumed else "--run-dir") + 1]
name = Path(path).name
hello = fake.hello()
hello.config["restarts"], hello.run_dir = 2, path
fake.emit(hello)
if "bad" in name:
    fake.emit(protocol.Error(code="data.not_found", params={"path": "D:/missing.txt"}, exit_code=4))
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
                fake.emit(protocol.Error(code="disk.full", params=DISK_FULL, exit_code=7))
                sys.exit(7)
            if "abort" in name:
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
OpenWindow = Callable[..., Controller]


@pytest.fixture(name="open_window")
def window_opener(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> OpenWindow:
    """Open a window that displays the queue. Names of runs select what the trainer does.

    bad: exits with an error. crash: crashes, unless resumed. held: trains until `release`. long: trains until stopped,
    then fails on a full disk (long-full), crashes (long-abort) or finishes (long-last)."""

    def make(**options: str) -> Controller:
        controller = make_window("ok", **options)
        replace_trainer(controller, tmp_path / "fake trainer.py", TRAINER)
        controller.window.show_page("queue")
        activate(qtbot, controller.window)
        return controller

    return make


def enqueue(qtbot: QtBot, controller: Controller, *names: str, **values: str) -> None:
    """Add a run of each name to the queue, after setting `values` in the form."""
    for name in names:
        controller.form.set_run_name(name)
        for knob, text in values.items():
            controller.form.set_text(knob, text)
        click(qtbot, controller.window.run_bar.queue)


def start_training(qtbot: QtBot, controller: Controller, name: str) -> None:
    """Start a run (long or held) and wait until it trains."""
    controller.form.set_run_name(name)
    controller.start_run()
    wait_for_state(qtbot, controller, RunState.TRAINING)


def release(controller: Controller) -> None:
    """Let the held runs finish."""
    Path(controller.active_run.process._command[4]).with_name("released").touch()


def items(controller: Controller) -> list[QueueItem]:
    return controller.queue_controller.queue.items


def states(controller: Controller) -> str:
    """Names and states of all items, such as "a:done b:waiting"."""
    return " ".join(f"{item.name}:{item.state}" for item in items(controller))


def wait_for_states(qtbot: QtBot, controller: Controller, expected: str) -> None:
    try:
        qtbot.waitUntil(lambda: states(controller) == expected, timeout=20_000)
    finally:
        assert states(controller) == expected


def row_texts(controller: Controller, row: int) -> list[str]:
    model = controller.window.queue.model
    return [model.data(model.index(row, column)) for column in range(model.columnCount())]


def select(controller: Controller, *names: str) -> None:
    controller.window.queue.table.select([item.id for item in items(controller) if item.name in names])
