"""Advice on the machine: memory, temperature, power, other programs, sleep, disk space."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any, ClassVar, Final

from trainer_core import protocol
from trainer_core.system.hardware import CUDA_CONTEXT_BYTES
from trainer_core.train.advice.rule import GIB, Rule, RuleMatch, RunHistory, Verdict, gib, round_significant

_MIN_SPILL: Final = GIB // 4  # growth of shared memory since training began; drivers always hold a little
_VRAM_FULL: Final = 0.95  # of the GPU's memory: drivers begin to spill before it is full
_SLOWDOWN: Final = 3.0  # times the usual step; memory over the bus is ten times as slow
_MAX_STEPS: Final = 20  # reports for the usual time of a step

_SLOW_CLOCK: Final = 0.75  # of the highest clock so far: GPUs at their power limit run slightly below it

_OTHER_BYTES: Final = 2 * GIB  # a desktop with a browser holds up to about this much
_OTHER_SHARE: Final = 0.15  # of the GPU's memory

_MIN_SLEEP_S: Final = 60.0

_RAM_FULL: Final = 0.95  # beyond it Windows swaps and Linux kills processes
_RAM_CLEAR: Final = 0.90
_DISK_MARGIN: Final = 1.25  # times the space needed, before the advice is resolved

_MIN_RECOVERIES: Final = 2  # the first one finds what fits
_RECOVERY_WINDOW: Final = 1000  # steps


class VramSpill(Rule[protocol.Hardware], code="advice.vram_spill"):
    """GPU memory overflows into system memory: training continues at a tenth of the speed."""

    def __init__(self) -> None:
        self._baseline: int | None = None  # shared memory when training had settled
        self._has_checkpoint = False

    def evaluate(self, event: protocol.Hardware, run: RunHistory) -> Verdict:
        if run.checkpoint is not None and not self._has_checkpoint:
            # The first save allocates page-locked memory, which counts as shared.
            self._has_checkpoint, self._baseline = True, None
        gpu = run.gpu
        if gpu is None or gpu.shared_used is None or not run.is_settled:
            return None
        if self._baseline is None:
            self._baseline = gpu.shared_used
        spilled = gpu.shared_used - self._baseline
        if spilled < _MIN_SPILL or _vram_share(gpu) < _VRAM_FULL:
            return False if spilled < _MIN_SPILL // 2 else None
        return RuleMatch({"spilled_gib": gib(spilled), "total_gib": gib(gpu.vram_total or 0)}, run.halve_batch())


class VramSlow(Rule[protocol.Step], code="advice.vram_slow"):
    """The same where the driver does not report shared memory: steps become slow while the GPU's memory is full."""

    def __init__(self) -> None:
        self._step_ms: deque[float] = deque(maxlen=_MAX_STEPS)  # usual ones, computation only

    def evaluate(self, event: protocol.Step, run: RunHistory) -> Verdict:
        if not run.is_settled or not run.can_spill:
            return None
        step = event.time_ms.forward + event.time_ms.backward + event.time_ms.optimizer
        usual = median(self._step_ms) if len(self._step_ms) >= _MAX_STEPS // 2 else None
        if usual is None or step < _SLOWDOWN * usual:
            self._step_ms.append(step)
            return False
        gpu = run.gpu
        if gpu is None or gpu.shared_used is not None or _vram_share(gpu) < _VRAM_FULL:
            return None
        times = round_significant(step / usual, 2) if usual > 0 else _SLOWDOWN
        return RuleMatch({"times": times, "ms": round(step), "total_gib": gib(gpu.vram_total or 0)}, run.halve_batch())


def _vram_share(gpu: protocol.Gpu) -> float:
    return (gpu.vram_used or 0) / gpu.vram_total if gpu.vram_total else 0.0


class Throttled(Rule[protocol.Hardware], activate_after=10, clear_after=15, min_duration_s=60.0):
    """The GPU's clocks are reduced for a minute or longer; shorter reductions are normal."""

    reasons: ClassVar[frozenset[str]]
    reasons_if_slow: ClassVar[frozenset[str]] = frozenset()  # normal unless the clock is low

    def __init__(self) -> None:
        self._highest_mhz = 0

    def evaluate(self, event: protocol.Hardware, run: RunHistory) -> Verdict:
        gpu = run.gpu
        if gpu is None or not run.is_training:
            return None
        self._highest_mhz = max(self._highest_mhz, gpu.clock_mhz or 0)
        is_slow = gpu.clock_mhz is not None and gpu.clock_mhz < _SLOW_CLOCK * self._highest_mhz
        if not (self.reasons | self.reasons_if_slow) & set(gpu.throttle):
            return False
        if not is_slow and not self.reasons & set(gpu.throttle):
            return None
        params = {"degrees": _rounded(gpu.temperature_c), "limit_w": _rounded(gpu.power_limit_w)}
        return RuleMatch({**params, "mhz": gpu.clock_mhz or "?", "highest": self._highest_mhz or "?"})


def _rounded(value: float | None) -> protocol.Param:
    return "?" if value is None else round(value)


class Thermal(Throttled, code="advice.thermal"):
    """The GPU is too hot."""

    reasons = frozenset({"thermal", "hw_thermal"})


class Power(Throttled, code="advice.power"):
    """The GPU gets too little power."""

    reasons = frozenset({"power_brake"})
    reasons_if_slow = frozenset({"power"})


class OtherPrograms(
    Rule[protocol.Hardware], code="advice.gpu_shared", activate_after=10, clear_after=10, min_duration_s=30.0
):
    """Other programs hold much of the GPU's memory."""

    def evaluate(self, event: protocol.Hardware, run: RunHistory) -> Verdict:
        gpu = run.gpu
        if gpu is None or gpu.vram_used is None or not gpu.vram_total or not run.is_training:
            return None
        others = gpu.vram_used - (gpu.torch_reserved or 0) - CUDA_CONTEXT_BYTES
        threshold = max(_OTHER_BYTES, _OTHER_SHARE * gpu.vram_total)
        if others < threshold:
            return False if others < 0.8 * threshold else None
        return RuleMatch({"others_gib": gib(others), "total_gib": gib(gpu.vram_total)})


class OnBattery(Rule[protocol.Hardware], code="advice.battery", clear_after=2):
    """A laptop runs on its battery."""

    def evaluate(self, event: protocol.Hardware, run: RunHistory) -> Verdict:
        return RuleMatch({}) if event.host.on_battery else event.host.on_battery


class Slept(Rule[protocol.Phase | protocol.Hardware], code="advice.slept", activate_after=1):
    """The computer went to sleep during training."""

    def __init__(self) -> None:
        self._before: float | None = None  # seconds asleep, in the previous sample of this phase

    def evaluate(self, event: protocol.Phase | protocol.Hardware, run: RunHistory) -> Verdict:
        if isinstance(event, protocol.Phase):
            self._before = None
            return None
        now = event.host.slept_s
        if not run.is_training or now is None:
            return None
        asleep = 0.0 if self._before is None else now - self._before
        self._before = now
        if asleep < _MIN_SLEEP_S:
            return None
        return RuleMatch({"minutes": round(asleep / 60)}, {} if run.config.keep_awake else {"keep_awake": True})


class RamFull(Rule[protocol.Hardware], code="advice.ram_full", activate_after=5):
    """System memory is almost full."""

    def evaluate(self, event: protocol.Hardware, run: RunHistory) -> Verdict:
        host = event.host
        if host.ram_total <= 0:
            return None
        share = host.ram_used / host.ram_total
        if share < _RAM_FULL:
            return False if share < _RAM_CLEAR else None
        has_loaders = run.ready is not None and run.ready.loader_workers > 0
        params = {"used_gib": gib(host.ram_used), "total_gib": gib(host.ram_total), "own_gib": gib(host.rss)}
        return RuleMatch({**params}, {"low_memory": True} if has_loaders and not run.config.low_memory else {})


class DiskLow(Rule[protocol.Hardware], code="advice.disk_low", activate_after=2, clear_after=2):
    """The disk has no space for the next checkpoints."""

    def evaluate(self, event: protocol.Hardware, run: RunHistory) -> Verdict:
        if run.checkpoint is None or not run.checkpoint.bytes or run.phase in ("done", "stopping"):
            return None
        # Rotation deletes only after a save: one more than are kept must fit.
        missing = max(0, run.config.keep_last + run.config.keep_best - len(run.checkpoint.kept))
        needed, free = run.checkpoint.bytes * (1 + missing), event.host.disk_free
        if free >= needed:
            return False if free >= _DISK_MARGIN * needed else None
        params = {"free_gib": round_significant(free / GIB, 2), "needed_gib": round_significant(needed / GIB, 2)}
        return RuleMatch({**params}, {"keep_last": 1} if run.config.keep_last > 1 else {})


class RepeatedOom(
    Rule[protocol.OomRecovery | protocol.Step], code="advice.repeated_oom", activate_after=1, clear_after=1
):
    """Steps run out of memory repeatedly and are computed twice."""

    def __init__(self) -> None:
        self._steps: deque[int] = deque(maxlen=_MIN_RECOVERIES)  # that ran out of memory
        self._count = 0  # recoveries
        self._is_open = False  # the step of the newest recovery is not done
        self._settings: dict[str, Any] = {}  # with which steps fitted

    def evaluate(self, event: protocol.OomRecovery | protocol.Step, run: RunHistory) -> Verdict:
        if isinstance(event, protocol.OomRecovery):
            if event.action != "grown":
                self._add(event, run)
            return None
        if not self._steps:
            return None
        recovered, self._is_open = self._is_open, False
        if not recovered or len(self._steps) < _MIN_RECOVERIES or self._steps[-1] - self._steps[0] > _RECOVERY_WINDOW:
            return False if event.step - self._steps[-1] > _RECOVERY_WINDOW else None
        sizes = {"batch_size": self._settings["batch_size"], "steps": self._settings["gradient_accumulation_steps"]}
        return RuleMatch({"count": self._count, **sizes}, dict(self._settings))

    def _add(self, event: protocol.OomRecovery, run: RunHistory) -> None:
        self._is_open = True
        self._count += 1
        if not self._steps or self._steps[-1] != event.step:
            self._steps.append(event.step)
        if event.action == "checkpointing":
            self._settings |= {"activation_checkpointing": "full", "checkpointed_layers": 0}
        elif event.action == "chunked_loss":
            self._settings["chunked_loss"] = "on"
        self._settings |= run.split_batch(event.batch_size)


RULES: Final[tuple[type[Rule[Any]], ...]] = (
    VramSpill, VramSlow, Thermal, Power, OtherPrograms, OnBattery, Slept, RamFull, DiskLow, RepeatedOom,
)  # fmt: skip
