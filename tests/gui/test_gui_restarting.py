"""A crashed trainer is restarted after a countdown, unless the user cancels it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow, click, replace_trainer, wait_for_state

CRASHING_TRAINER = """
import faulthandler, sys
sys.path.insert(0, sys.argv[1])
from tests.process.fake_trainer import checkpoint, done, emit, hello, step
event = hello()
event.config["restarts"] = 2
event.run_dir = sys.argv[sys.argv.index("--resume" if "--resume" in sys.argv else "--run-dir") + 1]
emit(event)
if "--resume" in sys.argv:
    emit(done("finished", 20))
else:
    emit(checkpoint(4))
    emit(step(5))
    faulthandler._read_null()
"""


@pytest.fixture
def crashed(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> Controller:
    """A window whose trainer crashed at step 5, after a checkpoint of step 4."""
    controller = make_window("ok")
    replace_trainer(controller, tmp_path / "trainer.py", CRASHING_TRAINER)
    controller.start_run()
    wait_for_state(qtbot, controller, RunState.CRASHED)
    return controller


def test_a_restart_resumes_from_the_last_checkpoint(crashed: Controller, qtbot: QtBot) -> None:
    pending = crashed.active_run.auto_restart.pending
    assert pending is not None
    assert (pending.attempt, pending.limit, pending.step) == (1, 2, 4)
    crashed.active_run.restart_now()
    assert crashed.active_run.auto_restart.pending is None
    assert "--resume" in crashed.active_run.process.arguments
    wait_for_state(qtbot, crashed, RunState.FINISHED)


def test_the_trainer_is_restarted_at_the_end_of_the_countdown(crashed: Controller, qtbot: QtBot) -> None:
    crashed.active_run.auto_restart.skip_countdown()
    wait_for_state(qtbot, crashed, RunState.FINISHED)


def test_the_restart_bar_shows_the_countdown_and_restarts_immediately(crashed: Controller, qtbot: QtBot) -> None:
    bar = crashed.window.restart_bar
    qtbot.waitUntil(bar.isVisible)
    assert re.match(r"Restarting in \d s from step 4 \(attempt 1 of 2\): The process crashed", bar.text.text())
    click(qtbot, bar.buttons["restartNow"])
    wait_for_state(qtbot, crashed, RunState.FINISHED)
    assert not bar.isVisible()


def test_the_restart_bar_cancels_the_restart(crashed: Controller, qtbot: QtBot) -> None:
    bar = crashed.window.restart_bar
    qtbot.waitUntil(bar.isVisible)
    crashed.set_language("zh")
    assert "秒后从第 4 步重启（第 1 次，共 2 次）" in bar.text.text()
    click(qtbot, bar.buttons["cancelRestart"])
    qtbot.waitUntil(lambda: not bar.isVisible())
    assert crashed.active_run.auto_restart.pending is None


def test_a_run_can_be_resumed_after_a_cancelled_restart(crashed: Controller, qtbot: QtBot) -> None:
    crashed.active_run.cancel_restart()
    qtbot.wait(300)
    assert crashed.active_run.machine.state is RunState.CRASHED
    assert crashed.active_run.machine.can_resume


def test_restarts_end_at_the_limit_with_a_message(crashed: Controller, qtbot: QtBot, tmp_path: Path) -> None:
    always_crashing = CRASHING_TRAINER.replace('emit(done("finished", 20))', "faulthandler._read_null()")
    replace_trainer(crashed, tmp_path / "trainer.py", always_crashing)
    for _ in range(2):  # the limit
        crashed.active_run.restart_now()
        wait_for_state(qtbot, crashed, RunState.CRASHED)
    assert crashed.active_run.auto_restart.pending is None
    assert any(content.format_text().startswith("Restarted 2 times") for content in crashed.window.banners.contents)
    assert crashed.window.run_bar.resume.isEnabled()
