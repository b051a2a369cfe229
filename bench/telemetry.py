"""Cost of telemetry: the same run with all of it on and off, in alternating blocks in one process.

    python -m bench.telemetry
    python -m bench.telemetry --device cuda
    python -m bench.telemetry --device cuda --shape quickstart --steps 100     short steps

On: step and performance events at their default intervals (and once more with an event for every step), written to a
stream and to events.jsonl; the time of each section; gradient noise; progress; a hardware sample in each block. The
result is the difference between neighboring blocks in wall time and in CPU time of the training thread. Where steps
vary by more than telemetry takes, the time inside its calls still counts (without the hardware monitor's thread).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trainer_core.__main__  # noqa: F401 - threads wait as in training
from bench import corpus, measure, runs
from bench.runs import Shape

if TYPE_CHECKING:
    from trainer_core.train.trainer import Trainer

TARGET_SHARE: Final = 0.01
TARGET_MS: Final = 0.5
_KNOBS: Final[dict[str, Any]] = {"eval_steps": 0, "save_steps": 0, "sample_steps": 0, "max_steps": 1_000_000}
_WARM: Final = 10  # steps


def build_trainer(shape: Shape, text: corpus.Corpus, folder: Path, log_steps: int, compiled: bool) -> Trainer:
    """Build a trainer as `train` does, with a stream and a file for its events."""
    from trainer_core.config import Config
    from trainer_core.data.prepare import prepare
    from trainer_core.progress import NullReporter
    from trainer_core.run_context import RunContext
    from trainer_core.runs.run_dir import RunDir
    from trainer_core.train.device import choose_device, choose_precision, configure_arithmetic
    from trainer_core.train.trainer import Trainer
    from trainer_core.wire import EventDispatcher, FileSink, StreamSink

    knobs = {name.replace("-", "_"): value for name, value in runs.size(shape).items()}
    data = dict(zip(text.flags[::2], text.flags[1::2], strict=True))
    config = Config(
        **{**knobs, **_KNOBS},
        data=[data["--data"]],
        tokenizer=data["--tokenizer"],
        cache_dir=data["--cache-dir"],
        validation_fraction=float(data["--validation-fraction"]),
        log_steps=log_steps,
        compile="auto" if compiled else "off",
    )
    device = choose_device(config.device)
    configure_arithmetic(config, device)
    run = RunDir(folder)
    run.create()
    stream = Path(os.devnull).open("wb", buffering=0)  # noqa: SIM115 - as long as the process lives
    wire = EventDispatcher(StreamSink(stream))
    wire.add_sink(FileSink(run.events))
    precision = choose_precision(config.mixed_precision, device, NullReporter())
    trainer = Trainer(config, prepare(config, NullReporter()), run, RunContext(wire), device, precision)
    trainer.set_up()
    return trainer


class Duration(NamedTuple):
    """Milliseconds of a step."""

    wall: float
    cpu: float  # of the training thread
    calls: float  # inside the calls of telemetry


class Calls:
    """Adds up the seconds inside the calls of telemetry, some of which training needs as well."""

    def __init__(self, trainer: Trainer) -> None:
        self.seconds = 0.0
        for owner, name in (
            (trainer.metrics, "add"),
            (trainer, "_request_metrics"),
            (trainer, "_process_metrics"),
            (trainer.clock, "mark"),
            (trainer.context, "progress"),
        ):
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def run_block(trainer: Trainer, calls: Calls, steps: int, on: bool) -> Duration:
    """Mean duration of `steps` steps."""
    from trainer_core.system.hardware_monitor import HardwareMonitor

    trainer.telemetry = trainer.clock.enabled = on
    sampler = HardwareMonitor(trainer.context.emit, 2.0, trainer.run_dir.path, lambda: None) if on else None
    trainer.clock.catch_up()
    _synchronize(trainer)
    calls.seconds = 0.0
    started, cpu = time.perf_counter(), time.thread_time()
    if sampler is not None:
        sampler.start()
    for _ in range(steps):
        trainer.context.poll()
        with trainer.clock.step():
            trainer._step(trainer._next_window())
            trainer._request_metrics()
            trainer._process_metrics(wait=False)
        trainer._after_step()
    _synchronize(trainer)
    seconds, cpu = time.perf_counter() - started, time.thread_time() - cpu
    if sampler is not None:
        sampler.stop()
    return Duration(*(1000 * one / steps for one in (seconds, cpu, calls.seconds)))


def _synchronize(trainer: Trainer) -> None:
    if trainer.device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def measure_pairs(trainer: Trainer, calls: Calls, steps: int, pairs: int) -> dict[str, Any]:
    """Run blocks in turn; the order within a pair alternates."""
    run_block(trainer, calls, _WARM, True)
    on: list[Duration] = []
    off: list[Duration] = []
    for number in range(pairs):
        for state in (True, False) if number % 2 else (False, True):
            (on if state else off).append(run_block(trainer, calls, steps, state))
    both = list(zip(on, off, strict=True))
    wall = [with_.wall - without.wall for with_, without in both]
    cpu = [with_.cpu - without.cpu for with_, without in both]
    in_calls = [with_.calls - without.calls for with_, without in both]
    step = statistics.median(one.wall for one in off)
    return {
        "step_ms": step,
        "on_ms": measure.spread([one.wall for one in on]),
        "off_ms": measure.spread([one.wall for one in off]),
        "more_ms": measure.spread(wall),
        "more_ms_quartiles": statistics.quantiles(wall, n=4) if len(wall) > 1 else wall,
        "cpu_ms": measure.spread(cpu),
        "calls_ms": measure.spread(in_calls),
        "share": statistics.median(wall) / step,
    }


def lines(found: dict[str, dict[str, Any]]) -> list[str]:
    """A table and the targets."""
    head = [
        "events",
        "a step without, ms",
        "with, ms",
        "more wall time, ms",
        "quartiles",
        "share, %",
        "CPU time, ms",
        "in its own calls, ms",
    ]
    rows = [
        [
            name,
            one["off_ms"]["median"],
            one["on_ms"]["median"],
            f"{one['more_ms']['median']:+.3f}",
            f"{one['more_ms_quartiles'][0]:+.2f} to {one['more_ms_quartiles'][-1]:+.2f}",
            f"{one['share'] * 100:+.2f}",
            f"{one['cpu_ms']['median']:+.3f}",
            f"{one['calls_ms']['median']:+.3f}",
        ]
        for name, one in found.items()
    ]
    output = [measure.table(head, rows), "", f"targets: under {TARGET_SHARE:.0%} of a step, and under {TARGET_MS} ms"]
    if any(one["more_ms_quartiles"][-1] - one["more_ms_quartiles"][0] > 2 * TARGET_MS for one in found.values()):
        output.append("Wall time of blocks varies by more than the target: only the time in calls is conclusive.")
    return output


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=list(runs.SHAPES), help="default: quickstart, or gpt2_124m on a GPU")
    parser.add_argument("--steps", type=int, default=50, help="of a block")
    parser.add_argument("--pairs", type=int, default=20, help="of blocks")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    args = parser.parse_args()
    shape = runs.SHAPES[args.shape or ("quickstart" if args.device == "cpu" else "gpt2_124m")]
    shape = replace(shape, device=args.device, precision="fp32" if args.device == "cpu" else "bf16")
    machine, found = measure.machine(), {}
    with measure.work_folder(args.work) as folder:
        text = corpus.make(folder / "text", shape.vocab_size)
        os.environ["TRAINDECK_HOME"] = str(folder)
        trainer = build_trainer(shape, text, folder / "run", 10, not args.eager)
        calls = Calls(trainer)
        with trainer.garbage.disabled():  # as in a run
            for name, every in (("every 10 steps", 10), ("every step", 1)):
                trainer.context.live_settings["log_steps"](every)
                found[name] = measure_pairs(trainer, calls, args.steps, args.pairs)
                print(f"{name}: {found[name]['more_ms']['median']:+.3f} ms", file=sys.stderr, flush=True)
        trainer.train_data.close()
        trainer.validation_data.close()
        trainer.context.dispatcher.close()
    name = "telemetry" if args.device == "cpu" else f"telemetry-{args.device}"
    document = {"shape": shape.describe(), "steps": args.steps, "pairs": args.pairs, "intervals": found}
    measure.report(name, [shape.describe(), "", *lines(found)], document, machine)


if __name__ == "__main__":
    main()
