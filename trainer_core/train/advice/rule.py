"""Base class of advice rules, and the state of a run that they evaluate."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar, get_type_hints

from trainer_core import protocol
from trainer_core.config import Config

REPEAT_INTERVAL_S: Final = 900.0  # from resolved advice to the same advice again: users ignore what comes and goes
MAX_REPEATS: Final = 3  # of the same advice in one process
WARMUP_STEPS: Final = 20
"""Steps of a process before its speed counts: loaders fill, kernels are selected, clocks and memory settle."""

GIB: Final = 1024**3
_RATE_DIVISOR: Final = 3.0  # about half a decade: small enough to keep learning, large enough to matter
_MAX_SAMPLES: Final = 30
_MAX_LOSSES: Final = 10


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """The condition of a rule is met."""

    params: dict[str, protocol.Param]  # of the rule's message
    suggested_settings: dict[str, Any] = field(default_factory=dict)  # knobs and values; empty: nothing to set


Verdict = RuleMatch | bool | None
"""`RuleMatch`: the condition is met. `False`: it is clearly not met. None: neither, or the event does not show it."""

E = TypeVar("E", bound=protocol.Event)


class Rule(Generic[E]):
    """One cause. `evaluate` judges single events; only what lasts becomes advice, once, and again when it is resolved.

    Between the threshold that meets the condition and the one that clears it, a rule returns None: a value that varies
    around one threshold gives no repeated advice. Class arguments set the class variables.
    """

    code: ClassVar[str]  # message code
    event_type: ClassVar[Any]  # of `evaluate`
    activate_after: ClassVar[int] = 3  # consecutive findings before it is emitted
    clear_after: ClassVar[int] = 3  # consecutive `False` before it is resolved
    min_duration_s: ClassVar[float] = 0.0  # of the findings, before it is emitted

    _matches = 0  # consecutive
    _first_match = 0.0  # seconds since the epoch
    _cleared = 0  # consecutive `False`
    _active: RuleMatch | None = None  # emitted and not resolved
    _emitted = 0  # times
    _resolved_at: float | None = None

    def __init_subclass__(cls, **settings: Any) -> None:
        cls.event_type = get_type_hints(cls.evaluate)["event"]
        for name, value in settings.items():
            setattr(cls, name, value)

    def evaluate(self, event: E, run: RunHistory) -> Verdict:
        """Judge an event; `run` already includes it."""
        raise NotImplementedError

    def update(self, event: E, run: RunHistory) -> protocol.Advice | None:
        """Evaluate an event; return advice to emit."""
        verdict, now = self.evaluate(event, run), event.t
        if isinstance(verdict, RuleMatch):
            self._first_match = min(self._first_match, now) if self._matches else now  # clocks may be set back
            self._matches, self._cleared = self._matches + 1, 0
            if self._may_emit(now):
                self._active, self._emitted = verdict, self._emitted + 1
                settings = verdict.suggested_settings
                return protocol.Advice(
                    code=self.code, params=verdict.params, step=run.step, suggested_settings=settings
                )
        elif verdict is False:
            self._matches, self._cleared = 0, self._cleared + 1
            if self._active is not None and self._cleared >= self.clear_after:
                params, self._active, self._resolved_at = self._active.params, None, now
                return protocol.Advice(code=self.code, params=params, step=run.step, resolved=True)
        return None

    def _may_emit(self, now: float) -> bool:
        if self._active is not None or self._emitted >= MAX_REPEATS:
            return False
        if self._matches < self.activate_after or now - self._first_match < self.min_duration_s:
            return False
        return self._resolved_at is None or not 0 <= now - self._resolved_at < REPEAT_INTERVAL_S


@dataclass(slots=True)
class RunHistory:
    """State of a run according to its events so far."""

    config: Config
    cores: int = 1  # logical processors of the machine
    can_spill: bool = False  # the driver moves GPU memory into system memory instead of refusing (Windows)
    step: int | None = None  # newest
    start_step: int = 0  # steps done before this process
    phase: str = ""
    batch_size: int = 0  # current micro-batch: OOM recovery changes it
    accumulation: int = 0
    ready: protocol.Ready | None = None
    host: protocol.Host | None = None
    gpu: protocol.Gpu | None = None  # the one in use
    data_share: float | None = None  # of the newest step: waiting for data, 0..1
    sync_share: float | None = None  # of the newest step: summing gradients over ranks, 0..1
    learning_rate: float = 0.0
    peak_learning_rate: float = 0.0
    checkpoint: protocol.Checkpoint | None = None  # newest
    train_losses: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_LOSSES))
    utilization: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))  # of the GPU while training

    def __post_init__(self) -> None:
        self.batch_size = self.config.batch_size
        self.accumulation = self.config.gradient_accumulation_steps

    def process(self, event: protocol.AnyEvent) -> None:
        """Update the state with an event."""
        match event:
            case protocol.Hello():
                self.start_step = event.resumed_from_step or 0
            case protocol.Ready():
                self.ready = event
            case protocol.Phase():
                self.phase = event.phase
            case protocol.Step():
                self._process_step(event)
            case protocol.Hardware():
                self.host = event.host
                self.gpu = next((gpu for gpu in event.gpus if gpu.torch_reserved is not None), None)
                if self.is_training and self.gpu and self.gpu.utilization is not None:
                    self.utilization.append(self.gpu.utilization)
            case protocol.Checkpoint():
                self.checkpoint = event
            case protocol.OomRecovery():
                self.batch_size, self.accumulation = event.batch_size, event.gradient_accumulation_steps
            case protocol.CheckReport(chosen=chosen):  # of an automatic batch size
                self.batch_size, self.accumulation = chosen.batch_size, chosen.gradient_accumulation_steps

    def _process_step(self, event: protocol.Step) -> None:
        self.step = event.step
        self.data_share, self.sync_share = _waiting_shares(event.time_ms)
        self.learning_rate = event.learning_rate
        self.peak_learning_rate = max(self.peak_learning_rate, event.learning_rate)
        if event.loss is not None:
            self.train_losses.append(event.loss)

    @property
    def is_settled(self) -> bool:
        """Whether the first steps of this process are over, so that times are meaningful."""
        return self.step is not None and self.step >= self.start_step + WARMUP_STEPS

    @property
    def is_warm(self) -> bool:
        """Whether the learning rate has reached its peak, so that losses are meaningful."""
        return self.is_settled and self.step is not None and self.step > self.config.warmup_steps

    @property
    def is_training(self) -> bool:
        """Whether steps are running now: no compilation, evaluation, saving or pause."""
        return self.phase == "training" and self.is_settled

    def halve_batch(self) -> dict[str, Any]:
        """Settings for the same effective batch in half the memory, or for more activation checkpointing."""
        if self.batch_size > 1:
            return self.split_batch(self.batch_size // 2)
        if self.config.checkpointed_layers:
            return {"checkpointed_layers": 0}
        more = {"off": "selective", "selective": "full"}.get(self.config.activation_checkpointing)
        return {"activation_checkpointing": more} if more else {}

    def split_batch(self, max_size: int) -> dict[str, Any]:
        """Settings for the same effective batch in micro-batches of at most `max_size` sequences."""
        effective = self.config.effective_batch
        size = next(size for size in range(min(max_size, effective), 0, -1) if effective % size == 0)
        return {"batch_size": size, "gradient_accumulation_steps": effective // size}


def _waiting_shares(time: protocol.StepTime) -> tuple[float | None, float | None]:
    """Shares of data and sync in a step's time without checkpoints, 0..1; None: no time was measured."""
    total = time.total - time.checkpoint
    if total <= 0:
        return None, None
    return min(1.0, max(0.0, time.data / total)), min(1.0, max(0.0, time.sync / total))


def lower_rate(run: RunHistory) -> dict[str, Any]:
    """A lower learning rate, as suggested settings."""
    return {"learning_rate": round_significant(run.config.learning_rate / _RATE_DIVISOR, 2)}


def percent(share: float) -> int:
    """0..1 as whole percent."""
    return round(100 * share)


def gib(amount: float) -> float:
    """Bytes as GiB with one decimal."""
    return round(amount / GIB, 1)


def round_significant(value: float, digits: int = 3) -> float:
    """Round to significant digits."""
    return float(f"{value:.{digits}g}")
