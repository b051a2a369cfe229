"""Interrupted runs are offered at the next start until the user resumes or dismisses them."""

from __future__ import annotations

import time
from pathlib import Path

from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow, click, wait_for_state
from tests.gui.demo_run import write_run
from trainer_core import protocol


def write_interrupted_run(home: Path, name: str = "broken", *, age_s: float = 3600.0) -> Path:
    """Write a run without an end event whose trainer has exited."""
    path = home / "runs" / name
    write_run(path, "quickstart", ["builtin:python"], steps=40, done=False, age_s=age_s)
    return path


def wait_for_offer(qtbot: QtBot, controller: Controller) -> str:
    """Wait until a run is offered. Returns the text."""
    bar = controller.window.interrupted_run_bar
    qtbot.waitUntil(bar.isVisible, timeout=10_000)
    return bar.text.text()


def test_an_interrupted_run_is_offered_and_resumed(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    path = write_interrupted_run(home)
    controller = make_window("echo")
    assert wait_for_offer(qtbot, controller).startswith("Run broken was interrupted at step 40, ")
    click(qtbot, controller.window.interrupted_run_bar.buttons["resumeInterrupted"])
    wait_for_state(qtbot, controller, RunState.TRAINING)
    arguments = controller.active_run.process.arguments
    assert arguments[arguments.index("--resume") + 1] == str(path)
    assert not controller.window.interrupted_run_bar.isVisible()


def test_a_dismissed_run_is_not_offered_again_but_a_newer_one_is(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    write_interrupted_run(home)
    first = make_window("echo", "zh")
    assert wait_for_offer(qtbot, first).startswith("运行 broken 在第 40 步中断")
    click(qtbot, first.window.interrupted_run_bar.buttons["dismissInterrupted"])
    assert not first.window.interrupted_run_bar.isVisible()
    first.window.close()
    second = make_window("echo")
    qtbot.waitUntil(lambda: second.window.runs.model.rowCount() == 1, timeout=10_000)
    assert not second.window.interrupted_run_bar.isVisible()
    second.window.close()
    write_interrupted_run(home, "newer", age_s=60.0)
    assert "newer" in wait_for_offer(qtbot, make_window("echo"))


def test_a_run_that_stopped_because_its_window_was_killed_is_offered(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    path = write_interrupted_run(home, "orphaned")
    end = protocol.Done(t=time.time(), seq=10**6, reason="parent_lost", steps=40, total_steps=100)
    with (path / "events.jsonl").open("ab") as events:
        events.write(protocol.encode(end))
    assert wait_for_offer(qtbot, make_window("echo")).startswith("Run orphaned was interrupted at step 40")


def test_a_finished_run_is_not_offered(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    write_run(home / "runs" / "fine", "quickstart", ["builtin:python"], steps=40)
    controller = make_window("echo")
    qtbot.waitUntil(lambda: controller.window.runs.model.rowCount() == 1, timeout=10_000)
    assert not controller.window.interrupted_run_bar.isVisible()
