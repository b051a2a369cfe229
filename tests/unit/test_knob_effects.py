"""What knobs do to memory and speed is told for each that does, in both languages."""

from __future__ import annotations

from trainer_core.config import knobs
from trainer_core.knob_effects import EFFECTS, format_direction, format_effect

_TOLD = ("model", "training", "hardware")  # groups whose every knob has an effect worth a sentence


def test_every_knob_of_model_batch_precision_memory_and_loading_has_one() -> None:
    wanted = {name for name, knob in knobs().items() if knob.group in _TOLD}
    assert wanted - set(EFFECTS) == set()
    assert set(EFFECTS) - set(knobs()) == set()


def test_a_direction_is_worded_for_a_number_and_for_a_switch() -> None:
    assert format_direction(knobs()["n_layers"], "en") == "Higher: more memory, slower."
    assert format_direction(knobs()["tie_embeddings"], "zh") == "开启：占用更少内存。"
    assert format_direction(knobs()["mixed_precision"], "en") == ""  # its sentence says on what it depends
    assert format_effect(knobs()["seed"], "en").startswith("No effect on memory or speed.")
    assert format_effect(knobs()["text_column"], "en") == ""
