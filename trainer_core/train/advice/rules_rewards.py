"""Advice on learning from rewards: no signal, collapsed entropy, divergence, answers that grow."""

from __future__ import annotations

from statistics import mean
from typing import Any, Final

from trainer_core import protocol
from trainer_core.rewards import setting
from trainer_core.train.advice.rule import Rule, RuleMatch, RunHistory, Verdict, lower_rate, percent, round_significant

_FIRST_EVENTS: Final = 3  # that later ones are compared with
_NO_SIGNAL: Final = 0.9  # of the prompts; half of them are common, also late in a good run
_SOLVED: Final = 0.9  # of the highest mean reward: above it, equal rewards and a low entropy are success
_COLLAPSED: Final = 0.1  # of the entropy at the start
_RUNAWAY_KL: Final = 0.5  # nats a token: useful changes of a model are far below
_GROWTH: Final = 2.0  # times the length at the start
_MIN_GROWTH: Final = 16  # tokens
_CUT_OFF: Final = 0.5  # of the answers


class NoSignal(Rule[protocol.Rollouts], code="advice.no_signal"):
    """The answers to nearly every prompt have the same reward."""

    def evaluate(self, event: protocol.Rollouts, run: RunHistory) -> Verdict:
        if event.no_signal_ratio < _NO_SIGNAL or _is_solved(event, run):
            return False
        settings = {"group_size": 2 * run.config.group_size} if max(event.scores.values()) > 0 else {}
        return RuleMatch(
            {"percent": percent(event.no_signal_ratio), "reward": round_significant(event.reward)}, settings
        )


class EntropyCollapse(Rule[protocol.Step | protocol.Rollouts], code="advice.entropy_collapse"):
    """The model repeats the same answers, although they are not right."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._solved = False

    def evaluate(self, event: protocol.Step | protocol.Rollouts, run: RunHistory) -> Verdict:
        if isinstance(event, protocol.Rollouts):
            self._solved = _is_solved(event, run)
            return None
        if event.entropy is None:
            return None
        if len(self._first) < _FIRST_EVENTS:
            self._first.append(event.entropy)
            return None
        if self._solved or event.entropy > _COLLAPSED * mean(self._first):
            return False
        values = {"before": round_significant(mean(self._first)), "now": round_significant(event.entropy)}
        return RuleMatch({**values}, lower_rate(run))


class KlRunaway(Rule[protocol.Step], code="advice.kl_runaway"):
    """The model moves far away from the model before training."""

    def evaluate(self, event: protocol.Step, run: RunHistory) -> Verdict:
        if event.kl is None or not run.config.kl_beta:
            return None
        if event.kl < _RUNAWAY_KL:
            return False
        return RuleMatch({"kl": round_significant(event.kl)}, {"kl_beta": round_significant(3 * run.config.kl_beta, 2)})


class LongAnswers(Rule[protocol.Rollouts], code="advice.long_answers"):
    """Answers grow: a reward may favor long ones."""

    def __init__(self) -> None:
        self._first: list[float] = []

    def evaluate(self, event: protocol.Rollouts, run: RunHistory) -> Verdict:
        if len(self._first) < _FIRST_EVENTS:
            self._first.append(event.answer_tokens)
            return None
        before = mean(self._first)
        if event.answer_tokens < max(_GROWTH * before, before + _MIN_GROWTH):
            return False
        return RuleMatch({"before": round(before), "now": round(event.answer_tokens)})


class AnswersCutOff(Rule[protocol.Rollouts], code="advice.answers_cut_off"):
    """Many answers do not end."""

    def evaluate(self, event: protocol.Rollouts, run: RunHistory) -> Verdict:
        if event.truncated_ratio < _CUT_OFF:
            return False
        limit, context = run.config.rollout_max_new_tokens, run.config.max_seq_len
        settings = {"rollout_max_new_tokens": 2 * limit} if 2 * limit < context else {}
        return RuleMatch({"percent": percent(event.truncated_ratio), "limit": limit, "context": context}, settings)


def _is_solved(event: protocol.Rollouts, run: RunHistory) -> bool:
    """Whether the reward is near the highest possible one."""
    weights = [reward.weight for reward in setting.parse_all(run.config.rewards)]
    highest, lowest = (sum(weight for weight in weights if (weight > 0) == wanted) for wanted in (True, False))
    return event.reward >= lowest + _SOLVED * (highest - lowest)


RULES: Final[tuple[type[Rule[Any]], ...]] = (NoSignal, EntropyCollapse, KlRunaway, LongAnswers, AnswersCutOff)
