"""Small charts as SVG, written by hand: curves and bars. No library is needed to draw them or to look at them.

No torch, no Qt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#db2777", "#0891b2", "#65a30d", "#4b5563")
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 30, 42
_ROW: Final = 24  # height of a bar with its distance
_LABEL: Final = 260  # width of the words before a bar, in the widest of sans-serif fonts
_STYLE: Final = "text{font:11px sans-serif;fill:#374151} .head{font-weight:bold}"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. `low` and `high`: the least and the largest of what was measured."""

    label: str
    value: float
    shown: str
    low: float | None = None
    high: float | None = None


def page(parts: Sequence[tuple[str, int, int]]) -> str:
    """Pictures, one below the other, each with its width and height."""
    width, height = max(width for _, width, _ in parts), sum(height for _, _, height in parts)
    placed, top = [], 0
    for picture, _, tall in parts:
        placed.append(f'<g transform="translate(0 {top})">{picture}</g>')
        top += tall
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, f"<style>{_STYLE}</style>", ground, *placed, "</svg>\n"])


def bars(title: str, rows: Sequence[Bar], width: int = 760, level: float | None = None) -> tuple[str, int, int]:
    """Horizontal bars with the spread of each as a thin line; `level`: a dashed line across all of them."""
    most = max([*(bar.high or bar.value for bar in rows), level or 0.0], default=1.0) or 1.0
    room = width - _LABEL - 120
    parts = [f'<text class="head" x="12" y="20">{escape(title)}</text>']
    for number, bar in enumerate(rows):
        y = 34 + number * _ROW
        long = bar.value / most * room
        parts.append(f'<text x="{_LABEL - 8}" y="{y + 12}" text-anchor="end">{escape(bar.label)}</text>')
        fill = COLOURS[number % len(COLOURS)]
        parts.append(f'<rect x="{_LABEL}" y="{y}" width="{long:.1f}" height="16" rx="2" fill="{fill}"/>')
        end = long
        if bar.low is not None and bar.high is not None:
            low, end = (_LABEL + value / most * room for value in (bar.low, bar.high))
            parts.append(f'<path d="M{low:.1f} {y + 8}H{end:.1f}" stroke="#111827" stroke-width="1.5"/>')
            end -= _LABEL
        parts.append(f'<text x="{_LABEL + max(long, end) + 6:.1f}" y="{y + 12}">{escape(bar.shown)}</text>')
    if level is not None:
        x = _LABEL + level / most * room
        line = f"M{x:.1f} 30V{34 + len(rows) * _ROW - 4}"
        parts.append(f'<path d="{line}" stroke="#111827" stroke-dasharray="4 3"/>')
    return "\n".join(parts), width, 44 + len(rows) * _ROW


def curves(
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    x_name: str,
    y_name: str,
    level: tuple[str, float] | None = None,
    from_zero: bool = False,
    size: tuple[int, int] = (720, 340),
) -> tuple[str, int, int]:
    """Lines through (x, y). The y axis goes from the least value, or from zero, to the largest; `level`: a dashed line
    at a height, with its name."""
    width, height = size
    xs = [x for points in lines.values() for x, _ in points] or [0.0, 1.0]
    ys = [y for points in lines.values() for _, y in points] + ([level[1]] if level else []) or [0.0, 1.0]
    x_ticks, y_ticks = ticks(min(0.0, *xs), max(xs)), ticks(min(0.0, *ys) if from_zero else min(ys), max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return _LEFT + across * (width - _LEFT - _RIGHT), height - _BOTTOM - up * (height - _TOP - _BOTTOM)

    right, bottom = width - _RIGHT, height - _BOTTOM
    parts = [f'<text class="head" x="12" y="18">{escape(title)} ({escape(y_name)})</text>']
    for y in y_ticks:
        at = place(0, y)[1]
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{right}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in x_ticks:
        parts.append(f'<text x="{place(x, 0)[0]:.1f}" y="{bottom + 16}" text-anchor="middle">{x:g}</text>')
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{height - 8}" text-anchor="middle">{escape(x_name)}</text>')
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        where = f'x="{right + 8}" y="{_TOP + 14 + 16 * number}"'
        parts.append(f'<text {where} style="fill:{colour}">{escape(name)}</text>')
    if level is not None:
        at = place(0, level[1])[1]
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{right}" stroke="#6b7280" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{right + 8}" y="{at + 4:.1f}">{escape(level[0])}</text>')
    return "\n".join(parts), width, height


def ticks(least: float, most: float) -> list[float]:
    """Four to nine round values that enclose both."""
    span = most - least or abs(most) or 1.0
    raw = span / 6
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    first, last = math.floor(least / step), math.ceil(most / step)
    return [round(number * step, 12) for number in range(first, max(last, first + 1) + 1)]
