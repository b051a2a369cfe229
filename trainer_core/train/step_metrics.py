"""Step and performance events of a run.

Values on a GPU are read some steps later (`async_metrics.py`), so an event is about the step that requested it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.batch import Batch
from trainer_core.messages import TraindeckError
from trainer_core.models.language_model import LanguageModel
from trainer_core.run_context import RunContext
from trainer_core.system.gpu_specs import lookup_peak
from trainer_core.train import flops
from trainer_core.train.async_metrics import AsyncMetrics
from trainer_core.train.bad_steps import BadStepHandler
from trainer_core.train.checkpoint import Counters
from trainer_core.train.device import Precision, describe_device, uses_tf32
from trainer_core.train.grpo import policy_means
from trainer_core.train.numerics import GradientMonitor, GradientNoise
from trainer_core.train.preferences import reward_means
from trainer_core.train.step_timer import Interval, StepClock


@dataclass(frozen=True, slots=True)
class MetricsRequest:
    """Host-side context of a metrics request."""

    step: int
    epoch: float
    tokens: int  # since the run began
    samples: int  # since the run began
    positions: int  # since the last request, with prompts, without padding
    attended: int  # `Batch.attention_pairs` of these
    learning_rate: float
    interval: Interval  # since the last request
    log: bool  # a step event is due
    perf: bool  # a performance event is due


class Metrics(NamedTuple):
    """Device-side values, in the order of the request."""

    loss_sum: float  # since the last step event, without skipped steps
    loss_weight: float
    bad: float  # steps skipped in this process
    grad_norm: float
    loss_scale: float  # fp16; otherwise 0
    noise: tuple[float, float, float]  # `GradientNoise.mean`
    rewards: list[float]  # `RewardSums` of the steps in `loss_sum`; empty without preferences


class MetricsRecorder:
    """Sums the figures of steps on the device and requests them when an event is due."""

    def __init__(
        self,
        device: torch.device,
        scaler: torch.amp.GradScaler,
        clock: StepClock,
        bad_steps: BadStepHandler,
        noise: GradientNoise,
    ) -> None:
        self._scaler, self._clock, self._bad_steps, self._noise = scaler, clock, bad_steps, noise
        self._pending: AsyncMetrics[MetricsRequest] = AsyncMetrics(device)
        self._losses = torch.zeros(1, dtype=torch.float64, device=device)  # sums of `Engine.loss` since the step event
        self._loss_weight = torch.zeros((), dtype=torch.float64, device=device)
        self._grad_norm = torch.zeros((), device=device)
        self._learning_rate = 0.0
        self._positions = self._attended = 0  # since the last request

    def load(self, counters: Counters) -> None:
        """Continue with the sums of a checkpoint. Pending requests are discarded."""
        self._pending.clear()
        self._losses = self._losses.new_tensor([counters.loss_sum, *counters.reward_sums])
        self._loss_weight.fill_(counters.loss_tokens)
        self._positions = self._attended = 0

    def store(self, counters: Counters) -> None:
        """Write the sums and the duration of the run to `counters`. Synchronizes."""
        self._clock.catch_up()
        counters.seconds = self._clock.seconds
        counters.loss_sum, *counters.reward_sums = self._losses.tolist()
        counters.loss_tokens = int(self._loss_weight)

    def add(
        self,
        batches: Sequence[Batch],
        losses: Tensor,
        weight: int,
        bad: Tensor,
        grad_norm: Tensor,
        learning_rate: float,
    ) -> None:
        """Add a step: the sums of `Engine.loss` (1-dim), the divisor of the loss, and 1 if its update is skipped."""
        self._losses = self._losses + torch.where(bad > 0, 0.0, losses)
        self._loss_weight += weight * (1 - bad)
        self._positions += sum(batch.tokens for batch in batches)
        self._attended += sum(batch.attention_pairs for batch in batches)
        self._grad_norm, self._learning_rate = grad_norm, learning_rate

    def request(self, counters: Counters, epoch: float, log: bool, perf: bool) -> None:
        """Request the metrics of the last step, for a step event (`log`) or a performance event (`perf`)."""
        request = MetricsRequest(
            counters.step,
            epoch,
            counters.tokens,
            counters.samples,
            self._positions,
            self._attended,
            self._learning_rate,
            self._clock.take_interval(),
            log,
            perf,
        )
        scale = torch.zeros_like(self._grad_norm)  # created on the device: copies from pageable memory synchronize
        if self._scaler.is_enabled():
            scale = self._scaler.scale(torch.ones_like(self._grad_norm))
        sums = self._loss_weight, self._bad_steps.count, self._grad_norm
        self._pending.record(request, (*sums, scale, self._noise.mean, self._losses))
        self._positions = self._attended = 0
        if log:
            self._losses = torch.zeros_like(self._losses)
            self._loss_weight.zero_()

    def completed(self, wait: bool) -> Iterator[tuple[MetricsRequest, Metrics]]:
        """Yield the metrics that have arrived (with `wait`: all), oldest first."""
        for request, values in self._pending.completed(wait):
            weight, bad, norm, scale, steps, trace, gradient_2, loss_sum, *rewards = values
            yield request, Metrics(loss_sum, weight, bad, norm, scale, (steps, trace, gradient_2), rewards)


@dataclass(slots=True)
class _Accumulated:
    """Totals since the last event of a kind."""

    interval: Interval
    tokens: int = 0
    samples: int = 0
    positions: int = 0
    attended: int = 0
    bad: int = 0

    def add(self, request: MetricsRequest) -> None:
        self.interval.add(request.interval)
        self.positions += request.positions
        self.attended += request.attended


class StepReporter:
    """Builds events from metrics."""

    def __init__(
        self,
        config: Config,
        context: RunContext,
        model: LanguageModel,
        device: torch.device,
        precision: Precision,
        monitor: GradientMonitor,
        world_size: int = 1,
    ) -> None:
        self._context, self._device, self._monitor, self._model = context, device, monitor, model
        arithmetic = "tf32" if precision.dtype is None and uses_tf32(config, device) else precision.name
        self._peak = lookup_peak(describe_device(device), arithmetic, world_size)
        unknown = f"{describe_device(device)}, {arithmetic}" if device.type == "cuda" else ""
        self._peak_name = self._peak.name if self._peak else unknown
        self._compares_answers = config.objective != "likelihood"
        self._means = policy_means if config.uses_rewards else reward_means
        self._log, self._perf = _Accumulated(Interval()), _Accumulated(Interval())
        self.energy: Callable[[], float | None] = lambda: None  # joules used by the GPU so far
        self._energy: float | None = None  # at the last event; None: the interval contains other programs' use
        self._peak_reserved = 0
        context.dispatcher.add_listener(self._track_pauses)

    def start(self, tokens: int, samples: int) -> None:
        """Start or resume training at these counts."""
        self._log = _Accumulated(Interval(), tokens, samples, bad=self._monitor.total)
        self._perf = _Accumulated(Interval(), tokens, samples)
        self._energy = None

    def _track_pauses(self, event: protocol.AnyEvent) -> Iterable[protocol.AnyEvent]:
        """During a pause another program may use the GPU: no energy is reported for that interval."""
        if isinstance(event, protocol.Phase) and event.phase == "paused":
            self._energy = None
        return ()

    def report(self, request: MetricsRequest, metrics: Metrics) -> None:
        """Emit the events that are due. Raises `train.not_finite`."""
        self._log.add(request)
        self._perf.add(request)
        if request.perf:
            self._emit_performance(request, metrics)
        if request.log:
            self._emit_step(request, metrics)

    def _emit_step(self, request: MetricsRequest, metrics: Metrics) -> None:
        since, seconds = self._log, self._log.interval.wall
        weight, rewards = metrics.loss_weight, metrics.rewards
        loss = metrics.loss_sum / weight if weight else None  # None: all steps were skipped
        self._context.emit(
            protocol.Step(
                step=request.step,
                epoch=request.epoch,
                tokens=request.tokens,
                samples=request.samples,
                loss=loss,
                learning_rate=request.learning_rate,
                grad_norm=metrics.grad_norm,
                tokens_per_s=_rate(request.tokens - since.tokens, seconds),
                samples_per_s=_rate(request.samples - since.samples, seconds),
                mfu=self._utilisation(since, self._flops_per_token(since)),
                time_ms=since.interval.per_step(),
                bad_steps=self._monitor.total - since.bad,
                **(self._means(rewards) if rewards and weight else {}),
            )
        )
        self._log = _Accumulated(Interval(), request.tokens, request.samples, bad=self._monitor.total)
        if loss is not None and not math.isfinite(loss):
            raise TraindeckError("train.not_finite", value=str(loss), step=request.step)

    def _emit_performance(self, request: MetricsRequest, metrics: Metrics) -> None:
        since, seconds = self._perf, self._perf.interval.seconds
        wall, tokens = self._perf.interval.wall, request.tokens - self._perf.tokens
        computed = seconds["forward"] + seconds["backward"] + seconds["optimizer"]
        noise = GradientNoise.scale(*metrics.noise)
        energy, flops_per_token = self._energy_since(), self._flops_per_token(since)
        allocated, reserved, peak = self._memory()
        self._context.emit(
            protocol.Performance(
                step=request.step,
                data_ratio=_rate(seconds["data"], wall),
                compute_ratio=_rate(computed, wall),
                mfu=self._utilisation(since, flops_per_token),
                flops_per_token=flops_per_token,
                peak_flops=self._peak.flops_per_s if self._peak else None,
                peak_name=self._peak_name,
                memory_allocated=allocated,
                memory_reserved=reserved,
                memory_peak=peak,
                energy_j=energy,
                energy_per_million_tokens_j=1e6 * energy / tokens if energy is not None and tokens else None,
                gradient_noise=None if noise is None else noise * self._samples_per_weight(request),
                loss_scale=metrics.loss_scale or None,
                overflows=self._monitor.overflows,
            )
        )
        self._perf = _Accumulated(Interval(), request.tokens, request.samples)

    def _flops_per_token(self, since: _Accumulated) -> float:
        return flops.flops_per_token(self._model, _rate(since.attended, since.positions))

    def _samples_per_weight(self, request: MetricsRequest) -> float:
        """Sequences per token of the loss; the loss of pairs is a mean over sequences."""
        return 1.0 if self._compares_answers else request.samples / max(1, request.tokens)

    def _utilisation(self, since: _Accumulated, flops_per_token: float) -> float | None:
        if self._peak is None:
            return None
        return _rate(since.positions * flops_per_token, since.interval.wall * self._peak.flops_per_s)

    def _energy_since(self) -> float | None:
        before, self._energy = self._energy, self.energy()
        return None if before is None or self._energy is None else self._energy - before

    def _memory(self) -> tuple[int | None, int | None, int | None]:
        """Bytes allocated and reserved now, and peak allocated bytes since the last event."""
        if self._device.type != "cuda":
            return None, None, None
        self.peak_reserved()
        peak = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device), torch.cuda.memory_reserved(self._device), peak

    def peak_reserved(self) -> int | None:
        """Peak bytes that torch reserved in this process; None: no GPU."""
        if self._device.type != "cuda":
            return None
        self._peak_reserved = max(self._peak_reserved, torch.cuda.max_memory_reserved(self._device))
        return self._peak_reserved


def _rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0
