"""The effects of settings on memory and speed."""

from __future__ import annotations

from trainer_core import texts
from trainer_core.config import knobs
from trainer_core.knob_effects import EFFECTS, format_direction, format_effect


def test_every_setting_with_an_effect_has_an_effect_text() -> None:
    with_text = {name for name in knobs() if f"knob.{name}.effect" in texts.catalogue("en")}
    assert {name for names in EFFECTS.values() for name in names} <= with_text
    assert {name for name, knob in knobs().items() if knob.group in ("model", "training", "hardware")} <= with_text


def test_the_direction_of_an_effect_is_formatted_for_numbers_and_switches() -> None:
    assert format_direction(knobs()["n_layers"], "en") == "Higher: more memory, slower."
    assert format_direction(knobs()["tie_embeddings"], "zh") == "开启：占用更少内存。"
    assert format_direction(knobs()["mixed_precision"], "en") == ""  # the effect text explains what it depends on
    assert format_effect(knobs()["seed"], "en").startswith("No effect on memory or speed.")
    assert format_effect(knobs()["text_column"], "en") == ""
