"""Labels, help and units of the knobs in either language.

They live in YAML beside this file instead of in Qt's files: a knob is added in `trainer_core/config.py`,
where there is no Qt, and its Chinese words in one line here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import yaml

from app.i18n import FOLDER
from trainer_core.config import Knob
from trainer_core.knob_effects import NEITHER, effect_words
from trainer_core.messages import Language

# The C loader reads the Chinese table in 4 ms where the Python one takes 60, which is felt at start.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class KnobWords:
    """The words of one language."""

    language: Language
    table: dict[str, Any]

    def label(self, knob: Knob) -> str:
        if self.language == "zh":
            return str(self._entry(knob).get("label", knob.label))
        return str(self.table.get("labels", {}).get(knob.name, knob.label))

    def help(self, knob: Knob) -> str:
        return str(self._entry(knob).get("help", knob.help)) if self.language == "zh" else knob.help

    def effect(self, knob: Knob) -> str:
        """What it does to memory and speed; empty for what touches neither."""
        return effect_words(knob, self.language)

    def searched(self, knob: Knob) -> str:
        """All that a search goes through; that something has no effect on memory is not what one looks for there."""
        said = self.effect(knob).removeprefix(NEITHER[self.language])
        return " ".join((self.label(knob), self.help(knob), said)).lower()

    def unit(self, knob: Knob) -> str:
        return str(self.table.get("units", {}).get(knob.unit, knob.unit))

    def unit_beside(self, knob: Knob) -> str:
        """The unit beside a field: none where its label has said it ("Warmup steps")."""
        unit, label = self.unit(knob), self.label(knob).lower()
        said = unit in label if self.language == "zh" else unit in label.split()
        return "" if said else unit

    def value(self, knob: Knob, value: object) -> str:
        """One of a knob's choices; names that are the same everywhere (bf16, adamw) stay as they are."""
        return str(self.table.get("values", {}).get(value, value)) if knob.choices else str(value)

    def group(self, group: str) -> str:
        return str(self.table.get("groups", {}).get(group, group))

    def _entry(self, knob: Knob) -> dict[str, str]:
        entry = self.table.get("knobs", {}).get(knob.name, {})
        return entry if isinstance(entry, dict) else {}


@functools.cache
def knob_words(language: Language) -> KnobWords:
    """The words of `language`; English falls back to the knob's own name and help."""
    name = "knobs.zh_CN.yaml" if language == "zh" else "knobs.en.yaml"
    with (FOLDER / name).open(encoding="utf-8") as file:
        return KnobWords(language, yaml.load(file, Loader=_Loader))
