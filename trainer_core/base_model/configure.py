"""Settings of a run that follow from its base model. No torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import msgspec

from trainer_core.base_model import preset_run, source
from trainer_core.base_model.source import BaseModel
from trainer_core.config import Config, knobs
from trainer_core.data.tokenizing.tokenizer_files import COMPANION_FILES, TOKENIZER_FILE
from trainer_core.messages import TraindeckError
from trainer_core.models import hf_config
from trainer_core.models.model_config import LanguageModelConfig, ModelConfig
from trainer_core.progress import Reporter
from trainer_core.system import files

_MAX_FULL_RATE: Final = 1e-4
_MIN_LORA_RATE: Final = 5e-5
_MIN_HIDDEN_DIM: Final = 512  # smaller models tolerate a higher rate


def apply_base_model(config: Config, reporter: Reporter, copied: Path | None = None) -> Config:
    """Find the base model, and set the settings that it determines: tokenizer (its folder) and architecture.

    `copied`: what `copy_files` wrote, which replaces the base model.

    Raises what `source.resolve` and `preset_run.find_or_train` raise, `base_model.missing_file`, `model.unsupported`,
    `model.bad_config`, `model.tokenizer_given`, `model.too_few_positions`, `config.lora_without_base` or
    `config.qlora_transformers`.
    """
    if not config.base_model:
        if config.method != "full":
            raise TraindeckError("config.lora_without_base", method=config.method)
        return config
    base = BaseModel(copied, source.read_config(copied), config.base_model, ()) if copied else _find(config, reporter)
    folder = str(base.folder)
    if not (base.folder / TOKENIZER_FILE).is_file():
        raise TraindeckError("base_model.missing_file", path=folder, file=TOKENIZER_FILE)
    if config.tokenizer and Path(config.tokenizer) != base.folder:
        raise TraindeckError("model.tokenizer_given", tokenizer=config.tokenizer, path=folder)
    model = hf_config.from_hf_config(base.config, folder)
    if config.method == "qlora" and not isinstance(model, ModelConfig):
        raise TraindeckError("config.qlora_transformers", path=folder)
    if config.max_seq_len > model.max_positions:
        limit, wanted = model.max_positions, config.max_seq_len
        raise TraindeckError("model.too_few_positions", path=folder, limit=limit, wanted=wanted)
    _warn_of_learning_rate(config, model, reporter)
    return msgspec.structs.replace(config, base_model=base.origin, tokenizer=folder, **_knobs(model))


def _find(config: Config, reporter: Reporter) -> BaseModel:
    text = config.base_model
    if text.startswith(preset_run.PREFIX):
        text = str(preset_run.find_or_train(text.removeprefix(preset_run.PREFIX), config.device, reporter))
    return source.resolve(text, reporter, config.hub_endpoint, config.hub_send_token)


def copy_files(config: Config, target: Path) -> None:
    """Copy the configuration and the tokenizer of the base model that `apply_base_model` found. Raises `OSError`."""
    for name in (TOKENIZER_FILE, *COMPANION_FILES, source.CONFIG_FILE):  # the last one marks a complete copy
        file = Path(config.tokenizer, name)
        if file.is_file() and file != target / name:
            files.write_atomic(target / name, file.read_bytes())


def find_copy(target: Path) -> Path | None:
    """The folder to which `copy_files` copied; None: it did not."""
    return target if (target / source.CONFIG_FILE).is_file() else None


def _warn_of_learning_rate(config: Config, model: LanguageModelConfig, reporter: Reporter) -> None:
    """Warn of a learning rate that is usual for the other method: LoRA takes ten times that of full tuning.

    Preferences and rewards take less, by how far the model may move from the reference.
    """
    if config.uses_preferences or config.uses_rewards:
        return
    rate, is_full = config.learning_rate, config.method == "full"
    too_high = is_full and rate > _MAX_FULL_RATE and model.hidden_dim >= _MIN_HIDDEN_DIM
    if too_high or (not is_full and rate < _MIN_LORA_RATE):
        usual = "1e-5–5e-5" if is_full else "1e-4–5e-4"
        reporter.warn("base_model.learning_rate", learning_rate=rate, method=config.method, usual=usual)


def without_found_folder(config: Config) -> Config:
    """The configuration to store: without the folder that `apply_base_model` found, and finds again on a resume."""
    return msgspec.structs.replace(config, tokenizer="") if config.base_model else config


def base_config(config: Config, vocab_size: int) -> LanguageModelConfig:
    """The architecture of the base model that `apply_base_model` found, for a tokenizer of `vocab_size` tokens.

    It gets more rows if it has fewer and embeddings are trained. Otherwise the data has none of the other tokens:
    `prepare.load_prepared` ensures that.
    """
    folder = Path(config.tokenizer)
    model = hf_config.from_hf_config(source.read_config(folder), str(folder))
    rows = model.vocab_size
    if vocab_size > rows and (config.method == "full" or config.lora_embeddings):
        rows = -(-vocab_size // config.vocab_multiple) * config.vocab_multiple
    return dataclasses.replace(
        model.with_vocab_size(rows),
        max_seq_len=config.max_seq_len,
        dropout=config.dropout,
        unpadded_vocab_size=vocab_size if vocab_size < rows else 0,
    )


def _knobs(model: LanguageModelConfig) -> dict[str, Any]:
    """The settings of a new model with this architecture, as far as they describe it."""
    shape = {
        "vocab_size": min(model.vocab_size, int(knobs()["vocab_size"].maximum or 0)),
        "hidden_dim": model.hidden_dim,
        "n_layers": model.n_layers,
        "tie_embeddings": model.tie_embeddings,
    }
    if not isinstance(model, ModelConfig):
        return shape
    attention = model.attention
    return {
        **shape,
        "n_heads": attention.n_heads,
        "n_kv_heads": attention.n_kv_heads,
        "mlp_dim": model.mlp.dim,
        "rope_theta": model.rope.theta,
        "norm_eps": model.norm.eps,
        "qkv_bias": attention.qkv_bias,
        "qk_norm": attention.qk_norm,
    }
