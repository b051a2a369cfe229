"""Memory of each rank under DDP and FSDP2, for 1, 2 and 4 processes on a CPU.

    python -m bench.sharding
    python -m bench.sharding --ranks 2 --parallel fsdp

Trains a model of 102 million parameters in fp32 with AdamW: weights, gradients and moments take 16 bytes each. Memory
is private (not shared with other ranks) and anonymous: `start` is its peak before the first step, `steps` its peak from
the second step on, both of the largest rank. Linux only.
"""

import argparse
import itertools
import re
import time
from pathlib import Path
from typing import Any, Final

import psutil

from app.core import command_line
from bench import results
from bench.faults.kills import find_ranks
from bench.faults.reference_run import TRAINER
from bench.processes import ChildProcess
from tests.core.trainer_process import text_file

STEPS: Final = 5
_KNOBS: Final[dict[str, Any]] = {
    "hidden_dim": 1024, "n_layers": 8, "n_heads": 16, "max_seq_len": 64, "vocab_size": 8192, "batch_size": 4,
    "max_steps": STEPS, "warmup_steps": 2, "save_steps": 0, "log_steps": 1, "eval_steps": 0, "sample_steps": 0,
    "sample_tokens": 1, "perf_steps": 0, "cpu_threads": 1, "device": "cpu", "compile": "off", "attention": "math",
    "chunked_loss": "off", "num_workers": 0, "restarts": 0, "mixed_precision": "no",
}  # fmt: skip
_ANONYMOUS: Final = re.compile(r"^Anonymous:\s+(\d+) kB", re.MULTILINE)


def measure(folder: Path, ranks: int, parallel: str) -> dict[str, Any]:
    """One run."""
    knobs = {**_KNOBS, "nproc_per_node": ranks, "parallel": parallel}
    run_dir = folder / f"{parallel}-{ranks}"
    arguments = command_line.train_arguments(None, knobs, [str(text_file(folder, lines=4000))], str(run_dir))
    child = ChildProcess([*TRAINER, *arguments, "--output", "json"], {"TRAINDECK_HOME": str(folder)})
    peaks = {"start": 0, "steps": 0}
    while child.output_is_open and child.exit_code is None:
        steps = len(child.events.of("step"))
        if steps != 1:  # the first step allocates what later ones keep
            processes = find_ranks(child.pid) if ranks > 1 else [psutil.Process(child.pid)]
            found = max(map(anonymous_bytes, processes), default=0)
            peaks["steps" if steps else "start"] = max(found, peaks["steps" if steps else "start"])
        time.sleep(0.02)
    child.wait(60, allowed=[0])
    times = [event["t"] for event in child.events.of("step")]
    return {
        "parallel": parallel if ranks > 1 else "-",
        "ranks": ranks,
        "start MB": peaks["start"] / 1e6,
        "steps MB": peaks["steps"] / 1e6,
        "state MB, computed": 16e-6 * child.events.first("ready")["parameters"] / (ranks if parallel == "fsdp" else 1),
        "s/step": sorted(after - before for before, after in itertools.pairwise(times))[len(times) // 2],
    }


def anonymous_bytes(process: psutil.Process) -> int:
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    found = _ANONYMOUS.search(text)
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.sharding", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--parallel", nargs="+", choices=["ddp", "fsdp"], default=["ddp", "fsdp"])
    args = parser.parse_args()
    with results.benchmark("sharding") as report:
        rows = [
            measure(report.folder, ranks, parallel)
            for parallel in args.parallel
            for ranks in args.ranks
            if ranks > 1 or parallel == args.parallel[0]
        ]
        report.lines, report.document = [results.markdown_table(rows)], {"runs": rows}
