"""What telemetry costs: the same run with all of it on and off, in turn, in one process.

    python -m bench.telemetry
    python -m bench.telemetry --device cuda
    python -m bench.telemetry --device cuda --shape quickstart --steps 100     short steps, in which little is seen

On: step and performance events at their default intervals (and once more with an event for every step), written to
stdout's kind of stream and to events.jsonl; the time of each section; gradient noise; progress; a sample of the
hardware in each block, which is more often than by default. Off: none of it, and what training needs for itself.
Blocks of steps take turns, on a GPU with a wait at their ends. What counts is the difference between neighbours, by
the clock and by the processor time of the training thread, which does not see what else the machine does. Where steps
differ by more than telemetry takes, `in its own calls` still tells: the time inside the calls that it consists of, less
what the same calls take with it off; the hardware's samples, in a thread of their own, are not in it.
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


def trainer_of(shape: Shape, text: corpus.Corpus, folder: Path, log_steps: int, compiled: bool) -> Trainer:
    """A trainer as `train` makes it, with a stream and a file for its events."""
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
    made = Trainer(config, prepare(config, NullReporter()), run, RunContext(wire), device, precision)
    made.set_up()
    return made


class Taken(NamedTuple):
    """Milliseconds of a step."""

    clock: float
    processor: float  # of the training thread
    calls: float  # inside the calls that telemetry consists of


class Calls:
    """Adds up the seconds inside the calls that telemetry consists of. Training makes some of them for itself, too."""

    def __init__(self, made: Trainer) -> None:
        self.seconds = 0.0
        for owner, name in (
            (made, "_record_metrics"),
            (made, "_process_metrics"),
            (made.clock, "mark"),
            (made.session, "progress"),
        ):
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*positional: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*positional, **named)
            finally:
                self.seconds += time.perf_counter() - begun

        return timed


def block(made: Trainer, calls: Calls, steps: int, on: bool) -> Taken:
    """What a step of so many takes."""
    from trainer_core.system.hardware_monitor import HardwareMonitor

    made.telemetry = made.clock.enabled = on
    sampler = HardwareMonitor(made.session.emit, 2.0, made.run_dir.path, lambda: None) if on else None
    made.clock.catch_up()
    _wait(made)
    calls.seconds = 0.0
    begun, used = time.perf_counter(), time.thread_time()
    if sampler is not None:
        sampler.start()
    for _ in range(steps):
        made.session.poll()
        with made.clock.step():
            made._step(made._next_window())
            made._request_metrics()
            made._process_metrics(wait=False)
        made._after_step()
    _wait(made)
    seconds, processor = time.perf_counter() - begun, time.thread_time() - used
    if sampler is not None:
        sampler.stop()
    return Taken(*(1000 * one / steps for one in (seconds, processor, calls.seconds)))


def _wait(made: Trainer) -> None:
    if made.device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def measured(made: Trainer, calls: Calls, steps: int, pairs: int) -> dict[str, Any]:
    """Blocks in turn; which of the two comes first alternates too."""
    block(made, calls, _WARM, True)
    on: list[Taken] = []
    off: list[Taken] = []
    for number in range(pairs):
        for state in (True, False) if number % 2 else (False, True):
            (on if state else off).append(block(made, calls, steps, state))
    both = list(zip(on, off, strict=True))
    more = [with_.clock - without.clock for with_, without in both]
    processor = [with_.processor - without.processor for with_, without in both]
    in_calls = [with_.calls - without.calls for with_, without in both]
    step = statistics.median(one.clock for one in off)
    return {
        "step_ms": step,
        "on_ms": measure.spread([one.clock for one in on]),
        "off_ms": measure.spread([one.clock for one in off]),
        "more_ms": measure.spread(more),
        "more_ms_quartiles": statistics.quantiles(more, n=4) if len(more) > 1 else more,
        "processor_ms": measure.spread(processor),
        "calls_ms": measure.spread(in_calls),
        "share": statistics.median(more) / step,
        "processor_share": statistics.median(processor) / step,
    }


def lines(found: dict[str, dict[str, Any]]) -> list[str]:
    """A table, and what it comes to."""
    head = [
        "events",
        "a step without, ms",
        "with, ms",
        "more by the clock, ms",
        "quartiles",
        "share, %",
        "processor, ms",
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
            f"{one['processor_ms']['median']:+.3f}",
            f"{one['calls_ms']['median']:+.3f}",
        ]
        for name, one in found.items()
    ]
    told = [measure.table(head, rows), "", f"targets: under {TARGET_SHARE:.0%} of a step, and under {TARGET_MS} ms"]
    if any(one["more_ms_quartiles"][-1] - one["more_ms_quartiles"][0] > 2 * TARGET_MS for one in found.values()):
        told.append("Blocks differ by more than what is looked for: the clock tells nothing here, its own calls do.")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=list(runs.SHAPES), help="default: quickstart, or gpt2_124m on a GPU")
    parser.add_argument("--steps", type=int, default=50, help="of a block")
    parser.add_argument("--pairs", type=int, default=20, help="of blocks")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    chosen = parser.parse_args()
    shape = runs.SHAPES[chosen.shape or ("quickstart" if chosen.device == "cpu" else "gpt2_124m")]
    shape = replace(shape, device=chosen.device, precision="fp32" if chosen.device == "cpu" else "bf16")
    told, found = measure.machine(), {}
    with measure.work_folder(chosen.work) as folder:
        text = corpus.make(folder / "text", shape.vocab_size)
        os.environ["TRAINDECK_HOME"] = str(folder)
        made = trainer_of(shape, text, folder / "run", 10, not chosen.eager)
        calls = Calls(made)
        with made.garbage.disabled():  # as in a run
            for name, every in (("every 10 steps", 10), ("every step", 1)):
                made.log_steps = every
                found[name] = measured(made, calls, chosen.steps, chosen.pairs)
                print(f"{name}: {found[name]['more_ms']['median']:+.3f} ms", file=sys.stderr, flush=True)
        made.train_data.close()
        made.validation_data.close()
        made.session.dispatcher.close()
    name = "telemetry" if chosen.device == "cpu" else f"telemetry-{chosen.device}"
    document = {"shape": shape.describe(), "steps": chosen.steps, "pairs": chosen.pairs, "intervals": found}
    measure.report(name, [shape.describe(), "", *lines(found)], document, told)


if __name__ == "__main__":
    main()
