"""All GPU targets, with one command and one table.

It takes about 20 minutes on an H100, and up to an hour on smaller cards.

    python -m bench.gpu
    python -m bench.gpu --parts throughput mfu        only these; the others keep their earlier results

Of several GPUs the first is measured. If a part fails or exceeds its time limit, the next one runs. Results are written
to bench/results/gpu.json after every part; those of another commit or GPU are marked.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench import corpus, measure, runs

_DEVICE_PROBLEM: Final = 6  # exit code, as the trainer's
_RESULT: Final = "gpu"
_MAX_OUTPUT: Final = 1500  # characters of a failed command
_TRAINING_LIMIT_S: Final = 900.0
_STEPS: Final = 40  # of a training in the part `mfu`
_WARMUP: Final = 20  # of these steps


@dataclass(frozen=True, slots=True)
class Target:
    """A target and its measurement. `better`: `more` for a minimum, `less` for a maximum."""

    name: str
    wanted: float
    reached: float | None
    better: str = "more"
    form: str = "{:.2f}"

    @property
    def met(self) -> bool | None:
        if self.reached is None:
            return None
        return self.reached >= self.wanted if self.better == "more" else self.reached <= self.wanted


@dataclass(slots=True)
class Part:
    """Measurements of a part."""

    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    document: Any = None


# --- the parts -------------------------------------------------------------------------------------


def throughput(folder: Path) -> Part:
    """Tokens per second and peak VRAM compared with the peers at GPT-2's size."""
    command = ["bench.throughput", "--device", "cuda", "--peers", "targets", "--rounds", "2", "--steps", "60"]
    _run([*command, "--work", str(folder)], 2400)
    found = _result("throughput-cuda")["shapes"]["gpt2_124m"]
    ratios, trainers = found["times_as_fast"], found["trainers"]

    def ratio(name: str) -> float | None:
        return ratios[name]["median"] if name in ratios else None

    vram = {name: one["peak_vram"] for name, one in trainers.items()}
    own, peer = vram.get("Traindeck"), vram.get("Hugging Face Trainer")
    saved = None if not own or not peer else 1 - own / peer
    return Part(
        [
            Target("tokens/s against the compiled plain loop", 1.2, ratio("plain loop, compiled"), form="{:.2f} x"),
            Target("tokens/s against the Hugging Face Trainer", 1.5, ratio("Hugging Face Trainer"), form="{:.2f} x"),
            Target("peak VRAM below the Hugging Face Trainer's, 50k vocabulary", 0.3, saved, form="{:.0%}"),
        ],
        [f"{name}: {one['tokens_per_s']['median']:,.0f} tokens/s" for name, one in trainers.items()]
        + [f"{name} failed: {reason.splitlines()[0]}" for name, reason in found["failed"].items()],
        found,
    )


def recipes(folder: Path) -> Part:
    """The tuned recipe compared with the untuned one by Traindeck's `bench`."""
    command = ["trainer_core", "bench", "--preset", "gpt2_124m", "--seconds", "180", "--output", "json"]
    document = json.loads(_run(command, 900))
    times, tuned = document["times_as_fast"], document["recipes"][-1]
    return Part(
        [
            Target("tuned against untuned, speed per token", 4.0, times and times["median"], form="{:.2f} x"),
            Target("GPU utilization of the tuned recipe (NVML)", 0.95, tuned.get("utilization"), form="{:.1%}"),
        ],
        [f"{one['name']} failed: {one['error']['code']}" for one in document["recipes"] if one["error"]],
        document,
    )


def mfu(folder: Path) -> Part:
    """Model FLOPs utilization of 124M and of 1B parameters."""
    part = Part(document={})
    for name, wanted, batch in (("gpt2_124m", 0.45, 64), ("1b", 0.55, 16)):
        shape = replace(runs.SHAPES[name], batch=batch, accumulation=2)
        text = corpus.make(folder / "text", shape.vocab_size)
        try:
            reached, shape, trained = _train_largest(shape, text, folder)
        except RuntimeError as error:  # the other size may fit
            part.targets.append(Target(f"MFU of {name}", wanted, None, form="{:.1%}"))
            part.notes.append(f"{name} failed: {str(error).splitlines()[0]}")
            continue
        warm = next(event["t"] for event in trained.of("step") if event["step"] >= _WARMUP)
        samples = [event for event in trained.of("hardware") if event["t"] >= warm]
        gpus = [gpu for event in samples for gpu in event["gpus"] if gpu["torch_allocated"]]
        busy = [gpu["utilization"] for gpu in gpus if gpu["utilization"] is not None]
        part.targets.append(Target(f"MFU, {trained.parameters / 1e6:,.0f}M weights", wanted, reached, form="{:.1%}"))
        waits = [event["data_ratio"] for event in trained.of("performance")]
        if waits:
            share = statistics.median(waits)
            part.targets.append(Target(f"waiting for data, {name}, share of a step", 0.01, share, "less", "{:.2%}"))
        used = f"{statistics.mean(busy):.1%}" if busy else "unknown"
        part.notes.append(f"{shape.describe()}: {trained.step_ms(_WARMUP):.1f} ms a step, GPU busy {used}")
        ready = trained.of("ready")
        part.document[name] = {"shape": asdict(shape), "mfu": reached, "utilization": busy, "ready": ready}
    return part


def _train_largest(
    shape: runs.Shape, text: corpus.Corpus, folder: Path
) -> tuple[float | None, runs.Shape, runs.Trained]:
    """Train with this micro-batch, or its largest half that fits without OOM recovery, at the same effective batch."""
    more = {"hardware-interval-s": 0.2, "perf-steps": 10}
    while True:
        sooner = "oom_recovery" if shape.batch > 1 else ""
        try:
            trained = runs.ours(shape, text, folder / "run", _STEPS, 5, more, sooner=sooner, limit_s=_TRAINING_LIMIT_S)
            if not sooner or not trained.of(sooner):
                found = [event["mfu"] for event in trained.of("step") if event["step"] >= _WARMUP]
                known = [value for value in found if value is not None]
                return (statistics.median(known) if known else None), shape, trained
        except RuntimeError as error:
            if not any(code in str(error) for code in ("memory.out", "memory.exhausted")) or shape.batch == 1:
                raise
        shape = replace(shape, batch=shape.batch // 2, accumulation=shape.accumulation * 2)


def fast_paths(folder: Path) -> Part:
    """Every fast path of this machine compared with the reference."""
    paths = json.loads(_run(["trainer_core", "doctor", "--fast-paths", "--output", "json"], 600))
    broken = [one["name"] for one in paths if one["reason"] in ("path.differs", "path.failed")]
    measured = [one for one in paths if one["speedup"] is not None or one["error"] is not None or one["params"]]
    return Part(
        [Target("fast paths that fail or differ from the reference", 0, len(broken), "less", "{:.0f}")],
        list(map(_describe_path, measured)),
        paths,
    )


def _describe_path(path: dict[str, Any]) -> str:
    """Name, choice, speedup, error and reason code on one line."""
    speedup = "" if path["speedup"] is None else f", {path['speedup']:.2f} x"
    error = "" if path["error"] is None else f", error {path['error']:.1e}"
    reason = f"{path['reason']} {path['params'] or ''}".strip()
    return f"{path['name']} {path['choice']}".strip() + f"{speedup}{error}: {reason}"


def telemetry(folder: Path) -> Part:
    """Cost of telemetry: its share of a usual step, and its time in short steps."""
    command, work = ["bench.telemetry", "--device", "cuda"], ["--work", str(folder)]
    found = {}
    for name, more in (
        ("usual", ["--steps", "10", "--pairs", "10"]),
        ("short", ["--shape", "quickstart", "--steps", "100", "--pairs", "10"]),
    ):
        _run([*command, *more, *work], 900)
        found[name] = _result("telemetry-cuda")["intervals"]["every 10 steps"]
    share, more_ms = found["usual"]["share"], found["short"]["more_ms"]["median"]
    return Part(
        [
            Target("telemetry, share of a step", 0.01, share, "less", "{:.2%}"),
            Target("telemetry, ms a step", 0.5, more_ms, "less", "{:.3f}"),
        ],
        [f"{name} steps: {one['calls_ms']['median']:+.3f} ms in telemetry's own calls" for name, one in found.items()],
        found,
    )


def tests(folder: Path) -> Part:
    """The tests of the core, including those that need a GPU."""
    output = _run(["pytest", "tests/core", "-q"], 600, may_fail=True)
    last = (output.strip().splitlines() or ["pytest did not start: the tests need `pip install -e .[dev,bench]`"])[-1]
    failed = sum(float(count) for count in re.findall(r"(\d+) (?:failed|error)", last))
    if not re.search(r"\d+ passed", last):
        raise RuntimeError(last)
    return Part([Target("failing tests in tests/core", 0, failed, "less", "{:.0f}")], [last], output[-_MAX_OUTPUT:])


PARTS: Final[dict[str, Callable[[Path], Part]]] = {
    "throughput": throughput,
    "fast_paths": fast_paths,  # before `recipes`, which shows their speedups
    "recipes": recipes,
    "mfu": mfu,
    "telemetry": telemetry,
    "tests": tests,
}


# --- running them ----------------------------------------------------------------------------------


def _run(arguments: Sequence[str], limit_s: float, may_fail: bool = False) -> str:
    """Run `python -m …` and return its stdout. Raises `RuntimeError` if it fails or takes too long."""
    with tempfile.TemporaryFile() as stderr:
        command = [sys.executable, "-m", *arguments]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=stderr, cwd=measure.ROOT, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{' '.join(arguments)} took more than {limit_s:.0f} s") from error
        stderr.seek(0)
        text = stderr.read().decode("utf-8", "replace")[-_MAX_OUTPUT:]
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode and not may_fail:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{text or output[-_MAX_OUTPUT:]}")
    return output


def _result(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((measure.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def run_parts(
    names: Sequence[str], parts: dict[str, Callable[[Path], Part]], folder: Path, machine: str
) -> dict[str, Any]:
    """Run the named parts and keep earlier results of the others. `machine`: GPU and commit."""
    path = measure.RESULTS / f"{_RESULT}.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")).get("parts", {}) if path.exists() else {}
    for name in names:
        since = time.monotonic()
        measure.log(f"{name} …")
        try:
            results[name] = {**asdict(parts[name](folder)), "error": None}
        except Exception as error:  # noqa: BLE001 - the other parts run whatever happens
            results[name] = {**asdict(Part()), "error": f"{type(error).__name__}: {error}"}
        results[name] |= {"seconds": time.monotonic() - since, "at": machine}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"parts": results}, indent=1), encoding="utf-8")
    return results


def lines(results: dict[str, Any], machine: str) -> list[str]:
    """The machine, a table of all targets, and notes."""
    rows, notes = [], []
    for name, part in results.items():
        if part["at"] != machine:
            notes.append(f"{name}: measured before, on {part['at']}")
        for values in part["targets"]:
            target = Target(**values)
            sign = "at least " if target.better == "more" else "at most "
            reached = "unknown" if target.reached is None else target.form.format(target.reached)
            met = {True: "yes", False: "NO", None: "?"}[target.met]
            rows.append([name, target.name, sign + target.form.format(target.wanted), reached, met])
        if part["error"]:
            rows.append([name, part["error"].splitlines()[0][:90], "", "failed", "?"])
        notes += [f"{name}: {note}" for note in part["notes"]]
    return [machine, "", measure.table(["part", "target", "wanted", "reached", "met"], rows), "", *notes]


def _gpu() -> str:
    """The measured GPU with its driver."""
    import torch

    from trainer_core.system import hardware

    gpu = torch.cuda.get_device_properties(0)
    driver = hardware.probe().driver_version or "unknown"
    return f"{gpu.name}, {gpu.total_memory / 2**30:.1f} GiB, driver {driver}, CUDA {torch.version.cuda}"


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        measure.log("torch found no NVIDIA GPU; run `python -m trainer_core doctor`.")
        return _DEVICE_PROBLEM
    machine = measure.machine()
    name = f"{_gpu()}, commit {machine['commit']}"
    with measure.work_folder(args.work) as folder:
        results = run_parts(args.parts, PARTS, folder, name)
    measure.report(_RESULT, lines(results, name), {"parts": results}, machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
