"""Kills at random instants of a run until it has finished.

    python -m bench.faults kills                200 of them, in as many runs as it takes
    python -m bench.faults kills --count 20 --seed 7
    python -m bench.faults kills --waiting      training waits for every write (background_saving off)

A run of `STEPS` steps is killed, resumed and killed again. After every kill each checkpoint must be valid, and at most
one save interval may be lost (two during a background write). The next process must resume from the newest checkpoint;
all losses, and the files of the finished model, must equal those of the unbroken run.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import measure
from bench.faults import small
from bench.faults.small import Child, Unbroken
from trainer_core import protocol
from trainer_core.runs.checkpoint_dir import TEMPORARY_PREFIX

STEPS: Final = 120
_MAX_STEPS: Final = 24  # of a process before its kill
_AFTER_S: Final = 0.06  # after a step: within a step, a save or an evaluation


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill: what was interrupted, and the state afterwards."""

    where: str
    after_s: float  # since the start of the process
    reached: int  # last reported step
    saved: int  # step of the newest valid checkpoint; 0: none
    problems: list[str]

    @property
    def lost(self) -> int:
        return max(0, self.reached - self.saved)


@dataclass(slots=True)
class Found:
    """Results of all kills."""

    kills: list[Kill] = field(default_factory=list)
    runs: int = 0  # that finished
    problems: list[str] = field(default_factory=list)


def kill_often(unbroken: Unbroken, folder: Path, count: int, seed: int, waiting: bool) -> Found:
    """Kill `count` times, in one run after the other, each with its own folder and token cache.

    `waiting`: training waits for every checkpoint.
    """
    draw, found = random.Random(seed), Found()
    while len(found.kills) < count:
        home = folder / f"run-{found.runs}"
        for kill in _until_finished(unbroken, home, count - len(found.kills), draw, waiting, found.problems):
            found.kills.append(kill)
            found.problems += kill.problems
            print(f"{len(found.kills)}/{count}: {kill}", file=sys.stderr, flush=True)
        found.runs += 1
        if not found.problems:  # else it is kept for inspection
            measure.remove(home)
    return found


def _until_finished(
    unbroken: Unbroken, home: Path, most: int, draw: random.Random, waiting: bool, problems: list[str]
) -> Iterator[Kill]:
    """Kill a run up to `most` times and let it finish. Appends to `problems`."""
    run, saved, kills = home / "run", 0, 0
    while True:
        child = Child(unbroken.command(run, {"background-saving": not waiting}), home)
        finishing = kills >= most or saved >= unbroken.steps or not _wait(child, draw, unbroken.seconds)
        child.ended() if finishing else child.kill()
        wrong = unbroken.wrong_losses(child.events)
        wrong += [
            f"resumed from step {hello.resumed_from_step} instead of {saved}"
            for hello in child.of(protocol.Hello)
            if (hello.resumed_from_step or 0) != saved
        ]
        if finishing:
            if child.process.returncode != 0:
                wrong.append(child.last_words())
            problems += [*wrong, *unbroken.differences(run)]
            return
        kills += 1
        kill = _inspect(child, run, waiting, wrong)
        saved = kill.saved
        yield kill


def _wait(child: Child, draw: random.Random, life: float) -> bool:
    """Wait until a random instant; False: the process has ended."""
    kind = draw.choices(["anywhere", "preparing", "training"], [3, 2, 5])[0]
    if kind == "anywhere":
        seconds = draw.uniform(0, life)
    elif kind == "preparing":
        child.wait_for(protocol.Hello)
        seconds = draw.uniform(0, life / 3)
    else:
        child.wait_for(protocol.Step, draw.randint(1, _MAX_STEPS))
        seconds = draw.uniform(0, _AFTER_S)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and child.process.poll() is None:
        time.sleep(min(0.005, max(0.0, deadline - time.monotonic())))
    return child.process.poll() is None


def _inspect(child: Child, run: Path, waiting: bool, wrong: list[str]) -> Kill:
    """State after a kill."""
    saved, damaged = small.newest(run)
    where = _where(child, run)
    reached = max((event.step for event in child.of(protocol.Step)), default=saved)
    told = max((event.step for event in child.of(protocol.Checkpoint)), default=0)
    if saved < told:
        wrong.append(f"the checkpoint of step {told} was reported and is missing")
    beside = not waiting and "checkpoint" in where
    most = 2 * small.SAVE_STEPS if beside else small.SAVE_STEPS
    if reached - saved > most:
        wrong.append(f"{reached - saved} steps were lost ({where})")
    return Kill(where, round(time.monotonic() - child.began, 3), reached, saved, [*damaged, *wrong])


def _where(child: Child, run: Path) -> str:
    """What was interrupted, from temporary folders, else from the last event."""
    left = [entry.name.removeprefix(TEMPORARY_PREFIX) for entry in (run / "checkpoints").glob(f"{TEMPORARY_PREFIX}*")]
    for beginning, words in (("step-", "writing a checkpoint"), ("removed-", "rotating checkpoints"),
                             ("replaced-", "replacing a checkpoint")):  # fmt: skip
        if any(name.startswith(beginning) for name in left):
            return words
    if not child.of(protocol.Hello):
        return "starting"
    if child.of(protocol.Done):
        return "ending"
    phases = [event.phase for event in child.of(protocol.Phase)]
    return phases[-1] if child.of(protocol.Ready) and phases else "preparing"


def lines(found: Found, seconds: float) -> list[str]:
    """A table with a row for each interrupted activity."""
    places = Counter(kill.where for kill in found.kills)
    rows: list[list[Any]] = []
    for place, count in places.most_common():
        here = [kill for kill in found.kills if kill.where == place]
        none = sum(kill.saved == 0 for kill in here)
        rows.append([place, count, none, max(kill.lost for kill in here), sum(bool(kill.problems) for kill in here)])
    head = ["killed while", "kills", "before the first checkpoint", "most steps lost", "with a problem"]
    told = [measure.table(head, rows), ""]
    told.append(
        f"{len(found.kills)} kills, {found.runs} runs of {STEPS} steps saved every {small.SAVE_STEPS}, "
        f"in {seconds / 60:.1f} min; most steps lost: {max((kill.lost for kill in found.kills), default=0)}"
    )
    return [*told, *(f"PROBLEM: {problem}" for problem in found.problems)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults kills", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--waiting", action="store_true", help="training waits for every write")
    parser.add_argument("--work", help="folder for the runs; default: bench/results")
    chosen = parser.parse_args(arguments)
    told, began = measure.machine(), time.monotonic()
    with measure.work_folder(chosen.work) as folder:
        found = kill_often(small.unbroken(folder, STEPS), folder, chosen.count, chosen.seed, chosen.waiting)
        document = {
            "seed": chosen.seed,
            "waiting": chosen.waiting,
            "steps": STEPS,
            "save_steps": small.SAVE_STEPS,
            **asdict(found),
        }
        measure.report("faults-kills", lines(found, time.monotonic() - began), document, told)
    return 1 if found.problems else 0
