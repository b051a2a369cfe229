"""The curves of benchmarks as SVG files; they are drawn by `trainer_core.benchmark.svg`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer_core.benchmark import svg

Points = Sequence[tuple[float, float]]


def memory(path: Path, curves: Mapping[str, Sequence[tuple[float, int]]]) -> None:
    """Memory in MB against the share of the run that has passed: runs of any length beside each other."""
    lines = {}
    for name, points in curves.items():
        end = points[-1][0] or 1
        lines[f"{name}, {end:.0f} s"] = [(100 * at / end, size / 1e6) for at, size in points]
    write(path, [svg.curves("Memory", lines, "% of the run", "MB", from_zero=True)])


def write(path: Path, pictures: Sequence[tuple[str, int, int]]) -> None:
    """Pictures of `svg.curves` and `svg.bars`, one below the other, into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg.page(pictures), encoding="utf-8", newline="\n")
