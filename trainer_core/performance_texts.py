"""Formatting of performance figures for the terminal and the window: speedups, energy, FLOPs, fast paths.

No torch, no Qt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainer_core import texts
from trainer_core.messages import Language, format_message_parts
from trainer_core.protocol import FastPath, FlopsRow

_JOULES_PER_WH: Final = 3600.0  # joules
_SCALES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
NON_SPEED_REASONS: Final = ("path.fewer_steps", "path.trades")
"""Reasons of fast paths whose benefit is not speed."""


# --- fast paths ---------------------------------------------------------------------------------------


def fast_path_label(path: FastPath, language: Language) -> str:
    """Return the display name; an unknown fast path keeps its own name."""
    return texts.catalogue(language).get(f"fast_path.{path.name}", path.name)


def fast_path_choice(path: FastPath, language: Language) -> str:
    """Return what the fast path selected, such as a kernel or a thread count."""
    if path.name != "threads" or language == "en":
        return path.choice
    return texts.get("console.threads", language, count=path.choice.partition(" ")[0])


def format_device(name: str, language: Language) -> str:
    """Return the display name of a device: `NVIDIA RTX A6000`, `2 × CPU (16 threads)`."""
    prefix, cpu, count = name.partition("CPU (")
    if not cpu or language == "en":
        return name
    return texts.get("console.cpu_threads", language, prefix=prefix, count=count.partition(" ")[0])


def fast_path_parts(path: FastPath, language: Language) -> tuple[str, str]:
    """Return name and choice for a one-line summary. A thread count stands alone."""
    name, choice = fast_path_label(path, language), fast_path_choice(path, language)
    return (choice, "") if path.name == "threads" and choice else (name, choice)


def fast_path_reason(path: FastPath, language: Language) -> str:
    """Return why the fast path is used or not; empty if unknown."""
    if not path.reason:
        return ""
    params = {
        name: format_significant(value) if isinstance(value, float) else value for name, value in path.params.items()
    }
    if "error" in params and path.params["error"] in (None, math.inf):  # JSON knows no infinity
        params["error"] = "∞"
    return format_message_parts(path.reason, params, language)[0]


def format_speedup(times: float) -> str:
    """Return a speedup: `×1.8`."""
    return f"×{times:.2f}" if times < 9.95 else f"×{times:.0f}"


def format_error(difference: float) -> str:
    """Return a relative error in short form: `2e-4`."""
    if math.isinf(difference):
        return "∞"
    return "0" if difference == 0 else f"{difference:.0e}".replace("e-0", "e-")


def sort_fast_paths(paths: Sequence[FastPath]) -> list[FastPath]:
    """Return `paths` with those in use first."""
    return sorted(paths, key=lambda path: not path.used)


# --- figures ------------------------------------------------------------------------------------------


def format_significant(value: float, digits: int = 3) -> str:
    """Return significant digits, without an exponent where readable: 0.262, 13.1, 942, 12,300."""
    if abs(value) >= 10 ** (digits - 1):
        return f"{float(f'{value:.{digits}g}'):,.0f}"
    return f"{value:.{digits}g}".replace("e-0", "e-")


def format_loss_scale(factor: float) -> str:
    """Return a loss scale in full: 65,536."""
    return f"{factor:,.10g}"


def format_energy(joules: float) -> str:
    """Return joules as Wh, or as kWh from 1 kWh."""
    hours = joules / _JOULES_PER_WH
    return f"{format_significant(hours / 1000)} kWh" if hours >= 1000 else f"{format_significant(hours)} Wh"


def format_flops(count: float, per: str = "") -> str:
    """Return FLOPs with an SI prefix: `165 TFLOP/s` with `per="/s"`."""
    for scale, letter in _SCALES:
        if count >= scale:
            return f"{format_significant(count / scale)} {letter}FLOP{per}"
    return f"{format_significant(count)} FLOP{per}"


# --- FLOPs by part --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModuleFlops:
    """FLOPs of the same module of all layers."""

    module: str  # with * for the layer number
    count: int
    forward: float  # FLOPs of one micro-batch
    backward: float
    share: float  # of all, 0..1


def group_by_module(rows: Sequence[FlopsRow]) -> list[ModuleFlops]:
    """Add up the rows of all layers, in model order."""
    found: dict[str, list[FlopsRow]] = {}
    for row in rows:
        found.setdefault(re.sub(r"\.\d+(?=\.|$)", ".*", row.module), []).append(row)
    return [
        ModuleFlops(
            module,
            len(same),
            sum(row.forward for row in same),
            sum(row.backward for row in same),
            sum(row.share for row in same),
        )
        for module, same in found.items()
    ]


def format_flops_table(rows: Sequence[FlopsRow]) -> list[str]:
    """Return a table of `rows` for a fixed-width font, with layers added up."""
    parts = group_by_module(rows)
    names = [part.module + (f" ×{part.count}" if part.count > 1 else "") for part in parts]
    width = max(map(len, names), default=0)
    return [
        f"  {name:<{width}}  {part.share:>6.1%}  {format_flops(part.forward + part.backward)}"
        for name, part in zip(names, parts, strict=True)
    ]
