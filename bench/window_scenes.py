"""One scene of the window, on no screen, in a process of its own: started by `bench.window`, which says what they are.

    python -m bench.window_scenes NAME [ARGUMENT]

Prints what it measured as JSON. The watchdog is a timer of 5 ms: how late it fires is how long the event loop was
blocked. By the clock that counts what other programs took of the processor, too; the thread's own processor time
between two of its firings does not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_BEGAN: Final = float(os.environ.get("BENCH_BEGAN") or time.time())
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import app.__main__ as program  # noqa: E402 - Qt reads the environment
from bench.window_idle import Idle  # noqa: E402

WATCH_MS: Final = 5
SIZE: Final = (1280, 720)
_CURVE: Final = 200_000
_FRAMES: Final = 40
_SETTLE_S: Final = 2.0


# --- the window and its watchdog ----------------------------------------------------------------------------


class Watchdog:
    """How long the event loop was blocked, in ms: by the clock, and of processor time."""

    def __init__(self) -> None:
        from PySide6.QtCore import Qt, QTimer

        self.clock, self.processor = array("d"), array("d")  # small: memory is measured beside
        self._timer = QTimer(interval=WATCH_MS, timerType=Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._look)
        self._last = (time.perf_counter(), time.thread_time())
        self.began = self.ended = time.monotonic()
        self._timer.start()

    def _look(self) -> None:
        now = (time.perf_counter(), time.thread_time())
        self.clock.append(max(0.0, 1000 * (now[0] - self._last[0]) - WATCH_MS))
        self.processor.append(1000 * (now[1] - self._last[1]))
        self._last = now

    def found(self) -> dict[str, float]:
        """The longest, and what 99.9 % are below."""
        self._timer.stop()
        self.ended = time.monotonic()
        place = int(0.999 * (len(self.clock) - 1))
        return {
            "clock_ms": max(self.clock),
            "clock_999_ms": sorted(self.clock)[place],
            "processor_ms": max(self.processor),
            "processor_999_ms": sorted(self.processor)[place],
            "looks": len(self.clock),
        }


def beside(watch: Watchdog, idle: Idle) -> dict[str, float]:
    """What the watchdog found, and how long an idle loop was kept waiting at most in the same time."""
    found = watch.found()
    return {**found, "idle_ms": idle.longest(watch.began, watch.ended)}


def open_window(command: list[str] | None = None) -> Any:
    """The whole window, shown, with its plots built. `command`: a program in place of the trainer."""
    os.environ["PYQTGRAPH_QT_LIB"] = "PySide6"
    program._import_qt()
    from PySide6.QtWidgets import QApplication

    application = QApplication(sys.argv[:1])
    program.configure_application(application)
    controller = program.build_controller(application, argparse.Namespace(theme="light", lang="en"))
    if command:
        controller.active_run.process._command = command
    controller._settings.welcome = False  # plots from the beginning
    controller.start()
    controller.window.resize(*SIZE)
    wait(lambda: controller.window.plots.is_built)
    program.freeze_and_enable_gc()
    controller.window.show_page("plots")
    turn(0.5)
    return controller


def begin_run(controller: Any) -> None:
    """Let the window believe that its trainer trains, as far as what it shows goes."""
    from app.core.run_state import ProcessStarted
    from trainer_core import protocol

    own = controller.active_run
    own.machine.feed(ProcessStarted(str(Path("run").absolute())), time.monotonic())
    hello = protocol.Hello(seq=1, t=time.time(), pid=os.getpid(), run_dir="", traindeck="0", python="3", torch="2")
    own.handle_event(hello)
    own.handle_event(protocol.Phase(seq=2, t=time.time(), phase="training"))
    controller.render()
    controller.window.show_page("plots")
    turn(1.0)
    assert controller.window.plots.isVisible()


def wait(until: Callable[[], bool], seconds: float = 120.0) -> None:
    """Let the event loop run as it does in the program until something is so. Raises `TimeoutError`."""
    from PySide6.QtCore import QEventLoop, QTimer

    loop, deadline = QEventLoop(), time.monotonic() + seconds
    looking = QTimer(interval=20)
    looking.timeout.connect(lambda: loop.quit() if until() or time.monotonic() > deadline else None)
    looking.start()
    if not until():
        loop.exec()
    if not until():
        raise TimeoutError(f"not within {seconds:.0f} s")


def turn(seconds: float) -> None:
    """Let the event loop run for so long."""
    end = time.monotonic() + seconds
    wait(lambda: time.monotonic() >= end)


def resident_mb() -> float:
    import psutil

    return float(psutil.Process().memory_info().rss / 1e6)


def spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


# --- scenes -------------------------------------------------------------------------------------------------


def start(_: str) -> dict[str, Any]:
    """Seconds from before the process to the first paint, and until the plots are there; memory of the empty window."""
    found: dict[str, Any] = {}

    def hook(controller: Any) -> None:
        from PySide6.QtCore import QTimer
        from PySide6.QtWidgets import QApplication

        def painted() -> None:
            found["paint_s"], found["paint_processor_s"] = time.time() - _BEGAN, time.process_time()
            QTimer.singleShot(0, usable)

        def usable() -> None:
            assert controller.window.plots.is_built
            found["usable_s"], found["usable_processor_s"] = time.time() - _BEGAN, time.process_time()
            QTimer.singleShot(round(1000 * _SETTLE_S), done)

        def done() -> None:
            found["resident_mb"] = resident_mb()
            controller.shutdown()
            QApplication.quit()

        controller.window.first_painted.connect(painted)

    program._print_timing = hook
    os.environ["TRAINDECK_TIMING"] = "1"
    program.main(["--lang", "en", "--theme", "light"])
    return found


def frame(_: str) -> dict[str, Any]:
    """ms of a frame of the plots with 200,000 points a curve: as a point comes in, and as the view is moved."""
    import gc

    from bench import window_events

    controller = open_window()
    begin_run(controller)
    record = controller.active_run.record
    _fill(record.metrics, _CURVE)
    plots = controller.window.plots
    lines = window_events.measurements(20 * _FRAMES, time.time())
    controller.render()
    turn(2.0)
    gc.collect()
    kinds: dict[str, tuple[list[float], list[float]]] = {"follow": ([], []), "move": ([], [])}
    number = _CURVE
    for place in range(2 * _FRAMES):
        kind = "move" if place % 2 else "follow"
        event = _next_step(lines)
        number += 1
        event.step, event.t = number, number * 0.05
        if kind == "follow":
            record.add(event)
        began = (time.perf_counter(), time.process_time())
        if kind == "follow":
            controller.render()
        else:
            width = _CURVE * (0.2 + 0.7 * place / (2 * _FRAMES))
            _move(plots, 1000.0 * place, 1000.0 * place + width)
        _paint_all(plots)
        kinds[kind][0].append(1000 * (time.perf_counter() - began[0]))
        kinds[kind][1].append(1000 * (time.process_time() - began[1]))
        if kind == "move":
            plots.show_all()
            turn(0.02)
    return {kind: {"clock_ms": spread(wall), "processor_ms": spread(own)} for kind, (wall, own) in kinds.items()}


def _paint_all(plots: Any) -> None:
    """Let it paint until nothing is left to paint: it takes several turns, so that input has its turn between them."""
    from PySide6.QtWidgets import QApplication

    QApplication.processEvents()
    while plots._later.isActive() or plots.painter.is_busy:
        QApplication.processEvents()
    QApplication.processEvents()


def _move(plots: Any, low: float, high: float) -> None:
    """As a person drags in one plot: all follow."""
    plots.charts["loss"].canvas.moved.emit(low, high)


def _next_step(lines: Any) -> Any:
    from trainer_core import protocol

    return next(event for event in map(protocol.decode_event, lines) if isinstance(event, protocol.Step))


def _fill(store: Any, count: int) -> None:
    """Measurements of a whole run: a figure for each step in every column of the table of steps and of a GPU."""
    import numpy as np

    from app.core.metrics import metric_store
    from app.core.metrics.table import MetricTable

    dice = np.random.default_rng(7)
    step = np.arange(1.0, count + 1)
    axes = [step, step * 8192.0, step * 0.05]
    loss = 2.0 + 3.0 / np.sqrt(1 + step / 1000) + 0.1 * dice.normal(size=count)
    loss[::9973] = 9.0  # what must not be lost
    store._steps.extend([*axes, loss, *dice.random((len(metric_store.STEP_FIELDS) - 1, count))])
    store._host.extend([*axes, *dice.random((len(metric_store.HOST_FIELDS), count))])
    store._gpus[0] = MetricTable(metric_store.GPU_COLUMNS)
    store._gpus[0].extend([*axes, *dice.random((len(metric_store.GPU_COLUMNS), count))])


def overlay(folder: str) -> dict[str, Any]:
    """Resident memory with ten runs of a million steps on the plots, and the most there was on the way."""
    import gc

    import psutil

    controller = open_window()
    empty = resident_mb()
    begin_run(controller)
    watch = Watchdog()
    began = time.perf_counter()
    made = _overlaid(controller, sorted(Path(folder).glob("beside *")))
    controller.render()
    turn(_SETTLE_S)
    gc.collect()
    memory = psutil.Process().memory_info()
    return {
        "resident_mb": resident_mb(), "empty_mb": empty, "seconds": time.perf_counter() - began,
        "peak_mb": getattr(memory, "peak_wset", 0) / 1e6 or _peak_mb(), "blocked": watch.found(), "runs": len(made),
    }  # fmt: skip


def _overlaid(controller: Any, runs: list[Path]) -> list[Any]:
    """Ask the window to lay these runs over the plots, as a person does on the Runs page."""
    overlays = controller.runs_controller.overlays
    overlays.set_shown(runs, on=True)
    wait(lambda: len(overlays.visible_overlays(None)) == len(runs), 800)
    found: list[Any] = overlays.visible_overlays(None)
    return found


def _peak_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def intake(count: str) -> dict[str, Any]:
    """Seconds from the first of many events to the last one in the record, through a pipe."""
    controller = open_window([sys.executable, "-P", "-m", "bench.window_events", count, "0"])
    began: list[tuple[float, float]] = []
    controller.active_run.process.output_received.connect(  # "ready": all lines are made
        lambda text: began.append((time.perf_counter(), time.process_time())) if text == "ready" else None
    )
    watch: list[Watchdog] = []
    _launch(controller)
    wait(lambda: bool(began))
    watch.append(Watchdog())
    wait(lambda: controller.active_run.machine.done is not None, 300)
    ended = (time.perf_counter(), time.process_time())
    took = controller.active_run.record.metrics.series("train_loss")[0].size
    return {
        "seconds": ended[0] - began[0][0], "processor_s": ended[1] - began[0][1], "steps": took,
        "blocked": watch[0].found(),
    }  # fmt: skip


def _launch(controller: Any) -> None:
    """Press Start on the quick start."""
    _choose(controller)
    controller.start_run()


def _choose(controller: Any, **knobs: str) -> None:
    """Fill the form in as a person does before."""
    controller.form.load_preset(controller.load_preset("quickstart"))
    for name, value in knobs.items():
        controller.form.set_text(name, value)


def opening(run: str) -> dict[str, Any]:
    """Seconds until a run from disk is on the plots, and how long the event loop was blocked meanwhile."""
    controller = open_window()
    told: list[float] = []
    controller._run_viewer._run_loader.progressed.connect(told.append)
    watch = Watchdog()
    began = (time.perf_counter(), time.process_time())
    controller.open_run(Path(run))
    wait(lambda: bool(controller.viewed_run and controller.viewed_run.loaded_fraction == 1.0))
    seconds, processor = time.perf_counter() - began[0], time.process_time() - began[1]
    turn(1.0)  # its first frame belongs to it
    return {
        "seconds": seconds, "processor_s": processor, "progress": len(told), "blocked": watch.found(),
        "resident_mb": resident_mb(), "steps": controller.shown_record.metrics.series("train_loss")[0].size,
    }  # fmt: skip


def flood(minutes: str) -> dict[str, Any]:
    """The event loop at 1,000 events a second, and what memory grows by beside the measurements that are kept."""
    from bench import window_events

    count = round(60_000 * float(minutes))
    controller = open_window([sys.executable, "-P", "-m", "bench.window_events", str(count), "1000"])
    _launch(controller)
    metrics = controller.active_run.record.metrics
    wait(lambda: metrics.series("train_loss")[0].size > 0)
    idle = Idle()
    watch, used, began = Watchdog(), time.process_time(), time.monotonic()
    memory: list[tuple[float, float, float]] = []  # seconds, resident MB, MB of the rows
    while controller.active_run.machine.done is None and time.monotonic() - began < 120 + 120 * float(minutes):
        turn(5.0)
        memory.append((time.monotonic() - began, resident_mb(), metrics.nbytes / 1e6))
    seconds = time.monotonic() - began
    share = (time.process_time() - used) / seconds
    return {"blocked": beside(watch, idle), "seconds": seconds, "events": count, "processor_share": share,
            "steps": metrics.series("train_loss")[0].size, "steps_told": window_events.steps(count),
            "resident_mb": resident_mb(), "memory": memory}  # fmt: skip


def trainer(seconds: str) -> dict[str, Any]:
    """A real run, compiled: the event loop while it starts, compiles, saves and is killed; processor time meanwhile."""
    from app.core.run_state import RunState

    controller = open_window()
    own = controller.active_run
    found: dict[str, Any] = {"blocked": {}}
    _choose(controller, max_steps="10000000", max_epochs="1000000", compile="on", save_steps="40")
    turn(0.5)
    idle, watch = Idle(), Watchdog()
    controller.start_run()
    wait(lambda: own.machine.state is RunState.TRAINING and bool(own.record.metrics.checkpoints()), 900)
    found["compile_s"] = own.record.execution.compile_s
    found["blocked"]["starting, compiling, saving"] = beside(watch, idle)
    for name, hide in (("visible", False), ("hidden", True)):
        controller.window.setHidden(hide)
        turn(2.0)
        used, began, step = time.process_time(), time.monotonic(), own.machine.step
        turn(float(seconds))
        took = time.monotonic() - began
        found[name] = {"share": (time.process_time() - used) / took, "events_s": (own.machine.step - step) / took}
    controller.window.show()
    idle = Idle()
    turn(1.0)
    watch = Watchdog()
    own.process.kill()
    wait(lambda: own.machine.state is RunState.CRASHED)
    turn(2.0)
    found["blocked"]["dying"] = beside(watch, idle)
    own.cancel_restart()
    return found


SCENES: Final = {one.__name__: one for one in (start, frame, overlay, intake, opening, flood, trainer)}


def main() -> None:
    found = SCENES[sys.argv[1]](sys.argv[2] if len(sys.argv) > 2 else "")
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # what is still running, such as a trainer that was asked to end, is not waited for


if __name__ == "__main__":
    main()
