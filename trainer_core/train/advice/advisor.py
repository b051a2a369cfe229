"""Which advice is said, and when: only what lasts, once, and that it is over when it is."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.train.advice import learning_rules, machine_rules, speed_rules
from trainer_core.train.advice.rule import Finding, Rule, RunHistory

REPEAT_INTERVAL_S: Final = 900.0  # what was over is not said again for so long: advice that comes and goes is ignored
MAX_ACTIVE: Final = 3  # and not more often than this in one process

RULES: Final[tuple[type[Rule], ...]] = (*speed_rules.RULES, *machine_rules.RULES, *learning_rules.RULES)


@dataclass(slots=True)
class _RuleState:
    """A rule, and how it stands."""

    rule: Rule
    active_since: int = 0  # events in a row
    since: float = 0.0  # when the first of them was, seconds since the epoch
    inactive_since: int = 0  # events in a row
    is_active: bool = False  # and not over
    num_emitted: int = 0  # that it was said
    params: dict[str, protocol.Param] = field(default_factory=dict)  # that it was said with
    resolved_at: float | None = None

    def update(self, event: protocol.AnyEvent, run: RunHistory) -> protocol.Advice | None:
        """What is to be said now, if anything."""
        verdict = self.rule.evaluate(event, run)
        if isinstance(verdict, Finding):
            self.since = event.t if self.active_since == 0 else min(self.since, event.t)  # the clock may be set back
            self.active_since, self.inactive_since = self.active_since + 1, 0
            return self._build_advice(verdict, event.t, run.step) if self._may_emit(event.t) else None
        if verdict is False:
            self.active_since, self.inactive_since = 0, self.inactive_since + 1
            if self.is_active and self.inactive_since >= self.rule.clear_after:
                self.is_active, self.resolved_at = False, event.t
                return protocol.Advice(code=self.rule.code, params=self.params, step=run.step, resolved=True)
        return None

    def _may_emit(self, now: float) -> bool:
        if (
            self.is_active
            or self.active_since < self.rule.activate_after
            or now - self.since < self.rule.min_duration_s
            or self.num_emitted >= MAX_ACTIVE
        ):
            return False
        return self.resolved_at is None or not 0 <= now - self.resolved_at < REPEAT_INTERVAL_S

    def _build_advice(self, holds: Finding, now: float, step: int | None) -> protocol.Advice:
        self.is_active, self.num_emitted, self.params = True, self.num_emitted + 1, holds.params
        return protocol.Advice(
            code=self.rule.code, params=holds.params, step=step, suggested_settings=holds.suggested_settings
        )


class Advisor:
    """Takes the events of one process in their order, and says what would make the run better.

    `cores`: logical processors; `spills`: whether GPU memory overflows into system memory here. Both are of this
    machine unless they are given. A fault in a rule ends that rule, never the run.
    """

    def __init__(
        self,
        config: Config,
        cores: int | None = None,
        spills: bool | None = None,
        rules: Iterable[type[Rule]] = RULES,
    ) -> None:
        self._run = RunHistory(config, cores or os.cpu_count() or 1, _can_spill() if spills is None else spills)
        self._standings = [_RuleState(rule()) for rule in rules]

    def process(self, event: protocol.AnyEvent) -> list[protocol.Advice]:
        """What this event gives rise to, most often nothing. `event` has its time; what comes back has none yet."""
        if isinstance(event, protocol.Advice):
            return []
        self._run.process(event)
        said = []
        for standing in list(self._standings):
            try:
                advice = standing.update(event, self._run)
            except Exception:  # advice must never end a run; the log tells which rule it was
                logging.getLogger(__name__).exception("the rule %s failed", standing.rule.code)
                self._standings.remove(standing)
                continue
            if advice is not None:
                said.append(advice)
        return said


def _can_spill() -> bool:
    """Drivers of Windows, its Linux too, let GPU memory overflow into system memory; others refuse."""
    return sys.platform == "win32" or "microsoft" in platform.release().lower()
