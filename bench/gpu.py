"""All GPU targets, with one command and one table.

By estimate it takes half an hour on an H100, and more than an hour on smaller cards. `fine_tuning` writes base models
with random weights, one after another, of up to 17 GB.

    python -m bench.gpu
    python -m bench.gpu --parts throughput mfu        only these; the others keep their earlier results
    python -m bench.gpu --parts fine_tuning

Of several GPUs the first is measured. If a part fails or exceeds its time limit, the next one runs. Results are written
to bench/results/gpu.json after every part; those of another commit or GPU are marked.
"""

import argparse
import json
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from msgspec.structs import replace

from bench import data, first_step, processes, results, training
from bench.first_step import MODELS
from bench.generation import TARGETS
from bench.processes import ChildProcess, Events, python
from trainer_core.base_model.catalogue import CatalogueModel
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
_TUNING_STEPS, _TUNING_WARMUP_STEPS, _TUNING_ROWS = 120, 20, 20_000
_MAX_FINAL_LOSS: Final = 0.99  # of the first loss


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
    config = replace(config, log_steps=5, perf_steps=10, hardware_interval_s=0.2, compile="on")
    config, child = train_largest_batch(data.prepare_library(folder, config), folder / "run", _MFU_STEPS)
    events = child.events
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


@dataclass(frozen=True, slots=True)
class Tuning:
    """A fine-tuning run of a model with random weights, and targets by key of what `_tune` returns."""

    model: CatalogueModel
    config: Config
    targets: Mapping[str, Target]


def _speed(wanted: float) -> Target:
    return Target("LoRA, tokens/s on an H200", wanted, None, "{:,.0f}")


_LORA: Final = replace(training.LORA, device="cuda", max_seq_len=2048)
_QLORA: Final = replace(_LORA, method="qlora", batch_size=1, optimizer="adamw_8bit", activation_checkpointing="full")
_FIRST_STEP: Final = Target("first step, seconds from the start", first_step.TARGET_S, None, "{:.1f}", "at most")
_VRAM: Final = Target("QLoRA, GiB of VRAM", 8.0, None, limit="at most")
TUNINGS: Final = (
    Tuning(
        MODELS["Qwen/Qwen3-0.6B"],
        replace(_LORA, batch_size=8),
        {"tokens_per_s": _speed(60_000), "first_step_s": _FIRST_STEP},
    ),
    Tuning(
        MODELS["Qwen/Qwen3-1.7B"],
        replace(_LORA, batch_size=4, gradient_accumulation_steps=2),
        {"tokens_per_s": _speed(38_000)},
    ),
    Tuning(
        MODELS["Qwen/Qwen3-8B"],
        replace(_LORA, batch_size=2, gradient_accumulation_steps=2),  # the compiler needs as much memory again
        {"tokens_per_s": _speed(12_000)},
    ),
    Tuning(MODELS["meta-llama/Llama-3.1-8B"], _QLORA, {"vram_gib": _VRAM}),
)


def fine_tuning(tunings: Sequence[Tuning], rows: int, steps: int, folder: Path) -> Part:
    """LoRA and QLoRA: speed, memory and the time to the first step. A model that fails does not end the part."""
    part = Part(document={})
    for tuning in tunings:
        name, measured = tuning.model.name, dict[str, Any]()
        try:
            measured = part.document[name] = _tune(tuning, rows, steps, folder)
            part.notes.append(f"{name}: {measured['note']}")
        except Exception as error:  # noqa: BLE001 - the other models run whatever happens
            part.notes.append(f"{name} failed: {error}".partition("\n")[0])
        for key, target in tuning.targets.items():
            reached = measured.get(key)
            part.targets.append(Target(f"{name}, {target.name}", target.wanted, reached, target.form, target.limit))
    return part


def _tune(tuning: Tuning, rows: int, steps: int, folder: Path) -> dict[str, Any]:
    """Write the model, train it and read the events. Raises `RuntimeError`, also if the model does not learn."""
    try:
        config = first_step.prepare(folder, tuning.model, tuning.config, rows)
        config, child = train_largest_batch(config, folder / "run", steps)
    finally:
        shutil.rmtree(folder / tuning.model.name, ignore_errors=True)  # up to 16 GB
    events = child.events
    losses, norms = require_learning(events)
    step_ms, vram = training.step_ms(events, _TUNING_WARMUP_STEPS), peak_vram(events)
    seconds, phases = first_step.measure(child)
    note = (
        f"batch {config.batch_size} x {config.gradient_accumulation_steps}, {step_ms:.1f} ms a step, "
        f"loss {losses[0]:.2f} → {losses[1]:.2f}, first step after {first_step.format_phases(phases)}"
    )
    return {
        "tokens_per_s": 1000 * training.tokens_per_step(config) * events.first("ready")["fill"] / step_ms,
        "vram_gib": vram and vram / 2**30, "first_step_s": seconds, "phases": phases, "loss": losses,
        "grad_norm": norms, "note": note, **training.compilation(events),
    }  # fmt: skip


def require_learning(events: Events) -> tuple[tuple[float, float], tuple[float, float]]:
    """Mean loss of the first and last fifth of a run, minimum and maximum of the gradient norm.

    Raises `RuntimeError` if a gradient is zero or the loss does not fall.
    """
    norms = [event["grad_norm"] or 0.0 for event in events.of("step")]
    losses = [event["loss"] for event in events.of("step") if event["loss"] is not None]
    part = max(1, len(losses) // 5)
    first, last = statistics.mean(losses[:part]), statistics.mean(losses[-part:])
    if min(norms) <= 0 or last > _MAX_FINAL_LOSS * first:
        raise RuntimeError(f"it does not learn: loss {first:.3f} → {last:.3f}, smallest gradient norm {min(norms):.2g}")
    return (first, last), (min(norms), max(norms))


def peak_vram(events: Events) -> int | None:
    """Peak bytes that torch reserved, and what the GPU held beside it: the CUDA context, libraries, other programs."""
    gpus = [gpu for event in events.of("hardware") for gpu in event["gpus"] if gpu["torch_reserved"]]
    beside = [gpu["vram_used"] - gpu["torch_reserved"] for gpu in gpus if gpu["vram_used"]]
    reserved = events.first("done")["peak_vram"]
    return reserved + max(beside) if reserved and beside else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def train_largest_batch(config: Config, run_dir: Path, steps: int) -> tuple[Config, ChildProcess]:
    """Train. If memory runs out, halve the micro-batch at the same effective batch."""
    last = config.batch_size == 1
    try:
        stop_event = "" if last else "oom_recovery"
        child = training.run_traindeck(config, run_dir, steps, stop_event, _TRAINING_TIMEOUT_S)
        if last or not child.events.of(stop_event):
            return config, child
    except RuntimeError as error:
        if last or not re.search(r"memory\.(out|exhausted)", str(error)):
            raise
    batch_size, accumulation = config.batch_size // 2, 2 * config.gradient_accumulation_steps
    smaller = replace(config, batch_size=batch_size, gradient_accumulation_steps=accumulation)
    return train_largest_batch(smaller, run_dir, steps)


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


def generation(_: Path) -> Part:
    """Tokens per second compared with `transformers.generate`."""
    processes.run(python("bench.generation", "--device", "cuda", "--dtypes", "bfloat16"), timeout_s=600)
    runs = results.read_json("generation-cuda")["runs"]
    wanted = TARGETS["cuda"]
    targets = [
        Target(f"generation, {run['shape']}, {run['batch']} at once", wanted, run["ratio"], "{:.2f} x") for run in runs
    ]
    return Part(targets, [], runs)


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
    "fine_tuning": partial(fine_tuning, TUNINGS, _TUNING_ROWS, _TUNING_STEPS),
    "generation": generation,
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
