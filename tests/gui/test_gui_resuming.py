"""What the window says of a run that is gone on with."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pytestqt.qtbot import QtBot

from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow
from tests.gui.demo_run import write_run
from trainer_core.runs.run_dir import runs_root

GOING_ON = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.process.fake_trainer import emit, hello, listen, next_command, protocol
listen()
greeting = hello()
greeting.run_dir, greeting.resumed_from_step = sys.argv[sys.argv.index("--resume") + 1], 2000
emit(greeting)
emit(protocol.Phase(phase="training", step=2000))
emit(protocol.Progress(phase="training", done=2000, total=3200, eta_s=1200.0))
while next_command(60.0) is not None:
    pass
"""


def test_elapsed_is_the_time_of_the_whole_run(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    run = write_run(runs_root() / "一夜", "quickstart", ["builtin:python"], gpu=False, done=False, age_s=86_400.0)
    controller = make_window("ok")
    program = tmp_path / "going_on.py"
    program.write_text(GOING_ON, encoding="utf-8")
    root = str(Path(__file__).resolve().parents[2])
    controller.active_run.process._command = [sys.executable, "-X", "utf8", str(program), root]
    controller.resume_run(run.path)
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.TRAINING, timeout=20_000)
    reached = float(controller.shown_record.metrics.series("train_loss", "time")[0][-1])
    assert reached > 600  # seconds until step 2000
    bar, machine = controller.window.run_bar, controller.active_run.machine
    qtbot.waitUntil(lambda: "left" in bar.time_label.text())
    hours, minutes, seconds = map(int, re.findall(r"elapsed (\d+):(\d+):(\d+)", bar.time_label.text())[0])
    assert reached - 1 <= 3600 * hours + 60 * minutes + seconds < reached + 60  # neither from 0 on, nor a day
    assert machine.eta_s is not None
    assert 1100 < machine.eta_s <= 1200
