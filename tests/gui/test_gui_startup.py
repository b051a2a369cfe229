"""Start-up time, memory, painting time, exceptions and damaged settings."""

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

from tests.gui.conftest import ROOT, MakeWindow
from trainer_core import protocol

POINTS = 100_000

# Prints processor seconds until the first paint, resident MB without mapped files, whether torch is imported, and
# whether garbage collection skips the objects of the window. How much of a library is mapped depends on the kernel's
# cache: right after an installation the same window has 163 MB in all, later 147 MB.
MEASURE_START = """
import gc, pathlib, re, sys, time
sys.argv = ["traindeck"]
from app import __main__ as program
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
import psutil
paint_times = []
build_controller = program.build_controller
def build_and_measure(application, options):
    controller = build_controller(application, options)
    controller.window.first_painted.connect(lambda: paint_times.append(time.process_time()))
    def report():
        if not controller.window.plots.is_built:
            return QTimer.singleShot(50, report)
        has_torch = "torch" in sys.modules
        is_frozen = gc.isenabled() and len(gc.get_objects()) < 0.2 * gc.get_freeze_count()
        status = pathlib.Path("/proc/self/status")
        anonymous = re.search(r"RssAnon:\\s+(\\d+) kB", status.read_text()) if status.exists() else None
        megabytes = int(anonymous[1]) / 1e3 if anonymous else psutil.Process().memory_info().rss / 1e6
        print(paint_times[0], megabytes, has_torch, is_frozen, flush=True)
        controller.shutdown()
    QTimer.singleShot(500, report)
    return controller
program.build_controller = build_and_measure
program.main([])
"""


def test_pyside_keeps_the_reference_count_of_none() -> None:
    """PySide6 6.12.0 on Python 3.11 releases one too many per void call and aborts within minutes."""
    qobject = QObject()
    before = sys.getrefcount(None)
    for _ in range(1000):
        qobject.setObjectName("x")
    assert abs(sys.getrefcount(None) - before) < 100


def test_the_first_paint_is_fast_and_needs_little_memory_and_no_torch() -> None:
    """Processor time excludes the load of other processes. Targets: 0.5 s on an idle machine, and 150 MB in all, of
    which mapped files are 67 MB."""
    command = [sys.executable, "-c", MEASURE_START]
    measurements = []
    for _ in range(2):
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
        seconds, megabytes, has_torch, is_frozen = result.stdout.split()[-4:]
        assert has_torch == "False"
        assert is_frozen == "True"  # otherwise each garbage collection blocks the window for 40 ms
        measurements.append((float(seconds), float(megabytes)))
    assert min(seconds for seconds, _ in measurements) < 1.0
    assert min(megabytes for _, megabytes in measurements) < (85.0 if sys.platform == "linux" else 150.0)


def test_a_plot_of_100_000_points_is_painted_within_250_ms(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    for event in steps(POINTS):
        controller.active_run.record.metrics.add(event)
    controller.render()
    canvas = controller.window.plots.charts["loss"].canvas
    assert canvas is not None
    durations_s = []
    for _ in range(5):
        start_s = time.process_time()
        controller.window.plots.repaint_all()
        canvas.grab()
        durations_s.append(time.process_time() - start_s)
    assert min(durations_s) < 0.25


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
            for _ in range(3):  # like an exception in a timer
                sys.excepthook(type(error), error, error.__traceback__)
        assert (tmp_path / "window.log").read_text(encoding="utf-8").count("ValueError: 裂开了") == 3
    [content] = controller.window.banners.contents
    assert "裂开了" in content.detail
    assert str(tmp_path / "window.log") in content.format_text()


def test_the_window_starts_with_damaged_settings(make_window: MakeWindow, tmp_path: Path) -> None:
    folder = Path(os.environ["TRAINDECK_CONFIG_DIR"])
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text('{"geometry": "%%%", "preset": "missing", "theme": 7, "data": [', "utf-8")
    assert make_window().window.isVisible()
    (folder / "settings.json").write_text('{"geometry": "%%%", "preset": "missing", "values": {"x": 1}}', "utf-8")
    assert make_window().window.isVisible()
