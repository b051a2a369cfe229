"""All GPU targets, with one command and one table.

It takes about 20 minutes on an H100, and up to an hour on smaller cards.

    python -m bench.gpu
    python -m bench.gpu --parts throughput mfu        only these; the others keep their earlier results

Of several GPUs the first is measured. If a part fails or exceeds its time limit, the next one runs. Results are written
to bench/results/gpu.json after every part; those of another commit or GPU are marked.
"""

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from msgspec.structs import replace

from bench import data, processes, results, training
from bench.processes import ChildProcess, Events, python
from trainer_core.config import Config
from trainer_core.console.performance import format_fast_path_table
from trainer_core.messages.exit_codes import ExitCode
from trainer_core.protocol import FastPath
from trainer_core.system import hardware

_RESULT: Final = "gpu"
_MAX_OUTPUT_CHARS: Final = 1500  # of pytest, in the results
_TRAINING_TIMEOUT_S: Final = 900.0
_MFU_STEPS: Final = 40
_MFU_WARMUP_STEPS: Final = 20  # of these


@dataclass(frozen=True, slots=True)
class Target:
    """A target and its measurement; None: not measured. `limit`: the target is a minimum or a maximum."""

    name: str
    wanted: float
    reached: float | None
    form: str = "{:.2f}"
    limit: str = "at least"

    def row(self) -> dict[str, str]:
        reached, met = "unknown", "?"
        if self.reached is not None:
            reached = self.form.format(self.reached)
            is_met = self.reached >= self.wanted if self.limit == "at least" else self.reached <= self.wanted
            met = "yes" if is_met else "NO"
        wanted = f"{self.limit} {self.form.format(self.wanted)}"
        return {"target": self.name, "wanted": wanted, "reached": reached, "met": met}


@dataclass(slots=True)
class Part:
    """Measurements of a part."""

    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    document: Any = None


def throughput(_: Path) -> Part:
    """Tokens per second and peak VRAM compared with the peers at GPT-2's size."""
    options = ["--device", "cuda", "--peers", "targets", "--rounds", "2", "--steps", "60"]
    processes.run(python("bench.throughput", *options), timeout_s=2400)
    measured = results.read_json("throughput-cuda")["shapes"]["gpt2_124m"]
    speeds = {name: trainer["tokens_per_s"]["median"] for name, trainer in measured["trainers"].items()}
    vram = {name: trainer["peak_vram"] for name, trainer in measured["trainers"].items()}
    ratios = {name: ratio["median"] for name, ratio in measured["times_as_fast"].items()}
    own, peer = vram.get("Traindeck"), vram.get("Hugging Face Trainer")
    saved = 1 - own / peer if own and peer else None
    notes = [f"{name}: {speed:,.0f} tokens/s" for name, speed in speeds.items()]
    notes += [f"{name} failed: {reason.splitlines()[0]}" for name, reason in measured["failed"].items()]
    targets = [
        Target("tokens/s against the compiled plain loop", 1.2, ratios.get("plain loop, compiled"), "{:.2f} x"),
        Target("tokens/s against the Hugging Face Trainer", 1.5, ratios.get("Hugging Face Trainer"), "{:.2f} x"),
        Target("peak VRAM below the Hugging Face Trainer's, 50k vocabulary", 0.3, saved, "{:.0%}"),
    ]
    return Part(targets, notes, measured)


def recipes(_: Path) -> Part:
    """The tuned recipe compared with the untuned one by Traindeck's `bench`."""
    options = ["bench", "--preset", "gpt2_124m", "--seconds", "180", "--output", "json"]
    document = json.loads(processes.run(python("trainer_core", *options), timeout_s=900).output)
    speedup, utilization = document["times_as_fast"], document["recipes"][-1].get("utilization")
    targets = [
        Target("tuned against untuned, speed per token", 4.0, speedup and speedup["median"], "{:.2f} x"),
        Target("GPU utilization of the tuned recipe (NVML)", 0.95, utilization, "{:.1%}"),
    ]
    failed = [recipe for recipe in document["recipes"] if recipe["error"]]
    return Part(targets, [f"{recipe['name']} failed: {recipe['error']['code']}" for recipe in failed], document)


def mfu(name: str, batch_size: int, target: float, folder: Path) -> Part:
    """Model FLOPs utilization at a size of the model."""
    config = replace(training.CONFIGS[name], batch_size=batch_size, gradient_accumulation_steps=2)
    config = replace(config, log_steps=5, perf_steps=10, hardware_interval_s=0.2)
    config, events = train_largest_batch(data.prepare_library(folder, config), folder / "run")
    steps = [event for event in events.of("step") if event["step"] >= _MFU_WARMUP_STEPS]
    reached = _median([event["mfu"] for event in steps])
    waiting = _median([event["data_ratio"] for event in events.of("performance")])
    samples = [event for event in events.of("hardware") if event["t"] >= steps[0]["t"]]
    gpus = [gpu for event in samples for gpu in event["gpus"] if gpu["torch_allocated"]]
    busy = [gpu["utilization"] for gpu in gpus if gpu["utilization"] is not None]
    busy_text = f"{statistics.mean(busy):.1%}" if busy else "unknown"
    shape, ready = training.describe(config), events.first("ready")
    targets = [
        Target(f"MFU, {ready['parameters'] / 1e6:,.0f}M weights", target, reached, "{:.1%}"),
        Target(f"waiting for data, {name}, share of a step", 0.01, waiting, "{:.2%}", "at most"),
    ]
    note = f"{shape}: {training.step_ms(events, _MFU_WARMUP_STEPS):.1f} ms a step, GPU busy {busy_text}"
    return Part(targets, [note], {"shape": shape, "mfu": reached, "utilization": busy, "ready": ready})


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def train_largest_batch(config: Config, run_dir: Path) -> tuple[Config, Events]:
    """Train. If memory runs out, halve the micro-batch at the same effective batch."""
    last = config.batch_size == 1
    try:
        stop_event = "" if last else "oom_recovery"
        events = training.run_traindeck(config, run_dir, _MFU_STEPS, stop_event, _TRAINING_TIMEOUT_S).events
        if last or not events.of(stop_event):
            return config, events
    except RuntimeError as error:
        if last or not re.search(r"memory\.(out|exhausted)", str(error)):
            raise
    batch_size, accumulation = config.batch_size // 2, 2 * config.gradient_accumulation_steps
    smaller = replace(config, batch_size=batch_size, gradient_accumulation_steps=accumulation)
    return train_largest_batch(smaller, run_dir)


def fast_paths(_: Path) -> Part:
    """Every fast path of this machine compared with the reference."""
    command = python("trainer_core", "doctor", "--fast-paths", "--output", "json")
    paths = json.loads(processes.run(command, timeout_s=600).output)
    broken = sum(path["reason"] in ("path.differs", "path.failed") for path in paths)
    target = Target("fast paths that fail or differ from the reference", 0, broken, "{:.0f}", "at most")
    notes = [line for line in format_fast_path_table(msgspec.convert(paths, list[FastPath]), "en") if line]
    return Part([target], notes, paths)


def telemetry(_: Path) -> Part:
    """Cost of telemetry: its share of a usual step, and its time in short steps."""
    usual, short = ["--steps", "10"], ["--shape", "quickstart", "--steps", "100"]
    measured = {}
    for name, options in (("usual", usual), ("short", short)):
        command = python("bench.telemetry", "--device", "cuda", "--pairs", "10", *options)
        processes.run(command, timeout_s=900)
        measured[name] = results.read_json("telemetry-cuda")["intervals"]["every 10 steps"]
    share, more_ms = measured["usual"]["share"], measured["short"]["more_ms"]["median"]
    targets = [
        Target("telemetry, share of a step", 0.01, share, "{:.2%}", "at most"),
        Target("telemetry, ms a step", 0.5, more_ms, "{:.3f}", "at most"),
    ]
    calls_ms = {name: interval["calls_ms"]["median"] for name, interval in measured.items()}
    notes = [f"{name} steps: {ms:+.3f} ms in telemetry's own calls" for name, ms in calls_ms.items()]
    return Part(targets, notes, measured)


def tests(_: Path) -> Part:
    """The tests of the core, including those that need a GPU."""
    child = ChildProcess(python("pytest", "tests/core", "-q"))
    child.wait(timeout_s=600)
    last = (child.output.strip().splitlines() or ["pytest did not start; see CONTRIBUTING.md"])[-1]
    if not re.search(r"\d+ passed", last):
        raise RuntimeError(last)
    failed = sum(int(count) for count in re.findall(r"(\d+) (?:failed|error)", last))
    target = Target("failing tests in tests/core", 0, failed, "{:.0f}", "at most")
    return Part([target], [last], child.output[-_MAX_OUTPUT_CHARS:])


PARTS: Final[dict[str, Callable[[Path], Part]]] = {
    "throughput": throughput,
    "fast_paths": fast_paths,  # before `recipes`, which shows their speedups
    "recipes": recipes,
    "mfu": partial(mfu, "gpt2_124m", 64, 0.45),
    "mfu_1b": partial(mfu, "1b", 16, 0.55),
    "telemetry": telemetry,
    "tests": tests,
}


def run_parts(names: Sequence[str], parts: dict[str, Callable[[Path], Part]], folder: Path, gpu: str) -> dict[str, Any]:
    """Run the named parts and keep earlier results of the others. `gpu`: GPU and commit."""
    measured: dict[str, Any] = results.read_json(_RESULT).get("parts", {})
    for name in names:
        started_at = time.monotonic()
        results.log(f"{name} …")
        try:
            measured[name] = {**asdict(parts[name](folder)), "error": None}
        except Exception as error:  # noqa: BLE001 - the other parts run whatever happens
            measured[name] = {**asdict(Part()), "error": f"{type(error).__name__}: {error}"}
        measured[name] |= {"seconds": time.monotonic() - started_at, "at": gpu}
        results.write_json(_RESULT, {"parts": measured})
    return measured


def format_lines(parts: dict[str, Any], gpu: str) -> list[str]:
    """The GPU, a table of all targets, and notes."""
    rows, notes = [], []
    for name, part in parts.items():
        if part["at"] != gpu:
            notes.append(f"{name}: measured before, on {part['at']}")
        rows += [{"part": name, **Target(**target).row()} for target in part["targets"]]
        if part["error"]:
            reason = part["error"].splitlines()[0][:90]
            rows.append({"part": name, "target": reason, "wanted": "", "reached": "failed", "met": "?"})
        notes += [f"{name}: {note}" for note in part["notes"]]
    return [gpu, "", results.markdown_table(rows), "", *notes]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        results.log("torch found no NVIDIA GPU; run `python -m trainer_core doctor`.")
        return ExitCode.DEVICE
    card, driver = torch.cuda.get_device_properties(0), hardware.probe().driver_version or "unknown"
    gpu = f"{card.name}, {card.total_memory / 2**30:.1f} GiB, driver {driver}, CUDA {torch.version.cuda}"
    with results.benchmark(_RESULT) as report:
        gpu += f", commit {results.describe_machine()['commit']}"
        parts = run_parts(args.parts, PARTS, report.folder, gpu)
        report.lines, report.document = format_lines(parts, gpu), {"parts": parts}
    return ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
