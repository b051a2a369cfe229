"""A measurement of the window in its own process, off screen. `bench.window` starts it.

    python -m bench.window_scenes NAME [ARGUMENT]

Prints the result as JSON. Imports at the top of this file count as a part of the start.
"""

import argparse
import gc
import json
import os
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

_STARTED: Final = float(os.environ.get("BENCH_STARTED") or time.time())
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import app.__main__ as program  # noqa: E402 - Qt reads the environment

_POINTS: Final = 200_000  # of a curve
_FRAMES: Final = 40


class Watchdog:
    """Measures how long the event loop is blocked: delays of a 5 ms timer, and CPU time of the thread in between."""

    def __init__(self) -> None:
        from PySide6.QtCore import Qt, QTimer

        self._wall, self._cpu = array("d"), array("d")  # small: memory is measured at the same time
        self._timer = QTimer(interval=5, timerType=Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_timeout)
        self._last = (time.perf_counter(), time.thread_time())
        self._timer.start()

    def _on_timeout(self) -> None:
        now = (time.perf_counter(), time.thread_time())
        self._wall.append(max(0.0, 1000 * (now[0] - self._last[0]) - self._timer.interval()))
        self._cpu.append(1000 * (now[1] - self._last[1]))
        self._last = now

    def stop(self) -> dict[str, float]:
        """Stop, and return the maxima and the 99.9th percentiles in ms."""
        self._timer.stop()
        wall, cpu, index = sorted(self._wall), sorted(self._cpu), int(0.999 * (len(self._wall) - 1))
        return {"wall_ms": wall[-1], "wall_999_ms": wall[index], "cpu_ms": cpu[-1], "cpu_999_ms": cpu[index]}


def open_window(command: list[str] | None = None) -> Any:
    """Show the window with its plots. `command` replaces the trainer."""
    os.environ["PYQTGRAPH_QT_LIB"] = "PySide6"
    program._import_qt()
    from PySide6.QtWidgets import QApplication

    application = QApplication(sys.argv[:1])
    program.configure_application(application)
    controller = program.build_controller(application, argparse.Namespace(theme="light", lang="en"))
    if command:
        controller.active_run.process._command = command
    controller._settings.welcome = False  # show the plots immediately
    controller.start()
    controller.window.resize(1280, 720)
    wait(lambda: controller.window.plots.is_built)
    program.freeze_and_enable_gc()
    controller.window.show_page("plots")
    run_event_loop(0.5)
    return controller


def wait(condition: Callable[[], bool]) -> None:
    """Run the event loop until the condition is true."""
    while not condition():
        run_event_loop(0.02)


def run_event_loop(seconds: float) -> None:
    from PySide6.QtCore import QEventLoop, QTimer

    loop = QEventLoop()
    QTimer.singleShot(round(1000 * seconds), loop.quit)
    loop.exec()


def resident_mb() -> float:
    return float(psutil.Process().memory_info().rss / 1e6)


def start(_: str) -> dict[str, Any]:
    """Seconds from before the process to the first paint, and until plots exist; memory of the empty window."""
    result: dict[str, Any] = {}

    def install_callbacks(controller: Any, log: object) -> None:
        from PySide6.QtCore import QTimer
        from PySide6.QtWidgets import QApplication

        def on_painted() -> None:
            result["paint_s"], result["paint_cpu_s"] = time.time() - _STARTED, time.process_time()
            QTimer.singleShot(0, on_usable)

        def on_usable() -> None:
            assert controller.window.plots.is_built
            result["usable_s"], result["usable_cpu_s"] = time.time() - _STARTED, time.process_time()
            QTimer.singleShot(2000, on_settled)

        def on_settled() -> None:
            result["resident_mb"] = resident_mb()
            controller.shutdown()
            QApplication.quit()

        controller.window.first_painted.connect(on_painted)

    program.install_exception_hook = install_callbacks
    program.main(["--lang", "en", "--theme", "light"])
    return result


def frame(_: str) -> dict[str, Any]:
    """Milliseconds of a frame of the plots with 200,000 points a curve: for a new point, and for a moved view."""
    from msgspec.structs import replace
    from PySide6.QtWidgets import QApplication

    from app.core.run_state import ProcessStarted
    from bench import results
    from trainer_core import protocol
    from trainer_core.docgen.examples import EVENTS

    controller = open_window()
    run, plots = controller.active_run, controller.window.plots
    run.machine.feed(ProcessStarted(str(Path("run").absolute())), time.monotonic())
    run.handle_event(EVENTS[protocol.Hello])
    run.handle_event(protocol.Phase(t=time.time(), phase="training"))
    _fill(run.record.metrics)
    controller.render()
    controller.window.show_page("plots")
    run_event_loop(2.0)
    assert plots.isVisible()
    gc.collect()

    def add_point(number: int) -> None:
        step = _POINTS + number
        counts = {"step": step, "tokens": step * 8192, "samples": step * 8}
        run.record.add(replace(EVENTS[protocol.Step], t=step * 0.05, seq=step, **counts))
        controller.render()

    def move_view(number: int) -> None:
        low = 1000.0 * number
        plots.charts["loss"].canvas.zoomed.emit(0, (low, low + _POINTS * (0.2 + 0.7 * number / _FRAMES)))

    def finish_frame() -> None:
        QApplication.processEvents()
        while plots._repaint_timer.isActive() or plots.painter.is_busy:  # painting takes several turns of the loop
            QApplication.processEvents()
        QApplication.processEvents()

    result = {}
    for name, change in (("new_point", add_point), ("moved_view", move_view)):
        wall, cpu = [], []
        for number in range(1, _FRAMES + 1):
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            change(number)
            finish_frame()
            wall.append(1000 * (time.perf_counter() - wall_start))
            cpu.append(1000 * (time.process_time() - cpu_start))
            plots.show_all()
            finish_frame()
            run_event_loop(0.02)
        result[name] = {"wall_ms": results.spread(wall), "cpu_ms": results.spread(cpu)}
    return result


def _fill(store: Any) -> None:
    """Add the measurements of a whole run."""
    import numpy as np

    from app.core.metrics import metric_store
    from app.core.metrics.metric_table import MetricTable

    random = np.random.default_rng(7)
    step = np.arange(1.0, _POINTS + 1)
    axes = [step, step * 8192.0, step * 0.05]
    loss = 2.0 + 3.0 / np.sqrt(1 + step / 1000) + 0.1 * random.normal(size=_POINTS)
    store._tables["steps"].extend(np.stack([*axes, loss, *random.random((len(metric_store.STEP_FIELDS) - 1, _POINTS))]))
    store._tables["host"].extend(np.stack([*axes, *random.random((len(metric_store.HOST_FIELDS), _POINTS))]))
    store._tables["gpu.0"] = MetricTable(metric_store.GPU_COLUMNS)
    store._tables["gpu.0"].extend(np.stack([*axes, *random.random((len(metric_store.GPU_COLUMNS), _POINTS))]))


def opening(run: str) -> dict[str, Any]:
    """Seconds until a run on disk is plotted, and how long the event loop was blocked meanwhile."""
    controller = open_window()
    watchdog, wall_start, cpu_start = Watchdog(), time.perf_counter(), time.process_time()
    controller.open_run(Path(run))
    wait(lambda: bool(controller.viewed_run and controller.viewed_run.loaded_fraction == 1.0))
    seconds, cpu = time.perf_counter() - wall_start, time.process_time() - cpu_start
    run_event_loop(1.0)  # includes its first frame
    return {"seconds": seconds, "cpu_s": cpu, "blocked": watchdog.stop(), "resident_mb": resident_mb()}


def flood(minutes: str) -> dict[str, Any]:
    """The event loop at 1,000 events a second, and the growth of memory beyond the stored measurements."""
    from trainer_core import presets

    steps = round(20_000 * float(minutes))  # three events each
    controller = open_window([sys.executable, "-P", "-m", "bench.window_events", str(steps), "1000"])
    controller.form.load(presets.load("quickstart"))
    controller.start_run()
    machine, metrics = controller.active_run.machine, controller.active_run.record.metrics
    wait(lambda: metrics.series("train_loss")[0].size > 0)
    watchdog, wall_start, cpu_start = Watchdog(), time.monotonic(), time.process_time()
    memory: list[tuple[float, float, float]] = []  # seconds, resident MB, MB of the stored measurements
    while machine.done is None:
        run_event_loop(5.0)
        memory.append((time.monotonic() - wall_start, resident_mb(), metrics.nbytes / 1e6))
    seconds, cpu = time.monotonic() - wall_start, time.process_time() - cpu_start
    return {
        "blocked": watchdog.stop(), "seconds": seconds, "cpu_share": cpu / seconds, "steps_sent": steps,
        "steps": metrics.series("train_loss")[0].size, "resident_mb": resident_mb(), "memory": memory,
    }  # fmt: skip


SCENES: Final = {scene.__name__: scene for scene in (start, frame, opening, flood)}

if __name__ == "__main__":
    print(json.dumps(SCENES[sys.argv[1]](sys.argv[2])), flush=True)
    os._exit(0)  # do not wait for a trainer that still runs
