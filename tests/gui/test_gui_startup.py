"""Start-up time, memory, painting time, and errors of the window."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from tests.gui.conftest import MakeWindow
from trainer_core import protocol

ROOT = Path(__file__).resolve().parent.parent.parent
POINTS = 100_000

IN_A_PROCESS_OF_ITS_OWN = """
import gc, sys, time
sys.argv = ["traindeck"]
from app import __main__ as start
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
import psutil
kept = []
make = start.build_controller
def watched(application, chosen):
    controller = make(application, chosen)
    kept.append(controller)
    controller.window.first_painted.connect(lambda: kept.append(time.process_time()))
    def look():
        if not controller.window.plots.is_built:
            return QTimer.singleShot(50, look)
        torch = "torch" in sys.modules
        calm = gc.isenabled() and len(gc.get_objects()) < 0.2 * gc.get_freeze_count()
        print(kept[1], psutil.Process().memory_info().rss / 1e6, torch, calm, flush=True)
        controller.shutdown()
    QTimer.singleShot(500, look)
    return controller
start.build_controller = watched
start.main([])
"""


def test_pyside_does_not_leak_references_to_none() -> None:
    """PySide6 6.12.0 on Python 3.11 loses one on every void call, and aborts within minutes."""
    thing = QObject()
    before = sys.getrefcount(None)
    for _ in range(1000):
        thing.setObjectName("x")
    assert abs(sys.getrefcount(None) - before) < 100


def test_the_first_paint_is_fast_and_needs_little_memory_and_no_torch() -> None:
    """Processor time, so that other work on the machine does not count; 0.5 s is the aim on an idle one."""
    command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN]
    seen = []
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        seconds, megabytes, torch, calm = done.stdout.split()[-4:]
        assert torch == "False"
        assert calm == "True"  # collecting garbage does not look through the window: that stops it for 40 ms
        seen.append((float(seconds), float(megabytes)))
    assert min(seconds for seconds, _ in seen) < 1.0
    assert min(megabytes for _, megabytes in seen) < 150.0


def test_long_plots_are_painted_in_time(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    for event in steps(POINTS):
        controller.active_run.record.metrics.add(event)
    controller.render()
    canvas = controller.window.plots.charts["loss"].canvas
    assert canvas is not None
    spent = []
    for _ in range(5):
        began = time.process_time()
        controller.window.plots.repaint_all()
        canvas.grab()
        spent.append(time.process_time() - began)
    assert min(spent) < 0.25


def steps(count: int) -> list[protocol.Step]:
    times = protocol.StepTime(data=1, transfer=1, forward=1, backward=1, optimizer=1, other=1)
    noise = np.random.default_rng(1).normal(size=count)
    return [
        protocol.Step(
            step=n + 1, epoch=0.1, tokens=n, samples=n, loss=3.0 + noise[n], learning_rate=1e-3, tokens_per_s=1000.0,
            samples_per_s=10.0, time_ms=times, t=float(n),
        )
        for n in range(count)
    ]  # fmt: skip


def test_an_exception_in_the_window_is_displayed_and_logged(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.__main__ import install_exception_hook

    controller = make_window()
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with (tmp_path / "window.log").open("w", encoding="utf-8") as log:
        install_exception_hook(controller, log)
        try:
            raise ValueError("裂开了")
        except ValueError as error:
            for _ in range(3):  # a timer would repeat it
                sys.excepthook(type(error), error, error.__traceback__)
        assert (tmp_path / "window.log").read_text(encoding="utf-8").count("ValueError: 裂开了") == 3
    [content] = controller.window.banners.contents
    assert "裂开了" in content.detail
    assert str(tmp_path / "window.log") in content.format_text()


def test_the_window_starts_with_damaged_settings(make_window: MakeWindow, tmp_path: Path) -> None:
    folder = Path(os.environ["TRAINDECK_CONFIG_DIR"])
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text('{"geometry": "%%%", "preset": "gone", "theme": 7, "data": [', "utf-8")
    assert make_window().window.isVisible()
    (folder / "settings.json").write_text('{"geometry": "%%%", "preset": "gone", "values": {"x": 1}}', "utf-8")
    assert make_window().window.isVisible()
