"""Line charts as SVG files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

Points = Sequence[tuple[float, float]]

_COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#db2777", "#0891b2", "#65a30d", "#4b5563")
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 30, 42
_WIDTH, _HEIGHT = 720, 340
_STYLE: Final = "text{font:11px sans-serif;fill:#374151} .head{font-weight:bold}"


def write_memory(path: Path, curves: Mapping[str, Sequence[tuple[float, int]]]) -> None:
    """Memory in MB over the share of the run that has passed, so that runs of any length compare."""
    lines = {}
    for name, points in curves.items():
        end = points[-1][0] or 1
        lines[f"{name}, {end:.0f} s"] = [(100 * at / end, size / 1e6) for at, size in points]
    write(path, "Memory", lines, "% of the run", "MB", from_zero=True)


def write(
    path: Path,
    title: str,
    lines: Mapping[str, Points],
    x_name: str,
    y_name: str,
    level: tuple[str, float] | None = None,
    from_zero: bool = False,
) -> None:
    """Write lines through (x, y). `level`: name and height of a dashed line; `from_zero`: the y axis begins at 0."""
    xs = [x for points in lines.values() for x, _ in points] or [0.0, 1.0]
    ys = [y for points in lines.values() for _, y in points] + ([level[1]] if level else []) or [0.0, 1.0]
    x_ticks, y_ticks = ticks(min(0.0, *xs), max(xs)), ticks(min(0.0, *ys) if from_zero else min(ys), max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text class="head" x="12" y="18">{escape(title)} ({escape(y_name)})</text>',
    ]
    for y in y_ticks:
        at = place(0, y)[1]
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{right}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in x_ticks:
        parts.append(f'<text x="{place(x, 0)[0]:.1f}" y="{bottom + 16}" text-anchor="middle">{x:g}</text>')
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_name)}</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        where = f'x="{right + 8}" y="{_TOP + 14 + 16 * number}"'
        parts.append(f'<text {where} style="fill:{colour}">{escape(name)}</text>')
    if level is not None:
        at = place(0, level[1])[1]
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{right}" stroke="#6b7280" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{right + 8}" y="{at + 4:.1f}">{escape(level[0])}</text>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8", newline="\n")


def ticks(least: float, most: float) -> list[float]:
    """Return four to nine round values that enclose both."""
    span = most - least or abs(most) or 1.0
    raw = span / 6
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    first, last = math.floor(least / step), math.ceil(most / step)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]
