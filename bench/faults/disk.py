"""A full disk from every operation of a run on.

    python -m bench.faults disk                 every operation below the run's folder
    python -m bench.faults disk --every 5

A run is resumed again and again. For the first process the disk is full from its first operation on (make, open for
writing, write, flush, rename), for the second from its second, and so on until a process has written two checkpoints
before. Each must end with one error and exit code 7, or pause with a reason and continue when there is space. No
checkpoint may be lost. Then the run is finished and compared with the unbroken one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench import measure
from bench.faults import small
from bench.faults.small import Child, Unbroken
from trainer_core import protocol

STEPS: Final = 600  # more than all processes reach
_CHECKPOINTS: Final = 2  # of a process: all operations of a checkpoint are done
_DISK_FULL: Final = 7  # exit code


@dataclass(frozen=True, slots=True)
class Full:
    """A process: the operation from which the disk was full, its reaction, and the state afterwards."""

    number: int
    operation: str
    did: str
    saved: int
    problems: list[str]


def full_at_each(unbroken: Unbroken, folder: Path, every: int = 1) -> tuple[list[Full], list[str]]:
    """Run all processes; returns their results and all problems."""
    run, found, number, saved = folder / "run", list[Full](), 1, 0
    while True:
        room = folder / f"room-{number}"
        harm = {"below": str(run), "full_at": number, "room": str(room)}
        arguments = unbroken.command(run)[3:]  # without python -m trainer_core
        child = Child([sys.executable, "-m", "bench.faults.harmed", json.dumps(harm), *arguments], folder)
        passed = _until_it_waits(child)
        did, wrong = _reaction(child, room)
        before, (saved, damaged) = saved, small.newest(run)
        told = max((event.step for event in child.of(protocol.Checkpoint)), default=before)
        if saved < max(before, told):
            wrong.append(f"the checkpoint of step {max(before, told)} is missing")
        wrong += unbroken.wrong_losses(child.events)
        words = child.stderr_line("full at operation").partition(": ")[2]
        found.append(Full(number, words, did, saved, [*damaged, *wrong]))
        print(found[-1], file=sys.stderr, flush=True)
        if passed >= _CHECKPOINTS or not words:
            break
        number += every
    problems = [problem for one in found for problem in one.problems]
    return found, problems + _finish(unbroken, run, folder)


def _finish(unbroken: Unbroken, run: Path, folder: Path) -> list[str]:
    """Let the run end without faults; differences to the unbroken run."""
    child = Child(unbroken.command(run), folder)
    if child.ended() != 0:
        return [child.last_words()]
    return [*unbroken.wrong_losses(child.events), *unbroken.differences(run)]


def _until_it_waits(child: Child) -> int:
    """Wait until it ends or waits for space; returns the number of reported checkpoints."""
    child.wait_until(
        lambda events: any(isinstance(one, protocol.Phase) and one.reason == "disk_full" for one in events)
    )
    return len(child.of(protocol.Checkpoint))


def _reaction(child: Child, room: Path) -> tuple[str, list[str]]:
    """Free space if it waits; returns its reaction and problems."""
    if child.alive:
        saved = len(child.of(protocol.Checkpoint))
        room.touch()
        continued = child.wait_for(protocol.Checkpoint, saved + 1)
        child.kill()
        return "waited and continued", [] if continued else [f"it did not continue: {child.last_words()}"]
    code, errors = child.ended(), [event.code for event in child.of(protocol.Error)]
    if code == 0:
        return "not affected", []
    wrong = [] if code == _DISK_FULL and len(errors) == 1 else [f"ended with {errors}: {child.last_words()}"]
    if "Traceback" in child.stderr():
        wrong.append("a traceback was shown")
    return f"ended with {' '.join(errors) or code}", wrong


def lines(found: list[Full], problems: list[str], seconds: float) -> list[str]:
    """A table with a row for each operation and reaction."""
    kinds = Counter((one.operation.rpartition(" ")[0], one.did) for one in found)
    rows = [
        [operation, did, count, sum(bool(one.problems) for one in found if one.operation.startswith(operation)
                                    and one.did == did)]
        for (operation, did), count in kinds.most_common()
    ]  # fmt: skip
    told = [measure.table(["full from", "the run", "times", "with a problem"], rows), ""]
    told.append(f"{len(found)} processes, {seconds / 60:.1f} min")
    return [*told, *(f"PROBLEM: {problem}" for problem in problems)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults disk", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every Nth operation")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--work", help="folder for the runs; default: bench/results")
    chosen = parser.parse_args(arguments)
    told, began = measure.machine(), time.monotonic()
    with measure.work_folder(chosen.work) as folder:
        found, problems = full_at_each(small.unbroken(folder, chosen.steps), folder, chosen.every)
        document = {"steps": chosen.steps, "processes": [asdict(one) for one in found], "problems": problems}
        measure.report("faults-disk", lines(found, problems, time.monotonic() - began), document, told)
    return 1 if problems else 0
