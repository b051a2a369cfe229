"""Kills at every operation on the disk that writing a checkpoint consists of.

    python -m bench.faults operations           each of them: make, open, write (half done), flush, rename, remove
    python -m bench.faults operations --every 5

One run is resumed again and again. The first process dies at the first operation below its folder of checkpoints, the
second at the second, and so on until one has told two checkpoints: by then every operation of writing, renaming,
replacing and rotating has been the last one of some process. Then the run is finished and compared with one that
nothing happened to.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import measure
from bench.faults import harmed, small
from bench.faults.small import Child, Unbroken
from trainer_core import protocol

STEPS = 600  # more than all these processes get done
_CHECKPOINTS = 2  # that a process tells before all operations of one were passed


@dataclass(frozen=True, slots=True)
class Death:
    """One process: at which operation it ended, and what was there afterwards."""

    number: int
    operation: str
    reached: int
    saved: int
    problems: list[str]


def die_at_each(unbroken: Unbroken, folder: Path, every: int = 1) -> tuple[list[Death], list[str]]:
    """All deaths, and everything that was not as it must be."""
    run, deaths, saved, number = folder / "run", list[Death](), 0, 1
    while True:
        harm = {"below": str(run / "checkpoints"), "die_at": number}
        arguments = unbroken.command(run)[3:]  # without python -m trainer_core
        child = Child([sys.executable, "-m", "bench.faults.harmed", json.dumps(harm), *arguments], folder)
        code = child.ended()
        wrong = unbroken.wrong_losses(child.events)
        if code != harmed.KILLED:
            wrong.append(child.last_words())
        wrong += [f"went on from {hello.resumed_from_step}, not {saved}" for hello in child.of(protocol.Hello)
                  if (hello.resumed_from_step or 0) != saved]  # fmt: skip
        before, (saved, damaged) = saved, small.newest(run)
        reached = max((event.step for event in child.of(protocol.Step)), default=saved)
        told = max((event.step for event in child.of(protocol.Checkpoint)), default=before)
        if saved < told:
            wrong.append(f"the checkpoint of step {told} was there and is gone")
        if reached - saved > 2 * small.SAVE_STEPS:
            wrong.append(f"{reached - saved} steps were lost")
        deaths.append(Death(number, child.told("killed at operation"), reached, saved, [*damaged, *wrong]))
        print(deaths[-1], file=sys.stderr, flush=True)
        if code != harmed.KILLED or len(child.of(protocol.Checkpoint)) >= _CHECKPOINTS:
            break
        number += every
    return deaths, [problem for death in deaths for problem in death.problems] + finish(unbroken, run, folder)


def finish(unbroken: Unbroken, run: Path, folder: Path) -> list[str]:
    """Let the run end in peace; how it differs from the unbroken one."""
    child = Child(unbroken.command(run), folder)
    if child.ended() != 0:
        return [child.last_words()]
    return [*unbroken.wrong_losses(child.events), *unbroken.differences(run)]


def lines(deaths: list[Death], problems: list[str], steps: int, seconds: float) -> list[str]:
    """A row for each kind of operation."""
    kinds = Counter(_kind(death) for death in deaths)
    rows = []
    for kind, count in kinds.most_common():
        here = [death for death in deaths if _kind(death) == kind]
        rows.append([kind, count, max(death.reached - death.saved for death in here),
                     sum(bool(death.problems) for death in here)])  # fmt: skip
    head = ["killed at", "kills", "most steps lost", "with a problem"]
    told = [measure.table(head, rows), "", f"{len(deaths)} kills in a run of {steps} steps, {seconds / 60:.1f} min"]
    return [*told, *(f"PROBLEM: {problem}" for problem in problems)]


def _kind(death: Death) -> str:
    words = death.operation.partition(": ")[2]
    return words.rpartition(" ")[0] or "not killed"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults operations", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every so many-th operation")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--work", help="folder for the runs; default: bench/results")
    chosen = parser.parse_args(arguments)
    told, began = measure.machine(), time.monotonic()
    with measure.work_folder(chosen.work) as folder:
        deaths, problems = die_at_each(small.unbroken(folder, chosen.steps), folder, chosen.every)
        seconds = time.monotonic() - began
        document = {"steps": chosen.steps, "deaths": [asdict(death) for death in deaths], "problems": problems}
        measure.report("faults-operations", lines(deaths, problems, chosen.steps, seconds), document, told)
    return 1 if problems else 0
