"""A measurement of the window in its own process, off screen. `bench.window` starts it.

    python -m bench.window_scenes NAME [ARGUMENT]

Prints the result as JSON. The watchdog is a timer of 5 ms: its delay is the time that the event loop was blocked. Wall
time includes other programs; the CPU time of the thread between two timeouts does not.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_STARTED: Final = float(os.environ.get("BENCH_STARTED") or time.time())
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import app.__main__ as program  # noqa: E402 - Qt reads the environment

WATCHDOG_MS: Final = 5
SIZE: Final = (1280, 720)
_POINTS: Final = 200_000  # of a curve
_FRAMES: Final = 40
_SETTLE_S: Final = 2.0


class Watchdog:
    """Measures in ms how long the event loop was blocked: wall time, and CPU time of the thread."""

    def __init__(self) -> None:
        from PySide6.QtCore import Qt, QTimer

        self._wall, self._cpu = array("d"), array("d")  # small: memory is measured at the same time
        self._timer = QTimer(interval=WATCHDOG_MS, timerType=Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_timeout)
        self._last = (time.perf_counter(), time.thread_time())
        self._timer.start()

    def _on_timeout(self) -> None:
        now = (time.perf_counter(), time.thread_time())
        self._wall.append(max(0.0, 1000 * (now[0] - self._last[0]) - WATCHDOG_MS))
        self._cpu.append(1000 * (now[1] - self._last[1]))
        self._last = now

    def stop(self) -> dict[str, float]:
        """Stop, and return the maxima and the 99.9th percentiles."""
        self._timer.stop()
        index = int(0.999 * (len(self._wall) - 1))
        return {
            "wall_ms": max(self._wall),
            "wall_999_ms": sorted(self._wall)[index],
            "cpu_ms": max(self._cpu),
            "cpu_999_ms": sorted(self._cpu)[index],
        }


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
    controller.window.resize(*SIZE)
    wait(lambda: controller.window.plots.is_built)
    program.freeze_and_enable_gc()
    controller.window.show_page("plots")
    run_event_loop(0.5)
    return controller


def begin_run(controller: Any) -> None:
    """Put the window into the state of a training run."""
    from app.core.run_state import ProcessStarted
    from trainer_core import protocol

    active_run = controller.active_run
    active_run.machine.feed(ProcessStarted(str(Path("run").absolute())), time.monotonic())
    hello = protocol.Hello(seq=1, t=time.time(), pid=os.getpid(), run_dir="", traindeck="0", python="3", torch="2")
    active_run.handle_event(hello)
    active_run.handle_event(protocol.Phase(seq=2, t=time.time(), phase="training"))
    controller.render()
    controller.window.show_page("plots")
    run_event_loop(1.0)
    assert controller.window.plots.isVisible()


def wait(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Run the event loop until the condition is true. Raises `TimeoutError`."""
    from PySide6.QtCore import QEventLoop, QTimer

    loop, deadline = QEventLoop(), time.monotonic() + seconds
    timer = QTimer(interval=20)
    timer.timeout.connect(lambda: loop.quit() if condition() or time.monotonic() > deadline else None)
    timer.start()
    if not condition():
        loop.exec()
    if not condition():
        raise TimeoutError(f"not within {seconds:.0f} s")


def run_event_loop(seconds: float) -> None:
    end = time.monotonic() + seconds
    wait(lambda: time.monotonic() >= end)


def resident_mb() -> float:
    import psutil

    return float(psutil.Process().memory_info().rss / 1e6)


def spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


# --- scenes -------------------------------------------------------------------------------------------------


def start(_: str) -> dict[str, Any]:
    """Seconds from before the process to the first paint, and until plots exist; memory of the empty window."""
    result: dict[str, Any] = {}

    def hook(controller: Any, log: object) -> None:
        from PySide6.QtCore import QTimer
        from PySide6.QtWidgets import QApplication

        def on_painted() -> None:
            result["paint_s"], result["paint_cpu_s"] = time.time() - _STARTED, time.process_time()
            QTimer.singleShot(0, on_usable)

        def on_usable() -> None:
            assert controller.window.plots.is_built
            result["usable_s"], result["usable_cpu_s"] = time.time() - _STARTED, time.process_time()
            QTimer.singleShot(round(1000 * _SETTLE_S), finish)

        def finish() -> None:
            result["resident_mb"] = resident_mb()
            controller.shutdown()
            QApplication.quit()

        controller.window.first_painted.connect(on_painted)

    program.install_exception_hook = hook
    program.main(["--lang", "en", "--theme", "light"])
    return result


def frame(_: str) -> dict[str, Any]:
    """Milliseconds of a frame of the plots with 200,000 points a curve: for a new point, and for a moved view."""
    from trainer_core import protocol

    controller = open_window()
    begin_run(controller)
    record, plots = controller.active_run.record, controller.window.plots
    _fill(record.metrics, _POINTS)
    controller.render()
    run_event_loop(2.0)
    gc.collect()

    def add_point(number: int) -> None:
        step = _POINTS + number
        time_ms = protocol.StepTime(data=1.0, transfer=1.0, forward=9.0, backward=9.0, optimizer=3.0, other=1.0)
        record.add(
            protocol.Step(
                t=step * 0.05, seq=step, step=step, epoch=1.0, tokens=step * 8192, samples=step * 8, loss=2.0,
                learning_rate=1e-3, grad_norm=1.0, tokens_per_s=1e4, samples_per_s=10.0, time_ms=time_ms,
            )
        )  # fmt: skip
        controller.render()

    def move_view(number: int) -> None:
        low = 1000.0 * number
        plots.charts["loss"].canvas.range_changed.emit(low, low + _POINTS * (0.2 + 0.7 * number / _FRAMES))

    result = {}
    for name, change in (("new_point", add_point), ("moved_view", move_view)):
        wall, cpu = [], []
        for number in range(1, _FRAMES + 1):
            started = (time.perf_counter(), time.process_time())
            change(number)
            _paint(plots)
            wall.append(1000 * (time.perf_counter() - started[0]))
            cpu.append(1000 * (time.process_time() - started[1]))
            plots.show_all()
            run_event_loop(0.02)
        result[name] = {"wall_ms": spread(wall), "cpu_ms": spread(cpu)}
    return result


def _paint(plots: Any) -> None:
    """Process events until everything is painted, which takes several turns so that input is processed between."""
    from PySide6.QtWidgets import QApplication

    QApplication.processEvents()
    while plots._repaint_timer.isActive() or plots.painter.is_busy:
        QApplication.processEvents()
    QApplication.processEvents()


def _fill(store: Any, count: int) -> None:
    """Add the measurements of a whole run."""
    import numpy as np

    from app.core.metrics import metric_store
    from app.core.metrics.metric_table import MetricTable

    random = np.random.default_rng(7)
    step = np.arange(1.0, count + 1)
    axes = [step, step * 8192.0, step * 0.05]
    loss = 2.0 + 3.0 / np.sqrt(1 + step / 1000) + 0.1 * random.normal(size=count)
    store._steps.extend(np.stack([*axes, loss, *random.random((len(metric_store.STEP_FIELDS) - 1, count))]))
    store._host.extend(np.stack([*axes, *random.random((len(metric_store.HOST_FIELDS), count))]))
    store._gpus[0] = MetricTable(metric_store.GPU_COLUMNS)
    store._gpus[0].extend(np.stack([*axes, *random.random((len(metric_store.GPU_COLUMNS), count))]))


def opening(run: str) -> dict[str, Any]:
    """Seconds until a run on disk is plotted, and how long the event loop was blocked meanwhile."""
    controller = open_window()
    watchdog = Watchdog()
    started = (time.perf_counter(), time.process_time())
    controller.open_run(Path(run))
    wait(lambda: bool(controller.viewed_run and controller.viewed_run.loaded_fraction == 1.0))
    seconds, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
    run_event_loop(1.0)  # includes its first frame
    return {"seconds": seconds, "cpu_s": cpu, "blocked": watchdog.stop(), "resident_mb": resident_mb()}


def flood(minutes: str) -> dict[str, Any]:
    """The event loop at 1,000 events a second, and the growth of memory beyond the stored measurements."""
    from bench import window_events

    count = round(60_000 * float(minutes))
    controller = open_window([sys.executable, "-P", "-m", "bench.window_events", str(count), "1000"])
    controller.form.load_preset(controller.load_preset("quickstart"))
    controller.start_run()
    metrics = controller.active_run.record.metrics
    wait(lambda: metrics.series("train_loss")[0].size > 0)
    watchdog, cpu, started = Watchdog(), time.process_time(), time.monotonic()
    memory: list[tuple[float, float, float]] = []  # seconds, resident MB, MB of the rows
    while controller.active_run.machine.done is None and time.monotonic() - started < 120 + 120 * float(minutes):
        run_event_loop(5.0)
        memory.append((time.monotonic() - started, resident_mb(), metrics.nbytes / 1e6))
    seconds = time.monotonic() - started
    return {
        "blocked": watchdog.stop(), "seconds": seconds, "cpu_share": (time.process_time() - cpu) / seconds,
        "steps": metrics.series("train_loss")[0].size, "steps_sent": window_events.steps(count),
        "resident_mb": resident_mb(), "memory": memory,
    }  # fmt: skip


SCENES: Final = {scene.__name__: scene for scene in (start, frame, opening, flood)}


def main() -> None:
    result = SCENES[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)  # do not wait for a trainer that still runs


if __name__ == "__main__":
    main()
