"""Other runs on the plots of the run on show: each has its own colour, from the sixth on with dashed curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from app.core.metrics.metric_store import MetricStore

OWN: Final = "curve_a"
"""The colour token of the run on show."""

_COLOURS: Final = tuple(f"curve_{letter}" for letter in "bcdfeghijk")
_FIRST_DASHED: Final = 5  # eleven colours alone are hard to tell apart
MOST: Final = len(_COLOURS)
"""Maximum number of overlaid runs."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """A run to compare with. `store`: its downsampled metrics, 1 MB; `token`: its colour, see `token()`."""

    name: str
    store: MetricStore
    token: str


def token(place: int) -> str:
    """The colour token of the overlay at a position, from 0."""
    return _COLOURS[place]


def look(run: Overlay) -> Literal["line", "dashed"]:
    """The line style of its curves."""
    return "dashed" if run.token in _COLOURS[_FIRST_DASHED:] else "line"
