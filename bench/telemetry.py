"""Cost of telemetry: the same run with all of it on and off, in alternating blocks in one process.

    python -m bench.telemetry
    python -m bench.telemetry --device cuda
    python -m bench.telemetry --device cuda --shape quickstart --steps 100     short steps

On: step and performance events at their default intervals (and once more with an event for every step), in a stream and
in events.jsonl; the time of each section; gradient noise; progress; a hardware sample in each block. The result is the
difference between neighboring blocks in wall time and in CPU time of the training thread, and in the time inside the
calls of telemetry (without the hardware monitor's thread), which also counts where steps vary by more.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import replace

import trainer_core.__main__  # noqa: F401 - threads wait as in training
from bench import data, results, training
from trainer_core.config import Config
from trainer_core.data.prepare import prepare
from trainer_core.progress import NullReporter
from trainer_core.run_context import RunContext
from trainer_core.runs.run_dir import RunDir
from trainer_core.system.hardware_monitor import HardwareMonitor
from trainer_core.train.device import choose_device, choose_precision, configure_arithmetic
from trainer_core.train.trainer import Trainer
from trainer_core.wire import EventDispatcher, FileSink, StreamSink

TARGET_SHARE: Final = 0.01
TARGET_MS: Final = 0.5
_WARMUP_STEPS: Final = 10


def build_trainer(config: Config, run: RunDir) -> Trainer:
    """Build a trainer as `train` does, with a stream and a file for its events."""
    device = choose_device(config.device)
    configure_arithmetic(config, device)
    run.create()
    dispatcher = EventDispatcher(StreamSink(Path(os.devnull).open("wb", buffering=0)))  # noqa: SIM115
    dispatcher.add_sink(FileSink(run.events))
    precision = choose_precision(config.mixed_precision, device, NullReporter())
    trainer = Trainer(config, prepare(config, NullReporter()), run, RunContext(dispatcher), device, precision)
    trainer.set_up()
    return trainer


class CallTimer:
    """Sums the seconds inside the calls of telemetry, some of which training needs as well."""

    def __init__(self, trainer: Trainer) -> None:
        self.seconds = 0.0
        self._replace(trainer, "_request_metrics")
        self._replace(trainer, "_process_metrics")
        self._replace(trainer.metrics, "add")
        self._replace(trainer.clock, "mark")
        self._replace(trainer.context, "progress")

    def _replace(self, owner: object, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started_at = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started_at

        setattr(owner, name, timed)


def run_block(trainer: Trainer, calls: CallTimer, steps: int, enabled: bool) -> tuple[float, float, float]:
    """Milliseconds of a step: wall time, CPU time of the training thread, and inside the calls of telemetry."""
    trainer.telemetry = trainer.clock.enabled = enabled
    monitor = HardwareMonitor(trainer.context.emit, 2.0, trainer.run_dir.path)
    synchronize = torch.cuda.synchronize if trainer.device.type == "cuda" else torch.cpu.synchronize
    trainer.clock.catch_up()
    synchronize()
    calls.seconds = 0.0
    wall_start, cpu_start = time.perf_counter(), time.thread_time()
    if enabled:
        monitor.start()
    for _ in range(steps):
        trainer.context.poll()
        trainer.step()
        trainer._after_step()
    synchronize()
    wall, cpu = time.perf_counter() - wall_start, time.thread_time() - cpu_start
    if enabled:
        monitor.stop()
    return 1000 * wall / steps, 1000 * cpu / steps, 1000 * calls.seconds / steps


def measure_pairs(trainer: Trainer, calls: CallTimer, steps: int, pairs: int) -> dict[str, Any]:
    """Run blocks with and without telemetry in turn. The order within a pair alternates."""
    run_block(trainer, calls, _WARMUP_STEPS, True)
    blocks: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    for number in range(pairs):
        for enabled in (True, False) if number % 2 else (False, True):
            blocks[enabled].append(run_block(trainer, calls, steps, enabled))
    on, off = np.array(blocks[True]), np.array(blocks[False])
    more_ms, more_cpu_ms, more_calls_ms = (on - off).T
    step_ms = float(np.median(off[:, 0]))
    return {
        "step_ms": step_ms,
        "on_ms": results.spread(on[:, 0].tolist()),
        "off_ms": results.spread(off[:, 0].tolist()),
        "more_ms": results.spread(more_ms.tolist()),
        "more_ms_quartiles": np.quantile(more_ms, [0.25, 0.5, 0.75]).tolist(),
        "cpu_ms": results.spread(more_cpu_ms.tolist()),
        "calls_ms": results.spread(more_calls_ms.tolist()),
        "share": float(np.median(more_ms)) / step_ms,
    }


def format_row(events: str, measured: dict[str, Any]) -> dict[str, Any]:
    low, _, high = measured["more_ms_quartiles"]
    return {
        "events": events, "a step without, ms": measured["off_ms"]["median"], "with, ms": measured["on_ms"]["median"],
        "more wall time, ms": f"{measured['more_ms']['median']:+.3f}", "quartiles": f"{low:+.2f} to {high:+.2f}",
        "share, %": f"{measured['share'] * 100:+.2f}", "CPU time, ms": f"{measured['cpu_ms']['median']:+.3f}",
        "in its own calls, ms": f"{measured['calls_ms']['median']:+.3f}",
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=list(training.CONFIGS), help="default: quickstart, or gpt2_124m on a GPU")
    parser.add_argument("--steps", type=int, default=50, help="of a block")
    parser.add_argument("--pairs", type=int, default=20, help="of blocks")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    args = parser.parse_args()
    on_cpu = args.device == "cpu"
    config = training.CONFIGS[args.shape or ("quickstart" if on_cpu else "gpt2_124m")]
    config = replace(config, device=args.device, mixed_precision="no" if on_cpu else "bf16", max_steps=1_000_000)
    config = replace(config, compile="off" if args.eager else "on")  # during the warmup
    with results.benchmark("telemetry" if on_cpu else f"telemetry-{args.device}") as report:
        os.environ["TRAINDECK_HOME"] = str(report.folder)
        config = data.prepare_library(report.folder, config)
        trainer = build_trainer(config, RunDir(report.folder / "run"))
        calls, intervals, rows = CallTimer(trainer), {}, []
        with trainer.garbage.disabled():  # as in a run
            for name, log_steps in (("every 10 steps", 10), ("every step", 1)):
                trainer.context.live_settings["log_steps"](log_steps)
                intervals[name] = measured = measure_pairs(trainer, calls, args.steps, args.pairs)
                rows.append(format_row(name, measured))
                results.log(f"{name}: {measured['more_ms']['median']:+.3f} ms")
        trainer.close()
        trainer.context.dispatcher.close()
        report.lines = [training.describe(config), "", results.markdown_table(rows)]
        report.lines.append(f"\ntargets: under {TARGET_SHARE:.0%} of a step, and under {TARGET_MS} ms")
        quartiles = [measured["more_ms_quartiles"] for measured in intervals.values()]
        if any(high - low > 2 * TARGET_MS for low, _, high in quartiles):
            report.lines.append("Blocks vary by more than the target: only the time in its own calls is conclusive.")
        settings = {"shape": training.describe(config), "steps": args.steps, "pairs": args.pairs}
        report.document = {**settings, "intervals": intervals}
