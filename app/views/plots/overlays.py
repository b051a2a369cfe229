"""Other runs on the plots of the run on show: each has one colour; where these are used up, dashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from app.state.measurements.metrics import MetricStore

MOST: Final = 10
"""Runs beside the one on show: more are not told apart."""

OWN: Final = "curve_a"
"""The colour token of the run on show."""

_TOKENS: Final = ("curve_b", "curve_c", "curve_d", "curve_f", "curve_e")


@dataclass(frozen=True, slots=True)
class Overlay:
    """A run to compare with. `store`: best its `MetricStore.thinned()`, which takes 1 MB where a long run takes 80;
    `token`: `token(place)` with the run's place among the overlays, from 0."""

    name: str
    store: MetricStore
    token: str


def token(place: int) -> str:
    """The colour token of the overlay at a place."""
    return _TOKENS[place % len(_TOKENS)]


def dashed(runs: Sequence[Overlay]) -> list[bool]:
    """Which of them are dashed: those whose colour an earlier one has."""
    tokens = [run.token for run in runs]
    return [token in tokens[:place] for place, token in enumerate(tokens)]
