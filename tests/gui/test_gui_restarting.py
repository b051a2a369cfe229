"""A trainer that crashes is started again by the window, unless somebody objects."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow

CRASHING = """
import faulthandler, sys
sys.path.insert(0, sys.argv[1])
from tests.process.fake_trainer import checkpoint, done, emit, hello, step
greeting = hello()
greeting.config["restarts"] = 2
greeting.run_dir = sys.argv[sys.argv.index("--resume" if "--resume" in sys.argv else "--run-dir") + 1]
emit(greeting)
if "--resume" in sys.argv:
    emit(done("finished", 20))
else:
    emit(checkpoint(4))
    emit(step(5))
    faulthandler._read_null()
"""


@pytest.fixture
def crashed(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> Controller:
    """A window whose trainer has just died, with a checkpoint of step 4 behind it."""
    controller = make_window("ok")
    program = tmp_path / "crashing.py"
    program.write_text(CRASHING, encoding="utf-8")
    root = str(Path(__file__).resolve().parents[2])
    controller.active_run.process._command = [sys.executable, "-X", "utf8", str(program), root]
    controller.start_run()
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.CRASHED, timeout=20_000)
    return controller


def test_it_counts_down_and_then_goes_on_from_the_last_checkpoint(crashed: Controller, qtbot: QtBot) -> None:
    pending = crashed.active_run.auto_restart.pending
    assert pending is not None
    assert (pending.attempt, pending.limit, pending.step) == (1, 2, 4)
    crashed.active_run.restart_now()
    assert crashed.active_run.auto_restart.pending is None
    assert "--resume" in crashed.active_run.process.arguments
    qtbot.waitUntil(lambda: crashed.active_run.machine.state is RunState.FINISHED, timeout=20_000)


def test_the_countdown_ends_in_a_start_by_itself(crashed: Controller, qtbot: QtBot) -> None:
    crashed.active_run.auto_restart.skip_countdown()  # time has passed
    qtbot.waitUntil(lambda: crashed.active_run.machine.state is RunState.FINISHED, timeout=20_000)


def test_the_strip_tells_why_and_when_and_hurries(crashed: Controller, qtbot: QtBot) -> None:
    strip = crashed.window.restart_bar
    qtbot.waitUntil(strip.isVisible)
    assert re.match(r"Restarting in \d s from step 4 \(attempt 1 of 2\): The process crashed", strip.text.text())
    qtbot.mouseClick(strip.buttons["restartNow"], Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: crashed.active_run.machine.state is RunState.FINISHED, timeout=20_000)
    assert not strip.isVisible()


def test_cancel_on_the_strip_leaves_the_run_to_a_person(crashed: Controller, qtbot: QtBot) -> None:
    strip = crashed.window.restart_bar
    qtbot.waitUntil(strip.isVisible)
    crashed.set_language("zh")
    assert "秒后从第 4 步重启（第 1 次，共 2 次）" in strip.text.text()
    qtbot.mouseClick(strip.buttons["cancelRestart"], Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: not strip.isVisible())
    assert crashed.active_run.auto_restart.pending is None


def test_cancelled_it_waits_for_a_person(crashed: Controller, qtbot: QtBot) -> None:
    crashed.active_run.cancel_restart()
    qtbot.wait(300)
    assert crashed.active_run.machine.state is RunState.CRASHED
    assert crashed.active_run.machine.can_resume


def test_what_crashes_again_and_again_is_given_up_in_words(crashed: Controller, qtbot: QtBot) -> None:
    program = Path(crashed.active_run.process._command[-2])  # type: ignore[index]
    program.write_text(CRASHING.replace('emit(done("finished", 20))', "faulthandler._read_null()"), encoding="utf-8")
    for _ in range(2):  # as often as the trainer allows
        crashed.active_run.restart_now()
        qtbot.waitUntil(lambda: crashed.active_run.machine.state is RunState.CRASHED, timeout=20_000)
    assert crashed.active_run.auto_restart.pending is None
    assert any(content.format_text().startswith("Restarted 2 times") for content in crashed.window.banners.contents)
    assert crashed.window.run_bar.resume.isEnabled()
