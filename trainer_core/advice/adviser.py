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
from trainer_core.advice import rules_learning, rules_machine, rules_speed
from trainer_core.advice.rule import Holds, Rule, Run
from trainer_core.config import Config

AGAIN_S: Final = 900.0  # what was over is not said again for so long: advice that comes and goes is ignored
MOST: Final = 3  # and not more often than this in one process

RULES: Final[tuple[type[Rule], ...]] = (*rules_speed.RULES, *rules_machine.RULES, *rules_learning.RULES)


@dataclass(slots=True)
class _Standing:
    """A rule, and how it stands."""

    rule: Rule
    held: int = 0  # events in a row
    since: float = 0.0  # when the first of them was, seconds since the epoch
    fine: int = 0  # events in a row
    said: bool = False  # and not over
    times: int = 0  # that it was said
    params: dict[str, protocol.Param] = field(default_factory=dict)  # that it was said with
    over_at: float | None = None

    def judge(self, event: protocol.AnyEvent, run: Run) -> protocol.Advice | None:
        """What is to be said now, if anything."""
        verdict = self.rule.look(event, run)
        if isinstance(verdict, Holds):
            self.since = event.t if self.held == 0 else min(self.since, event.t)  # the clock may be set back
            self.held, self.fine = self.held + 1, 0
            return self._say(verdict, event.t, run.step) if self._may_say(event.t) else None
        if verdict is False:
            self.held, self.fine = 0, self.fine + 1
            if self.said and self.fine >= self.rule.cleared:
                self.said, self.over_at = False, event.t
                return protocol.Advice(code=self.rule.code, params=self.params, step=run.step, over=True)
        return None

    def _may_say(self, now: float) -> bool:
        if self.said or self.held < self.rule.needed or now - self.since < self.rule.lasting_s or self.times >= MOST:
            return False
        return self.over_at is None or not 0 <= now - self.over_at < AGAIN_S

    def _say(self, holds: Holds, now: float, step: int | None) -> protocol.Advice:
        self.said, self.times, self.params = True, self.times + 1, holds.params
        return protocol.Advice(code=self.rule.code, params=holds.params, step=step, fix=holds.fix)


class Adviser:
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
        self._run = Run(config, cores or os.cpu_count() or 1, _spills_here() if spills is None else spills)
        self._standings = [_Standing(rule()) for rule in rules]

    def take(self, event: protocol.AnyEvent) -> list[protocol.Advice]:
        """What this event gives rise to, most often nothing. `event` has its time; what comes back has none yet."""
        if isinstance(event, protocol.Advice):
            return []
        self._run.take(event)
        said = []
        for standing in list(self._standings):
            try:
                advice = standing.judge(event, self._run)
            except Exception:  # advice must never end a run; the log tells which rule it was
                logging.getLogger(__name__).exception("the rule %s failed", standing.rule.code)
                self._standings.remove(standing)
                continue
            if advice is not None:
                said.append(advice)
        return said


def _spills_here() -> bool:
    """Drivers of Windows, its Linux too, let GPU memory overflow into system memory; others refuse."""
    return sys.platform == "win32" or "microsoft" in platform.release().lower()
