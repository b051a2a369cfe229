"""Step and performance events of a run.

Device values are read late (`async_metrics.py`), so a report is about the step that requested it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.models.decoder import Decoder
from trainer_core.run_context import RunContext
from trainer_core.train import flops
from trainer_core.train.device import Precision, describe_device, uses_tf32
from trainer_core.train.gpu_specs import lookup_peak
from trainer_core.train.numerics import GradientMonitor, GradientNoise
from trainer_core.train.step_timer import Interval


@dataclass(frozen=True, slots=True)
class MetricsRequest:
    """Host-side context of a metrics request."""

    step: int
    epoch: float
    tokens: int  # since the run began
    samples: int  # since the run began
    positions: int  # since the last request, including padding and prompts
    attended: int  # `Batch.attention_pairs` of these
    rate: float
    interval: Interval  # since the last request
    log: bool  # a step event is due
    perf: bool  # a performance event is due


class Metrics(NamedTuple):
    """Device-side values, in the order of the request."""

    loss_sum: float  # since the last step event, without skipped steps
    loss_tokens: float
    bad: float  # steps skipped in this process
    grad_norm: float
    loss_scale: float  # fp16; otherwise 0
    noise: tuple[float, float, float]  # `GradientNoise.mean`


@dataclass(slots=True)
class _Accumulated:
    """Totals since the last event of a kind."""

    interval: Interval
    tokens: int = 0
    samples: int = 0
    positions: int = 0
    attended: int = 0
    bad: int = 0

    def add(self, asked: MetricsRequest) -> None:
        self.interval.add(asked.interval)
        self.positions += asked.positions
        self.attended += asked.attended


class StepReporter:
    """Builds events from metrics."""

    def __init__(
        self,
        config: Config,
        session: RunContext,
        model: Decoder,
        device: torch.device,
        precision: Precision,
        watch: GradientMonitor,
    ) -> None:
        self._session, self._device, self._precision, self._watch = session, device, precision, watch
        self._model = model
        arithmetic = "tf32" if precision.dtype is None and uses_tf32(config, device) else precision.name
        self._peak = lookup_peak(describe_device(device), arithmetic, config.ranks)
        unknown = f"{describe_device(device)}, {arithmetic}" if device.type == "cuda" else ""
        self._peak_name = self._peak.name if self._peak else unknown
        self._log, self._perf = _Accumulated(Interval()), _Accumulated(Interval())
        self.energy: Callable[[], float | None] = lambda: None  # joules used by the GPU so far
        self._energy: float | None = None  # at the last event; None: the interval contains other programs' use
        self._peak_reserved = 0
        session.dispatcher.add_listener(self._track_pauses)

    def start(self, tokens: int, samples: int) -> None:
        """Start or resume training at these counts."""
        self._log = _Accumulated(Interval(), tokens, samples, bad=self._watch.total)
        self._perf = _Accumulated(Interval(), tokens, samples)
        self._energy = None

    def _track_pauses(self, event: protocol.AnyEvent) -> Iterable[protocol.AnyEvent]:
        """During a pause another program may use the GPU: no energy is reported for that interval."""
        if isinstance(event, protocol.Phase) and event.phase == "paused":
            self._energy = None
        return ()

    def report(self, asked: MetricsRequest, answer: Metrics) -> None:
        """Emit the events that are due. Raises `train.not_finite`."""
        self._log.add(asked)
        self._perf.add(asked)
        if asked.perf:
            self._emit_performance(asked, answer)
        if asked.log:
            self._emit_step(asked, answer)

    def _emit_step(self, asked: MetricsRequest, answer: Metrics) -> None:
        since, seconds = self._log, self._log.interval.wall
        loss = answer.loss_sum / answer.loss_tokens if answer.loss_tokens else None  # None: all steps were skipped
        self._session.emit(
            protocol.Step(
                step=asked.step,
                epoch=asked.epoch,
                tokens=asked.tokens,
                samples=asked.samples,
                loss=loss,
                learning_rate=asked.rate,
                grad_norm=answer.grad_norm,
                tokens_per_s=_rate(asked.tokens - since.tokens, seconds),
                samples_per_s=_rate(asked.samples - since.samples, seconds),
                mfu=self._utilisation(since, self._flops_per_token(since)),
                time_ms=since.interval.per_step(),
                bad_steps=self._watch.total - since.bad,
            )
        )
        self._log = _Accumulated(Interval(), asked.tokens, asked.samples, bad=self._watch.total)
        if loss is not None and not math.isfinite(loss):
            raise TraindeckError("train.not_finite", value=str(loss), step=asked.step)

    def _emit_performance(self, asked: MetricsRequest, answer: Metrics) -> None:
        since, seconds = self._perf, self._perf.interval.seconds
        wall, tokens = self._perf.interval.wall, asked.tokens - self._perf.tokens
        computed = seconds["forward"] + seconds["backward"] + seconds["optimizer"]
        noise = GradientNoise.scale(*answer.noise)
        taken, arithmetic = self._energy_taken(), self._flops_per_token(since)
        allocated, reserved, most = self._memory()
        self._session.emit(
            protocol.Performance(
                step=asked.step,
                data_ratio=_rate(seconds["data"], wall),
                compute_ratio=_rate(computed, wall),
                mfu=self._utilisation(since, arithmetic),
                flops_per_token=arithmetic,
                peak_flops=self._peak.flops if self._peak else None,
                peak_name=self._peak_name,
                memory_allocated=allocated,
                memory_reserved=reserved,
                memory_peak=most,
                energy_j=taken,
                energy_per_million_tokens_j=1e6 * taken / tokens if taken is not None and tokens else None,
                gradient_noise=None if noise is None else noise * asked.samples / max(1, asked.tokens),
                loss_scale=answer.loss_scale or None,
                overflows=self._watch.overflows,
            )
        )
        self._perf = _Accumulated(Interval(), asked.tokens, asked.samples)

    def _flops_per_token(self, since: _Accumulated) -> float:
        return flops.flops_per_token(self._model, _rate(since.attended, since.positions))

    def _utilisation(self, since: _Accumulated, flops_per_token: float) -> float | None:
        if self._peak is None:
            return None
        return _rate(since.positions * flops_per_token, since.interval.wall * self._peak.flops)

    def _energy_taken(self) -> float | None:
        before, self._energy = self._energy, self.energy()
        return None if before is None or self._energy is None else self._energy - before

    def _memory(self) -> tuple[int | None, int | None, int | None]:
        """Bytes allocated and reserved now, and peak allocated bytes since the last event."""
        if self._device.type != "cuda":
            return None, None, None
        self.peak_reserved()
        most = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device), torch.cuda.memory_reserved(self._device), most

    def peak_reserved(self) -> int | None:
        """Peak bytes that torch reserved in this process; None: no GPU."""
        if self._device.type != "cuda":
            return None
        self._peak_reserved = max(self._peak_reserved, torch.cuda.max_memory_reserved(self._device))
        return self._peak_reserved


def _rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0
