"""Labels, help texts and units of the settings, in the window's language."""

from __future__ import annotations

from typing import Final

from app.texts import current_language
from trainer_core import texts
from trainer_core.config import Knob
from trainer_core.knob_effects import format_effect
from trainer_core.texts import Language

_LANGUAGES: Final[tuple[Language, ...]] = ("en", "zh")


def knob_label(knob: Knob) -> str:
    return texts.get(f"knob.{knob.name}.label", current_language())


def knob_help(knob: Knob) -> str:
    return texts.get(f"knob.{knob.name}.help", current_language())


def knob_effect(knob: Knob) -> str:
    """Return the effect on memory and speed; empty for a setting that has none."""
    return format_effect(knob, current_language())


def knob_search_text(knob: Knob) -> str:
    """Return what a search looks through, in both languages and lower case."""
    parts = [knob.name, knob.flag, *knob.choices]
    for language in _LANGUAGES:
        parts += [texts.get(f"knob.{knob.name}.{part}", language) for part in ("label", "help")]
        # "No effect on memory or speed" would match too much.
        parts.append(format_effect(knob, language).removeprefix(texts.get("knob_effect.no_effect", language)))
    return " ".join(parts).lower()


def knob_unit_suffix(knob: Knob) -> str:
    """Return the unit beside a field; empty if the label contains it ("Warmup steps")."""
    unit, label = _find(f"knob_unit.{knob.unit}", knob.unit), knob_label(knob).lower()
    is_in_label = unit in label if current_language() == "zh" else unit in label.split()
    return "" if is_in_label else unit


def knob_value_label(knob: Knob, value: object) -> str:
    """Return the text of a choice; names that are the same everywhere (bf16, adamw) are not translated."""
    if not knob.choices:
        return str(value)
    return _find(f"knob_value.{knob.name}.{value}", _find(f"knob_value.{value}", str(value)))


def knob_group_title(group: str) -> str:
    return _find(f"knob_group.{group}", group)


def _find(key: str, default: str) -> str:
    return texts.catalogue(current_language()).get(key, default)
