"""Checkpoints of sharded weights: Traindeck's writer and that of `torch.distributed.checkpoint`, in two processes.

    python -m bench.sharded_checkpoints
    python -m bench.sharded_checkpoints --megabytes 300 --repeats 1         to try it

Both write the same DTensors, of which each rank has half. torch's `HuggingFaceStorageWriter(save_distributed=True)`
writes a file of each rank and, if it consolidates, then makes of them the files that other programs load. Traindeck
writes those at once, hashes them and verifies what was written. Memory: private and anonymous, the peak of the larger
rank during the save above what it had before. Linux only.
"""

import argparse
import functools
import json
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from torch import distributed
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from bench import processes, results
from bench.sharding import anonymous_bytes
from trainer_core import rank_info
from trainer_core.models.sharding import local_tensor, rows_of
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import checkpoint_writer, process_group
from trainer_core.train.checkpoint_writer import CheckpointContent, RetentionPolicy
from trainer_core.train.process_group import ProcessGroup

RANKS: Final = 2
_COLUMNS: Final = 1024
_TENSOR_MB: Final = 8

Files = dict[str, dict[str, DTensor]]


def measure(folder: Path, megabytes: int, repeats: int) -> list[dict[str, Any]]:
    """Run the ranks, and summarize what they print."""
    ranks = processes.python("torch.distributed.run", "--standalone", "--nproc-per-node", RANKS)
    work = ["-m", __spec__.name, "--megabytes", str(megabytes), "--repeats", str(repeats), "--rank", str(folder)]
    child = processes.ChildProcess([*ranks, *work], {"OMP_NUM_THREADS": "1"})
    child.wait(1800, allowed=[0])
    rows = []
    for writer in dict.fromkeys(event["writer"] for event in child.events):
        found = [event for event in child.events if event["writer"] == writer]
        rows.append(
            {
                "writer": writer,
                "seconds": statistics.median(event["seconds"] for event in found),
                "memory MB": max(event["memory"] for event in found) / 1e6,
                "files": len(found[0]["files"]),
                "disk MB": sum(found[0]["files"].values()) / 1e6,
            }
        )
    return rows


def run_rank(folder: Path, megabytes: int, repeats: int) -> None:
    """On each rank: save in turn with each writer, and print what it took."""
    info = rank_info.from_environment()
    assert info
    run = RunDir(folder / "run")
    run.create()
    with process_group.join(info, 600.0) as group:
        files = make_tensors(megabytes)
        writers: dict[str, Callable[[Path], None]] = {
            "Traindeck": lambda _: save_with_traindeck(files, run, group),
            "torch": lambda target: save_with_torch(files, target, consolidate=False),
            "torch, consolidated": lambda target: save_with_torch(files, target, consolidate=True),
        }
        for name, save in [*writers.items()] * repeats:
            target = run.path if name == "Traindeck" else folder / "torch"
            distributed.barrier()
            seconds, memory = _observe(functools.partial(save, target))
            distributed.barrier()
            sizes = {path.name: path.stat().st_size for path in target.rglob("*.safetensors")}
            event = {"type": "save", "writer": name, "seconds": seconds, "memory": memory, "files": sizes}
            sys.stdout.write(json.dumps(event) + "\n")  # in one piece: the ranks share the stream
            sys.stdout.flush()
            distributed.barrier()
            if not info.rank and target != run.path:
                shutil.rmtree(target)


def make_tensors(megabytes: int) -> Files:
    """Weights and moments of AdamW, by file and name."""
    mesh = init_device_mesh("cpu", (RANKS,))
    rows = _TENSOR_MB * 10**6 // 4 // _COLUMNS // RANKS
    weights = [f"layers.{number}.weight" for number in range(megabytes // 3 // _TENSOR_MB)]
    moments = [f"{key}.{name}" for key in ("exp_avg", "exp_avg_sq") for name in weights]
    return {
        file: {name: DTensor.from_local(torch.randn(rows, _COLUMNS), mesh, [Shard(0)]) for name in names}
        for file, names in (("model.safetensors", weights), ("optimizer.safetensors", moments))
    }


def save_with_traindeck(files: Files, run: RunDir, group: ProcessGroup) -> None:
    content = CheckpointContent(
        step=1,
        kind="regular",
        eval_loss=None,
        tensors={file: {name: local_tensor(one) for name, one in found.items()} for file, found in files.items()},
        documents={} if group.rank else {"state.json": b"{}"},
        rows={
            file: {name: rows for name, one in found.items() if (rows := rows_of(one))} for file, found in files.items()
        },
    )
    shards = group.new_shards()
    if group.rank and shards:
        checkpoint_writer.write_shards(content, shards)
    else:
        checkpoint_writer.write(run, content, RetentionPolicy(1, 0), shards)


def save_with_torch(files: Files, target: Path, consolidate: bool) -> None:
    numbers = {name: number for number, found in enumerate(files.values(), 1) for name in found}
    writer = HuggingFaceStorageWriter(str(target), numbers, save_distributed=True, enable_consolidation=consolidate)
    together: dict[str, Any] = {name: one for found in files.values() for name, one in found.items()}
    save(together, storage_writer=writer)


def _observe(work: Callable[[], None]) -> tuple[float, int]:
    """Duration of the work in seconds, and the additional bytes of memory at its peak."""
    process, done = psutil.Process(), threading.Event()
    before = peak = anonymous_bytes(process)

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, anonymous_bytes(process))

    thread = threading.Thread(target=sample)
    thread.start()
    started = time.perf_counter()
    try:
        work()
    finally:
        seconds = time.perf_counter() - started
        done.set()
        thread.join()
    return seconds, peak - before


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.sharded_checkpoints", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1200, help="of weights and moments together")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        run_rank(args.rank, args.megabytes, args.repeats)
    else:
        with results.benchmark("sharded_checkpoints") as report:
            rows = measure(report.folder, args.megabytes, args.repeats)
            report.lines, report.document = [results.markdown_table(rows)], {"megabytes": args.megabytes, "rows": rows}
