"""Tables for a fixed-width font. A Chinese character takes two columns. No torch, no Qt."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

_DASHED_HEADER: Final = "    \n    \n -  \n    \n    \n    \n    \n    \n"  # rich.box
_UNLIMITED: Final = 10_000  # columns


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return the lines of a table, with figures right-aligned.

    `width`: columns of the terminal, at which the last column is wrapped; None: lines may be of any length.
    """
    # The window imports this file at its start: 3 MB less.
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=Box(_DASHED_HEADER), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, title in enumerate(head):
        right = column > 0 and all(_is_figure(row[column]) for row in rows)
        table.add_column(Text(title), justify="right" if right else "left", no_wrap=column < len(head) - 1)
    for row in rows:
        table.add_row(*map(Text, row))
    output = io.StringIO()
    Console(file=output, width=width or _UNLIMITED).print(table)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def _is_figure(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:1] == "×" or cell == "-"
