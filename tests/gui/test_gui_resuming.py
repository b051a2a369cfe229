"""Elapsed and remaining time of a resumed run."""

from __future__ import annotations

import re
from pathlib import Path

from pytestqt.qtbot import QtBot

from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow, replace_trainer, wait_for_state
from tests.gui.demo_run import write_run
from trainer_core.runs.run_dir import runs_root

RESUMED_TRAINER = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.process.fake_trainer import emit, hello, listen, next_command, protocol
listen()
event = hello()
event.run_dir, event.resumed_from_step = sys.argv[sys.argv.index("--resume") + 1], 2000
emit(event)
emit(protocol.Phase(phase="training", step=2000))
emit(protocol.Progress(phase="training", done=2000, total=3200, eta_s=1200.0))
while next_command(60.0) is not None:
    pass
"""


def test_the_elapsed_time_includes_the_time_before_the_interruption(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    run = write_run(runs_root() / "一夜", "quickstart", ["builtin:python"], gpu=False, done=False, age_s=86_400.0)
    controller = make_window("ok")
    replace_trainer(controller, tmp_path / "trainer.py", RESUMED_TRAINER)
    controller.resume_run(run.path)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    interrupted_at_s = float(controller.shown_record.metrics.series("train_loss", "time")[0][-1])
    assert interrupted_at_s > 600  # step 2000
    bar, machine = controller.window.run_bar, controller.active_run.machine
    qtbot.waitUntil(lambda: "left" in bar.time_label.text())
    hours, minutes, seconds = map(int, re.findall(r"elapsed (\d+):(\d+):(\d+)", bar.time_label.text())[0])
    elapsed_s = 3600 * hours + 60 * minutes + seconds
    assert interrupted_at_s - 1 <= elapsed_s < interrupted_at_s + 60  # without the day since the interruption
    assert machine.eta_s is not None
    assert 1100 < machine.eta_s <= 1200
