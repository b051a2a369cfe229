"""Everything that Traindeck promises of a GPU, with one command and one table.

It takes about 20 minutes on an H100, and up to an hour on smaller cards.

    python -m bench.gpu
    python -m bench.gpu --parts throughput mfu        only these; the others stay as they were measured before

Of several GPUs the first is measured. A part that fails is told, and the next one goes on. Each part has a time after
which it is given up. Results are written to bench/results/gpu.json after every part, so that nothing is lost where the
machine goes away; what was measured at another commit or on another GPU is told to be so.
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
_TOLD: Final = 1500  # characters of what a failed command said
_TRAINED_S: Final = 900.0  # in which a training that is measured by itself must have done its steps


@dataclass(frozen=True, slots=True)
class Target:
    """One promise, and what was reached. `better`: which side of `wanted` is good."""

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
    """What a part measured."""

    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    document: Any = None


# --- the parts -------------------------------------------------------------------------------------


def throughput(folder: Path) -> Part:
    """Tokens a second and peak VRAM against the peers at GPT-2's size."""
    measuring = ["bench.throughput", "--device", "cuda", "--peers", "targets", "--rounds", "2", "--steps", "60"]
    _run([*measuring, "--work", str(folder)], 2400)
    found = _result("throughput-cuda")["shapes"]["gpt2_124m"]
    times, ways = found["times_as_fast"], found["ways"]

    def ratio(name: str) -> float | None:
        return times[name]["median"] if name in times else None

    vram = {name: one["peak_vram"] for name, one in ways.items()}
    ours, theirs = vram.get("Traindeck"), vram.get("Hugging Face Trainer")
    less = None if not ours or not theirs else 1 - ours / theirs
    return Part(
        [
            Target("tokens/s against the compiled plain loop", 1.2, ratio("plain loop, compiled"), form="{:.2f} x"),
            Target("tokens/s against the Hugging Face Trainer", 1.5, ratio("Hugging Face Trainer"), form="{:.2f} x"),
            Target("peak VRAM below the Hugging Face Trainer's, 50k vocabulary", 0.3, less, form="{:.0%}"),
        ],
        [f"{name}: {one['tokens_per_s']['median']:,.0f} tokens/s" for name, one in ways.items()]
        + [f"{name} failed: {why.splitlines()[0]}" for name, why in found["failed"].items()],
        found,
    )


def recipes(folder: Path) -> Part:
    """The tuned recipe against the untuned one, by Traindeck's own `bench`."""
    command = ["trainer_core", "bench", "--preset", "gpt2_124m", "--seconds", "180", "--output", "json"]
    document = json.loads(_run(command, 900))
    times, tuned = document["times_as_fast"], document["recipes"][-1]
    return Part(
        [
            Target("tuned against untuned, speed per token", 4.0, times and times["median"], form="{:.2f} x"),
            Target("GPU utilisation of the tuned recipe (NVML)", 0.95, tuned.get("utilization"), form="{:.1%}"),
        ],
        [f"{one['name']} failed: {one['error']['code']}" for one in document["recipes"] if one["error"]],
        document,
    )


def mfu(folder: Path) -> Part:
    """Model FLOPs utilisation against the data sheet, of 124M and of a billion."""
    part = Part(document={})
    for name, wanted, batch in (("gpt2_124m", 0.45, 64), ("1b", 0.55, 16)):
        shape = replace(runs.SHAPES[name], batch=batch, accumulation=2)
        text = corpus.make(folder / "text", shape.vocab_size)
        try:
            reached, shape, trained = _largest(shape, text, folder)
        except RuntimeError as error:  # the other size is there
            part.targets.append(Target(f"MFU of {name}", wanted, None, form="{:.1%}"))
            part.notes.append(f"{name} failed: {str(error).splitlines()[0]}")
            continue
        warm = next(event["t"] for event in trained.of("step") if event["step"] >= _WARM)
        told = [event for event in trained.of("hardware") if event["t"] >= warm]
        gpus = [gpu for event in told for gpu in event["gpus"] if gpu["torch_allocated"]]
        busy = [gpu["utilization"] for gpu in gpus if gpu["utilization"] is not None]
        part.targets.append(Target(f"MFU, {trained.parameters / 1e6:,.0f}M weights", wanted, reached, form="{:.1%}"))
        waits = [event["data_ratio"] for event in trained.of("performance")]
        if waits:
            share = statistics.median(waits)
            part.targets.append(Target(f"waiting for data, {name}, share of a step", 0.01, share, "less", "{:.2%}"))
        used = f"{statistics.mean(busy):.1%}" if busy else "unknown"
        part.notes.append(f"{shape.describe()}: {trained.step_ms(_WARM):.1f} ms a step, GPU busy {used}")
        part.document[name] = {
            "shape": asdict(shape),
            "mfu": reached,
            "utilization": busy,
            "ready": trained.of("ready"),
        }
    return part


_STEPS: Final = 40  # of a training that is measured by itself,
_WARM: Final = 20  # the first of which only warm it up


def _largest(shape: runs.Shape, text: corpus.Corpus, folder: Path) -> tuple[float | None, runs.Shape, runs.Trained]:
    """Train with this micro-batch, or the largest half of it that fits; the effective batch stays. What went on in
    smaller parts says little of the card."""
    more = {"hardware-interval-s": 0.2, "perf-steps": 10}
    while True:
        sooner = "oom_recovery" if shape.batch > 1 else ""
        try:
            trained = runs.ours(shape, text, folder / "run", _STEPS, 5, more, sooner=sooner, limit_s=_TRAINED_S)
            if not sooner or not trained.of(sooner):
                found = [event["mfu"] for event in trained.of("step") if event["step"] >= _WARM]
                known = [value for value in found if value is not None]
                return (statistics.median(known) if known else None), shape, trained
        except RuntimeError as error:
            if not any(code in str(error) for code in ("memory.out", "memory.exhausted")) or shape.batch == 1:
                raise
        shape = replace(shape, batch=shape.batch // 2, accumulation=shape.accumulation * 2)


def fast_paths(folder: Path) -> Part:
    """Every fast path of this machine against the reference."""
    paths = json.loads(_run(["trainer_core", "doctor", "--fast-paths", "--output", "json"], 600))
    broken = [one["name"] for one in paths if one["reason"] in ("path.differs", "path.failed")]
    return Part(
        [Target("fast paths that fail or differ from the reference", 0, len(broken), "less", "{:.0f}")],
        [_path_words(one) for one in paths if one["speedup"] is not None or one["error"] is not None or one["params"]],
        paths,
    )


def _path_words(path: dict[str, Any]) -> str:
    """Name, choice, speedup, error and reason code on one line."""
    speedup = "" if path["speedup"] is None else f", {path['speedup']:.2f} x"
    error = "" if path["error"] is None else f", off by {path['error']:.1e}"
    why = f"{path['reason']} {path['params'] or ''}".strip()
    return f"{path['name']} {path['choice']}".strip() + f"{speedup}{error}: {why}"


def telemetry(folder: Path) -> Part:
    """What telemetry costs: its share of a usual step, and in short steps, where so little can be seen, its time."""
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
    """The tests of the core, those that need a GPU among them."""
    said = _run(["pytest", "tests/core", "-q"], 600, fails=True)
    last = (said.strip().splitlines() or ["pytest did not start: the tests need `pip install -e .[dev,bench]`"])[-1]
    failed = sum(float(count) for count in re.findall(r"(\d+) (?:failed|error)", last))
    if not re.search(r"\d+ passed", last):
        raise RuntimeError(last)
    return Part([Target("failing tests in tests/core", 0, failed, "less", "{:.0f}")], [last], said[-_TOLD:])


PARTS: Final[dict[str, Callable[[Path], Part]]] = {
    "throughput": throughput,
    "fast_paths": fast_paths,  # before `recipes`, which shows their speedups
    "recipes": recipes,
    "mfu": mfu,
    "telemetry": telemetry,
    "tests": tests,
}


# --- running them ----------------------------------------------------------------------------------


def _run(arguments: Sequence[str], limit_s: float, fails: bool = False) -> str:
    """`python -m …` to its end; its stdout. Raises `RuntimeError` where it fails (unless it may) or takes too long."""
    with tempfile.TemporaryFile() as told:
        command = [sys.executable, "-m", *arguments]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=told, cwd=measure.ROOT, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{' '.join(arguments)} took more than {limit_s:.0f} s") from error
        told.seek(0)
        words = told.read().decode("utf-8", "replace")[-_TOLD:]
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode and not fails:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{words or output[-_TOLD:]}")
    return output


def _result(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((measure.RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def measured(names: Sequence[str], parts: dict[str, Callable[[Path], Part]], folder: Path, at: str) -> dict[str, Any]:
    """The parts that are named, one after the other, failures told; those of before are kept. `at`: on what."""
    path = measure.RESULTS / f"{_RESULT}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")).get("parts", {}) if path.exists() else {}
    for name in names:
        since = time.monotonic()
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            part = parts[name](folder)
            found[name] = {**asdict(part), "error": None}
        except Exception as error:  # noqa: BLE001 - the others are to be measured whatever happened to this one
            found[name] = {**asdict(Part()), "error": f"{type(error).__name__}: {error}"}
        found[name] |= {"seconds": time.monotonic() - since, "at": at}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"parts": found}, indent=1), encoding="utf-8")
    return found


def lines(found: dict[str, Any], at: str) -> list[str]:
    """On what, one table of all targets, then what else was seen."""
    rows, notes = [], []
    for name, part in found.items():
        if part["at"] != at:
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
    return [at, "", measure.table(["part", "target", "wanted", "reached", "met"], rows), "", *notes]


def gpu_missing() -> str | None:
    """Why nothing of this can be measured here, in one sentence."""
    import torch

    if torch.cuda.is_available():
        return None
    return "No NVIDIA GPU that torch can use was found, and all that is measured here needs one; `doctor` tells more."


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    chosen = parser.parse_args()
    problem = gpu_missing()
    if problem is not None:
        print(problem, file=sys.stderr)
        return _DEVICE_PROBLEM
    told = measure.machine()
    at = f"{_gpu()}, commit {told['commit']}"
    with measure.work_folder(chosen.work) as folder:
        found = measured(chosen.parts, PARTS, folder, at)
    measure.report(_RESULT, lines(found, at), {"parts": found}, told)
    return 0


def _gpu() -> str:
    """The card that is measured, with what drives it."""
    import torch

    from trainer_core.system import hardware

    card = torch.cuda.get_device_properties(0)
    driver = hardware.probe().driver_version or "unknown"
    return f"{card.name}, {card.total_memory / 2**30:.1f} GiB, driver {driver}, CUDA {torch.version.cuda}"


if __name__ == "__main__":
    sys.exit(main())
