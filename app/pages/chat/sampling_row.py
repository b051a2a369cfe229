"""Sampling options of the chat page."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from PySide6.QtWidgets import QDoubleSpinBox, QGridLayout

from app.core.conversation import MAX_SEED
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import TranslatableWidget, label

_FIELDS: Final = {  # default, minimum, maximum, step, decimals, keys of title and hint
    "temperature": (0.8, 0.0, 5.0, 0.1, 2, "chat.temperature", "chat.temperature_hint"),
    "top_k": (0, 0, 1_000_000, 1, 0, "chat.top_k", "chat.top_k_hint"),
    "top_p": (1.0, 0.01, 1.0, 0.05, 2, "chat.top_p", "chat.top_p_hint"),
    "max_tokens": (200, 1, 100_000, 50, 0, "chat.max_tokens", "chat.max_tokens_hint"),
    "seed": (0, 0, MAX_SEED, 1, 0, "chat.seed", "chat.seed_hint"),
}


class SamplingRow(TranslatableWidget):
    """One number field per field of `protocol.Generate`, below its name. Arrow keys and wheel change the value."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = {name: _SpinBox() for name in _FIELDS}
        self._titles = {name: label("muted") for name in _FIELDS}
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACING)
        grid.setVerticalSpacing(2)
        for column, (name, field) in enumerate(self.fields.items()):
            default, low, high, step, decimals, *_ = _FIELDS[name]
            field.setObjectName(name)
            field.setDecimals(decimals)
            field.setRange(low, high)
            field.setSingleStep(step)
            field.setValue(default)
            field.lineEdit().setTextMargins(6, 0, 6, 0)  # as the padding of other fields
            field.setMinimumWidth(48)
            grid.addWidget(self._titles[name], 0, column)
            grid.addWidget(field, 1, column)
            grid.setColumnStretch(column, 1)
            self._titles[name].setBuddy(field)
        self.retranslate()

    @property
    def sampling(self) -> dict[str, Any]:
        """Fields of `protocol.Generate`."""
        return {name: field.value() if field.decimals() else int(field.value()) for name, field in self.fields.items()}

    def set_sampling(self, stored: Mapping[str, float]) -> None:
        for name in stored.keys() & self.fields.keys():
            self.fields[name].setValue(stored[name])

    def randomize_seed(self) -> None:
        self.fields["seed"].setValue(random.randrange(1, 1_000_000))

    def retranslate(self) -> None:
        for name, field in self.fields.items():
            title, hint = map(tr, _FIELDS[name][-2:])
            tooltip = f"{hint} ({field.minimum():g} – {field.maximum():,.15g})"
            self._titles[name].setText(title)
            for widget in (field, self._titles[name]):
                widget.setToolTip(tooltip)
            field.setAccessibleName(title)
            field.setAccessibleDescription(tooltip)


class _SpinBox(QDoubleSpinBox):
    def textFromValue(self, value: float) -> str:  # noqa: N802 - Qt's name
        return f"{value:.{self.decimals()}f}".rstrip("0").rstrip(".") if self.decimals() else f"{value:.0f}"
