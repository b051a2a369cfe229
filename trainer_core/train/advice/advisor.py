"""Evaluates all rules on the events of a run."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Iterable
from typing import Any, Final

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.train.advice import rules_hardware, rules_learning, rules_rewards, rules_speed
from trainer_core.train.advice.rule import Rule, RunHistory

RULES: Final[tuple[type[Rule[Any]], ...]] = (
    *rules_speed.RULES, *rules_hardware.RULES, *rules_learning.RULES, *rules_learning.LOSS_RULES, *rules_rewards.RULES
)  # fmt: skip


def rules_for(config: Config) -> tuple[type[Rule[Any]], ...]:
    """The rules for a run. The loss of one that learns from rewards is near zero all the time."""
    excluded = rules_learning.LOSS_RULES if config.uses_rewards else rules_rewards.RULES
    return tuple(rule for rule in RULES if rule not in excluded)


class Advisor:
    """Converts the events of one process, in order, to advice.

    `cores` (logical processors) and `can_spill` (GPU memory overflows into system memory) default to this machine's. A
    rule that raises is disabled; the run continues.
    """

    def __init__(
        self,
        config: Config,
        cores: int | None = None,
        can_spill: bool | None = None,
        rules: Iterable[type[Rule[Any]]] | None = None,
    ) -> None:
        can_spill = _driver_can_spill() if can_spill is None else can_spill
        self._run = RunHistory(config, cores or os.cpu_count() or 1, can_spill)
        self._rules = [rule() for rule in (rules_for(config) if rules is None else rules)]

    def process(self, event: protocol.AnyEvent) -> list[protocol.Advice]:
        """Return the advice that follows from `event`, which has its time; the advice has none yet."""
        self._run.process(event)
        advice = []
        for rule in [rule for rule in self._rules if isinstance(event, rule.event_type)]:
            try:
                found = rule.update(event, self._run)
            except Exception:  # must not end the run
                logging.getLogger(__name__).exception("the rule %s failed", rule.code)
                self._rules.remove(rule)
                continue
            if found is not None:
                advice.append(found)
        return advice


def _driver_can_spill() -> bool:
    """Windows drivers (also under WSL) let GPU memory overflow into system memory; others refuse."""
    return sys.platform == "win32" or "microsoft" in platform.release().lower()
