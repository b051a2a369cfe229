"""Shared by the training peers: their configuration, random seeds, and events as lines of JSON."""

import json
import sys
import time
from typing import Any

import msgspec
import torch

from trainer_core.config import Config


def start() -> Config:
    """Read the configuration, JSON in the only argument, and apply its seed and threads."""
    config = msgspec.json.decode(sys.argv[1], type=Config)
    if config.cpu_threads:
        torch.set_num_threads(config.cpu_threads)
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("highest" if config.device == "cpu" else "high")
    return config


def emit(kind: str, **values: Any) -> None:
    print(json.dumps({"type": kind, "t": time.time(), **values}), flush=True)


def emit_done(config: Config) -> None:
    """Emit the last event, with the peak memory that torch's allocator reserved, in bytes."""
    emit("done", peak_vram=None if config.device == "cpu" else torch.cuda.max_memory_reserved())
