"""The reward of an answer: the weighted sum of reward functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer_core.messages import TraindeckError
from trainer_core.rewards import setting
from trainer_core.rewards.functions import FUNCTIONS, WITH_REFERENCE, Answer, RewardFunction
from trainer_core.rewards.setting import RewardSetting


@dataclass(frozen=True, slots=True)
class Reward:
    """A weighted part of the reward."""

    setting: RewardSetting
    score: RewardFunction


class Rewards:
    """The weighted sum of `parts`. `too_slow`: names of parts whose pattern took too long for an answer."""

    def __init__(self, parts: Sequence[Reward]) -> None:
        self.parts = parts
        self.too_slow = set[str]()

    @property
    def names(self) -> list[str]:
        return [part.setting.name for part in self.parts]

    @property
    def needs_reference(self) -> bool:
        return any(part.setting.kind in WITH_REFERENCE for part in self.parts)

    def scores(self, answer: Answer) -> list[float]:
        """The score of each part, from 0 to 1; 0 for one that took too long."""
        return [self._score(part, answer) for part in self.parts]

    def _score(self, part: Reward, answer: Answer) -> float:
        try:
            return part.score(answer)
        except TimeoutError:
            self.too_slow.add(part.setting.name)
            return 0.0

    def total(self, scores: Sequence[float]) -> float:
        """The reward of an answer with these scores."""
        return sum(part.setting.weight * score for part, score in zip(self.parts, scores, strict=True))

    def mean(self, answers: Sequence[Answer]) -> float:
        """The mean reward."""
        return sum(self.total(self.scores(answer)) for answer in answers) / len(answers)


def load_rewards(settings: Sequence[str]) -> Rewards:
    """Read rewards, each `NAME` or `NAME:VALUE` of `FUNCTIONS`, after an optional weight as in `2*exact`.

    Raises `config.no_rewards`, `config.unknown_reward`, `config.bad_reward_value` or `config.bad_reward`.
    """
    return Rewards([Reward(one, _load_function(one)) for one in setting.parse_all(settings)])


def _load_function(reward: RewardSetting) -> RewardFunction:
    if not math.isfinite(reward.weight):
        raise TraindeckError("config.bad_reward_value", reward=reward.name, value=str(reward.weight))
    try:
        return FUNCTIONS[reward.kind](reward.value)
    except (LookupError, ValueError) as error:
        raise TraindeckError("config.bad_reward_value", str(error), reward=reward.kind, value=reward.value) from error
    except TraindeckError as error:
        raise TraindeckError("config.bad_reward", reward=reward.name, reason=error.params["reason"]) from error
