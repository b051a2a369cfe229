"""Decides when the findings of rules become advice: only lasting ones, each once, and again when it is resolved."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.train.advice import rules_hardware, rules_learning, rules_speed
from trainer_core.train.advice.rule import Finding, Rule, RunHistory

REPEAT_INTERVAL_S: Final = 900.0  # from resolved advice to the same advice again: users ignore what comes and goes
MAX_REPEATS: Final = 3  # of the same advice in one process

RULES: Final[tuple[type[Rule[Any]], ...]] = (*rules_speed.RULES, *rules_hardware.RULES, *rules_learning.RULES)


@dataclass(slots=True)
class _RuleState:
    rule: Rule[Any]
    findings: int = 0  # consecutive
    first_finding: float = 0.0  # seconds since the epoch
    cleared: int = 0  # consecutive `False`
    is_active: bool = False  # emitted and not resolved
    emitted: int = 0  # times
    params: dict[str, protocol.Param] = field(default_factory=dict)  # of the emitted advice
    resolved_at: float | None = None

    def update(self, event: protocol.AnyEvent, run: RunHistory) -> protocol.Advice | None:
        """Evaluate an event; returns advice to emit."""
        verdict = self.rule.evaluate(event, run)
        code, now = self.rule.code, event.t
        if isinstance(verdict, Finding):
            self.first_finding = now if self.findings == 0 else min(self.first_finding, now)  # clocks may be set back
            self.findings, self.cleared = self.findings + 1, 0
            if not self._may_emit(now):
                return None
            self.is_active, self.emitted, self.params = True, self.emitted + 1, verdict.params
            settings = verdict.suggested_settings
            return protocol.Advice(code=code, params=verdict.params, step=run.step, suggested_settings=settings)
        if verdict is False:
            self.findings, self.cleared = 0, self.cleared + 1
            if self.is_active and self.cleared >= self.rule.clear_after:
                self.is_active, self.resolved_at = False, now
                return protocol.Advice(code=code, params=self.params, step=run.step, resolved=True)
        return None

    def _may_emit(self, now: float) -> bool:
        if self.is_active or self.emitted >= MAX_REPEATS:
            return False
        if self.findings < self.rule.activate_after or now - self.first_finding < self.rule.min_duration_s:
            return False
        return self.resolved_at is None or not 0 <= now - self.resolved_at < REPEAT_INTERVAL_S


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
        rules: Iterable[type[Rule[Any]]] = RULES,
    ) -> None:
        can_spill = _driver_can_spill() if can_spill is None else can_spill
        self._run = RunHistory(config, cores or os.cpu_count() or 1, can_spill)
        self._states = [_RuleState(rule()) for rule in rules]

    def process(self, event: protocol.AnyEvent) -> list[protocol.Advice]:
        """Return the advice that follows from `event`, which has its time; the advice has none yet."""
        self._run.process(event)
        advice = []
        for state in list(self._states):
            if not isinstance(event, state.rule.event_types):
                continue
            try:
                found = state.update(event, self._run)
            except Exception:  # must not end the run
                logging.getLogger(__name__).exception("the rule %s failed", state.rule.code)
                self._states.remove(state)
                continue
            if found is not None:
                advice.append(found)
        return advice


def _driver_can_spill() -> bool:
    """Windows drivers (also under WSL) let GPU memory overflow into system memory; others refuse."""
    return sys.platform == "win32" or "microsoft" in platform.release().lower()
