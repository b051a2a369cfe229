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
from trainer_core.base_model.catalogue import NF4_BYTES
from trainer_core.check.trial_process import TrialRequest, TrialResult
from trainer_core.command_runner import CommandContext
from trainer_core.config import Config
from trainer_core.data import synthetic_data
from trainer_core.models.adapters import count_trainable, set_up_tuning
from trainer_core.models.build import build_model
from trainer_core.models.quantization import is_quantizable
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files, hardware
from trainer_core.system.memory import system_memory
from trainer_core.train.device import (
    Precision,
    choose_device,
    choose_precision,
    configure_arithmetic,
    describe_device,
    device_of_rank,
)
from trainer_core.train.model_shape import model_config_of, tuning_of
from trainer_core.train.optimizers import allocate, build_optimizer
from trainer_core.train.peak_memory import PeakMemory
from trainer_core.train.ranks import beside, share_of
from trainer_core.train.training_step import TrainingStep

_MICRO_BATCHES: Final = 2  # per step and rank: from the second on, gradients and activations take memory together
_SLOW_STEP_S: Final = 4.0  # such a step is measured once
_MAX_STEPS: Final = 50
_HOST_RESERVE: Final = 0.1  # share of RAM that host copies leave free, see `train.async_checkpointer`
_FP32_BYTES: Final = 4


class DryRun(TrainingStep):
    """Measures steps. Its epochs, and so its steps, have `num_micro_batches` micro-batches."""

    eager_start = loads_base_model = False
    utilization: float | None = None  # share of the last second in which the GPU was busy (NVML)

    def measure(self, min_seconds: float) -> float:
        """Return the seconds of an optimizer update with all its micro-batches, without warmup."""
        once = self._time_steps(1)
        if once < _SLOW_STEP_S:
            once = min(once, self._time_steps(1))
        self.clock.clear()
        count = 1 if once > _SLOW_STEP_S else max(2, min(_MAX_STEPS, int(min_seconds / once)))
        step_s = self._time_steps(count)
        if self.device.type == "cuda":
            with contextlib.suppress(Exception):  # any error of the driver or its bindings
                self.utilization = torch.cuda.utilization(self.device) / 100
        interval = self.clock.take_interval()
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
            self.context.poll()
            self.ranks.tell("step")
            if number == 0:  # other ranks compile in their step too
                self.compile_if_due()
                since = time.perf_counter()
            self.step()
        self.clock.catch_up()
        return (time.perf_counter() - since) / count


def num_micro_batches(config: Config) -> int:
    """Micro-batches of a measured step: few, but each rank computes as many sequences at once as in the run."""
    few = min(config.gradient_accumulation_steps, _MICRO_BATCHES * config.ranks)
    shorter = msgspec.structs.replace(config, gradient_accumulation_steps=few)
    same = share_of(shorter).batch_size == share_of(config).batch_size
    return few if same else config.gradient_accumulation_steps


def run_trial(request: TrialRequest, folder: Path, job: CommandContext) -> None:
    """Write the estimate and, if it fits, the measurement. Raises what training raises, after writing the estimate."""
    config = request.config
    devices = [device_of_rank(choose_device(config.device), rank, config.ranks) for rank in range(config.ranks)]
    configure_arithmetic(config, devices[0])
    precision = choose_precision(config.mixed_precision, devices[0], job.run_context)
    result = estimate(config, request, devices, precision)
    _write_result(folder, result)
    if result.needed > result.memory_free:
        return
    _prefer_for_oom_kill()
    measured = _measure(config, request, folder, job, devices[0], precision)
    ram_peak = measured["ram_peak"] + _host_copy_bytes(config, result.checkpoint_bytes, devices[0])
    measured |= {"ram_peak": ram_peak, "peak": measured["peak"] or ram_peak}
    _write_result(folder, msgspec.structs.replace(result, fits=True, **measured))


def _measure(
    config: Config,
    request: TrialRequest,
    folder: Path,
    job: CommandContext,
    device: torch.device,
    precision: Precision,
) -> dict[str, Any]:
    """Run steps and an evaluation. Returns fields of `TrialResult`. Raises `memory.exhausted` where a run would need
    OOM recovery.
    """
    shape: dict[str, Any] = {
        "task": request.task,
        "vocab_size": request.vocab_size,
        "sequences": config.batch_size * num_micro_batches(config),
    }
    prepared = synthetic_data.build_synthetic_cache(folder / "cache-0", config, **shape)
    run_dir = RunDir(folder / "run")
    run_dir.create()
    with beside(config, run_dir, job.run_context) as join:
        peak_memory = PeakMemory(device)
        ranks = join(config, device, precision.name, {"made_up": str(folder), "shape": shape})
        trainer = DryRun(config, prepared, run_dir, job.run_context, device, precision, ranks)
        trainer.total_steps, trainer.oom.enabled = request.total_steps, False
        try:
            trainer.set_up()
            job.run_context.set_phase("checking")
            step_s = trainer.measure(request.seconds)
            trainer.evaluation_pass().run(job.run_context)
            ranks.tell("peaks")
            on_gpu, resident = ranks.most(peak_memory.gpu_bytes(), peak_memory.host_bytes())
        finally:
            trainer.close()
    return {
        "peak": on_gpu,
        "ram_peak": resident * config.ranks,
        "tokens_per_s": config.effective_batch * config.max_seq_len / step_s,
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
    tuning = tuning_of(config)
    model = build_model(torch.device("meta"), model_config_of(config, request.vocab_size))
    quantizable = sum(layer.weight.numel() for layer in filter(is_quantizable, model.backbone.modules()))
    with torch.device("meta"):
        set_up_tuning(model, tuning)
        optimizer = build_optimizer(model, config)
        allocate(optimizer)
    parameters, trained = model.count_parameters(), count_trainable(model)
    moments = sum(value.nbytes for values in optimizer.state.values() for value in values.values())
    saved = parameters if config.method == "full" else trained
    quantized = quantizable if config.method == "qlora" else 0
    frozen_bytes = precision.base_dtype(tuning).itemsize
    weights = frozen_bytes * (parameters - trained - quantized) + int(NF4_BYTES * quantized) + _FP32_BYTES * trained
    checkpoint = _FP32_BYTES * saved + moments
    return TrialResult(
        fits=False,
        device=name if config.ranks == 1 else f"{config.ranks} × {name}",
        uuids=uuids,
        memory_total=total,
        memory_free=free,
        needed=(weights + _FP32_BYTES * trained + moments) * (config.ranks if device.type == "cpu" else 1),
        parameters=parameters,
        checkpoint_bytes=checkpoint,
        precision=precision.name,
    )


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
    files.write_atomic(folder / "outcome.json", msgspec.json.encode(result))


def main() -> int:
    folder = Path(sys.argv[1])
    request = msgspec.json.decode((folder / "request.json").read_bytes(), type=TrialRequest)
    with CommandContext("json", stdin_commands=True) as job:
        run_trial(request, folder, job)
    return job.exit_code


if __name__ == "__main__":
    sys.exit(main())
