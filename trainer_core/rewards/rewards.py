"""Rewards as settings: `exact`, `number:0.01`, `2*exact`, `-0.5*regex:PATTERN`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_core.messages import TraindeckError
from trainer_core.rewards.functions import FUNCTIONS, WITH_REFERENCE, Answer, RewardFunction

_SETTING: Final = re.compile(
    r"(?:(?P<weight>-?(?:\d+\.?\d*|\.\d+))\s*\*\s*)?(?P<name>(?P<kind>[a-z-]+)(?::(?P<value>.*))?)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Reward:
    """A weighted part of the reward. `name`: its setting without the weight."""

    name: str
    weight: float
    score: RewardFunction
    needs_reference: bool


class Rewards:
    """The weighted sum of `parts`."""

    def __init__(self, parts: Sequence[Reward]) -> None:
        self.parts = parts

    @property
    def names(self) -> list[str]:
        return [part.name for part in self.parts]

    @property
    def needs_reference(self) -> bool:
        return any(part.needs_reference for part in self.parts)

    def scores(self, answer: Answer) -> list[float]:
        """The score of each part, from 0 to 1."""
        return [part.score(answer) for part in self.parts]

    def total(self, scores: Sequence[float]) -> float:
        """The reward of an answer with these scores."""
        return sum(part.weight * score for part, score in zip(self.parts, scores, strict=True))

    def mean(self, answers: Sequence[Answer]) -> float:
        """The mean reward."""
        return sum(self.total(self.scores(answer)) for answer in answers) / len(answers)


def load_rewards(settings: Sequence[str]) -> Rewards:
    """Read rewards, each `NAME` or `NAME:VALUE` of `FUNCTIONS`, after an optional weight as in `2*exact`.

    Raises `config.no_rewards`, `config.unknown_reward` or `config.bad_reward`.
    """
    if not settings:
        raise TraindeckError("config.no_rewards")
    return Rewards([_read(setting) for setting in settings])


def with_absolute_files(settings: Sequence[str]) -> list[str]:
    """The settings with files that do not depend on the current folder."""
    files = [(setting.strip(), schema_file(setting)) for setting in settings]
    return [f"{setting.removesuffix(file)}{Path(file).absolute()}" if file else setting for setting, file in files]


def schema_file(setting: str) -> str:
    """The file at the end of a `json-schema:FILE` setting; empty for other rewards."""
    found = _SETTING.fullmatch(setting.strip())
    return found["value"] or "" if found is not None and found["kind"] == "json-schema" else ""


def _read(setting: str) -> Reward:
    found = _SETTING.fullmatch(setting.strip())
    if found is None or found["kind"] not in FUNCTIONS:
        raise TraindeckError("config.unknown_reward", reward=setting)
    kind = found["kind"]
    try:
        score = FUNCTIONS[kind](found["value"] or "")
    except (LookupError, ValueError) as error:
        raise TraindeckError("config.unknown_reward", str(error), reward=setting) from error
    except TraindeckError as error:
        raise TraindeckError("config.bad_reward", reward=setting, reason=error.params["reason"]) from error
    return Reward(found["name"], float(found["weight"] or 1), score, kind in WITH_REFERENCE)
