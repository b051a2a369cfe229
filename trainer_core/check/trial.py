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
from trainer_core import protocol
from trainer_core.check.trial_process import TrialRequest, TrialResult
from trainer_core.command_runner import CommandContext
from trainer_core.config import Config
from trainer_core.data import synthetic_data
from trainer_core.models.decoder import Decoder, ModelConfig
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
    uses_tf32,
)
from trainer_core.train.flops import flops_per_token
from trainer_core.train.gpu_specs import lookup_peak
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

    eager_start = False
    start_s: float  # from the start of the process to the end of its first step
    utilization: float | None

    def measure(self, min_seconds: float) -> float:
        """Return the seconds of an optimizer update with all its micro-batches, without warmup."""
        once = self._time_steps(1)
        self.start_s = time.time() - psutil.Process().create_time()
        if once < _SLOW_STEP_S:
            once = min(once, self._time_steps(1))
        self.clock.clear()
        count = 1 if once > _SLOW_STEP_S else max(2, min(_MAX_STEPS, int(min_seconds / once)))
        step_s = self._time_steps(count)
        self.utilization = _utilization(self.device)
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
            self.session.poll()
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
    recoveries: list[protocol.OomRecovery] = []

    def record_recovery(event: protocol.AnyEvent) -> tuple[()]:
        if isinstance(event, protocol.OomRecovery):
            recoveries.append(event)
        return ()

    job.dispatcher.add_listener(record_recovery)
    measured = _measure(config, request, folder, job, devices[0], precision, recoveries)
    if not recoveries:  # else only a changed configuration fits
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
    recoveries: list[protocol.OomRecovery],
) -> dict[str, Any]:
    """Run steps and an evaluation, as long as there are no `recoveries`. Returns fields of `TrialResult`."""
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
        trainer.total_steps = request.total_steps
        try:
            trainer.set_up()
            if recoveries:
                return {}
            job.run_context.set_phase("checking")
            step_s = trainer.measure(request.seconds)
            if recoveries:
                return {}
            trainer.evaluation_pass().run(job.run_context)
            ranks.tell("peaks")
            on_gpu, resident = ranks.most(peak_memory.gpu_bytes(), peak_memory.host_bytes())
        finally:
            trainer.close()
    tokens_per_s = config.effective_batch * config.max_seq_len / step_s
    arithmetic = "tf32" if precision.dtype is None and uses_tf32(config, device) else precision.name
    peak_flops = lookup_peak(describe_device(device), arithmetic, config.ranks)
    flops_per_s = tokens_per_s * flops_per_token(trainer.model, config.max_seq_len)
    return {
        "peak": on_gpu,
        "ram_peak": resident * config.ranks,
        "tokens_per_s": tokens_per_s,
        "step_s": step_s,
        "start_s": trainer.start_s,
        "compile_s": trainer.engine.compile_s,
        "utilization": trainer.utilization,
        "mfu": flops_per_s / peak_flops.flops if peak_flops else None,
    }


def _utilization(device: torch.device) -> float | None:
    """Share of the last second in which the GPU was busy (NVML)."""
    with contextlib.suppress(Exception):  # any error of the driver or its bindings
        if device.type == "cuda":
            return torch.cuda.utilization(device) / 100
    return None


def estimate(config: Config, request: TrialRequest, devices: list[torch.device], precision: Precision) -> TrialResult:
    """Estimate memory without allocating it. `needed` is a lower bound.

    Ranks on a CPU share its memory. Each GPU has its own; the one with the least free memory counts.
    """
    device, copies, name = devices[0], 1, describe_device(devices[0])
    uuids: list[str] = []
    if device.type == "cuda":
        uuids = [str(torch.cuda.get_device_properties(one).uuid) for one in devices]
        free, total = torch.cuda.mem_get_info(device)
        others = map(hardware.free_vram, uuids[1:])  # torch would allocate a context on each GPU
        free = min([free, *(amount for amount in others if amount is not None)])
    else:
        total, available = system_memory()
        free = min(total, available + _own_memory())
        copies = config.ranks
    own = share_of(config, request.task != "sft")
    with torch.device("meta"):
        model = Decoder(ModelConfig.from_config(own, request.vocab_size))
    parameters = model.count_parameters()
    matrices = sum(
        weight.numel() for name, weight in model.named_parameters() if weight.dim() == 2 and ".layers." in name
    )
    moments = 2 * parameters - (matrices if config.optimizer == "muon" else 0)  # Muon has one per matrix
    checkpoint = _FP32_BYTES * (parameters + moments)
    state = checkpoint + _FP32_BYTES * parameters
    return TrialResult(
        fits=False,
        device=name if config.ranks == 1 else f"{config.ranks} × {name}",
        uuids=uuids,
        memory_total=total,
        memory_free=free,
        needed=copies * (state + _activation_bytes(own, model.config, precision)),
        state=copies * state,
        parameters=parameters,
        checkpoint_bytes=checkpoint,
        precision=precision.name,
    )


def _activation_bytes(config: Config, model: ModelConfig, precision: Precision) -> int:
    """Lower bound for one micro-batch: the activations of all layers, and the logits."""
    recomputed = config.activation_checkpointing == "full" or config.activation_memory_budget < 1
    width = model.hidden_dim if recomputed else 4 * model.hidden_dim + 2 * model.mlp_dim
    layers = model.n_layers * width * (_FP32_BYTES if precision.dtype is None else 2)
    logits = model.vocab_size * _FP32_BYTES if config.chunked_loss == "off" else 0
    return config.batch_size * config.max_seq_len * (layers + logits)


def _own_memory() -> int:
    """Bytes of this process that the system counts as used. Shared library pages count as available."""
    info = psutil.Process().memory_info()
    return int(info.rss - getattr(info, "shared", 0))  # Linux only


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
