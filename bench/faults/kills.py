"""Kills at random instants of a run until it has finished.

    python -m bench.faults kills --count 20 --seed 7
    python -m bench.faults kills --waiting      training waits for every write (background_saving off)
    python -m bench.faults kills --count 50 --ranks 2 --parallel fsdp      one rank is killed; the others must end

After every kill each checkpoint must be valid, and at most one save interval may be lost (two during a background
write). The next process must resume from the newest checkpoint; all losses, and the files of the finished model, must
equal those of the uninterrupted run.
"""

import argparse
import contextlib
import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from bench import results
from bench.faults.reference_run import SAVE_STEPS, TIMEOUT_S, ReferenceRun, newest_checkpoint
from bench.processes import ChildProcess
from trainer_core.runs.checkpoint_dir import TEMPORARY_PREFIX

STEPS: Final = 120
ENDING_S: Final = 30.0  # in which the other ranks must end when one is killed
_MAX_STEPS: Final = 24  # of a process before its kill
_MAX_DELAY_S: Final = 0.06  # after a step: within a step, a save or an evaluation
_TEMPORARY_FOLDERS: Final = {  # activity by the kind of a temporary folder
    "step": "writing a checkpoint",
    "removed": "rotating checkpoints",
    "replaced": "replacing a checkpoint",
}


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill: the interrupted activity, and the state afterwards."""

    activity: str
    after_s: float  # since the start of the process
    reached: int  # last reported step
    saved: int  # step of the newest valid checkpoint; 0: none
    problems: list[str]


def kill_often(
    reference: ReferenceRun, folder: Path, count: int, seed: int, waiting: bool, ranks: int = 1
) -> tuple[list[Kill], int, list[str]]:
    """Kill `count` times, in one run after the other. Returns the kills, the number of runs and all problems.

    Each run has its own folder and token cache. `waiting`: training waits for every checkpoint. With several `ranks`,
    one of them is killed, as soon as they have started.
    """
    rng, kills, runs, problems = random.Random(seed), list[Kill](), 0, list[str]()
    while len(kills) < count:
        home = folder / f"run-{runs}"
        run_dir, saved, finished = home / "run", 0, False
        while not finished:
            child = reference.start(run_dir, home, background_saving=not waiting)
            may_kill = len(kills) < count and saved < reference.steps
            finished = not may_kill or not _wait_for_random_instant(child, rng, reference.seconds)
            new_problems = []
            if finished:
                child.wait(TIMEOUT_S)
            else:
                new_problems += _kill(child, rng, ranks)
            resumed_from = child.events.first("hello").get("resumed_from_step") or 0
            new_problems += (
                reference.end_problems(child, run_dir) if finished else reference.loss_problems(child.events)
            )
            if child.events.of("hello") and resumed_from != saved:
                new_problems.append(f"resumed from step {resumed_from} instead of {saved}")
            if not finished:
                kills.append(_inspect(child, run_dir, waiting, new_problems))
                saved = kills[-1].saved
                results.log(f"{len(kills)}/{count}: {kills[-1]}")
            problems += new_problems
        runs += 1
        if not problems:  # else it is kept for inspection
            shutil.rmtree(home)
    return kills, runs, problems


def _kill(child: ChildProcess, rng: random.Random, ranks: int) -> list[str]:
    """Kill the process, or one of its ranks. Returns a problem if the others do not end in time."""
    processes = find_ranks(child.pid)
    if ranks == 1 or len(processes) < ranks:
        child.kill()
        return []
    victim, since = rng.choice(processes), time.monotonic()
    with contextlib.suppress(psutil.Error):
        victim.kill()
    try:
        child.wait(TIMEOUT_S)
    except RuntimeError as error:
        return [f"after the kill of a rank: {error}"]
    _, alive = psutil.wait_procs(processes, timeout=1)
    seconds = time.monotonic() - since
    problems = [f"{len(alive)} ranks live on"] if alive else []
    return [*problems, f"the other ranks ended after {seconds:.0f} s"] if seconds > ENDING_S else problems


def find_ranks(pid: int) -> list[psutil.Process]:
    """The ranks among the descendants of a process."""
    with contextlib.suppress(psutil.Error):
        return list(filter(_is_rank, psutil.Process(pid).children(recursive=True)))
    return []


def _is_rank(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "RANK" in process.environ() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _wait_for_random_instant(child: ChildProcess, rng: random.Random, run_s: float) -> bool:
    """Wait. Returns False if the process has exited."""
    kind = rng.choices(["anywhere", "preparing", "training"], [3, 2, 5])[0]
    if kind == "anywhere":
        seconds = rng.uniform(0, run_s)
    elif kind == "preparing":
        child.wait_until(lambda events: bool(events), TIMEOUT_S)
        seconds = rng.uniform(0, run_s / 3)
    else:
        steps = rng.randint(1, _MAX_STEPS)
        child.wait_until(lambda events: len(events.of("step")) >= steps, TIMEOUT_S)
        seconds = rng.uniform(0, _MAX_DELAY_S)
    child.wait_until(lambda _: False, seconds)
    return child.exit_code is None


def _inspect(child: ChildProcess, run_dir: Path, waiting: bool, problems: list[str]) -> Kill:
    """State after a kill. Appends to `problems`."""
    after_s = round(time.time() - child.started_at, 3)
    saved, damaged = newest_checkpoint(run_dir)
    activity = _interrupted_activity(child, run_dir)
    reached = max((event["step"] for event in child.events.of("step")), default=saved)
    reported = max((event["step"] for event in child.events.of("checkpoint")), default=0)
    if saved < reported:
        problems.append(f"the checkpoint of step {reported} was reported and is missing")
    intervals = 2 if not waiting and "checkpoint" in activity else 1  # a background write may be unfinished
    if reached - saved > intervals * SAVE_STEPS:
        problems.append(f"{reached - saved} steps were lost ({activity})")
    problems += damaged
    return Kill(activity, after_s, reached, saved, problems)


def _interrupted_activity(child: ChildProcess, run_dir: Path) -> str:
    """From temporary folders, else from the last event."""
    folders = (run_dir / "checkpoints").glob(f"{TEMPORARY_PREFIX}*")
    prefixes = {folder.name.removeprefix(TEMPORARY_PREFIX).partition("-")[0] for folder in folders}
    for prefix, activity in _TEMPORARY_FOLDERS.items():
        if prefix in prefixes:
            return activity
    if not child.events.of("hello"):
        return "starting"
    if child.events.of("done"):
        return "ending"
    return str(child.events.of("phase")[-1]["phase"]) if child.events.of("ready") else "preparing"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults kills", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--waiting", action="store_true", help="training waits for every write")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    args = parser.parse_args(arguments)
    with results.benchmark("faults-kills") as report:
        knobs = {"nproc_per_node": args.ranks, "parallel": args.parallel} if args.ranks > 1 else {}
        reference, started_at = ReferenceRun(report.folder, STEPS, **knobs).train(), time.monotonic()
        kills, runs, problems = kill_often(reference, report.folder, args.count, args.seed, args.waiting, args.ranks)
        minutes, rows = (time.monotonic() - started_at) / 60, []
        for activity, count in Counter(kill.activity for kill in kills).most_common():
            group = [kill for kill in kills if kill.activity == activity]
            rows.append({
                "killed while": activity, "kills": count,
                "before the first checkpoint": sum(kill.saved == 0 for kill in group),
                "most steps lost": max(max(0, kill.reached - kill.saved) for kill in group),
                "with a problem": sum(bool(kill.problems) for kill in group),
            })  # fmt: skip
        summary = f"\n{args.count} kills, {runs} runs of {STEPS} steps saved every {SAVE_STEPS}, in {minutes:.1f} min"
        report.lines = [results.markdown_table(rows), summary, *(f"PROBLEM: {problem}" for problem in problems)]
        settings = {"seed": args.seed, "waiting": args.waiting, "steps": STEPS, "save_steps": SAVE_STEPS, **knobs}
        report.document = {**settings, "kills": list(map(asdict, kills)), "runs": runs, "problems": problems}
    return 1 if problems else 0
