"""The window against its targets: start, memory, frames, a long run, a flood of events.

    python -m bench.window
    python -m bench.window --only start frame --minutes 1

Each scene (bench/window_scenes.py) runs in its own process, off screen. Blocking is measured as wall time, which
includes other programs, and as CPU time of the window's thread. A target is met by wall time; "if quiet" means by CPU
time only. Python compiles the modules at the first start, which is reported separately.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench import processes, results
from tests.gui import demo_run


@dataclass(slots=True)
class Figure:
    """A measurement and its target. `cpu`: without the time of other programs; None: not measured."""

    what: str
    unit: str
    target: float
    wall: float
    cpu: float | None = None
    note: str = ""

    def row(self) -> dict[str, str]:
        met = "yes" if self.wall < self.target else "no"
        if met == "no" and self.cpu is not None and self.cpu < self.target:
            met = "if quiet"
        return {
            "what": f"{self.what}, {self.unit}", "target": f"under {self.target:g}", "wall time": f"{self.wall:,.3g}",
            "CPU time": "" if self.cpu is None else f"{self.cpu:,.3g}", "met": met, "note": self.note,
        }  # fmt: skip


Measured = tuple[list[Figure], Any]  # figures, and the result of the scene for JSON


def run_scene(name: str, argument: object, folder: Path, timeout_s: float = 300.0) -> dict[str, Any]:
    """Run a scene and return its result. Raises `RuntimeError`."""
    env = {
        "TRAINDECK_HOME": str(folder / "home"), "TRAINDECK_CONFIG_DIR": str(folder / "config"),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "BENCH_STARTED": repr(time.time()),
    }  # fmt: skip
    finished = processes.run(processes.python("bench.window_scenes", name, argument), env, timeout_s=timeout_s)
    return dict(json.loads(finished.output.splitlines()[-1]))


def blocked_figure(when: str, blocked: dict[str, float], note: str = "") -> Figure:
    note = f"99.9 %: {blocked['wall_999_ms']:.1f} ({blocked['cpu_999_ms']:.1f}){note}"
    return Figure(f"event loop blocked {when}", "ms", 50, blocked["wall_ms"], blocked["cpu_ms"], note)


def start(folder: Path, args: argparse.Namespace) -> Measured:
    first, *others = starts = [run_scene("start", "", folder) for _ in range(1 + args.times)]
    figures = []
    for what, unit, target, name, cpu_name in (
        ("first paint, from before the process", "s", 0.5, "paint_s", "paint_cpu_s"),
        ("usable, with plots", "s", 1.0, "usable_s", "usable_cpu_s"),
        ("resident memory, empty", "MB", 150.0, "resident_mb", None),
    ):
        values = [result[name] for result in others]
        cpu = min(result[cpu_name] for result in others) if cpu_name else None
        note = f"median {statistics.median(values):.2f}; the first of all {first[name]:.2f}"
        figures.append(Figure(what, unit, target, min(values), cpu, note))
    return figures, starts


def frame(folder: Path, args: argparse.Namespace) -> Measured:
    result, figures = run_scene("frame", "", folder), []
    for name, change in (("new_point", "a new point"), ("moved_view", "the view is moved")):
        wall, cpu = result[name]["wall_ms"], result[name]["cpu_ms"]["median"]
        what, note = f"frame of the plots, 200,000 points a curve, {change}", f"{wall['min']:.0f} to {wall['max']:.0f}"
        figures.append(Figure(what, "ms", 30, wall["median"], cpu, note))
    return figures, result


def opening(folder: Path, args: argparse.Namespace) -> Measured:
    path = folder / "home" / "runs" / "long"
    run = demo_run.write_run(path, "quickstart", ["builtin:python"], steps=args.events // 3, every=1)
    result = run_scene("opening", run.path, folder)
    what, size = f"a run of {args.events:,} events opened", f"{run.events.stat().st_size / 1e6:.0f} MB on disk"
    opened = Figure(what, "s", 2.0, result["seconds"], result["cpu_s"], size)
    return [opened, blocked_figure("meanwhile", result["blocked"])], result


def flood(folder: Path, args: argparse.Namespace) -> Measured:
    result = run_scene("flood", args.minutes, folder, 300 + 150 * args.minutes)
    samples = result["memory"][len(result["memory"]) // 2 :]
    minutes = (samples[-1][0] - samples[0][0]) / 60 or 1.0
    resident, stored = ((samples[-1][column] - samples[0][column]) / minutes for column in (1, 2))
    growth = "memory growth in the second half without stored measurements"
    note = f"these {stored:.1f} a minute; {result['resident_mb']:.0f} MB at the end"
    when, cpu = f"at 1,000 events a second for {args.minutes:g} min", f"; {result['cpu_share']:.0%} of a core"
    lost, sent = result["steps_sent"] - result["steps"], f"of {result['steps_sent']:,}"
    return [
        blocked_figure(when, result["blocked"], cpu),
        Figure("steps lost", "", 1, lost, note=sent),
        Figure(growth, "MB a minute", 5, resident - stored, note=note),
    ], result


SCENES: Final = {scene.__name__: scene for scene in (start, frame, opening, flood)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.window", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(SCENES), default=list(SCENES))
    parser.add_argument("--times", type=int, default=5, help="starts of the window")
    parser.add_argument("--events", type=int, default=300_000, help="of the run that is opened")
    parser.add_argument("--minutes", type=float, default=1.5, help="of 1,000 events a second; 10: the target")
    args = parser.parse_args()
    figures, failed, scenes = list[Figure](), list[str](), dict[str, Any]()
    with results.benchmark("window") as report:
        for name in args.only:
            try:
                measured, scenes[name] = SCENES[name](report.folder, args)
            except RuntimeError as error:
                failed.append(f"FAILED {name}: {error}")
                continue
            figures += measured
            results.log(results.markdown_table([figure.row() for figure in measured]))
        report.lines = [results.markdown_table([figure.row() for figure in figures]), *failed]
        report.document = {"figures": list(map(asdict, figures)), "scenes": scenes}
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
