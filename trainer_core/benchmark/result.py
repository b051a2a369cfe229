"""Everything that was measured, as one document: plain values for JSON, from which table and picture are made."""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import psutil
import torch

from trainer_core import __version__
from trainer_core.benchmark.ceilings import Ceiling
from trainer_core.benchmark.recipes import Recipe, Run
from trainer_core.machine import hardware
from trainer_core.protocol import FastPath

_SHOWN: Final = (
    "batch_size", "gradient_accumulation_steps", "max_seq_len", "mixed_precision", "num_workers", "compile",
    "attention", "optimizer", "vocab_multiple",
)  # fmt: skip


def machine(device: torch.device) -> dict[str, Any]:
    """What is measured on."""
    probed = hardware.probe()
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else probed.cpu_name,
        "kind": device.type,
        "cpu": probed.cpu_name,
        "cores": probed.cpu_cores,
        "threads": probed.cpu_threads,
        "ram": probed.ram_total,
        "system": probed.platform,
        "driver": probed.driver,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "traindeck": __version__,
        "busy": busy(),
        "load": [round(load, 2) for load in psutil.getloadavg()],
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def busy() -> float:
    """Share of the processors that other programs take, watched for half a second; 0: the system does not tell."""
    with contextlib.suppress(OSError):
        return psutil.cpu_percent(interval=0.5) / 100
    return 0.0


def machine_memory() -> int:
    """Bytes of system memory."""
    return int(psutil.virtual_memory().total)


def spread(values: Sequence[float]) -> dict[str, Any] | None:
    """The least, the middle and the largest; None of nothing."""
    if not values:
        return None
    return {"min": min(values), "median": statistics.median(values), "max": max(values), "each": list(values)}


def recipe(one: Recipe) -> dict[str, Any]:
    """A recipe and its runs. Where it failed: code and parameters of the reason."""
    error = None if one.error is None else {"code": one.error[0], "params": one.error[1]}
    document: dict[str, Any] = {"name": one.name, "knobs": {name: getattr(one.config, name) for name in _SHOWN}}
    document |= {"error": error, "tokens_per_s": spread(one.speeds)}
    if one.runs:
        document |= _last(list(one.runs.values()))
    return document


def _last(runs: list[Run]) -> dict[str, Any]:
    last = runs[-1]
    return {
        "precision": last.precision,
        "parameters": last.parameters,
        "step_ms": spread([run.step_ms for run in runs]),
        "steps": [run.steps for run in runs],
        "start_s": spread([run.start_s for run in runs]),
        "compile_s": max((run.compile_s for run in runs if run.compile_s is not None), default=None),
        "peak_vram": max((run.peak_vram for run in runs if run.peak_vram is not None), default=None),
        "utilization": max((run.utilization for run in runs if run.utilization is not None), default=None),
        "mfu": last.mfu,
        "in_parts": any(run.in_parts for run in runs),
        "fast_paths": [path(one) for one in last.fast_paths],
    }


def times_as_fast(one: Recipe, other: Recipe) -> dict[str, Any] | None:
    """How much faster `one` was, round by round: what slowed the machine in a round slowed both."""
    both = sorted(one.runs.keys() & other.runs.keys())
    return spread([one.runs[number].tokens_per_s / other.runs[number].tokens_per_s for number in both])


def path(one: FastPath) -> dict[str, Any]:
    built: dict[str, Any] = json.loads(msgspec.json.encode(one))  # not `to_builtins`: JSON has no infinity
    return built


def ceiling(one: Ceiling) -> dict[str, Any]:
    return {"name": one.name, "best": one.best, "median": one.median, "repetitions": one.repetitions}
