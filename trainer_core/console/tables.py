"""Tables for a fixed-width font. A Chinese character takes two columns.

No torch, no Qt.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_GAP: Final = "  "
_MIN_WRAP_WIDTH: Final = 20  # columns of a wrapped column at least
_MAX_RULE_WIDTH: Final = 40  # columns


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return the lines of a table, with figures right-aligned.

    `width`: columns of the terminal, at which the last column is wrapped; None: lines may be of any length.
    """
    every = [list(head), *map(list, rows)]
    widths = [max(cell_len(row[column]) for row in every) for column in range(len(head))]
    right = [0 < column < len(head) and all(_is_figure(row[column]) for row in rows) for column in range(len(head))]
    before = sum(widths[:-1]) + len(_GAP) * (len(head) - 1)
    room = widths[-1] if width is None else max(_MIN_WRAP_WIDTH, width - before)
    rule = _GAP.join("-" * each for each in [*widths[:-1], min(widths[-1], room, _MAX_RULE_WIDTH)])
    lines = []
    for row in every:
        first, *more = _wrapped(row[-1], room) if widths[-1] > room else [row[-1]]
        cells = zip([*row[:-1], first], widths, right, strict=True)
        lines.append(_GAP.join(_aligned(*cell) for cell in cells).rstrip())
        lines += [" " * before + line for line in more]
    return [lines[0], rule, *lines[1:]]


def _is_figure(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:1] == "×" or cell == "-"


def _aligned(cell: str, width: int, right: bool) -> str:
    gap = " " * (width - cell_len(cell))
    return gap + cell if right else cell + gap


def _wrapped(text: str, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    return [line.plain.rstrip() for line in Text(text).wrap(console, width)] or [""]
