"""Sampling options: temperature, top-k, top-p, maximum length, seed."""

from __future__ import annotations

import random
from typing import Final

from PySide6.QtWidgets import QDoubleSpinBox, QGridLayout, QToolButton

from app.core.conversation import MAX_SEED, SamplingOptions
from app.texts import tr
from app.theme.icons import icon
from app.theme.palette import SPACING, Palette
from app.widgets.basic import TranslatableWidget, label, set_object_name

_FIELDS: Final = {  # object name, minimum, maximum, step, decimals
    "temperature": ("temperature", 0.0, 5.0, 0.1, 2),
    "top_k": ("topK", 0, 1_000_000, 1, 0),
    "top_p": ("topP", 0.01, 1.0, 0.05, 2),
    "max_tokens": ("maxTokens", 1, 100_000, 50, 0),
    "seed": ("tryingSeed", 0, MAX_SEED, 1, 0),
}


class _SpinBox(QDoubleSpinBox):
    def textFromValue(self, value: float) -> str:  # noqa: N802 - Qt's name
        return f"{value:.{self.decimals()}f}".rstrip("0").rstrip(".") if self.decimals() else f"{value:.0f}"


class SamplingRow(TranslatableWidget):
    """One spin box per option, below its name."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self.fields = {name: _spin_box(*arguments) for name, arguments in _FIELDS.items()}
        self.dice = set_object_name(QToolButton(), "dice")
        self._names = {name: label("muted") for name in _FIELDS}
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACING)
        grid.setVerticalSpacing(2)
        for column, (name, field) in enumerate(self.fields.items()):
            grid.addWidget(self._names[name], 0, column)
            grid.addWidget(field, 1, column)
            grid.setColumnStretch(column, 1)
            self._names[name].setBuddy(field)
        grid.addWidget(self.dice, 1, len(self.fields))
        self.set_sampling(SamplingOptions())
        self.dice.clicked.connect(self.randomize_seed)
        self.retheme(palette)
        self.retranslate()

    @property
    def sampling(self) -> SamplingOptions:
        return SamplingOptions.from_mapping({name: field.value() for name, field in self.fields.items()})

    def set_sampling(self, sampling: SamplingOptions) -> None:
        for name, field in self.fields.items():
            field.setValue(getattr(sampling, name))

    def randomize_seed(self) -> None:
        self.fields["seed"].setValue(random.randrange(1, 1_000_000))

    def retheme(self, palette: Palette) -> None:
        self.dice.setIcon(icon("dice", palette.text, palette.muted))

    def retranslate(self) -> None:
        texts = {
            "temperature": (tr("playground.temperature"), tr("playground.higher_more_varied_lower_more")),
            "top_k": (tr("playground.top_k"), tr("playground.draw_only_from_so_many")),
            "top_p": (tr("playground.top_p"), tr("playground.draw_only_from_likeliest_tokens")),
            "max_tokens": (tr("playground.max_tokens"), tr("playground.text_ends_after_so_many")),
            "seed": (tr("playground.seed"), tr("playground.same_seed_prompt_checkpoint_give")),
        }
        for name, field in self.fields.items():
            title, help_ = texts[name]
            tooltip = f"{help_} ({field.minimum():g} – {field.maximum():,.15g})"
            self._names[name].setText(title)
            for widget in (field, self._names[name]):
                widget.setToolTip(tooltip)
            field.setAccessibleName(title)
            field.setAccessibleDescription(tooltip)
        self.dice.setToolTip(tr("playground.another_seed"))
        self.dice.setAccessibleName(tr("playground.another_seed"))


def _spin_box(name: str, low: float, high: float, step: float, decimals: int) -> QDoubleSpinBox:
    box = set_object_name(_SpinBox(decimals=decimals, minimum=low, maximum=high, singleStep=step), name)
    box.lineEdit().setTextMargins(4, 0, 4, 0)
    box.setMinimumWidth(48)
    return box
