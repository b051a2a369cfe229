"""What every rule has, and what is known of the run when it looks at an event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.protocol import Param

WARMUP_STEPS: Final = 20
"""Steps of a process before its speed counts: loaders fill, kernels are chosen, clocks and memory find their level."""

GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's condition is met by this event: the figures that say so, and what would mend it."""

    params: dict[str, Param]  # for the words of the rule's code
    suggested_settings: dict[str, Any] = field(default_factory=dict)  # knobs and values; empty: nothing to set


Verdict = Finding | bool | None
"""What a rule says of one event: it holds, `False`: it clearly does not, None: neither, or not about that."""


class Rule:
    """One cause. `look` judges single events; the adviser sees to it that only what lasts is said, and once.

    Between the figure at which a rule holds and that at which it does not any more there is a gap in which it says
    None, so that what sways about one figure is not said again and again.
    """

    code: ClassVar[str]  # message code
    activate_after: ClassVar[int] = 3  # events in a row that must hold before it is said
    clear_after: ClassVar[int] = 3  # events in a row that must not, before it is said to be over
    min_duration_s: ClassVar[float] = 0.0  # and how long it must have held by then, seconds

    def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
        """Judge an event; `run` has taken it already."""
        raise NotImplementedError


@dataclass(slots=True)
class RunHistory:
    """What the events so far tell of a run."""

    config: Config
    cores: int = 1  # logical processors of the machine
    spills: bool = False  # this system moves GPU memory into system memory instead of refusing (Windows)
    step: int | None = None  # the newest one
    training_since: int = 0  # steps that were done before this process
    phase: str = ""
    batch_size: int = 0  # as it is computed now: memory moves change it
    accumulation: int = 0
    precision: str = ""
    ready: protocol.Ready | None = None
    host: protocol.Host | None = None
    gpu: protocol.Gpu | None = None  # the one in use
    data_share: float | None = None  # of the newest step: waiting for data, 0..1
    sync_share: float | None = None  # and adding up the gradients of several ranks
    performance: protocol.Performance | None = None

    def __post_init__(self) -> None:
        self.batch_size = self.config.batch_size
        self.accumulation = self.config.gradient_accumulation_steps

    def process(self, event: protocol.AnyEvent) -> None:
        """Remember what this event tells."""
        match event:
            case protocol.Hello():
                self.training_since, self.precision = event.resumed_from_step or 0, event.precision
            case protocol.Ready():
                self.ready = event
            case protocol.Phase():
                self.phase = event.phase
            case protocol.Step():
                self.step = event.step
                self.data_share, self.sync_share = (share_of_step(event.time_ms, part) for part in ("data", "sync"))
            case protocol.Performance():
                self.performance = event
            case protocol.Hardware():
                self.host = event.host
                self.gpu = next((gpu for gpu in event.gpus if gpu.torch_reserved is not None), None)
            case protocol.OomRecovery():
                self.batch_size, self.accumulation = event.batch_size, event.gradient_accumulation_steps
            case protocol.CheckReport(chosen=picked):  # of an automatic batch
                self.batch_size, self.accumulation = picked.batch_size, picked.gradient_accumulation_steps
            case _:
                pass

    @property
    def is_settled(self) -> bool:
        """Whether the first steps of this process are over, so that times mean something."""
        return self.step is not None and self.step >= self.training_since + WARMUP_STEPS

    @property
    def is_warm(self) -> bool:
        """Whether the learning rate has reached its peak as well: before that, the loss says little."""
        return self.is_settled and self.step is not None and self.step > self.config.warmup_steps

    @property
    def is_training(self) -> bool:
        """Whether it trains at this moment: not compiling, evaluating, saving or waiting."""
        return self.phase == "training" and self.is_settled

    def halve_batch(self) -> dict[str, Any]:
        """The same effective batch in half the memory; where that cannot be halved, the next best."""
        if self.batch_size > 1:
            return self.split_batch(self.batch_size // 2)
        more = {"off": "selective", "selective": "full"}.get(self.config.activation_checkpointing)
        return {"activation_checkpointing": more} if more else {}

    def split_batch(self, most: int) -> dict[str, Any]:
        """The same effective batch in micro-batches of at most so many sequences."""
        whole = self.config.effective_batch
        size = next(size for size in range(min(most, whole), 0, -1) if whole % size == 0)
        return {"batch_size": size, "gradient_accumulation_steps": whole // size}


def share_of_step(time: protocol.StepTime, part: Literal["data", "sync"]) -> float | None:
    """Share of a step's time, 0..1; None: no time was measured. Saving is no part of a step."""
    whole = time.data + time.transfer + time.forward + time.backward + time.sync + time.optimizer + time.other
    return min(1.0, max(0.0, getattr(time, part) / whole)) if whole > 0 else None


def percent(share: float) -> int:
    """0..1 as a whole number of percent."""
    return round(100 * share)


def gib(amount: float) -> float:
    """Bytes as GiB with one decimal."""
    return round(amount / GIB, 1)


def round_significant(value: float, digits: int = 3) -> float:
    """To so many significant digits, as people write losses and rates."""
    return float(f"{value:.{digits}g}")
