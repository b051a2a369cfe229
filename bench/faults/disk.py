"""A full disk from every operation of a run on.

    python -m bench.faults disk --every 5       default: every operation below the run's folder

A run is resumed again and again. For the first process the disk is full from its first operation on, for the second
from its second, and so on until a process has written two checkpoints before. Each must end with one error and exit
code 7, or pause and continue when there is space. No checkpoint may be lost, and the finished run must equal the
uninterrupted one.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench import results
from bench.faults import full_disk
from bench.faults.reference_run import TIMEOUT_S, ReferenceRun, newest_checkpoint
from bench.processes import ChildProcess, python
from trainer_core.messages.exit_codes import ExitCode

STEPS: Final = 600  # more than all processes reach
_CHECKPOINTS: Final = 2  # of a process: all operations of a checkpoint are done


@dataclass(frozen=True, slots=True)
class Outcome:
    """A process whose disk became full: the first operation that failed, its reaction, and the state afterwards."""

    number: int
    operation: str  # and its file; empty: none failed
    reaction: str
    saved: int
    problems: list[str]


def fill_at_each_operation(reference: ReferenceRun, folder: Path, every: int = 1) -> tuple[list[Outcome], list[str]]:
    """Run all processes. Returns their results and all problems."""
    run_dir, outcomes, saved, checkpoints, number = folder / "run", list[Outcome](), 0, 0, 1
    while checkpoints < _CHECKPOINTS and (not outcomes or outcomes[-1].operation):
        free_space = folder / f"free-space-{number}"
        child = reference.start(run_dir, folder, python("bench.faults.full_disk", run_dir, number, free_space))
        child.wait_until(lambda events: any(event["reason"] == "disk_full" for event in events.of("phase")), TIMEOUT_S)
        checkpoints = len(child.events.of("checkpoint"))
        reaction, problems = _react(child, free_space)
        expected = max([saved, *(event["step"] for event in child.events.of("checkpoint"))])
        saved, damaged = newest_checkpoint(run_dir)
        if saved < expected:
            problems.append(f"the checkpoint of step {expected} is missing")
        problems += [*damaged, *reference.loss_problems(child.events)]
        report = next((line for line in child.stderr.splitlines() if line.startswith(full_disk.REPORT)), "")
        outcomes.append(Outcome(number, report.partition(": ")[2], reaction, saved, problems))
        results.log(str(outcomes[-1]))
        number += every
    child = reference.start(run_dir, folder)
    child.wait(TIMEOUT_S)
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    return outcomes, problems + reference.end_problems(child, run_dir)


def _react(child: ChildProcess, free_space: Path) -> tuple[str, list[str]]:
    """Free space if the process waits. Returns its reaction and problems."""
    if child.output_is_open:
        free_space.touch()
        saved = len(child.events.of("checkpoint"))
        continued = child.wait_until(lambda events: len(events.of("checkpoint")) > saved, TIMEOUT_S)
        child.kill()
        return "waited and continued", [] if continued else [f"did not continue: {child.describe_exit()}"]
    code, errors = child.wait(TIMEOUT_S), [event["code"] for event in child.events.of("error")]
    if code == ExitCode.FINISHED:
        return "not affected", []
    problems = [] if code == ExitCode.DISK_FULL and len(errors) == 1 else [child.describe_exit()]
    if "Traceback" in child.stderr:
        problems.append("a traceback was shown")
    return f"ended with {' '.join(errors) or code}", problems


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults disk", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every Nth operation")
    args = parser.parse_args(arguments)
    with results.benchmark("faults-disk") as report:
        started_at = time.monotonic()
        reference = ReferenceRun(report.folder, STEPS).train()
        outcomes, problems = fill_at_each_operation(reference, report.folder, args.every)
        kinds = [(outcome.operation.partition(" ")[0], outcome.reaction) for outcome in outcomes]
        failed = Counter(kind for kind, outcome in zip(kinds, outcomes, strict=True) if outcome.problems)
        rows = [
            {"full from": kind[0], "the run": kind[1], "times": count, "with a problem": failed[kind]}
            for kind, count in Counter(kinds).most_common()
        ]
        summary = f"\n{len(outcomes)} processes, {(time.monotonic() - started_at) / 60:.1f} min"
        report.lines = [results.markdown_table(rows), summary, *(f"PROBLEM: {problem}" for problem in problems)]
        report.document = {"steps": STEPS, "processes": list(map(asdict, outcomes)), "problems": problems}
    return 1 if problems else 0
