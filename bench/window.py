"""The window against its targets: start, memory, frames, a long run, a flood of events.

    python -m bench.window
    python -m bench.window --only start frame --minutes 1

Each scene (bench/window_scenes.py) runs in its own process, off screen. Blocking is measured as wall time, which
includes other programs, and as CPU time of the window's thread. A target is met by wall time; "if quiet" means by CPU
time only. Python compiles the modules at the first start, which is reported separately.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench import measure, window_events
from trainer_core.runs.run_dir import RunDir

Result = dict[str, Any]
_MAX_BLOCKED_MS: Final = 50.0


@dataclass(slots=True)
class Figure:
    """A target and its measurement. `cpu`: without the time of other programs; None: not measured."""

    what: str
    unit: str
    target: float
    wall: float
    cpu: float | None = None
    note: str = ""

    def row(self) -> list[Any]:
        met = "yes" if self.wall < self.target else "no"
        if met == "no" and self.cpu is not None and self.cpu < self.target:
            met = "if quiet"
        cpu = "" if self.cpu is None else f"{self.cpu:,.3g}"
        return [f"{self.what}, {self.unit}", f"under {self.target:g}", f"{self.wall:,.3g}", cpu, met, self.note]


def run_scene(name: str, argument: str, folder: Path, limit_s: float) -> Result:
    """Run a scene and return its result. Raises `RuntimeError`."""
    environment = {
        **os.environ, "TRAINDECK_HOME": str(folder / "home"), "TRAINDECK_CONFIG_DIR": str(folder / "config"),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "BENCH_STARTED": repr(time.time()),
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "bench.window_scenes", name, argument]
    try:
        done = subprocess.run(command, env=environment, cwd=measure.ROOT, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{name}: not within {limit_s:.0f} s") from error
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.decode('utf-8', 'replace')[-2000:]}")
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def blocked(result: Result, when: str) -> Figure:
    note = f"99.9 %: {result['wall_999_ms']:.1f} ({result['cpu_999_ms']:.1f})"
    return Figure(f"event loop blocked {when}", "ms", _MAX_BLOCKED_MS, result["wall_ms"], result["cpu_ms"], note)


def start(folder: Path, args: argparse.Namespace) -> tuple[list[Figure], Any]:
    first, *others = (run_scene("start", "", folder, 120) for _ in range(1 + args.times))

    def figure(what: str, unit: str, target: float, name: str, cpu_name: str = "") -> Figure:
        note = f"median {statistics.median(one[name] for one in others):.2f}; the first of all {first[name]:.2f}"
        cpu = min(one[cpu_name] for one in others) if cpu_name else None
        return Figure(what, unit, target, min(one[name] for one in others), cpu, note)

    return [
        figure("first paint, from before the process", "s", 0.5, "paint_s", "paint_cpu_s"),
        figure("usable, with plots", "s", 1.0, "usable_s", "usable_cpu_s"),
        figure("resident memory, empty", "MB", 150, "resident_mb"),
    ], [first, *others]


def frame(folder: Path, args: argparse.Namespace) -> tuple[list[Figure], Any]:
    result = run_scene("frame", "", folder, 300)
    figures = []
    for name, what in (("new_point", "a new point"), ("moved_view", "the view is moved")):
        wall, cpu = result[name]["wall_ms"], result[name]["cpu_ms"]["median"]
        what = f"frame of the plots, 200,000 points a curve, {what}"
        figures.append(Figure(what, "ms", 30, wall["median"], cpu, f"{wall['min']:.0f} to {wall['max']:.0f}"))
    return figures, result


def opening(folder: Path, args: argparse.Namespace) -> tuple[list[Figure], Any]:
    run = RunDir(folder / "home" / "runs" / "long")
    window_events.write_run(run, args.events)
    result = run_scene("opening", str(run.path), folder, 300)
    size = f"{run.events.stat().st_size / 1e6:.0f} MB on disk"
    return [
        Figure(f"a run of {args.events:,} events opened", "s", 2.0, result["seconds"], result["cpu_s"], size),
        blocked(result["blocked"], "meanwhile"),
    ], result


def flood(folder: Path, args: argparse.Namespace) -> tuple[list[Figure], Any]:
    result = run_scene("flood", str(args.minutes), folder, 300 + 150 * args.minutes)
    figure = blocked(result["blocked"], f"at 1,000 events a second for {args.minutes:g} min")
    figure.note += f"; {result['cpu_share']:.0%} of a core"
    lost = result["steps_sent"] - result["steps"]
    half = result["memory"][len(result["memory"]) // 2 :]
    minutes = (half[-1][0] - half[0][0]) / 60 or 1.0
    resident, stored = ((half[-1][column] - half[0][column]) / minutes for column in (1, 2))
    note = f"these {stored:.1f} a minute; {result['resident_mb']:.0f} MB at the end"
    return [
        figure,
        Figure("steps lost", "", 1, lost, None, f"of {result['steps_sent']:,}"),
        Figure("memory growth in the second half without stored measurements", "MB a minute", 5, resident - stored,
               None, note),
    ], result  # fmt: skip


SCENES: Final[dict[str, Callable[[Path, argparse.Namespace], tuple[list[Figure], Any]]]] = {
    scene.__name__: scene for scene in (start, frame, opening, flood)
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.window", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(SCENES), default=list(SCENES))
    parser.add_argument("--times", type=int, default=5, help="starts of the window")
    parser.add_argument("--events", type=int, default=300_000, help="of the run that is opened")
    parser.add_argument("--minutes", type=float, default=1.5, help="of 1,000 events a second; 10: the target")
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    args = parser.parse_args()
    machine = measure.machine()
    figures: list[Figure] = []
    results: Result = {}
    failed: list[str] = []
    with measure.work_folder(args.work) as folder:
        for name in args.only:
            try:
                new, results[name] = SCENES[name](folder, args)
            except RuntimeError as error:
                failed.append(f"FAILED {name}: {error}")
                continue
            figures += new
            for figure in new:
                sys.stderr.write(f"{figure.row()}\n")
    head = ["what", "target", "wall time", "CPU time", "met", "note"]
    lines = [measure.table(head, [figure.row() for figure in figures]), *failed]
    measure.report("window", lines, {"figures": list(map(asdict, figures)), "scenes": results}, machine)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
