"""The window and the trainer for a long time: does memory grow, do files stay open, does every event arrive?

    python -m bench.faults soak --minutes 30

The quick start is trained without an end behind the real window (on no screen), with a report for every step. Every
`INTERVAL_S` the resident memory, open files (handles on Windows) and threads of both processes are read. The slopes
are of a line through what came after the warm-up and before the end (least squares). In the end every event that the
trainer numbered must lie in events.jsonl, and must have reached the window or been told as dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from bench import measure

INTERVAL_S: Final = 5.0
WARM_UP: Final = 0.2  # of the time
MOST_MB_A_MINUTE: Final = 1.0
_GRACE_S: Final = 180.0  # to stop and close


@dataclass(slots=True)
class Looks:
    """One process over time: minutes, resident MB, open files or handles, threads."""

    minutes: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def look(self, process: psutil.Process, minutes: float) -> None:
        with process.oneshot():
            files = getattr(process, "num_handles" if sys.platform == "win32" else "num_fds")()
            self.rss_mb.append(round(process.memory_info().rss / 1e6, 2))
            self.files.append(files)
            self.threads.append(process.num_threads())
            self.minutes.append(round(minutes, 3))

    def between(self, begin: float, end: float) -> Looks:
        kept = [index for index, when in enumerate(self.minutes) if begin <= when <= end]
        return Looks(*([values[index] for index in kept] for values in asdict(self).values()))

    def slope(self) -> float:
        """MB a minute."""
        return float(np.polyfit(self.minutes, self.rss_mb, 1)[0]) if len(self.minutes) > 2 else float("nan")


def watch(minutes: float, folder: Path) -> tuple[dict[str, Looks], dict[str, Any]]:
    """Looks at both processes, and what the window says in the end. Raises `RuntimeError` where it fails."""
    file, told = folder / "window.json", folder / "stderr.txt"
    environment = {**os.environ, "TRAINDECK_HOME": str(folder / "home"), "TRAINDECK_CONFIG_DIR": str(folder / "config")}
    with told.open("wb") as errors:
        window = subprocess.Popen(
            [sys.executable, "-m", "bench.faults.soak_window", str(minutes), str(file)],
            stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=measure.ROOT, text=True,
        )  # fmt: skip
        assert window.stdout is not None
        first = window.stdout.readline()
        if not first.strip():
            raise RuntimeError(told.read_text("utf-8", "replace"))
        watched = {"window": psutil.Process(window.pid), "trainer": psutil.Process(int(first))}
        looks = {name: Looks() for name in watched}
        began = time.monotonic()
        while window.poll() is None and time.monotonic() - began < minutes * 60 + _GRACE_S:
            time.sleep(INTERVAL_S)
            for name, process in watched.items():
                try:
                    looks[name].look(process, (time.monotonic() - began) / 60)
                except psutil.Error:  # it has ended
                    continue
        if window.poll() is None:
            window.kill()
    if not file.is_file():
        raise RuntimeError(told.read_text("utf-8", "replace"))
    ended: dict[str, Any] = json.loads(file.read_bytes())
    return {name: look.between(WARM_UP * minutes, 0.97 * minutes) for name, look in looks.items()}, ended


def unaccounted(ended: dict[str, Any]) -> list[str]:
    """What became of events that neither arrived nor were told as dropped, or are not on disk."""
    lines = (Path(ended["run"]) / "events.jsonl").read_bytes().splitlines()
    on_disk = [json.loads(line)["seq"] for line in lines]
    wrong = []
    if on_disk != list(range(1, len(on_disk) + 1)):
        wrong.append("events.jsonl has gaps")
    if on_disk and on_disk[-1] != ended["last"]:
        wrong.append(f"the last event on disk is {on_disk[-1]}, in the window {ended['last']}")
    if ended["missing"] != ended["dropped"]:
        wrong.append(f"{ended['missing']} events did not reach the window, {ended['dropped']} were told as dropped")
    return wrong


def lines(looks: dict[str, Looks], ended: dict[str, Any], problems: list[str], minutes: float) -> list[str]:
    head = ["process", "MB after warm-up", "MB at the end", "MB a minute", "open files", "threads", "looks"]
    rows = []
    for name, look in looks.items():
        files, threads = f"{min(look.files)} to {max(look.files)}", f"{min(look.threads)} to {max(look.threads)}"
        rows.append([name, look.rss_mb[0], look.rss_mb[-1], look.slope(), files, threads, len(look.minutes)])
    words = (f"{minutes:g} min, {ended['step']:,} steps, {ended['last']:,} events, {ended['dropped']} told as dropped; "
             f"ended as {ended['state']}")  # fmt: skip
    return [measure.table(head, rows), "", words, *(f"PROBLEM: {problem}" for problem in problems)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--work", help="folder for the run; default: bench/results")
    chosen = parser.parse_args(arguments)
    told = measure.machine()
    with measure.work_folder(chosen.work) as folder:
        looks, ended = watch(chosen.minutes, folder)
        problems = unaccounted(ended)
        for name, look in looks.items():
            if not look.slope() < MOST_MB_A_MINUTE:
                problems.append(f"memory of the {name} grew by {look.slope():.2f} MB a minute")
            third = len(look.files) // 3
            if third and min(look.files[-third:]) > min(look.files[:third]):  # a save has some open for a moment
                problems.append(f"open files of the {name} grew")
        document = {"minutes": chosen.minutes, "looks": {name: asdict(look) for name, look in looks.items()},
                    "slopes": {name: look.slope() for name, look in looks.items()}, "ended": ended,
                    "problems": problems}  # fmt: skip
        measure.report("faults-soak", lines(looks, ended, problems, chosen.minutes), document, told)
    return 1 if problems else 0
