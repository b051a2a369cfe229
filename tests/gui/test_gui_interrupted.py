"""A run that broke off while nobody watched is offered at the next start, until a person has decided."""

from __future__ import annotations

import time
from pathlib import Path

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow
from tests.gui.demo_run import write_run
from trainer_core import protocol


def broken(home: Path, name: str = "broken", *, age_s: float = 3600.0) -> Path:
    """A run without an end, whose trainer is gone."""
    path = home / "runs" / name
    write_run(path, "quickstart", ["builtin:python"], steps=40, done=False, age_s=age_s)
    return path


def shown(qtbot: QtBot, controller: Controller) -> str:
    strip = controller.window.interrupted_run_bar
    qtbot.waitUntil(strip.isVisible, timeout=10_000)
    return strip.text.text()


def test_it_is_offered_and_resumed_from_its_last_checkpoint(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    path = broken(own_folders)
    controller = make_window("echo")
    assert shown(qtbot, controller).startswith("Run broken was interrupted at step 40, ")
    qtbot.mouseClick(controller.window.interrupted_run_bar.buttons["resumeInterrupted"], Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.TRAINING, timeout=20_000)
    given = controller.active_run.process.arguments
    assert given[given.index("--resume") + 1] == str(path)
    assert not controller.window.interrupted_run_bar.isVisible()


def test_dismissed_it_is_not_offered_again_but_a_newer_one_is(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    broken(own_folders)
    first = make_window("echo", "zh")
    assert shown(qtbot, first).startswith("运行 broken 在第 40 步中断")
    qtbot.mouseClick(first.window.interrupted_run_bar.buttons["dismissInterrupted"], Qt.MouseButton.LeftButton)
    assert not first.window.interrupted_run_bar.isVisible()
    first.window.close()
    second = make_window("echo")
    qtbot.waitUntil(lambda: second.window.runs.model.rowCount() == 1, timeout=10_000)
    assert not second.window.interrupted_run_bar.isVisible()
    second.window.close()
    broken(own_folders, "newer", age_s=60.0)
    assert "newer" in shown(qtbot, make_window("echo"))


def test_a_run_whose_window_was_killed_and_that_has_saved_is_offered_too(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    path = broken(own_folders, "left alone")
    end = protocol.Done(t=time.time(), seq=10**6, reason="parent_lost", steps=40, total_steps=100)
    with (path / "events.jsonl").open("ab") as events:
        events.write(protocol.encode(end))
    assert shown(qtbot, make_window("echo")).startswith("Run left alone was interrupted at step 40")


def test_a_run_that_ended_well_is_no_news(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    write_run(own_folders / "runs" / "fine", "quickstart", ["builtin:python"], steps=40)
    controller = make_window("echo")
    qtbot.waitUntil(lambda: controller.window.runs.model.rowCount() == 1, timeout=10_000)
    assert not controller.window.interrupted_run_bar.isVisible()
