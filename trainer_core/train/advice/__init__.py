"""Advice that names the cause: what the events of a run say about it, with figures and, where possible, a fix.

`Advisor` is given every event and gives back `advice` events. Each rule is one class in rules_*.py; its words are
in `messages/advice.py`. No torch, no Qt, no clock and no file: the same events always give the same advice.
"""

from __future__ import annotations

from trainer_core.train.advice.advisor import Advisor

__all__ = ["Advisor"]
