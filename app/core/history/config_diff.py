"""Differences between the configurations of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_core.config import Knob, knobs


@dataclass(frozen=True, slots=True)
class ConfigDifference:
    """A setting and its value in each run."""

    knob: Knob
    values: tuple[Any, ...]


def config_differences(configs: Sequence[Mapping[str, Any]]) -> list[ConfigDifference]:
    """Settings that differ, in the order of `Config`. A setting that a configuration lacks has its default."""
    found = []
    for knob in knobs().values():
        values = tuple(config.get(knob.name, knob.default) for config in configs)
        if any(_differs(value, values[0]) for value in values[1:]):
            found.append(ConfigDifference(knob, values))
    return found


def _differs(value: Any, first: Any) -> bool:
    """Like `!=`, but True differs from 1."""
    return isinstance(value, bool) != isinstance(first, bool) or value != first


def format_tsv(rows: Sequence[Sequence[str]]) -> str:
    """Tab-separated values for spreadsheets."""
    return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)
