"""Card of the FLOPs by module."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QGridLayout, QProgressBar, QVBoxLayout

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import ElidedLabel, card_header, clear_layout, label
from trainer_core import performance_texts
from trainer_core.messages import amounts
from trainer_core.protocol import FlopsProfile

_BAR_STEPS: Final = 1000


class FlopsCard(QFrame):
    """Layers of the same kind are added up. Hidden until a profile is available."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("card")
        self._title, self.facts = label("section"), ElidedLabel()
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(2 * SPACING)
        self._grid.setVerticalSpacing(SPACING // 2)
        self._grid.setColumnStretch(1, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACING + 4, SPACING, SPACING + 4, SPACING)
        layout.setSpacing(SPACING)
        layout.addLayout(card_header(self._title, self.facts))
        layout.addLayout(self._grid)

    def display(self, profile: FlopsProfile | None) -> None:
        self.setVisible(profile is not None)
        clear_layout(self._grid)
        if profile is None:
            return
        self._title.setText(tr("performance.arithmetic_micro_batch"))
        total, formula = performance_texts.format_flops(profile.total), performance_texts.format_flops(profile.formula)
        step = formatting.format_count(profile.step)
        self.facts.setText(tr("performance.step_step_total_formula_says", step=step, total=total, formula=formula))
        right = Qt.AlignmentFlag.AlignRight
        for row, part in enumerate(performance_texts.group_by_module(profile.rows)):
            name, amount, share = label(), label("muted"), label()
            name.setText(part.module + (f"  ×{part.count}" if part.count > 1 else ""))
            amount.setText(performance_texts.format_flops(part.forward + part.backward))
            share.setText(amounts.format_percentage(part.share, 1.0))
            bar = QProgressBar(textVisible=False, maximum=_BAR_STEPS, value=round(_BAR_STEPS * part.share))
            bar.setAccessibleName(part.module)
            self._grid.addWidget(name, row, 0)
            self._grid.addWidget(bar, row, 1)
            self._grid.addWidget(share, row, 2, right)
            self._grid.addWidget(amount, row, 3, right)
