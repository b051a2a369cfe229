"""Shared by the training peers: flags, tokens, and events as lines of JSON with a timestamp, as the trainer's."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Tokens = npt.NDArray[np.integer[Any]]


def build_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The flags of a training peer. `data` is a folder that `bench.corpus` wrote."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.peers.{name}", description=description)
    parser.add_argument("data", type=Path)
    for flag, default in (("layers", 4), ("width", 128), ("heads", 2), ("length", 64), ("vocab-size", 512)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    for flag, default in (("batch", 12), ("accumulation", 1), ("steps", 100), ("warmup", 100), ("seed", 0)):
        parser.add_argument(f"--{flag}", type=int, default=default)
    for flag, whole in (("log-steps", 10), ("eval-steps", 0), ("threads", 0)):
        parser.add_argument(f"--{flag}", type=int, default=whole, help="0: never; threads: torch's default")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--min-learning-rate", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--beta2", type=float, default=0.95)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--compile", action="store_true")
    return parser


def set_up(chosen: argparse.Namespace) -> None:
    """Threads, seed, and TF32 for what is left in fp32 on a GPU."""
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    torch.manual_seed(chosen.seed)
    torch.set_float32_matmul_precision("high" if chosen.device.startswith("cuda") else "highest")


def tokens_of(folder: Path, split: str) -> Tokens:
    """The ids of a split, memory-mapped."""
    return np.load(folder / f"{split}.npy", mmap_mode="r")  # type: ignore[no-any-return]


def windows(tokens: Tokens, length: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A held-out split in batches of consecutive windows, as the trainer evaluates it. A short last window is padded
    with labels of -100."""
    count = math.ceil((len(tokens) - 1) / length)
    for first in range(0, count, batch):
        rows = range(first, min(first + batch, count))
        inputs, labels = np.zeros((len(rows), length), np.int64), np.full((len(rows), length), -100, np.int64)
        for row, window in enumerate(rows):
            part = tokens[window * length : window * length + length + 1]
            inputs[row, : len(part) - 1], labels[row, : len(part) - 1] = part[:-1], part[1:]
        yield torch.from_numpy(inputs), torch.from_numpy(labels)


def cosine(step: int, chosen: argparse.Namespace) -> float:
    """Learning rate of a step (from 0): linear warmup, then cosine decay to the minimum, as in nanoGPT."""
    if step < chosen.warmup:
        return float(chosen.learning_rate * (step + 1) / (chosen.warmup + 1))
    share = (step - chosen.warmup) / max(1, chosen.steps - chosen.warmup)
    low: float = chosen.min_learning_rate
    return float(low + 0.5 * (1 + math.cos(math.pi * min(1.0, share))) * (chosen.learning_rate - low))


def emit(type: str, **values: Any) -> None:
    """Print an event."""
    print(json.dumps({"type": type, "t": time.time(), **values}), flush=True)


def emit_done(device: str) -> None:
    """Print the last event, with the peak memory of torch's allocator in bytes."""
    on_gpu = device.startswith("cuda")
    allocated = torch.cuda.max_memory_allocated() if on_gpu else None
    reserved = torch.cuda.max_memory_reserved() if on_gpu else None
    emit("done", memory_peak=allocated, peak_vram=reserved)


@torch.no_grad()
def held_out_loss(loss_of: Callable[[Tensor, Tensor], Tensor], folder: Path, chosen: argparse.Namespace) -> float:
    """Mean loss in nats over all held-out tokens; `loss_of`: summed loss of a batch."""
    held_out = tokens_of(folder, "validation")
    summed = torch.zeros((), dtype=torch.float64, device=chosen.device)
    for inputs, labels in windows(held_out, chosen.length, chosen.batch):
        summed += loss_of(inputs.to(chosen.device), labels.to(chosen.device))
    return float(summed) / (len(held_out) - 1)
