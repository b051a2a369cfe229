"""Memory that ends at random operations: the loss must stay that of the unbroken run, within rounding.

    python -m bench.faults memory               once in each of 50 steps

Each of so many steps fails once, somewhere in its forward or backward pass, with the error that a GPU's allocator
raises; afterwards there is room again. Every step must be told once, with the unbroken run's loss and counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from bench import measure
from bench.faults import small
from bench.faults.small import Child
from trainer_core import protocol

_MORE: Final = {"batch-size": 8, "gradient-accumulation-steps": 2, "dropout": 0.0, "eval-steps": 0, "save-steps": 0}
_ROUNDING: Final = 1e-4  # largest relative difference of a loss
_AFTER: Final = 10  # steps behind the last failure


def broken(folder: Path, failures: int, seed: int) -> dict[str, Any]:
    """What a run with failures told, beside one without."""
    steps = failures + _AFTER
    unbroken = small.unbroken(folder, steps, _MORE)
    arguments = small.arguments(unbroken.data, folder / "broken", steps, _MORE)
    harm = json.dumps({"memory": [failures, seed]})
    child = Child([sys.executable, "-m", "bench.faults.harmed", harm, *arguments], folder)
    code = child.ended()
    losses = {event.step: event.loss for event in child.of(protocol.Step)}
    moves = child.of(protocol.OomRecovery)
    failed = [move for move in moves if move.action != "grown"]
    differences = [
        abs(loss - theirs) / theirs
        for step, loss in losses.items()
        if loss is not None and (theirs := unbroken.losses.get(step))
    ]
    problems = [] if code == 0 else [child.last_words()]
    if list(losses) != list(range(1, steps + 1)) or len(differences) != steps:
        problems.append(f"steps were told as {list(losses)}")
    if differences and max(differences) > _ROUNDING:
        problems.append(f"a loss differs by {max(differences):.1e} of itself")
    if len({move.step for move in failed}) != failures:
        problems.append(f"{len({move.step for move in failed})} steps were done again, not {failures}")
    wanted = [(step.samples, step.tokens) for step in child.of(protocol.Step)]
    if wanted != [(number * wanted[0][0], number * wanted[0][1]) for number in range(1, len(wanted) + 1)]:
        problems.append("batches were skipped or doubled")
    return {
        "failures": len(failed), "steps": steps, "during": dict(Counter(move.during for move in failed)),
        "actions": dict(Counter(move.action for move in moves)), "largest_difference": max(differences, default=None),
        "problems": problems,
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults memory", description=__doc__)
    parser.add_argument("--failures", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", help="folder for the runs; default: bench/results")
    chosen = parser.parse_args(arguments)
    told, began = measure.machine(), time.monotonic()
    with measure.work_folder(chosen.work) as folder:
        found = broken(folder, chosen.failures, chosen.seed)
    rows = [[what, count] for part in ("during", "actions") for what, count in found[part].items()]
    lines = [measure.table(["what", "times"], rows), ""]
    lines.append(f"{found['failures']} failures in {found['steps']} steps, {time.monotonic() - began:.0f} s; "
                 f"largest relative difference of a loss: {found['largest_difference']:.1e}")  # fmt: skip
    lines += [f"PROBLEM: {problem}" for problem in found["problems"]]
    measure.report("faults-memory", lines, {"seed": chosen.seed, **found}, told)
    return 1 if found["problems"] else 0
