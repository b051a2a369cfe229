"""Settings of rewards, such as `number:0.01` and `-0.5*regex:PATTERN`. Standard library only, for the window."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_core.messages import TraindeckError

KINDS: Final = ("exact", "contains", "chrf", "number", "regex", "json-schema", "format", "length", "language")
_SETTING: Final = re.compile(
    r"(?:(?P<weight>-?(?:\d+\.?\d*|\.\d+))\s*\*\s*)?(?P<name>(?P<kind>[a-z-]+)(?::(?P<value>.*))?)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class RewardSetting:
    """`name`: the setting without the weight."""

    name: str
    weight: float
    kind: str
    value: str


def parse(setting: str) -> RewardSetting:
    """Raises `config.unknown_reward`."""
    found = _SETTING.fullmatch(setting.strip())
    if found is None or found["kind"] not in KINDS:
        raise TraindeckError("config.unknown_reward", reward=setting)
    return RewardSetting(found["name"], float(found["weight"] or 1), found["kind"], found["value"] or "")


def parse_all(settings: Sequence[str]) -> list[RewardSetting]:
    """Raises `config.no_rewards` or `config.unknown_reward`."""
    if not settings:
        raise TraindeckError("config.no_rewards")
    return list(map(parse, settings))


def with_absolute_files(settings: Sequence[str]) -> list[str]:
    """The settings with files that do not depend on the current folder."""
    files = [(setting.strip(), schema_file(setting)) for setting in settings]
    return [f"{setting.removesuffix(file)}{Path(file).absolute()}" if file else setting for setting, file in files]


def schema_file(setting: str) -> str:
    """The file at the end of a `json-schema:FILE` setting; empty for other rewards."""
    reward = parse(setting)
    return reward.value if reward.kind == "json-schema" else ""
