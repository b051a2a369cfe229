"""How the engine's figures are written, in a terminal and in the window: gains, energy, reasons, FLOPs by part.

No torch, no Qt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainer_core.messages import Language, what_and_do
from trainer_core.messages.engine import PATHS
from trainer_core.protocol import FastPath, FlopsRow

_WH: Final = 3600.0  # joules
_SCALES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_THREADS: Final = re.compile(r"(\d+) threads?")


# --- fast paths ---------------------------------------------------------------------------------------


def path_name(path: FastPath, language: Language) -> str:
    """Its name for people; a path of a newer trainer by its own name."""
    return PATHS.get(path.name, (path.name, path.name))[language == "zh"]


def path_choice(path: FastPath, language: Language) -> str:
    """Which of several ways: names stay as they are, counts are worded."""
    found = _THREADS.fullmatch(path.choice)
    return f"{found[1]} 个线程" if found and language == "zh" else path.choice


def device(told: str, language: Language) -> str:
    """A device as `hello` names it: GPUs keep their names, a CPU's threads are counted in this language."""
    return re.sub(r"CPU \((\d+) threads?\)", r"CPU（\1 个线程）", told) if language == "zh" else told


def path_parts(path: FastPath, language: Language) -> tuple[str, str]:
    """Name and choice for one line of many: “2 threads” says both."""
    name, choice = path_name(path, language), path_choice(path, language)
    return (choice, "") if _THREADS.fullmatch(path.choice) else (name, choice)


def path_reason(path: FastPath, language: Language) -> str:
    """Why it is used, or not; empty where the trainer does not say."""
    if not path.reason:
        return ""
    params = {name: significant(value) if isinstance(value, float) else value for name, value in path.params.items()}
    if "error" in params and path.params["error"] in (None, math.inf):  # JSON knows no infinity
        params["error"] = "∞"
    return what_and_do(path.reason, params, language)[0]


def gain(times: float) -> str:
    """`×1.8`: times as fast as without."""
    return f"×{times:.2f}" if times < 9.95 else f"×{times:.0f}"


def error(difference: float) -> str:
    """A relative difference from the reference."""
    if math.isinf(difference):
        return "∞"
    return "0" if difference == 0 else f"{difference:.0e}".replace("e-0", "e-")


def in_order(paths: Sequence[FastPath]) -> list[FastPath]:
    """Those in use first; otherwise as the trainer told them."""
    return sorted(paths, key=lambda path: not path.used)


# --- figures ------------------------------------------------------------------------------------------


def significant(value: float, digits: int = 3) -> str:
    """Three significant digits without an exponent where that is readable: 0.262, 13.1, 942, 12,300."""
    if abs(value) >= 10 ** (digits - 1):
        return f"{float(f'{value:.{digits}g}'):,.0f}"
    return f"{value:.{digits}g}".replace("e-0", "e-")


def loss_scale(factor: float) -> str:
    """A power of two, so in full: 65,536."""
    return f"{factor:,.10g}"


def energy(joules: float) -> str:
    """As an electricity bill has it: Wh, and kWh from one on."""
    hours = joules / _WH
    return f"{significant(hours / 1000)} kWh" if hours >= 1000 else f"{significant(hours)} Wh"


def flops(count: float, per: str = "") -> str:
    """`165 TFLOP/s` with `per="/s"`."""
    for scale, letter in _SCALES:
        if count >= scale:
            return f"{significant(count / scale)} {letter}FLOP{per}"
    return f"{significant(count)} FLOP{per}"


# --- FLOPs by part --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """The same part of all layers together."""

    module: str  # the layers' numbers as *
    count: int
    forward: float  # FLOPs of one micro-batch
    backward: float
    share: float  # of all, 0..1


def by_part(rows: Sequence[FlopsRow]) -> list[Part]:
    """Rows of a profile with the layers added up, in the order of the model."""
    found: dict[str, list[FlopsRow]] = {}
    for row in rows:
        found.setdefault(re.sub(r"\.\d+(?=\.|$)", ".*", row.module), []).append(row)
    return [
        Part(
            module,
            len(same),
            sum(row.forward for row in same),
            sum(row.backward for row in same),
            sum(row.share for row in same),
        )
        for module, same in found.items()
    ]


def table(rows: Sequence[FlopsRow]) -> list[str]:
    """The same as lines for a fixed-width font."""
    parts = by_part(rows)
    names = [part.module + (f" ×{part.count}" if part.count > 1 else "") for part in parts]
    width = max(map(len, names), default=0)
    return [
        f"  {name:<{width}}  {part.share:>6.1%}  {flops(part.forward + part.backward)}"
        for name, part in zip(names, parts, strict=True)
    ]
