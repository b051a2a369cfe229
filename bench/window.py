"""The window against its targets: how quick, how small, never standing still.

    python -m bench.window
    python -m bench.window --only start,frame --minutes 1

Each scene (bench/window_scenes.py) runs in a process of its own, on no screen. What is blocked is told twice: by the
clock, which counts what other programs took of the processor too, and in processor time of the window's own thread.
Where the machine is not quiet only the second says something of the window. A target is met by the clock; "quiet?"
stands where it is met in processor time alone. Python compiles the modules when they are first imported: that start is
told beside the others, which find them compiled, as all but the first do on a person's machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from bench import measure, window_events
from trainer_core.runs.run_dir import RunDir

Found = dict[str, Any]
_BLOCKED: Final = 50.0  # ms
_RUNS: Final = 10


@dataclass(slots=True)
class Figure:
    """One target and what was measured. `own`: the same without what other programs took; None: not told so."""

    what: str
    unit: str
    target: float
    found: float
    own: float | None = None
    more: str = ""

    @property
    def met(self) -> str:
        if self.found < self.target:
            return "yes"
        return "quiet?" if self.own is not None and self.own < self.target else "no"

    def row(self) -> list[Any]:
        own = "" if self.own is None else f"{self.own:,.3g}"
        return [f"{self.what}, {self.unit}", f"under {self.target:g}", f"{self.found:,.3g}", own, self.met, self.more]


# --- scenes -----------------------------------------------------------------------------------------------


def scene(name: str, argument: str, folder: Path, limit_s: float) -> Found:
    """Run one; its figures. Raises `RuntimeError` with what it said where it fails."""
    environment = {
        **os.environ, "TRAINDECK_HOME": str(folder / "home"), "TRAINDECK_CONFIG_DIR": str(folder / "config"),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "BENCH_BEGAN": repr(time.time()),
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "bench.window_scenes", name, argument]
    try:
        done = subprocess.run(command, env=environment, cwd=measure.ROOT, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{name}: not within {limit_s:.0f} s") from error
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.decode('utf-8', 'replace')[-2000:]}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def blocked(found: Found, when: str) -> Figure:
    rare = f"99.9 %: {found['clock_999_ms']:.1f} ({found['processor_999_ms']:.1f})"
    if "idle_ms" in found:
        rare += f"; an idle loop at the same time: {found['idle_ms']:.0f}"
    return Figure(f"event loop blocked {when}", "ms", _BLOCKED, found["clock_ms"], found["processor_ms"], rare)


def start(folder: Path, chosen: argparse.Namespace) -> tuple[list[Figure], Any]:
    compiling, *times = (scene("start", "", folder, 120) for _ in range(1 + chosen.times))

    def best(name: str) -> float:
        return min(float(one[name]) for one in times)

    def middle(name: str) -> str:
        return f"median {statistics.median(one[name] for one in times):.2f}; the first of all {compiling[name]:.2f}"

    return [
        Figure("first paint, from before the process", "s", 0.5, best("paint_s"), best("paint_processor_s"),
               middle("paint_s")),
        Figure("usable: plots are there", "s", 1.0, best("usable_s"), best("usable_processor_s"), middle("usable_s")),
        Figure("resident memory, empty", "MB", 150, best("resident_mb"), None, middle("resident_mb")),
    ], [compiling, *times]  # fmt: skip


def frame(folder: Path, _: argparse.Namespace) -> tuple[list[Figure], Any]:
    found = scene("frame", "", folder, 300)
    return [
        Figure(f"frame of the plots, 200,000 points a curve, {words}", "ms", 30, one["clock_ms"]["median"],
               one["processor_ms"]["median"], f"{one['clock_ms']['min']:.0f} to {one['clock_ms']['max']:.0f}")
        for words, one in (("a point comes in", found["follow"]), ("the view is moved", found["move"]))
    ], found  # fmt: skip


def intake(folder: Path, chosen: argparse.Namespace) -> tuple[list[Figure], Any]:
    found = scene("intake", str(chosen.events // 5), folder, 300)
    what = f"{chosen.events // 5:,} events taken in"
    return [
        Figure(what, "s", 2.0, found["seconds"], found["processor_s"]),
        blocked(found["blocked"], "meanwhile"),
    ], found


def opening(folder: Path, chosen: argparse.Namespace) -> tuple[list[Figure], Any]:
    run = long_run(folder, chosen.events)
    first, again = (scene("opening", str(run.path), folder, 300) for _ in range(2))
    what, size = f"a run of {chosen.events:,} events opened", f"{run.events.stat().st_size / 1e6:.0f} MB on disk"
    return [
        Figure(f"{what}, the first time", "s", 2.0, first["seconds"], None, size),
        blocked(first["blocked"], "meanwhile"),
        Figure(f"{what} again", "s", 2.0, again["seconds"], again["processor_s"]),
        blocked(again["blocked"], "meanwhile"),
    ], [first, again]  # fmt: skip


def overlay(folder: Path, chosen: argparse.Namespace) -> tuple[list[Figure], Any]:
    whole = long_run(folder, chosen.events)
    for number in range(_RUNS):
        run = RunDir(whole.path.with_name(f"beside {number}"))
        run.create()
        shutil.copy2(whole.config, run.config)
        try:
            os.link(whole.events, run.events)  # ten runs of one content
        except OSError:
            shutil.copy2(whole.events, run.events)
    found = scene("overlay", str(whole.path.parent), folder, 900)
    peak = f"on the way {found['peak_mb']:.0f}; read in {found['seconds']:.0f} s"
    what = f"resident memory, {found['runs']} runs of {chosen.events:,} events overlaid"
    return [
        Figure(what, "MB", 250, found["resident_mb"], None, peak),
        blocked(found["blocked"], "while they are read"),
    ], found


def long_run(folder: Path, events: int) -> RunDir:
    """The run that is opened and overlaid; written once."""
    run = RunDir(folder / "home" / "runs" / "long")
    if not run.exists():
        window_events.write_run(run, events)
    return run


def flood(folder: Path, chosen: argparse.Namespace) -> tuple[list[Figure], Any]:
    found = scene("flood", str(chosen.minutes), folder, 300 + 150 * chosen.minutes)
    figure = blocked(found["blocked"], f"at 1,000 events a second for {chosen.minutes:g} min")
    figure.more += f"; {found['processor_share']:.0%} of a core"
    lost = found["steps_told"] - found["steps"]
    half = found["memory"][len(found["memory"]) // 2 :]
    minutes = (half[-1][0] - half[0][0]) / 60 or 1.0
    grown, kept = ((half[-1][place] - half[0][place]) / minutes for place in (1, 2))
    return [
        figure,
        Figure("of its steps, lost", "", 1, lost, None, f"of {found['steps_told']:,}"),
        Figure("memory growing in the second half, beyond its measurements", "MB a minute", 5, grown - kept, None,
               f"these {kept:.1f} a minute; {found['resident_mb']:.0f} MB in the end"),
    ], found  # fmt: skip


def trainer(folder: Path, chosen: argparse.Namespace) -> tuple[list[Figure], Any]:
    found = scene("trainer", str(chosen.seconds), folder, 600 + 4 * chosen.seconds)
    figures = [blocked(one, f"while a trainer is {words}") for words, one in found["blocked"].items()]
    for name, target in (("hidden", 3), ("visible", 15)):
        one = found[name]
        told = f"{one['events_s']:.1f} events a second"
        figures.append(Figure(f"processor while a run goes on, window {name}", "% of a core", target,
                              100 * one["share"], None, told))  # fmt: skip
    return figures, found


SCENES: Final[dict[str, Callable[[Path, argparse.Namespace], tuple[list[Figure], Any]]]] = {
    one.__name__: one for one in (start, frame, intake, opening, overlay, flood, trainer)
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.window", description=__doc__)
    parser.add_argument("--only", default=",".join(SCENES), help="scenes, with commas")
    parser.add_argument("--times", type=int, default=5, help="starts of the window")
    parser.add_argument("--events", type=int, default=300_000, help="of the run that is opened; a fifth is taken in")
    parser.add_argument("--minutes", type=float, default=1.5, help="of 1,000 events a second; 10: the target")
    parser.add_argument("--seconds", type=float, default=60, help="that processor use is measured for")
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    chosen = parser.parse_args()
    if unknown := set(chosen.only.split(",")) - SCENES.keys():
        parser.error(f"there is no scene {', '.join(unknown)}; there are {', '.join(SCENES)}")
    told = measure.machine()
    figures: list[Figure] = []
    found: Found = {}
    failed: list[str] = []
    with measure.work_folder(chosen.work) as folder:
        for name in chosen.only.split(","):
            load = psutil.getloadavg()[0]
            try:
                new, raw = SCENES[name](folder, chosen)
            except RuntimeError as error:
                failed.append(f"FAILED {name}: {error}")
                continue
            figures += new
            found[name] = {"load_before": round(load, 2), "load_after": round(psutil.getloadavg()[0], 2), "found": raw}
            for figure in new:
                sys.stderr.write(f"{figure.row()}\n")
    head = ["what", "target", "found", "processor", "met", "more"]
    loads = f"load while it was measured (cores: {os.cpu_count()}): " + ", ".join(
        f"{name} {one['load_before']:g} to {one['load_after']:g}" for name, one in found.items()
    )
    lines = [measure.table(head, [figure.row() for figure in figures]), "", loads, *failed]
    document = {"figures": [{**asdict(figure), "met": figure.met} for figure in figures], "scenes": found}
    measure.report("window", lines, document, told)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
