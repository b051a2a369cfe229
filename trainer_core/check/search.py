"""Searches settings with the same effective batch: alternatives that fit, and the fastest micro-batch.

The caller passes `measure`, which runs real steps. No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from trainer_core.check.trial_process import TrialResult, verdict
from trainer_core.config import Config

_MAX_TRIALS: Final = 5  # for alternatives
_MAX_BATCH_SIZES: Final = 7  # for the fastest
_MIN_SPEEDUP: Final = 1.05
_MODES: Final = ("off", "selective", "full")  # of activation checkpointing, by memory saved
_UNCOMPILED: Final = {"compile": "off", "cuda_graphs": "off"}


@dataclass(frozen=True, slots=True)
class TrialRun:
    """A configuration and its measurement. `leaves_free`: it fits and leaves memory free."""

    config: Config
    outcome: TrialResult

    @property
    def fits(self) -> bool:
        return verdict(self.outcome) != "does_not_fit"

    @property
    def leaves_free(self) -> bool:
        return verdict(self.outcome) == "fits"

    @property
    def tokens_per_s(self) -> float:
        return self.outcome.tokens_per_s or 0.0


Measure = Callable[[Config], TrialRun]


# --- the fastest micro-batch ----------------------------------------------------------------------------


def find_fastest(config: Config, measure: Measure) -> TrialRun:
    """Find the fastest micro-batch that leaves memory free.

    Doubles the configured size while memory and speed allow, else halves it while that is faster. Sizes are compared
    without `compile: auto`, which takes long for each of them; the chosen size is measured as configured.
    """
    uncompiled = {name: off for name, off in _UNCOMPILED.items() if getattr(config, name) == "auto"}
    best = _search_size(config, lambda one: measure(_with(one, **uncompiled))).config
    while True:
        run = measure(_with_batch_size(config, best.batch_size))
        smaller = _smaller(best)
        if run.leaves_free or smaller is None:
            return run
        best = smaller


def _search_size(config: Config, measure: Measure) -> TrialRun:
    best, trials = measure(config), 1
    if not best.leaves_free:
        while not best.leaves_free and (smaller := _smaller(best.config)) is not None:
            best = measure(smaller)
        return best
    for step in (_larger, _smaller):
        while (candidate := step(best.config)) is not None and trials < _MAX_BATCH_SIZES:
            run, trials = measure(candidate), trials + 1
            if not run.leaves_free or run.tokens_per_s < best.tokens_per_s * _MIN_SPEEDUP:
                break
            best = run
        if best.config.batch_size != config.batch_size:
            break
    return best


# --- alternatives ---------------------------------------------------------------------------------------


def find_alternatives(chosen: TrialRun, measure: Measure) -> list[TrialRun]:
    """Find settings that fit in place of `chosen`, fastest first; none if weights and moments alone are too large.

    Tries smaller micro-batches until one leaves memory free, then the next larger one with activation checkpointing.
    """
    config, trials, fitting = chosen.config, 0, list[TrialRun]()
    for candidate in _memory_savings(config) if chosen.outcome.state < chosen.outcome.memory_free else ():
        run, trials = measure(candidate), trials + 1
        if run.fits:
            fitting.append(run)
        if run.leaves_free:
            break
    if fitting and fitting[-1].config.batch_size < config.batch_size:
        larger = _with_batch_size(config, (_larger(fitting[-1].config) or config).batch_size)
        for mode in _modes_beyond(config)[: _MAX_TRIALS - trials]:
            run = measure(_with(larger, activation_checkpointing=mode))
            if run.fits:
                fitting.append(run)
                break
    best = [run for run in fitting if run.leaves_free]
    return sorted(best or fitting, key=lambda run: -run.tokens_per_s)


def _memory_savings(config: Config) -> Iterator[Config]:
    """Configurations that need ever less memory: half, a quarter, the smallest micro-batch; then full activation
    checkpointing; then the loss in chunks."""
    smaller, one = list[Config](), _smaller(config)
    while one is not None:
        smaller.append(one)
        one = _smaller(one)
    yield from [*smaller[:2], *smaller[2:][-1:]]
    smallest = smaller[-1] if smaller else config
    modes = _modes_beyond(config)
    for mode in modes[-1:] if smaller else modes:
        smallest = _with(smallest, activation_checkpointing=mode)
        yield smallest
    if config.chunked_loss != "on":
        yield _with(smallest, chunked_loss="on")


def _modes_beyond(config: Config) -> tuple[str, ...]:
    return _MODES[_MODES.index(config.activation_checkpointing) + 1 :]


# --- sizes ----------------------------------------------------------------------------------------------


def _larger(config: Config) -> Config | None:
    """At least twice the micro-batch. None: the ranks compute the whole effective batch at once already."""
    parts = config.gradient_accumulation_steps // 2
    if config.batch_size * config.ranks >= config.effective_batch:
        return None
    while config.effective_batch % parts:
        parts -= 1
    return _with_batch_size(config, config.effective_batch // parts)


def _smaller(config: Config) -> Config | None:
    """At most half of the micro-batch: its largest proper divisor."""
    size = config.batch_size
    divisors = (size // parts for parts in range(2, size + 1) if size % parts == 0)
    return next((_with_batch_size(config, divisor) for divisor in divisors), None)


def _with_batch_size(config: Config, size: int) -> Config:
    """The same effective batch in micro-batches of `size`, which divides it."""
    return _with(config, batch_size=size, gradient_accumulation_steps=config.effective_batch // size)


def _with(config: Config, **knobs: Any) -> Config:
    return msgspec.structs.replace(config, **knobs)
