"""The window with the real trainer, and on a real display."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.core.run_state import RunState
from tests.gui.conftest import ROOT, MakeWindow, click, wait_for_state
from trainer_core.runs.run_dir import RunDir, list_runs

TINY = {
    "hidden_dim": "32",
    "n_layers": "1",
    "max_seq_len": "32",
    "batch_size": "4",
    "max_steps": "40",
    "vocab_size": "300",
    "save_steps": "10",
    "eval_steps": "10",
    "log_steps": "1",
    "sample_steps": "20",
    "sample_tokens": "8",
    "device": "cpu",
    "cpu_threads": "1",
}


def test_a_run_on_a_user_file_is_stopped_and_resumed(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, home: Path
) -> None:
    text = tmp_path / "我的 文本.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. 春眠不觉晓。\n" * 2000, encoding="utf-8")
    controller = make_window(None)
    window, bar = controller.window, controller.window.run_bar
    controller.form.add_data([str(text)])
    for name, value in TINY.items():
        controller.form.set_text(name, value)
    controller.form.set_text("max_steps", "100000")
    controller.form.set_run_name("真实 run")
    click(qtbot, bar.start)
    qtbot.waitUntil(lambda: controller.active_run.machine.step >= 12, timeout=90_000)
    click(qtbot, bar.stop)
    wait_for_state(qtbot, controller, RunState.STOPPED, 60.0)
    assert bar.resume.isEnabled()
    stopped_at = controller.active_run.machine.step
    click(qtbot, bar.resume)
    qtbot.waitUntil(lambda: controller.active_run.machine.step >= stopped_at + 5, timeout=90_000)
    click(qtbot, bar.stop)
    wait_for_state(qtbot, controller, RunState.STOPPED, 60.0)
    steps, losses = controller.active_run.record.metrics.series("train_loss")
    assert list(steps) == list(range(1, len(steps) + 1))  # no step is repeated or missing
    assert losses[-1] < losses[0]
    run = RunDir(home / "runs" / "真实 run")
    assert list_runs(home / "runs")[0].path == run.path
    window.show_page("runs")
    qtbot.waitUntil(lambda: window.runs.model.rowCount() == 1)


def test_a_check_measures_once_and_is_cached(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    text = tmp_path / "我的 文本.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. 春眠不觉晓。\n" * 2000, encoding="utf-8")
    controller = make_window(None)
    card, bar = controller.window.check_card, controller.window.run_bar
    controller.form.add_data([str(text)])
    for name, value in TINY.items():
        controller.form.set_text(name, value)
    results = []
    for _ in range(2):
        click(qtbot, bar.check)
        qtbot.waitUntil(lambda: controller.check_job.running is None, timeout=120_000)
        results.append((card.failure.text(), card.verdict.text(), card.facts.text().rsplit("  ·  ", 1)[1]))
    assert [(failure, verdict) for failure, verdict, _ in results] == [("", "Fits")] * 2
    assert results[0][2].startswith("measured in")
    assert results[1][2] == "measured earlier"
    assert card.titles["memory"].text() == "Peak RAM"
    assert "free" in card.values["memory"].text()
    assert card.values["speed"].text() != "–"


@pytest.fixture
def display() -> Iterator[str]:
    """Start an X server. Returns its display name."""
    if sys.platform != "linux" or shutil.which("Xvfb") is None:
        pytest.skip("needs Xvfb, an X server without a screen")
    command = ["Xvfb", "-displayfd", "1", "-screen", "0", "1400x900x24", "-nolisten", "tcp"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdout is not None
    yield f":{server.stdout.readline().decode().strip()}"
    server.terminate()
    server.wait()


GRAB_WINDOW = """
import sys
sys.argv = ["traindeck"]
from PySide6.QtCore import QTimer
from app import __main__ as program
build_controller = program.build_controller
def build_and_grab(application, options):
    controller = build_controller(application, options)
    def grab():
        picture = controller.window.grab().toImage()
        colors = {picture.pixelColor(x, y).rgb() for x in range(0, picture.width(), 7) for y in range(0, 700, 7)}
        print(application.platformName(), controller.window.plots.is_built, len(colors) > 20, flush=True)
        controller.window.close()
    QTimer.singleShot(1500, grab)
    return controller
program.build_controller = build_and_grab
sys.exit(program.main(["--lang", "zh", "--theme", "dark"]))
"""


@pytest.mark.display
def test_the_window_opens_on_a_real_display_and_closes(display: str) -> None:
    environment = {**os.environ, "DISPLAY": display, "QT_QPA_PLATFORM": "xcb"}
    result = subprocess.run(
        [sys.executable, "-c", GRAB_WINDOW],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout.split() == ["xcb", "True", "True"], result.stderr
    assert result.returncode == 0
