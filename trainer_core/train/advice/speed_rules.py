"""Why a run is slower than it could be: data that comes late, gradients that are long on their way, a GPU that waits,
a batch too small for the card."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from trainer_core import protocol
from trainer_core.train.advice.rule import Finding, Rule, RunHistory, Verdict, gib, percent

_WAITS: Final = 0.20  # a fifth of the step: worth a change of settings, and far above what is measured by chance
_WAITS_LITTLE: Final = 0.10
_CPU_BUSY: Final = 0.90  # with all processors at work more loader processes only take time from each other
_MOST_WORKERS: Final = 8  # reading tokens is light: more of them cost memory and gain nothing

_ADDS_UP: Final = 0.30  # two GPUs are then at most 1.4 times as fast as one
_ADDS_UP_LITTLE: Final = 0.15

_IDLE: Final = 0.50  # NVML counts the time in which any kernel runs: half of it without one is much
_BUSY: Final = 0.70
_IDLE_S: Final = 60.0  # an evaluation or a checkpoint between two looks is over by then

_LOW_MFU: Final = 0.20  # a well-filled card of today reaches 0.35 to 0.55 in bf16
_FAIR_MFU: Final = 0.30
_ROOMY: Final = 0.40  # of the card's memory at the peak: twice the batch takes less than twice of it
_FULL: Final = 0.60
_NOISY: Final = 2.0  # times the effective batch: up to there, twice the batch learns nearly twice as much a step


class DataBound(Rule):
    """The model waits for its data."""

    code = "advice.data_bound"
    min_duration_s = 10.0  # a run of seconds needs no other settings

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if not isinstance(event, protocol.Step) or not run.is_settled or run.data_share is None:
            return None
        if run.data_share < _WAITS:
            return False if run.data_share < _WAITS_LITTLE else None
        workers = run.ready.loader_workers if run.ready else 0
        params = {"percent": percent(run.data_share), "ms": round(event.time_ms.data, 1), "workers": workers}
        return Finding(dict(params), self._fix(run, workers))

    def _fix(self, run: RunHistory, workers: int) -> dict[str, Any]:
        if not run.config.token_cache:
            return {"token_cache": True}
        chosen_here = run.ready is not None and run.ready.loader_reason in ("cpu", "low_memory")  # for good reasons
        busy = run.host is not None and run.host.cpu >= _CPU_BUSY
        if chosen_here or busy:
            return {}
        more = min(_MOST_WORKERS, max(1, run.cores // 2), max(2, 2 * workers))
        if more > workers:
            return {"num_workers": more}
        if workers and run.config.prefetch_factor < 8:
            return {"prefetch_factor": 2 * run.config.prefetch_factor}
        return {}


class SyncBound(Rule):
    """Several GPUs spend much of their time on adding up gradients. No fix of its own: what helps changes the batch."""

    code = "advice.sync_bound"
    min_duration_s = 10.0

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if (
            not isinstance(event, protocol.Step)
            or not run.is_settled
            or run.sync_share is None
            or run.config.ranks == 1
        ):
            return None
        if run.sync_share < _ADDS_UP:
            return False if run.sync_share < _ADDS_UP_LITTLE else None
        params = {"percent": percent(run.sync_share), "ms": round(event.time_ms.sync, 1), "ranks": run.config.ranks}
        return Finding({**params, "steps": run.config.gradient_accumulation_steps})


class GpuIdle(Rule):
    """The GPU waits, but not for data: steps are started too slowly for it."""

    code = "advice.gpu_idle"
    activate_after = 10
    clear_after = 10
    min_duration_s = _IDLE_S

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if not isinstance(event, protocol.Hardware) or run.gpu is None or run.gpu.utilization is None:
            return None
        if not run.is_training or run.data_share is None:
            return None
        if run.gpu.utilization >= _BUSY:
            return False
        if run.gpu.utilization >= _IDLE or max(run.data_share, run.sync_share or 0.0) >= _WAITS_LITTLE:
            return None
        fix: dict[str, Any] = {
            name: "auto" for name in ("compile", "cuda_graphs") if getattr(run.config, name) == "off"
        }
        return Finding({"percent": percent(run.gpu.utilization), "batch_size": run.batch_size}, fix)


class BatchTooSmall(Rule):
    """The card could compute more at a time, and has the memory for it."""

    code = "advice.batch_small"
    activate_after = 2
    clear_after = 2

    def __init__(self) -> None:
        self._utilization: deque[float] = deque(maxlen=30)  # of the last looks: one alone says little

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if isinstance(event, protocol.Hardware) and run.is_training and run.gpu and run.gpu.utilization is not None:
            self._utilization.append(run.gpu.utilization)
        if not isinstance(event, protocol.Performance) or not run.is_settled or run.gpu is None:
            return None
        if not run.gpu.vram_total or event.memory_peak is None or event.data_ratio >= _WAITS_LITTLE:
            return None
        used = event.memory_peak / run.gpu.vram_total
        low, fair = self._idle(event.mfu)
        if used > _FULL or fair:
            return False
        effective = run.batch_size * run.accumulation
        gains = event.gradient_noise is not None and event.gradient_noise > _NOISY * effective
        fix: dict[str, Any] = {"batch_size": 2 * run.batch_size}
        if run.accumulation % 2 == 0:  # the same update, in fewer and larger parts
            fix["gradient_accumulation_steps"] = run.accumulation // 2
        elif not gains:  # a larger update that would not learn more
            return None
        if used > _ROOMY or not low or run.batch_size < run.config.batch_size:  # the last: memory has ended before
            return None
        mean = sum(self._utilization) / len(self._utilization) if self._utilization else 0.0
        params = {"busy": percent(event.mfu if event.mfu is not None else mean), "memory": percent(used)}
        return Finding({**params, "total_gib": gib(run.gpu.vram_total), "batch_size": run.batch_size}, fix)

    def _idle(self, mfu: float | None) -> tuple[bool, bool]:
        """Whether the card clearly has too little to do, and whether it clearly has enough."""
        if mfu is not None:
            return mfu < _LOW_MFU, mfu >= _FAIR_MFU
        if not self._utilization:
            return False, False
        mean = sum(self._utilization) / len(self._utilization)
        return mean < _IDLE, mean >= _BUSY


RULES: Final[tuple[type[Rule], ...]] = (DataBound, SyncBound, GpuIdle, BatchTooSmall)
