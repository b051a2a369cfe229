"""What a run says about its steps: step events, and how well the machine is used.

Figures of the device are read late (`late.py`), so a report is about the step at which it was asked for.
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
from trainer_core.model.decoder import Decoder
from trainer_core.session import Session
from trainer_core.train import flops
from trainer_core.train.device import Precision, describe, uses_tf32
from trainer_core.train.numerics import Noise, Watch
from trainer_core.train.peaks import peak
from trainer_core.train.timing import Interval


@dataclass(frozen=True, slots=True)
class Asked:
    """What the host knows of a step when it asks the device about it."""

    step: int
    epoch: float
    tokens: int  # since the run began
    samples: int  # since the run began
    positions: int  # computed since the question before, padding and prompts included
    attended: int  # pairs of them, `Batch.attended`
    rate: float
    interval: Interval  # since the question before
    log: bool  # a step event is due
    perf: bool  # a performance event is due


class Answer(NamedTuple):
    """What the device answers, in this order."""

    loss_sum: float  # since the last step event, over steps that were not left out
    loss_tokens: float
    bad: float  # steps left out in this process
    grad_norm: float
    loss_scale: float  # fp16; else 0
    noise: tuple[float, float, float]  # `Noise.mean`


@dataclass(slots=True)
class _Since:
    """What was done since the last event of a kind."""

    interval: Interval
    tokens: int = 0
    samples: int = 0
    positions: int = 0
    attended: int = 0
    bad: int = 0

    def add(self, asked: Asked) -> None:
        self.interval.add(asked.interval)
        self.positions += asked.positions
        self.attended += asked.attended


class Reports:
    """Makes events of answers, and remembers what was told."""

    def __init__(
        self, config: Config, session: Session, model: Decoder, device: torch.device, precision: Precision, watch: Watch
    ) -> None:
        self._session, self._device, self._precision, self._watch = session, device, precision, watch
        self._model = model
        arithmetic = "tf32" if precision.dtype is None and uses_tf32(config, device) else precision.name
        self._peak = peak(describe(device), arithmetic, config.ranks)
        unknown = f"{describe(device)}, {arithmetic}" if device.type == "cuda" else ""
        self._peak_name = self._peak.name if self._peak else unknown
        self._log, self._perf = _Since(Interval()), _Since(Interval())
        self.energy: Callable[[], float | None] = lambda: None  # joules that the GPU took so far
        self._energy: float | None = None  # at the last event; None: what is taken since is not training's alone
        self._peak_reserved = 0
        session.wire.listen(self._look_for_pauses)

    def begin(self, tokens: int, samples: int) -> None:
        """Training begins, or goes on, with these counts: what comes is measured from here."""
        self._log = _Since(Interval(), tokens, samples, bad=self._watch.total)
        self._perf = _Since(Interval(), tokens, samples)
        self._energy = None

    def _look_for_pauses(self, event: protocol.AnyEvent) -> Iterable[protocol.AnyEvent]:
        """In a pause another program may have the GPU: of the interval around it no energy is told."""
        if isinstance(event, protocol.Phase) and event.phase == "paused":
            self._energy = None
        return ()

    def take(self, asked: Asked, answer: Answer) -> None:
        """Say what is due. Raises `train.not_finite`."""
        self._log.add(asked)
        self._perf.add(asked)
        if asked.perf:
            self._say_performance(asked, answer)
        if asked.log:
            self._say_step(asked, answer)

    def _say_step(self, asked: Asked, answer: Answer) -> None:
        since, seconds = self._log, self._log.interval.wall
        loss = answer.loss_sum / answer.loss_tokens if answer.loss_tokens else None  # None: all steps were left out
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
        self._log = _Since(Interval(), asked.tokens, asked.samples, bad=self._watch.total)
        if loss is not None and not math.isfinite(loss):
            raise TraindeckError("train.not_finite", value=str(loss), step=asked.step)

    def _say_performance(self, asked: Asked, answer: Answer) -> None:
        since, seconds = self._perf, self._perf.interval.seconds
        wall, tokens = self._perf.interval.wall, asked.tokens - self._perf.tokens
        computed = seconds["forward"] + seconds["backward"] + seconds["optimizer"]
        noise = Noise.scale(*answer.noise)
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
        self._perf = _Since(Interval(), asked.tokens, asked.samples)

    def _flops_per_token(self, since: _Since) -> float:
        return flops.flops_per_token(self._model, _rate(since.attended, since.positions))

    def _utilisation(self, since: _Since, flops_per_token: float) -> float | None:
        if self._peak is None:
            return None
        return _rate(since.positions * flops_per_token, since.interval.wall * self._peak.flops)

    def _energy_taken(self) -> float | None:
        before, self._energy = self._energy, self.energy()
        return None if before is None or self._energy is None else self._energy - before

    def _memory(self) -> tuple[int | None, int | None, int | None]:
        """Bytes allocated and reserved now, and the most that was allocated since the last event."""
        if self._device.type != "cuda":
            return None, None, None
        self.peak_reserved()
        most = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device), torch.cuda.memory_reserved(self._device), most

    def peak_reserved(self) -> int | None:
        """Most bytes that torch reserved in this process; None: no GPU."""
        if self._device.type != "cuda":
            return None
        self._peak_reserved = max(self._peak_reserved, torch.cuda.max_memory_reserved(self._device))
        return self._peak_reserved


def _rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0
