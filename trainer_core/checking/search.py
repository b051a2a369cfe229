"""Other settings with the same effective batch: what to offer where a configuration does not fit, and the fastest.

Whoever calls gives `measure`, which runs real steps. No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from trainer_core.checking.outcome import Outcome, is_roomy, verdict
from trainer_core.config import Config

_MOST: Final = 5  # configurations that are tried for offers,
_MOST_SIZES: Final = 7  # and micro-batches for the fastest
_FASTER: Final = 1.05  # what a micro-batch must gain to be taken
_UNCOMPILED: Final = {"compile": "off", "cuda_graphs": "off"}


@dataclass(frozen=True, slots=True)
class Tried:
    """A configuration, and what its steps said."""

    config: Config
    outcome: Outcome

    @property
    def speed(self) -> float:
        """Tokens per second; 0 where it does not fit."""
        return self.outcome.tokens_per_s or 0.0


Measure = Callable[[Config], Tried]


# --- the fastest micro-batch ----------------------------------------------------------------------------


def fastest(config: Config, measure: Measure) -> Tried:
    """The fastest micro-batch that leaves memory free; the effective batch stays. From the configured size it is
    doubled while memory and speed allow, else halved while that is faster.

    Sizes are compared without compiling where that is left to Traindeck, for it takes long for each of them; the one
    that is taken is measured as it is set.
    """
    compared = {name: off for name, off in _UNCOMPILED.items() if getattr(config, name) == "auto"}
    best = _climb(config, lambda one: measure(_with(one, **compared)))
    while True:
        found = measure(_with(config, **_batch(best.config)))
        size = _smaller(found.config)
        if is_roomy(found.outcome) or size is None:
            return found
        best = Tried(_split(config, size), found.outcome)


def _climb(config: Config, measure: Measure) -> Tried:
    best, tried = measure(config), 1
    if not is_roomy(best.outcome):
        while (size := _smaller(best.config)) is not None and not is_roomy(best.outcome):
            best = measure(_split(config, size))
        return best
    for step in (_larger, _smaller):
        first = best
        while (size := step(best.config)) is not None and tried < _MOST_SIZES:
            found, tried = measure(_split(config, size)), tried + 1
            if not is_roomy(found.outcome) or found.speed < best.speed * _FASTER:
                break
            best = found
        if best is not first:
            break
    return best


# --- what to offer --------------------------------------------------------------------------------------


def offers(chosen: Tried, measure: Measure) -> list[Tried]:
    """Settings that fit in place of `chosen`, fastest first. Smaller micro-batches are tried until one leaves memory
    free, and beside it a larger one whose activations are computed again. Nothing where weights and moments alone
    are too large."""
    config, found, tried = chosen.config, list[Tried](), 0
    for candidate in _ladder(config) if chosen.outcome.state < chosen.outcome.memory_free else ():
        one, tried = measure(candidate), tried + 1
        if verdict(one.outcome) != "does_not_fit":
            found.append(one)
        if is_roomy(one.outcome):
            break
    if found and found[-1].config.batch_size < config.batch_size:
        size = _larger(found[-1].config) or config.batch_size
        for mode in _stronger(config):
            if tried >= _MOST:
                break
            one, tried = measure(_with(_split(config, size), activation_checkpointing=mode)), tried + 1
            if verdict(one.outcome) != "does_not_fit":
                found.append(one)
                break
    roomy = [one for one in found if is_roomy(one.outcome)]
    return sorted(roomy or found, key=lambda one: -one.speed)


def _ladder(config: Config) -> Iterator[Config]:
    """What needs ever less memory: half, a quarter, the smallest; then activations again; then the loss in parts."""
    sizes = list(_halves(config))
    for size in dict.fromkeys([*sizes[:2], *sizes[-1:]]):
        yield _split(config, size)
    smallest = _split(config, sizes[-1]) if sizes else config
    modes = _stronger(config)
    for mode in modes[-1:] if sizes else modes:
        smallest = _with(smallest, activation_checkpointing=mode)
        yield smallest
    if config.chunked_loss != "on":
        yield _with(smallest, chunked_loss="on")


def _stronger(config: Config) -> list[str]:
    modes = ["off", "selective", "full"]
    return modes[modes.index(config.activation_checkpointing) + 1 :]


# --- sizes ----------------------------------------------------------------------------------------------


def _split(config: Config, size: int) -> Config:
    """The same effective batch in micro-batches of another size, which divides it."""
    return _with(config, batch_size=size, gradient_accumulation_steps=config.effective_batch // size)


def _batch(config: Config) -> dict[str, int]:
    return {"batch_size": config.batch_size, "gradient_accumulation_steps": config.gradient_accumulation_steps}


def _with(config: Config, **knobs: Any) -> Config:
    return msgspec.structs.replace(config, **knobs)


def _larger(config: Config) -> int | None:
    """At least twice the micro-batch, if there is such a divisor of the effective batch. Of several ranks each
    computes its share of the effective batch at once then, and no larger size changes that."""
    whole = config.effective_batch
    if config.batch_size * config.ranks >= whole:
        return None
    return next(
        (whole // parts for parts in range(config.gradient_accumulation_steps // 2, 0, -1) if not whole % parts), None
    )


def _smaller(config: Config) -> int | None:
    """At most half of the micro-batch, as a divisor of it."""
    size = config.batch_size
    return next((size // parts for parts in range(2, size + 1) if not size % parts), None)


def _halves(config: Config) -> Iterator[int]:
    while (size := _smaller(config)) is not None:
        yield size
        config = _split(config, size)
