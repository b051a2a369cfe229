"""Cards with a table: the parts of a step, the fast paths, and the FLOPs by module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QVBoxLayout

from app.pages.performance import figures
from app.texts import current_language, tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import ElidedLabel, card_header, label
from trainer_core import performance_texts
from trainer_core.messages import amounts
from trainer_core.protocol import FastPath, FlopsProfile
from trainer_core.texts import get

if TYPE_CHECKING:
    from app.core.execution_info import ExecutionInfo
    from app.core.metrics.metric_store import MetricStore

_MAX_WORD_LENGTH: Final = 16  # characters
_LINE_BREAK: Final = "\u200b"  # zero-width space
_BAR_CHARS: Final = 24  # of 100 %


class TableCard(QFrame):
    """A title, facts to its right, a note and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("card")
        self.title, self.facts = label("section"), ElidedLabel()
        self.note, self.table = label("muted", wrap=True), label(wrap=True)
        self.table.setTextFormat(Qt.TextFormat.RichText)
        self.table.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACING + 4, SPACING, SPACING + 4, SPACING)
        layout.setSpacing(SPACING)
        layout.addLayout(card_header(self.title, self.facts))
        layout.addWidget(self.note)
        layout.addWidget(self.table)


def html_table(
    rows: Iterable[Sequence[str]], colors: Iterable[str], *, right: Sequence[int] = (), bar_color: str = ""
) -> str:
    """Return a table. `colors`: of each row; `right`: right-aligned columns; `bar_color`: of the last column."""
    lines = []
    for row, color in zip(rows, colors, strict=True):
        cells = []
        for index, text in enumerate(row):
            align = "right" if index in right else "left"
            cell_color = bar_color if bar_color and index == len(row) - 1 else color
            cells.append(f'<td align="{align}" style="padding-right: 8px; color: {cell_color}">{escape(text)}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table cellspacing="0" cellpadding="2">{"".join(lines)}</table>' if lines else ""


def show_step_time(card: TableCard, metrics: MetricStore, execution: ExecutionInfo, palette: Palette) -> None:
    """Show the time and share of each part of the last step, the longest first, and further figures above."""
    card.title.setText(tr("performance.step_time"))
    card.note.setText("  ·  ".join(f"{name}: {value}" for name, value in figures.rows(execution)))
    card.note.setVisible(bool(card.note.text()))
    spent = sorted(figures.part_times(metrics).items(), key=lambda part: -part[1])
    total = sum(value for _, value in spent)
    rows = [
        (
            figures.part_title(name),
            figures.format_milliseconds(value),
            amounts.format_percentage(value, total),
            "█" * round(_BAR_CHARS * value / total) if total else "",
        )
        for name, value in spent
    ]
    card.table.setText(html_table(rows, [palette.text] * len(rows), right=(1, 2), bar_color=palette.accent))
    card.setVisible(bool(rows))  # not while the model compiles


def show_fast_paths(card: TableCard, execution: ExecutionInfo, palette: Palette) -> None:
    """Show whether each fast path is in use, its variant, speedup and error, and the reason."""
    card.title.setText(tr("performance.execution"))
    parts = [*map(formatting.format_device, execution.devices[:1]), execution.precision]
    if execution.compile_s is not None:
        parts.append(get("console.compiled", current_language(), seconds=execution.compile_s))
    card.facts.setText("  ·  ".join(filter(None, parts)))
    note = "" if execution.run_fast_paths else tr("performance.machine_fast_paths")
    card.note.setText(note if execution.fast_paths else tr("performance.no_fast_paths"))
    card.note.setVisible(bool(card.note.text()))
    paths = performance_texts.sort_fast_paths(execution.fast_paths)
    header = (
        "",
        *map(tr, ("performance.fast_path", "performance.selected", "performance.speedup", "performance.max_error")),
    )
    rows = [(*header, tr("performance.reason")), *map(fast_path_row, paths)]
    colors = [palette.muted, *(palette.text if path.used else palette.muted for path in paths)]
    card.table.setText(html_table(rows, colors, right=(3, 4)))
    card.table.setVisible(bool(paths))
    tips = (tr("performance.speedup_note"), tr("performance.max_error_note"))
    card.table.setToolTip("\n".join(f"{name}: {tip}" for name, tip in zip(header[3:], tips, strict=True)))


def fast_path_row(path: FastPath) -> tuple[str, ...]:
    language = current_language()
    reason = performance_texts.fast_path_reason(path, language)
    return (
        "✓" if path.used else "–",
        performance_texts.fast_path_label(path, language),
        performance_texts.fast_path_choice(path, language),
        "" if path.speedup is None else performance_texts.format_speedup(path.speedup),
        "" if path.error is None else performance_texts.format_error(path.error),
        # Long words, such as symbols of a linker, may be broken.
        re.sub(rf"\S{{{_MAX_WORD_LENGTH}}}(?=\S)", lambda word: word[0] + _LINE_BREAK, reason),
    )


def show_flops(card: TableCard, profile: FlopsProfile | None, palette: Palette) -> None:
    """Show the FLOPs by module; hide the card without a profile."""
    card.setVisible(profile is not None)
    if profile is None:
        return
    card.title.setText(tr("performance.flops_micro_batch"))
    total, formula = performance_texts.format_flops(profile.total), performance_texts.format_flops(profile.formula)
    step = formatting.format_count(profile.step)
    card.facts.setText(tr("performance.flops_at_step", step=step, total=total, formula=formula))
    card.note.hide()
    rows = [
        (
            part.module + (f"  ×{part.count}" if part.count > 1 else ""),
            amounts.format_percentage(part.share, 1.0),
            performance_texts.format_flops(part.forward + part.backward),
            "█" * round(_BAR_CHARS * part.share),
        )
        for part in performance_texts.group_by_module(profile.rows)
    ]
    card.table.setText(html_table(rows, [palette.text] * len(rows), right=(1, 2), bar_color=palette.accent))
