"""Other runs on the plots of the run on show: each has one colour, and from the sixth on beads on its curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from app.state.measurements.metrics import MetricStore

MOST: Final = 10
"""Runs beside the one on show: more are not told apart."""

OWN: Final = "curve_a"
"""The colour token of the run on show."""

_PLAIN: Final = ("curve_b", "curve_c", "curve_d", "curve_f", "curve_e")
_BEADED: Final = ("curve_g", "curve_h", "curve_i", "curve_j", "curve_k")
"""Nobody tells eleven colours apart: among those of one kind, everybody does. (Dashes cannot be seen in a curve that
jumps up and down from pixel to pixel, and cost as much as two curves.)"""


@dataclass(frozen=True, slots=True)
class Overlay:
    """A run to compare with. `store`: best its `MetricStore.thinned()`, which takes 1 MB where a long run takes 80;
    `token`: `token(place)` with the run's place among the overlays, from 0."""

    name: str
    store: MetricStore
    token: str


def token(place: int) -> str:
    """The colour token of the overlay at a place."""
    return (_PLAIN + _BEADED)[place]


def look(run: Overlay) -> Literal["line", "beaded"]:
    """How its curves are drawn."""
    return "beaded" if run.token in _BEADED else "line"
