"""Advice on speed: waiting for data or gradients, an idle GPU, a batch too small for the GPU."""

from __future__ import annotations

from statistics import mean
from typing import Any, Final

from trainer_core import protocol
from trainer_core.train.advice.rule import Rule, RuleMatch, RunHistory, Verdict, gib, percent

_DATA_SHARE: Final = 0.20  # of a step: worth a change of settings, and far above the noise
_DATA_SHARE_CLEAR: Final = 0.10
_CPU_BUSY: Final = 0.90  # more loader processes would only compete
_MAX_WORKERS: Final = 8  # reading tokens is light: more of them cost memory and gain nothing
_MAX_PREFETCH: Final = 8  # batches

_SYNC_SHARE: Final = 0.30  # two GPUs are then at most 1.4 times as fast as one
_SYNC_SHARE_CLEAR: Final = 0.15

_IDLE: Final = 0.50  # NVML counts the time in which any kernel runs
_BUSY: Final = 0.70

_LOW_MFU: Final = 0.20  # a current GPU reaches 0.35 to 0.55 in bf16
_FAIR_MFU: Final = 0.30
_LOW_MEMORY: Final = 0.40  # of the GPU's memory at the peak: twice the batch takes less than twice of it
_HIGH_MEMORY: Final = 0.60
_NOISE_RATIO: Final = 2.0  # gradient noise scale by effective batch: below it, a larger batch is less efficient


class DataBound(Rule[protocol.Step], code="advice.data_bound", min_duration_s=10.0):
    """The model waits for data, in a run of more than seconds."""

    def evaluate(self, event: protocol.Step, run: RunHistory) -> Verdict:
        if not run.is_settled or run.data_share is None:
            return None
        if run.data_share < _DATA_SHARE:
            return False if run.data_share < _DATA_SHARE_CLEAR else None
        workers = run.ready.loader_workers if run.ready else 0
        params = {"percent": percent(run.data_share), "ms": round(event.time_ms.data, 1), "workers": workers}
        return RuleMatch({**params}, self._settings(run, workers))

    def _settings(self, run: RunHistory, workers: int) -> dict[str, Any]:
        if not run.config.token_cache:
            return {"token_cache": True}
        limited = run.ready is not None and run.ready.loader_reason in ("cpu", "low_memory")
        if limited or (run.host is not None and run.host.cpu >= _CPU_BUSY):
            return {}
        more = min(_MAX_WORKERS, max(1, run.cores // 2), max(2, 2 * workers))
        if more > workers:
            return {"num_workers": more}
        if workers and run.config.prefetch_factor < _MAX_PREFETCH:
            return {"prefetch_factor": 2 * run.config.prefetch_factor}
        return {}


class SyncBound(Rule[protocol.Step], code="advice.sync_bound", min_duration_s=10.0):
    """Several GPUs wait for the sum of gradients. Without settings: those that help change the effective batch."""

    def evaluate(self, event: protocol.Step, run: RunHistory) -> Verdict:
        if not run.is_settled or run.sync_share is None or run.config.nproc_per_node == 1:
            return None
        if run.sync_share < _SYNC_SHARE:
            return False if run.sync_share < _SYNC_SHARE_CLEAR else None
        ms, ranks = round(event.time_ms.sync, 1), run.config.nproc_per_node
        params = {"percent": percent(run.sync_share), "ms": ms, "ranks": ranks}
        return RuleMatch({**params, "steps": run.config.gradient_accumulation_steps})


class GpuIdle(Rule[protocol.Hardware], code="advice.gpu_idle", activate_after=10, clear_after=10, min_duration_s=60.0):
    """The GPU is idle for longer than an evaluation or a checkpoint, but not for lack of data: kernels are launched too
    slowly."""

    def evaluate(self, event: protocol.Hardware, run: RunHistory) -> Verdict:
        if run.gpu is None or run.gpu.utilization is None or not run.is_training or run.data_share is None:
            return None
        if run.gpu.utilization >= _BUSY:
            return False
        if run.gpu.utilization >= _IDLE or max(run.data_share, run.sync_share or 0.0) >= _DATA_SHARE_CLEAR:
            return None
        disabled = [name for name in ("compile", "cuda_graphs") if getattr(run.config, name) == "off"]
        params = {"percent": percent(run.gpu.utilization), "batch_size": run.batch_size}
        return RuleMatch({**params}, dict.fromkeys(disabled, "auto"))


class BatchTooSmall(Rule[protocol.Performance], code="advice.batch_small", activate_after=2, clear_after=2):
    """The GPU could compute larger micro-batches, and has the memory for them."""

    def evaluate(self, event: protocol.Performance, run: RunHistory) -> Verdict:
        if not run.is_settled or run.gpu is None or not run.gpu.vram_total:
            return None
        if event.memory_peak is None or event.data_ratio >= _DATA_SHARE_CLEAR:
            return None
        used = event.memory_peak / run.gpu.vram_total
        load, low, fair = self._load(event, run)
        if used > _HIGH_MEMORY or load >= fair:
            return False
        settings = {"batch_size": 2 * run.batch_size}
        noise = event.gradient_noise or 0.0
        if run.accumulation % 2 == 0:  # the same update, in fewer and larger parts
            settings["gradient_accumulation_steps"] = run.accumulation // 2
        elif noise <= _NOISE_RATIO * run.batch_size * run.accumulation:  # a larger update would not learn more
            return None
        ran_out = run.batch_size < run.config.batch_size  # of memory, earlier in this run
        if used > _LOW_MEMORY or load >= low or ran_out:
            return None
        params = {"busy": percent(load), "memory": percent(used), "batch_size": run.batch_size}
        return RuleMatch({**params, "total_gib": gib(run.gpu.vram_total)}, settings)

    def _load(self, event: protocol.Performance, run: RunHistory) -> tuple[float, float, float]:
        """Load of the GPU (MFU, or the mean utilization) and its thresholds for low and fair."""
        if event.mfu is not None:
            return event.mfu, _LOW_MFU, _FAIR_MFU
        return (mean(run.utilization) if run.utilization else _IDLE), _IDLE, _BUSY


RULES: Final[tuple[type[Rule[Any]], ...]] = (DataBound, SyncBound, GpuIdle, BatchTooSmall)
