"""Measures one configuration with real training steps: `python -m trainer_core.check.trial FOLDER`.

Reads `request.json` in FOLDER and writes `outcome.json`, first as estimated, then as measured if all steps succeed.
Emits events on stdout and reads commands from stdin. A separate process has a memory peak of its own, and running out
of memory ends nothing else.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import torch

import trainer_core.__main__  # noqa: F401 - streams and threads as in training
from trainer_core import rank_info
from trainer_core.check.trial_process import TrialRequest, TrialResult
from trainer_core.command_runner import CommandContext
from trainer_core.config import Config
from trainer_core.data import synthetic_data
from trainer_core.run_context import RunContext
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files, hardware
from trainer_core.system.memory import system_memory
from trainer_core.train.batch_division import rank_config
from trainer_core.train.control import Control
from trainer_core.train.device import (
    Precision,
    choose_device,
    choose_precision,
    configure_arithmetic,
    describe_device,
    device_of_rank,
)
from trainer_core.train.model_memory import ModelMemory, estimate_memory
from trainer_core.train.parallel import resolve_parallel
from trainer_core.train.peak_memory import PeakMemory
from trainer_core.train.process_group import ProcessGroup, join
from trainer_core.train.training_step import TrainingStep
from trainer_core.train.worker import run_worker
from trainer_core.wire import EventDispatcher

_MICRO_BATCHES: Final = 2  # per step and rank: from the second on, gradients and activations take memory together
_SLOW_STEP_S: Final = 4.0  # such a step is measured once
_MAX_STEPS: Final = 50
_HOST_RESERVE: Final = 0.1  # share of RAM that host copies leave free, see `train.async_checkpointer`
RESULT_FILE: Final = "outcome.json"


class DryRun(TrainingStep):
    """Measures steps. Its epochs, and so its steps, have `num_micro_batches` micro-batches."""

    eager_start = loads_base_model = False
    control: Control
    utilization: float | None = None  # share of the last second in which the GPU was busy (NVML)

    def set_up(self) -> None:
        self.control = Control(self.context, self.group)
        if self.rollouts is not None:
            self.rollouts.skips_equal = False  # random weights earn no rewards
        super().set_up()

    def measure(self, min_seconds: float) -> float:
        """Return the seconds of an optimizer update with all its micro-batches, without warmup."""
        once = self._time_steps(1)
        if once < _SLOW_STEP_S:
            once = min(once, self._time_steps(1))
        self.clock.clear()
        count = 1 if once > _SLOW_STEP_S else max(2, min(_MAX_STEPS, int(min_seconds / once)))
        step_s = self._time_steps(count)
        interval = self.clock.take_interval()
        if self.device.type == "cuda":
            with contextlib.suppress(Exception):  # any error of the driver or its bindings
                self.utilization = torch.cuda.utilization(self.device) / 100
        self.clock.catch_up()
        self.clock.read(interval)
        once_a_step = interval.seconds["optimizer"] + interval.seconds["sync"]
        update_s = step_s * once_a_step / max(interval.wall, 1e-9)
        scale = self.config.gradient_accumulation_steps / num_micro_batches(self.config)
        return update_s + (step_s - update_s) * scale

    def _time_steps(self, count: int) -> float:
        """Return the mean seconds of `count` steps, without compilation."""
        since = time.perf_counter()
        for number in range(count):
            self.control.poll()
            if number == 0:
                self.compile_if_due()
                since = time.perf_counter()
            with self.clock.step():
                self._step(self._next_window())
        self.clock.catch_up()
        return float(self.group.broadcast((time.perf_counter() - since) / count))


def num_micro_batches(config: Config) -> int:
    """Micro-batches of a measured step: few, but each rank computes as many sequences at once as in the run."""
    ranks = config.nproc_per_node
    few = min(config.gradient_accumulation_steps, _MICRO_BATCHES * ranks)
    shorter = msgspec.structs.replace(config, gradient_accumulation_steps=few)
    same = rank_config(shorter, ranks).batch_size == rank_config(config, ranks).batch_size
    return few if same else config.gradient_accumulation_steps


def run_trial(request: TrialRequest, folder: Path, context: RunContext, group: ProcessGroup) -> None:
    """Write the estimate and, if it fits, the measurement, on rank 0. Raises what training raises, after writing the
    estimate.
    """
    config = request.config
    devices = [
        device_of_rank(choose_device(config.device), rank, config.nproc_per_node)
        for rank in range(config.nproc_per_node)
    ]
    device = devices[group.local_rank]
    configure_arithmetic(config, device)
    precision = choose_precision(config.mixed_precision, device, context)
    parallel = group.on_rank_zero(
        lambda: resolve_parallel(config, request.vocab_size, device, precision, group.world_size).parallel
    )
    config = msgspec.structs.replace(config, parallel=parallel)
    if not group.on_rank_zero(lambda: _write_estimate(folder, estimate(config, request, devices, precision))):
        return
    _prefer_for_oom_kill()
    measured = _measure(config, request, folder, context, device, precision, group)
    if group.rank == 0:
        result = msgspec.json.decode((folder / RESULT_FILE).read_bytes(), type=TrialResult)
        ram_peak = measured["ram_peak"] + _host_copy_bytes(config, result.checkpoint_bytes, device)
        measured |= {"ram_peak": ram_peak, "peak": measured["peak"] or ram_peak}
        _write_result(folder, msgspec.structs.replace(result, fits=True, **measured))


def _write_estimate(folder: Path, result: TrialResult) -> bool:
    """Returns whether the estimate fits."""
    _write_result(folder, result)
    return result.needed <= result.memory_free


def _measure(
    config: Config,
    request: TrialRequest,
    folder: Path,
    context: RunContext,
    device: torch.device,
    precision: Precision,
    group: ProcessGroup,
) -> dict[str, Any]:
    """Run steps and an evaluation. Returns fields of `TrialResult`. Raises `memory.exhausted` where a run would need
    OOM recovery.
    """
    shape: dict[str, Any] = {
        "task": request.task,
        "sides": request.sides,
        "vocab_size": request.vocab_size,
        "sequences": config.batch_size * num_micro_batches(config),
    }
    prepared = synthetic_data.build_synthetic_cache(folder / f"cache-{group.rank}", config, **shape)
    run_dir = RunDir(folder / f"run-{group.rank}")
    run_dir.create()
    peak_memory = PeakMemory(device)
    trainer = DryRun(config, prepared, run_dir, context, device, precision, group)
    trainer.total_steps, trainer.oom.enabled = request.total_steps, False
    try:
        trainer.set_up()
        context.set_phase("checking")
        step_s = trainer.measure(request.seconds)
        trainer.evaluation_pass().run(context, trainer.control.poll)
        on_gpu, resident = group.max(peak_memory.gpu_bytes(), peak_memory.host_bytes())
    finally:
        trainer.close()
    return {
        "peak": on_gpu,
        "ram_peak": resident * config.nproc_per_node,
        "tokens_per_s": config.effective_batch * prepared.sequence_len / step_s,
        "step_s": step_s,
        "compile_s": trainer.engine.compile_s,
        "utilization": trainer.utilization,
    }


def estimate(config: Config, request: TrialRequest, devices: list[torch.device], precision: Precision) -> TrialResult:
    """Estimate what weights, gradients and moments need, without allocating them.

    Ranks on a CPU share its memory. Each GPU has its own; the one with the least free memory counts.
    """
    device, name = devices[0], describe_device(devices[0])
    uuids: list[str] = []
    if device.type == "cuda":
        uuids = [str(torch.cuda.get_device_properties(one).uuid) for one in devices]
        free, total = torch.cuda.mem_get_info(device)
        others = map(hardware.free_vram, uuids[1:])  # torch would allocate a context on each GPU
        free = min([free, *(amount for amount in others if amount is not None)])
    else:
        total, available = system_memory()
        info = psutil.Process().memory_info()  # shared pages of libraries count as available; on Linux only
        free = min(total, available + info.rss - getattr(info, "shared", 0))
    memory = estimate_memory(config, request.vocab_size, precision)
    return TrialResult(
        fits=False,
        device=name if config.nproc_per_node == 1 else f"{config.nproc_per_node} × {name}",
        uuids=uuids,
        memory_total=total,
        memory_free=free,
        needed=_needed(memory, config, device),
        parameters=memory.parameters,
        checkpoint_bytes=memory.checkpoint,
        precision=precision.name,
    )


def _needed(memory: ModelMemory, config: Config, device: torch.device) -> int:
    """Bytes of the device. The ranks of a CPU share its memory."""
    ranks = config.nproc_per_node
    each = memory.state // ranks if config.parallel in ("fsdp", "deepspeed") else memory.state
    return each * (ranks if device.type == "cpu" else 1)


def _host_copy_bytes(config: Config, size: int, device: torch.device) -> int:
    """Bytes of the host copy that an asynchronous checkpoint is written from, made only if it fits."""
    total, available = system_memory()
    size *= 2 if device.type == "cuda" and config.pin_memory else 1  # pinned memory is rounded up to powers of two
    return 0 if config.low_memory or size > available - _HOST_RESERVE * total else size


def _prefer_for_oom_kill() -> None:
    """Make this process the first that the Linux OOM killer ends."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _write_result(folder: Path, result: TrialResult) -> None:
    files.write_atomic(folder / RESULT_FILE, msgspec.json.encode(result))


def main() -> int:
    folder, info = Path(sys.argv[1]), rank_info.from_environment()
    request = msgspec.json.decode((folder / "request.json").read_bytes(), type=TrialRequest)
    if info is not None and info.rank:
        return run_worker(lambda: _run(request, folder, RunContext(EventDispatcher())))
    with CommandContext("json", stdin_commands=True) as job:
        _run(request, folder, job.run_context)
    return job.exit_code


def _run(request: TrialRequest, folder: Path, context: RunContext) -> None:
    with join(rank_info.from_environment(), request.config.collective_timeout_s) as group:
        run_trial(request, folder, context, group)


if __name__ == "__main__":
    sys.exit(main())
