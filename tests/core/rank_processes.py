"""Ranks without a command line: each is a process that runs a script."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.core.trainer_process import ROOT, environment

PREAMBLE = """
import json
import sys
from pathlib import Path
import msgspec
import torch
from tests.core.training import build_trainer, corrupt_gradients, limit_batch_size, tiny_config
from trainer_core import protocol, rank_info
from trainer_core.data.prepare import prepare
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter
from trainer_core.train.process_group import PeerFailed, join

folder, info = Path(sys.argv[1]), rank_info.from_environment()
rank = info.rank if info else 0


def trainer_of(group, **values):
    config = tiny_config(folder, folder / "文本 text.txt", **values)
    group.on_rank_zero(lambda: prepare(config, NullReporter()) and None)
    return build_trainer(folder, config, "run", group)


def weight_sums(trainer):
    return [whole_tensor(weight.detach()).double().sum().item() for weight in trainer.model.parameters()]


from trainer_core.models.sharding import whole_tensor
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_ranks(folder: Path, script: str, size: int = 2, timeout: float = 100) -> list[str]:
    """Run `script` after `PREAMBLE` on all ranks. Returns the last line that each printed."""
    common = environment(folder) | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + script, str(folder)],
            env=common | ({"RANK": str(rank), "WORLD_SIZE": str(size)} if size > 1 else {}),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=timeout)[0].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return [output.splitlines()[-1] for output in outputs]


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return Path(f"/proc/{pid}").exists()
