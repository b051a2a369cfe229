"""How the next text is drawn: temperature, top-k, top-p, length, seed."""

from __future__ import annotations

import random
from typing import Final

from PySide6.QtCore import QCoreApplication, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QGridLayout, QLineEdit, QToolButton, QWidget

from app.state.trying import LARGEST_SEED, Sampling
from app.theme.icons import icon
from app.theme.tokens import SPACE, Tokens
from app.views.widgets import Retranslating, describe_error, label, named

_LONGEST: Final = 100_000  # tokens of one text
_LARGEST_K: Final = 1_000_000
_DIRECTIONS: Final = {Qt.Key.Key_Up: 1, Qt.Key.Key_Down: -1}


class NumberLine(QLineEdit):
    """A number within limits, marked while it is none; the arrow keys change it by a step."""

    def __init__(self, name: str, low: float, high: float, step: float) -> None:
        super().__init__()
        self._low, self._high, self._step = low, high, step
        self._whole = isinstance(step, int)
        self.setObjectName(name)
        self.setMinimumWidth(48)
        self.help = ""  # its accessible description while the value is allowed
        self.textChanged.connect(self.mark)

    @property
    def value(self) -> float | None:
        """None where it is no number, or not one that is allowed."""
        try:
            found = int(self.text()) if self._whole else float(self.text().replace(",", "."))
        except ValueError:
            return None
        return found if self._low <= found <= self._high else None

    def put(self, value: float) -> None:
        """Show a value."""
        self.setText(f"{value}" if self._whole else f"{value:.3g}")

    @property
    def limits(self) -> str:
        """What is allowed."""
        return f"{self._low:g} – {self._high:,.15g}"

    def mark(self) -> None:
        """Show whether the value is allowed."""
        allowed = QCoreApplication.translate("KnobField", "Allowed: {range}").format(range=self.limits)
        describe_error(self, allowed if self.value is None else "", self.help)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        direction = _DIRECTIONS.get(Qt.Key(event.key()))
        if direction is None or self.value is None:
            super().keyPressEvent(event)
        else:
            self.put(min(self._high, max(self._low, self.value + direction * self._step)))


class SamplingRow(Retranslating):
    """Five fields, each below its name."""

    changed = Signal()

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.fields = {
            "temperature": NumberLine("temperature", 0.0, 5.0, 0.1),
            "top_k": NumberLine("topK", 0, _LARGEST_K, 1),
            "top_p": NumberLine("topP", 0.01, 1.0, 0.05),
            "max_tokens": NumberLine("maxTokens", 1, _LONGEST, 50),
            "seed": NumberLine("tryingSeed", 0, LARGEST_SEED, 1),
        }
        self.dice = named(QToolButton(), "dice")
        self._names = {name: label("muted") for name in self.fields}
        self._arrange()
        self.take(Sampling())
        for field in self.fields.values():
            field.textChanged.connect(lambda _: self.changed.emit())
        self.dice.clicked.connect(self.roll)
        self.retheme(tokens)
        self.retranslate()

    def _arrange(self) -> None:
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(SPACE)
        grid.setVerticalSpacing(2)
        for place, (name, field) in enumerate(self.fields.items()):
            grid.addWidget(self._names[name], 0, place)
            grid.addWidget(field, 1, place)
            grid.setColumnStretch(place, 1)
            self._names[name].setBuddy(field)
        grid.addWidget(self.dice, 1, len(self.fields))

    @property
    def sampling(self) -> Sampling | None:
        """What the fields say; None where one of them is wrong."""
        values = {name: field.value for name, field in self.fields.items()}
        if None in values.values():
            return None
        return Sampling(**values)  # type: ignore[arg-type]  # whole where the field is

    def take(self, sampling: Sampling) -> None:
        """Show these values."""
        for name, field in self.fields.items():
            field.put(getattr(sampling, name))

    def roll(self) -> None:
        """Another seed."""
        self.fields["seed"].put(random.randrange(1, 1_000_000))

    def retheme(self, tokens: Tokens) -> None:
        self.dice.setIcon(icon("dice", tokens.text, tokens.muted))

    def retranslate(self) -> None:
        names = {
            "temperature": self.tr("Temperature"),
            "top_k": self.tr("Top-k"),
            "top_p": self.tr("Top-p"),
            "max_tokens": self.tr("Max tokens"),
            "seed": self.tr("Seed"),
        }
        tips = {
            "temperature": self.tr("Higher is more varied, lower more certain; 0 always takes the likeliest token."),
            "top_k": self.tr("Draw only from so many of the likeliest tokens; 0: no limit."),
            "top_p": self.tr("Draw only from the likeliest tokens that together reach this share; 1: no limit."),
            "max_tokens": self.tr("The text ends after so many tokens at the latest."),
            "seed": self.tr("The same seed, prompt and checkpoint give the same text again."),
        }
        for name, field in self.fields.items():
            self._names[name].setText(names[name])
            told = f"{tips[name]} ({field.limits})"
            for widget in (field, self._names[name]):
                widget.setToolTip(told)
            field.setAccessibleName(names[name])
            field.help = told
            field.mark()
        self.dice.setToolTip(self.tr("Another seed"))
        self.dice.setAccessibleName(self.tr("Another seed"))
