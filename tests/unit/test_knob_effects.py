"""What knobs do to memory and speed is told for each that does, in both languages."""

from __future__ import annotations

import re

import pytest

from trainer_core.config import knobs
from trainer_core.knob_effects import EFFECTS, direction, effect_words

_TOLD = ("model", "training", "hardware")  # groups whose every knob has an effect worth a sentence


def test_every_knob_of_model_batch_precision_memory_and_loading_has_one() -> None:
    wanted = {name for name, knob in knobs().items() if knob.group in _TOLD}
    assert wanted - set(EFFECTS) == set()
    assert set(EFFECTS) - set(knobs()) == set()


@pytest.mark.parametrize("name", EFFECTS)
def test_an_effect_is_a_sentence_in_either_language(name: str) -> None:
    effect = EFFECTS[name]
    assert re.fullmatch(r"[^\u4e00-\u9fff]+\.", effect.english)
    assert re.fullmatch(r".*[\u4e00-\u9fff].*。", effect.chinese)


def test_a_direction_is_worded_for_a_number_and_for_a_switch() -> None:
    assert direction(knobs()["n_layers"], "en") == "Higher: more memory, slower."
    assert direction(knobs()["tie_embeddings"], "zh") == "开启：占用更少内存。"
    assert direction(knobs()["mixed_precision"], "en") == ""  # its sentence says on what it depends
    assert effect_words(knobs()["seed"], "en").startswith("No effect on memory or speed.")
    assert effect_words(knobs()["text_column"], "en") == ""
