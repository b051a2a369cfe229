"""A small line chart as SVG, written by hand: memory over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 96, 16, 36
_COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#7c3aed")


def memory(path: Path, curves: Mapping[str, Sequence[tuple[float, int]]]) -> None:
    """Memory in MB against the share of the run that has passed: runs of any length beside each other."""
    top = 100 * (1 + max(size for points in curves.values() for _, size in points) // 100_000_000)
    parts = [_frame(top)]
    for number, (name, points) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        end = points[-1][0] or 1
        places = [(_x(at / end), _y(size / 1e6 / top)) for at, size in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.2"/>')
        label = f"{escape(name)}, {end:.0f} s"
        parts.append(f'<text x="{_WIDTH - _RIGHT + 6}" y="{_TOP + 12 + 16 * number}" fill="{colour}">{label}</text>')
    style = "text{font:11px sans-serif}"
    body = "\n".join(parts)
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {box}><style>{style}</style>\n{body}\n</svg>\n'
    path.write_text(svg, encoding="utf-8", newline="\n")


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _frame(top: int) -> str:
    parts = [f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>']
    step = 100 if top <= 800 else 500
    for value in range(0, top + 1, step):
        y = _y(value / top)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#4b5563">{value} MB</text>')
    for percent in (0, 25, 50, 75, 100):
        where = f'x="{_x(percent / 100):.1f}" y="{_HEIGHT - 14}"'
        parts.append(f'<text {where} text-anchor="middle" fill="#4b5563">{percent} %</text>')
    return "\n".join(parts)
