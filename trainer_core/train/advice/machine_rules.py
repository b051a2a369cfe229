"""What the machine does to a run: memory that overflows or ends, heat, power, other programs, a disk that fills up."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any, Final

from trainer_core import protocol
from trainer_core.system.hardware import CUDA_CONTEXT_BYTES
from trainer_core.train.advice.rule import GIB, Finding, Rule, RunHistory, Verdict, gib, round_significant

_SPILLED: Final = GIB // 4  # more shared memory than when training began; drivers always hold a little
_VRAM_FULL: Final = 0.95  # of the card: drivers begin to move memory out a little before it is full
_JUMP: Final = 3.0  # times the usual step: memory over the bus is ten times as slow, an evaluation no part of a step
_USUAL_STEPS: Final = 20  # reports that the usual time of a step is the median of

_HOT: Final = frozenset({"thermal", "hw_thermal"})
_HELD: Final = frozenset({"power_brake", "power"})
_SLOWED: Final = 0.75  # of the highest clock seen: cards at their power limit run a little below it all the time
_LASTING_S: Final = 60.0  # clocks are held back for seconds in any healthy machine

_OTHERS: Final = 2 * GIB  # a desktop with a browser holds up to about this much of a card
_OTHERS_SHARE: Final = 0.15  # of the card

_ASLEEP_S: Final = 60.0  # less is not worth a word

_RAM_FULL: Final = 0.95  # beyond it Windows swaps, and Linux begins to end programs
_RAM_FREE: Final = 0.90
_DISK_MARGIN: Final = 1.25  # what is free must be this much of what is needed before it is said to be over

_MOVES: Final = 2  # the first one only finds what fits
_MOVES_WITHIN: Final = 1000  # steps


class VramSpill(Rule):
    """GPU memory overflows into system memory: everything goes on, at a tenth of the speed."""

    code = "advice.vram_spill"

    def __init__(self) -> None:
        self._at_first: int | None = None  # shared memory when training had settled
        self._saved = False

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        gpu = run.gpu
        if isinstance(event, protocol.Checkpoint) and not self._saved:
            self._saved, self._at_first = True, None  # it has taken page-locked memory, which counts as shared
        if not isinstance(event, protocol.Hardware) or gpu is None or gpu.shared_used is None or not run.is_settled:
            return None
        if self._at_first is None:
            self._at_first = gpu.shared_used
        spilled = gpu.shared_used - self._at_first
        if spilled < _SPILLED or _fullness(gpu) < _VRAM_FULL:
            return False if spilled < _SPILLED // 2 else None
        return Finding({"spilled_gib": gib(spilled), "total_gib": gib(gpu.vram_total or 0)}, run.halve_batch())


class VramSlow(Rule):
    """The same, where the driver does not tell of shared memory: steps become slow while the card is full."""

    code = "advice.vram_slow"

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_USUAL_STEPS)  # milliseconds of computing a step

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        gpu = run.gpu
        if not isinstance(event, protocol.Step) or not run.is_settled or not run.spills:
            return None
        step = event.time_ms.forward + event.time_ms.backward + event.time_ms.optimizer
        usual = median(self._usual) if len(self._usual) >= _USUAL_STEPS // 2 else None
        if usual is None or step < _JUMP * usual:
            self._usual.append(step)
            return False
        if gpu is None or gpu.shared_used is not None or _fullness(gpu) < _VRAM_FULL:
            return None
        times = round_significant(step / usual, 2) if usual > 0 else _JUMP
        return Finding({"times": times, "ms": round(step), "total_gib": gib(gpu.vram_total or 0)}, run.halve_batch())


def _fullness(gpu: protocol.Gpu) -> float:
    return (gpu.vram_used or 0) / gpu.vram_total if gpu.vram_total else 0.0


class Throttled(Rule):
    """What holds back the clocks of the GPU for long."""

    reasons: frozenset[str]
    activate_after = 10
    clear_after = 15
    min_duration_s = _LASTING_S

    def __init__(self) -> None:
        self._highest = 0  # MHz

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if not isinstance(event, protocol.Hardware) or run.gpu is None or not run.is_training:
            return None
        self._highest = max(self._highest, run.gpu.clock_mhz or 0)
        if not self.reasons & set(run.gpu.throttle):
            return False
        slowed = run.gpu.clock_mhz is not None and run.gpu.clock_mhz < _SLOWED * self._highest
        if self._is_normal(run.gpu) and not slowed:
            return None
        return Finding(self._params(run.gpu))

    def _is_normal(self, gpu: protocol.Gpu) -> bool:
        """Whether a busy card says so all day."""
        return False

    def _params(self, gpu: protocol.Gpu) -> dict[str, protocol.Param]:
        return {"mhz": gpu.clock_mhz or "?", "highest": self._highest or "?"}


class Thermal(Throttled):
    """The card is too hot."""

    code = "advice.thermal"
    reasons = _HOT

    def _params(self, gpu: protocol.Gpu) -> dict[str, protocol.Param]:
        degrees = "?" if gpu.temperature_c is None else round(gpu.temperature_c)
        return {"degrees": degrees, **super()._params(gpu)}


class Power(Throttled):
    """The card gets too little power."""

    code = "advice.power"
    reasons = _HELD

    def _is_normal(self, gpu: protocol.Gpu) -> bool:
        return "power_brake" not in gpu.throttle

    def _params(self, gpu: protocol.Gpu) -> dict[str, protocol.Param]:
        watts = "?" if gpu.power_limit_w is None else round(gpu.power_limit_w)
        return {"limit_w": watts, **super()._params(gpu)}


class OtherPrograms(Rule):
    """Others hold much of the card's memory."""

    code = "advice.gpu_shared"
    activate_after = 10
    clear_after = 10
    min_duration_s = 30.0

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        gpu = run.gpu
        if not isinstance(event, protocol.Hardware) or gpu is None or not run.is_training:
            return None
        if gpu.vram_used is None or not gpu.vram_total or gpu.torch_reserved is None:
            return None
        others = gpu.vram_used - gpu.torch_reserved - CUDA_CONTEXT_BYTES
        much = max(_OTHERS, _OTHERS_SHARE * gpu.vram_total)
        if others < much:
            return False if others < 0.8 * much else None
        return Finding({"others_gib": gib(others), "total_gib": gib(gpu.vram_total)})


class OnBattery(Rule):
    """A laptop without its cable: slower, and over soon."""

    code = "advice.battery"
    activate_after = 3
    clear_after = 2

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if not isinstance(event, protocol.Hardware) or event.host.on_battery is None:
            return None
        return Finding({}) if event.host.on_battery else False


class Slept(Rule):
    """The computer went to sleep in the middle of the run."""

    code = "advice.slept"
    activate_after = 1

    def __init__(self) -> None:
        self._before: float | None = None  # seconds asleep by the last look while training

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if isinstance(event, protocol.Phase):
            self._before = None
        if not isinstance(event, protocol.Hardware) or not run.is_training or event.host.slept_s is None:
            return None
        asleep = event.host.slept_s - (event.host.slept_s if self._before is None else self._before)
        self._before = event.host.slept_s
        if asleep < _ASLEEP_S:
            return None
        return Finding({"minutes": round(asleep / 60)}, {} if run.config.keep_awake else {"keep_awake": True})


class RamFull(Rule):
    """System memory ends soon."""

    code = "advice.ram_full"
    activate_after = 5

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if not isinstance(event, protocol.Hardware) or event.host.ram_total <= 0:
            return None
        host = event.host
        share = host.ram_used / host.ram_total
        if share < _RAM_FULL:
            return False if share < _RAM_FREE else None
        loaders = run.ready is not None and run.ready.loader_workers > 0
        fix: dict[str, Any] = {"low_memory": True} if loaders and not run.config.low_memory else {}
        params = {"used_gib": gib(host.ram_used), "total_gib": gib(host.ram_total), "own_gib": gib(host.rss)}
        return Finding(dict(params), fix)


class DiskLow(Rule):
    """The disk has no room for the checkpoints that are still to come."""

    code = "advice.disk_low"
    activate_after = 2
    clear_after = 2

    def __init__(self) -> None:
        self._bytes = self._kept = 0  # of the newest checkpoint; how many there are

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if isinstance(event, protocol.Checkpoint):
            self._bytes, self._kept = event.bytes, len(event.kept)
        if not isinstance(event, protocol.Hardware) or not self._bytes or run.phase in ("done", "stopping"):
            return None
        config = run.config
        # Rotation deletes only after the new one is whole: one more than are kept must fit.
        needed = self._bytes * (1 + max(0, config.keep_last + config.keep_best - self._kept))
        free = event.host.disk_free
        if free >= needed:
            return False if free >= _DISK_MARGIN * needed else None
        fix: dict[str, Any] = {"keep_last": 1} if config.keep_last > 1 else {}
        return Finding({"free_gib": _small_gib(free), "needed_gib": _small_gib(needed)}, fix)


def _small_gib(amount: float) -> float:
    return round_significant(amount / GIB, 2)


class MemoryMoves(Rule):
    """Memory ends again and again: each time a step is done twice."""

    code = "advice.memory_moves"
    activate_after = 1
    clear_after = 1

    def __init__(self) -> None:
        self._steps: deque[int] = deque(maxlen=_MOVES)  # the last ones that were made to fit
        self._count = 0
        self._open = False  # moves were made, and their step is not done
        self._fix: dict[str, Any] = {}  # what worked

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        if isinstance(event, protocol.OomRecovery) and event.action != "grown":
            self._take(event, run)
        if not isinstance(event, protocol.Step) or not self._steps:
            return None
        done, self._open = self._open, False
        if not done or len(self._steps) < _MOVES or self._steps[-1] - self._steps[0] > _MOVES_WITHIN:
            return False if event.step - self._steps[-1] > _MOVES_WITHIN else None
        sizes = {"batch_size": self._fix["batch_size"], "steps": self._fix["gradient_accumulation_steps"]}
        return Finding({"moves": self._count, **sizes}, dict(self._fix))

    def _take(self, event: protocol.OomRecovery, run: RunHistory) -> None:
        self._open = True
        self._count += 1
        if not self._steps or self._steps[-1] != event.step:
            self._steps.append(event.step)
        if event.action == "checkpointing":
            self._fix["activation_checkpointing"] = "full"
        elif event.action == "chunked_loss":
            self._fix["chunked_loss"] = "on"
        self._fix |= run.split_batch(event.batch_size)


RULES: Final[tuple[type[Rule], ...]] = (
    VramSpill,
    VramSlow,
    Thermal,
    Power,
    OtherPrograms,
    OnBattery,
    Slept,
    RamFull,
    DiskLow,
    MemoryMoves,
)
