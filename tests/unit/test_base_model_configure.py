"""Settings that a base model determines; a learning rate that suits the other method is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_base_model_source import write_model
from trainer_core.base_model.configure import apply_base_model
from trainer_core.config import NEW_MODEL_KNOBS, Config
from trainer_core.messages import Value
from trainer_core.progress import Reporter

SMALL = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
}  # fmt: skip


def write_base(folder: Path, config: dict[str, Any]) -> Path:
    base = write_model(folder / "model", config)
    (base / "tokenizer.json").touch()
    return base


class Warnings(Reporter):
    def __init__(self) -> None:
        self.codes: list[str] = []

    def warn(self, code: str, **params: Value) -> None:
        self.codes.append(code)


@pytest.mark.parametrize(
    ("method", "rate", "hidden_size", "objective", "is_unusual"),
    [
        ("lora", 2e-5, 256, "likelihood", True),
        ("lora", 2e-4, 1024, "likelihood", False),
        ("full", 3e-4, 1024, "likelihood", True),
        ("full", 2e-5, 1024, "likelihood", False),
        ("full", 3e-4, 256, "likelihood", False),  # small models tolerate more
        ("lora", 5e-6, 1024, "dpo", False),
        ("lora", 5e-6, 1024, "grpo", False),
    ],
)
def test_the_learning_rate_of_the_other_method_is_reported(
    tmp_path: Path, method: Any, rate: float, hidden_size: int, objective: Any, is_unusual: bool
) -> None:
    base = write_base(tmp_path, {**SMALL, "hidden_size": hidden_size})
    found = Warnings()
    config = Config(base_model=str(base), method=method, learning_rate=rate, objective=objective)
    apply_base_model(config, found)
    assert found.codes == (["base_model.learning_rate"] if is_unusual else [])


def test_the_window_disables_the_settings_that_a_base_model_determines(tmp_path: Path) -> None:
    qwen = {
        **SMALL, "model_type": "qwen3", "hidden_size": 320, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "tie_word_embeddings": False,
    }  # fmt: skip
    config = Config(base_model=str(write_base(tmp_path, qwen)))
    applied = apply_base_model(config, Warnings())
    changed = {name for name in Config.__struct_fields__ if getattr(applied, name) != getattr(config, name)}
    assert changed - NEW_MODEL_KNOBS == {"tokenizer"}
    assert NEW_MODEL_KNOBS - changed == {"pre_tokenizer", "tokenizer_sample_mib", "qkv_bias"}
