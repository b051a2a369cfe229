"""When a run ends, in words."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from app.state.length import Length
from app.views import words


def sentence(length: Length) -> str:
    """Which of steps and epochs ends it, and what that is in the other."""
    return _by_steps(length) if length.by_steps else _by_epochs(length)


def _by_steps(length: Length) -> str:
    steps = words.count(length.steps or 0)
    if length.epochs is None:
        text = QCoreApplication.translate("Length", "Ends after {steps} steps; the epochs are not used")
    elif length.exact:
        text = QCoreApplication.translate("Length", "Ends after {steps} steps: {epochs} epochs")
    else:
        text = QCoreApplication.translate("Length", "Ends after {steps} steps: about {epochs} epochs")
    return text.format(steps=steps, epochs=_epochs(length.epochs or 0.0))


def _by_epochs(length: Length) -> str:
    one = length.epochs == 1
    if length.steps is None:
        text = QCoreApplication.translate("Length", "Ends after {epochs} passes over the data")
        if one:
            text = QCoreApplication.translate("Length", "Ends after one pass over the data")
    elif length.exact:
        text = QCoreApplication.translate("Length", "Ends after {epochs} epochs: {steps} steps")
        if one:
            text = QCoreApplication.translate("Length", "Ends after one epoch: {steps} steps")
    else:
        text = QCoreApplication.translate("Length", "Ends after {epochs} epochs: about {steps} steps")
        if one:
            text = QCoreApplication.translate("Length", "Ends after one epoch: about {steps} steps")
    return text.format(steps=words.count(length.steps or 0), epochs=_epochs(length.epochs or 0.0))


def _epochs(epochs: float) -> str:
    """`0.31`, `4`, `1,200`."""
    if epochs < 0.01:
        return "< 0.01"
    return f"{epochs:.2g}" if epochs < 10 else words.count(round(epochs))
