"""Presets: loading, inheritance, and error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_core import presets
from trainer_core.base_model import catalogue
from trainer_core.messages import TraindeckError

DOCUMENTED: dict[str, dict[str, object]] = {
    "cpu": {
        "batch_size": 4,
        "hidden_dim": 512,
        "n_layers": 6,
        "gradient_accumulation_steps": 8,
        "mixed_precision": "no",
    },
    "gpu": {"batch_size": 16, "hidden_dim": 256, "n_layers": 3, "gradient_accumulation_steps": 2},
    "gpu_small": {"batch_size": 8, "hidden_dim": 128, "n_layers": 2},
    "gpu_large": {"batch_size": 32, "hidden_dim": 512, "n_layers": 6},
    "a6000": {
        "batch_size": 32,
        "gradient_accumulation_steps": 4,
        "num_workers": 8,
        "prefetch_factor": 4,
        "pin_memory": True,
        "persistent_workers": True,
        "mixed_precision": "bf16",
    },
    "pretrain_large": {
        "batch_size": 32,
        "gradient_accumulation_steps": 2,
        "max_seq_len": 192,
        "mixed_precision": "bf16",
        "learning_rate": 1e-4,
        "warmup_steps": 1024,
        "max_epochs": 3,
        "save_steps": 5000,
        "log_steps": 100,
        "keep_best": 5,
        "low_memory": True,
    },
    "gpt2_124m": {"n_layers": 12, "n_heads": 12, "hidden_dim": 768, "max_seq_len": 1024},
    "quickstart": {"data": ["builtin:python"]},
    "quickstart_sft": {"data": ["builtin:tasks"], "task": "sft"},
    "quickstart_finetune": {"base_model": "preset:quickstart_sft", "data": ["builtin:new_tasks"], "method": "lora"},
    **{
        f"finetune_{card}": {"method": "lora", "learning_rate": 2e-4, "packing": True, "attend_across_documents": False}
        for card in ("cpu", "8gb", "12gb", "16gb", "24gb", "48gb")
    },
    **{
        f"dpo_{card}": {
            "objective": "dpo",
            "preference_beta": 0.1,
            "method": "lora",
            "learning_rate": 5e-5 if card == "cpu" else 5e-6,
        }
        for card in ("cpu", "8gb", "24gb")
    },
    "grpo_small": {"objective": "grpo", "rewards": ["number"], "method": "lora", "group_size": 8},
}


def write_preset(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", presets.names())
def test_every_shipped_preset_is_a_valid_configuration(name: str) -> None:
    config = presets.load(name).config()
    assert config.preset == name
    assert config.warmup_steps < (config.max_steps or 10**9)


@pytest.mark.parametrize("name", presets.names())
def test_every_shipped_preset_is_described_in_both_languages(name: str) -> None:
    preset = presets.load(name)
    for text in (preset.title, preset.summary, preset.fits):
        assert text.keys() == {"en", "zh"}
        assert all(text.values())
    assert preset.origin


def test_the_shipped_presets_have_the_documented_values() -> None:
    assert set(presets.names()) == set(DOCUMENTED)
    for name, values in DOCUMENTED.items():
        config = presets.load(name).config()
        assert {key: getattr(config, key) for key in values} == values, name


def test_for_gpu_is_inherited() -> None:
    names = {name for name in presets.names() if presets.load(name).for_gpu}
    without = {"cpu", "finetune_cpu", "dpo_cpu", "quickstart", "quickstart_sft", "quickstart_finetune"}
    assert names == set(DOCUMENTED) - without


def test_an_unknown_name_is_reported_with_similar_or_all_names() -> None:
    with pytest.raises(TraindeckError) as caught:
        presets.load("nope")
    assert caught.value.code == "config.no_such_preset"
    assert str(caught.value.params["known"]).split(", ") == presets.names()
    for name in ("quickstat", "Quick-Start"):
        with pytest.raises(TraindeckError) as caught:
            presets.load(name)
        assert (caught.value.code, caught.value.params["nearest"]) == ("config.unknown_preset", "quickstart")


def test_only_the_quick_starts_have_data() -> None:
    with_data = {name for name in presets.names() if presets.load(name).config().data}
    assert with_data == {"quickstart", "quickstart_sft", "quickstart_finetune"}


def test_quick_starts_are_listed_first_and_presets_to_fine_tune_last_by_memory() -> None:
    names = presets.names()
    assert names[:3] == ["quickstart", "quickstart_sft", "quickstart_finetune"]
    assert names[-6:] == [f"finetune_{card}" for card in ("cpu", "8gb", "12gb", "16gb", "24gb", "48gb")]


@pytest.mark.parametrize("gib", [8, 12, 16, 24, 48])
def test_the_model_of_a_preset_to_fine_tune_fits_its_card_by_the_estimate(gib: int) -> None:
    preset = presets.load(f"finetune_{gib}gb")
    config = preset.config()
    model = next(model for model in catalogue.load() if model.id == config.base_model)
    assert not model.gated
    assert catalogue.estimate_memory(model.shape, model.parameters, "lora", config.max_seq_len) < 0.85 * gib * 2**30
    assert config.batch_size == 1
    assert config.max_seq_len <= model.context
    assert f"{model.download_bytes / 2**30:.1f} GiB" in preset.summary["en"]
    assert f"{model.download_bytes / 2**30:.1f} GiB" in preset.summary["zh"]


def test_the_gpt2_preset_has_the_documented_number_of_parameters() -> None:
    preset = presets.load("gpt2_124m")
    c = preset.config()
    layer = 4 * c.hidden_dim**2 + 3 * c.hidden_dim * c.mlp_dim + 2 * c.hidden_dim
    for vocab in (50304, 50257):
        total = vocab * c.hidden_dim + c.n_layers * layer + c.hidden_dim
        assert f"{total:,}" in preset.origin
        assert total == pytest.approx(124e6, rel=0.01)


def test_a_preset_inherits_values(tmp_path: Path) -> None:
    write_preset(tmp_path, "base", "knobs: {batch_size: 4, n_layers: 6}")
    write_preset(tmp_path, "derived", "extends: base\nknobs: {batch_size: 8}")
    assert presets.load("derived", tmp_path).knobs == {"batch_size": 8, "n_layers": 6}


def test_a_preset_replaces_automatic_sequences_and_steps_as_the_command_line_does(tmp_path: Path) -> None:
    write_preset(tmp_path, "base", "knobs: {batch_size: auto, max_steps: 100}")
    write_preset(tmp_path, "derived", "extends: base\nknobs: {batch_size: 4, max_epochs: 3}")
    assert presets.load("derived", tmp_path).knobs == {"batch_size": 4, "max_epochs": 3}


def test_a_cycle_of_presets_is_rejected(tmp_path: Path) -> None:
    write_preset(tmp_path, "a", "extends: b")
    write_preset(tmp_path, "b", "extends: a")
    with pytest.raises(TraindeckError) as caught:
        presets.load("a", tmp_path)
    assert caught.value.code == "config.preset_loop"
    assert caught.value.params["chain"] == "a → b → a"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("knobs: {batch_sise: 4}", "config.unknown_key"),
        ("knob: {batch_size: 4}", "config.unknown_key"),
        ("knobs: {batch_size: 0}", "config.bad_value"),
        ("knobs: [batch_size]", "config.unreadable"),
        ("knobs: batch_size", "config.unreadable"),
        ("knobs: {1: 2}", "config.unreadable"),
        ("title: [a]", "config.unreadable"),
        ("- a list", "config.unreadable"),
        ("title: {en: ", "config.unreadable"),
        ("extends: nobody", "config.no_such_preset"),
        ("title: 中文".encode("gbk"), "config.unreadable"),
    ],
)
def test_an_invalid_preset_is_rejected(tmp_path: Path, content: str | bytes, code: str) -> None:
    (tmp_path / "mine.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(TraindeckError) as caught:
        presets.load("mine", tmp_path)
    assert caught.value.code == code


def test_a_title_may_be_the_same_text_in_all_languages(tmp_path: Path) -> None:
    write_preset(tmp_path, "mine", "title: Mine")
    preset = presets.load("mine", tmp_path)
    assert preset.localized(preset.title, "zh") == "Mine"


def test_an_empty_preset_has_the_defaults(tmp_path: Path) -> None:
    write_preset(tmp_path, "mine", "")
    assert presets.load("mine", tmp_path).config().batch_size == 16
