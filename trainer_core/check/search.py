"""Searches settings with the same effective batch: alternatives that fit, and the fastest micro-batch.

The caller passes `measure`, which runs real steps. No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from trainer_core.check.trial_process import TrialResult
from trainer_core.config import Config

_MAX_BATCH_SIZES: Final = 7  # measured for the fastest
_MIN_SPEEDUP: Final = 1.05
_UNCOMPILED: Final = {"compile": "off", "cuda_graphs": "off"}


class TrialRun(NamedTuple):
    """A configuration and its measurement."""

    config: Config
    outcome: TrialResult

    @property
    def leaves_free(self) -> bool:
        """Whether it fits and leaves memory free."""
        return self.outcome.verdict == "fits"

    @property
    def tokens_per_s(self) -> float:
        return self.outcome.tokens_per_s or 0.0


Measure = Callable[[Config], TrialRun]


def find_automatic(config: Config, measure: Measure) -> TrialRun:
    """Find an automatic micro-batch and automatic activation checkpointing; measure a configuration without them."""
    start = _with(config, auto_batch=False)
    if config.activation_checkpointing == "auto":
        start = _with(start, activation_checkpointing="off", checkpointed_layers=0)
    chosen = _find_fastest(start, measure) if config.auto_batch else measure(start)
    if config.activation_checkpointing == "auto" and not chosen.leaves_free:
        chosen = _recompute_fewest(measure(_with(chosen.config, activation_checkpointing="full")), measure)
    return chosen


def _find_fastest(config: Config, measure: Measure) -> TrialRun:
    """Find the fastest micro-batch that leaves memory free.

    Doubles the configured size while memory and speed allow, else halves it while that is faster. Sizes are compared
    without `compile: auto`, which takes long for each of them; the chosen size is measured as configured.
    """
    uncompiled = {name: off for name, off in _UNCOMPILED.items() if getattr(config, name) == "auto"}
    best = _search_size(config, lambda one: measure(_with(one, **uncompiled))).config
    run = measure(_with_batch_size(config, best.batch_size))
    while not run.leaves_free and (smaller := _smaller(run.config)) is not None:
        run = measure(smaller)
    return run


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


def find_alternatives(chosen: TrialRun, measure: Measure) -> list[TrialRun]:
    """Find settings that fit in place of `chosen`, fastest first; none if weights and moments alone are too large."""
    fitting = list[TrialRun]()
    for candidate in _memory_savings(chosen.config) if chosen.outcome.needed < chosen.outcome.memory_free else ():
        run = measure(candidate)
        if run.leaves_free:
            return [_recompute_fewest(run, measure)]
        if run.outcome.verdict == "tight":
            fitting.append(run)
    return sorted(fitting, key=lambda run: -run.tokens_per_s)


def _recompute_fewest(run: TrialRun, measure: Measure) -> TrialRun:
    """Reduce the layers whose activations are recomputed while memory stays free, to within a sixteenth of all."""
    fewest, layers = 0, run.config.n_layers  # too few, enough
    if run.config.activation_checkpointing != "full" or not run.leaves_free:
        return run
    while layers - fewest > max(1, run.config.n_layers // 16):
        middle = (fewest + layers) // 2
        candidate = measure(_with(run.config, checkpointed_layers=middle))
        if candidate.leaves_free:
            run, layers = candidate, middle
        else:
            fewest = middle
    return run


def _memory_savings(config: Config) -> Iterator[Config]:
    """Configurations that need ever less memory: half, a quarter, the smallest micro-batch; then full activation
    checkpointing; then the loss in chunks."""
    smaller, one = list[Config](), _smaller(config)
    while one is not None:
        smaller.append(one)
        one = _smaller(one)
    yield from [*smaller[:2], *smaller[2:][-1:]]
    smallest = _with(smaller[-1] if smaller else config, activation_checkpointing="full", checkpointed_layers=0)
    if config.activation_checkpointing != "full" or config.checkpointed_layers:
        yield smallest
    if config.chunked_loss != "on":
        yield _with(smallest, chunked_loss="on")


def _larger(config: Config) -> Config | None:
    """At least twice the micro-batch. None: the ranks compute the whole effective batch at once already."""
    if config.batch_size * config.nproc_per_node >= config.effective_batch:
        return None
    sizes = range(2 * config.batch_size, config.effective_batch + 1)
    return _with_batch_size(config, next(size for size in sizes if config.effective_batch % size == 0))


def _smaller(config: Config) -> Config | None:
    """At most half of the micro-batch: its largest proper divisor. None: one sequence."""
    size = config.batch_size
    divisors = (one for one in range(size // 2, 0, -1) if size % one == 0)
    return next((_with_batch_size(config, divisor) for divisor in divisors), None)


def _with_batch_size(config: Config, size: int) -> Config:
    """The same effective batch in micro-batches of `size`, which divides it."""
    return _with(config, batch_size=size, gradient_accumulation_steps=config.effective_batch // size)


def _with(config: Config, **knobs: Any) -> Config:
    return msgspec.structs.replace(config, **knobs)
