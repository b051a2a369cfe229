"""Labels, help texts and units of the settings, in either language."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from trainer_core import texts
from trainer_core.config import Knob
from trainer_core.knob_effects import format_effect
from trainer_core.texts import Language


@dataclass(frozen=True, slots=True)
class KnobTexts:
    """Texts of all settings in one language."""

    language: Language

    def label(self, knob: Knob) -> str:
        return texts.get(f"knob.{knob.name}.label", self.language)

    def help(self, knob: Knob) -> str:
        return texts.get(f"knob.{knob.name}.help", self.language)

    def effect(self, knob: Knob) -> str:
        """Return the effect on memory and speed; empty for a setting that has none."""
        return format_effect(knob, self.language)

    def search_text(self, knob: Knob) -> str:
        """Return what a search looks through. "No effect on memory or speed" is left out: it would match too much."""
        effect = self.effect(knob).removeprefix(texts.get("knob_effect.no_effect", self.language))
        return " ".join((self.label(knob), self.help(knob), effect)).lower()

    def unit(self, knob: Knob) -> str:
        return self._find(f"knob_unit.{knob.unit}", knob.unit)

    def unit_suffix(self, knob: Knob) -> str:
        """Return the unit shown beside a field; empty where the label contains it ("Warmup steps")."""
        unit, label = self.unit(knob), self.label(knob).lower()
        contained = unit in label if self.language == "zh" else unit in label.split()
        return "" if contained else unit

    def value_label(self, knob: Knob, value: object) -> str:
        """Return the text of one choice; names that are the same everywhere (bf16, adamw) stay as they are."""
        return self._find(f"knob_value.{value}", str(value)) if knob.choices else str(value)

    def group_title(self, group: str) -> str:
        return self._find(f"knob_group.{group}", group)

    def _find(self, key: str, default: str) -> str:
        return texts.catalogue(self.language).get(key, default)


@functools.cache
def knob_texts(language: Language) -> KnobTexts:
    """Return the texts of `language`."""
    return KnobTexts(language)
