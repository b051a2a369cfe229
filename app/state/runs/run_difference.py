"""Where the configurations of runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_core.config import Knob, knobs


@dataclass(frozen=True, slots=True)
class Difference:
    """A knob and its value in each run; None: not a value that this version knows."""

    knob: Knob
    values: tuple[Any, ...]


def differences(configs: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """The knobs that are not the same in all, in the order of the settings.

    A knob that a configuration does not name has its default: the run is older than the knob.
    """
    found = []
    for knob in knobs().values():
        values = tuple(config.get(knob.name, knob.default) for config in configs)
        if any(_differs(value, values[0]) for value in values[1:]):
            found.append(Difference(knob, values))
    return found


def _differs(value: Any, first: Any) -> bool:
    """1 and 1.0 are the same number, but true is not 1."""
    return isinstance(value, bool) != isinstance(first, bool) or value != first


def as_tsv(rows: Sequence[Sequence[str]]) -> str:
    """A table as text to paste into a spreadsheet."""
    return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
