"""Settings that an exact resume depends on: stored in every checkpoint and compared on resume."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import torch

from trainer_core.config import Config
from trainer_core.data.prepare import PreparedData
from trainer_core.messages import TraindeckError
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import LanguageModelConfig
from trainer_core.run_context import RunContext
from trainer_core.train import checkpoint
from trainer_core.train.device import Precision
from trainer_core.train.model_shape import tuning_of

_SAMPLE_SETTINGS: Final = ("max_seq_len", "packing")  # define a sample of the epoch
_PREFERENCE_SETTINGS: Final = (
    "objective", "preference_beta", "label_smoothing", "sft_share", "simpo_margin", "desirable_weight",
    "undesirable_weight",
)  # fmt: skip
_REWARD_SETTINGS: Final = (
    "objective", "rewards", "group_size", "rollout_max_new_tokens", "rollout_temperature", "rollout_top_p",
    "steps_per_generation", "advantage_scale", "policy_loss", "clip_low", "clip_high", "kl_beta",
)  # fmt: skip
_NOT_COMPARED: Final = ("eval_batches", "eval_sequences")


def build_fingerprint(
    config: Config, prepared: PreparedData, device: torch.device, precision: Precision, world_size: int = 1
) -> dict[str, Any]:
    """Values that follow from settings, data and machine."""
    return {
        "data": prepared.fingerprint,
        "samples_per_epoch": prepared.train.samples,
        "batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "warmup_steps": config.warmup_steps,
        "max_seq_len": config.max_seq_len,
        "packing": prepared.packed,
        "attend_across_documents": prepared.attend_across_documents,
        "seed": config.seed,
        "eval_batches": config.eval_batches,
        "eval_sequences": eval_sequences(config, prepared.validation.samples),
        **tuning_of(config),
        **_objective_of(config),
        "optimizer": config.optimizer,
        "ranks": world_size,
        "parallel": _distribution(config, world_size),
        "device": device.type,
        "precision": precision.name,
        "torch": torch.__version__.split("+")[0],
    }


def _objective_of(config: Config) -> dict[str, Any]:
    """What determines the loss; nothing for the likelihood of the data."""
    names = _PREFERENCE_SETTINGS if config.uses_preferences else _REWARD_SETTINGS if config.uses_rewards else ()
    return {name: getattr(config, name) for name in names}


def _distribution(config: Config, world_size: int) -> str:
    sharded = config.parallel == "deepspeed" or (config.parallel == "fsdp" and world_size > 1)
    return config.parallel if sharded else "ddp"


def eval_sequences(config: Config, available: int) -> int:
    """Sequences of one evaluation of a new run: `eval_batches` times `batch_size`, or all `available` ones."""
    return min(available, config.eval_batches * config.batch_size or available)


def preserve_eval_sample(context: RunContext, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Keep the validation sample of the run, so that losses stay comparable after `batch_size` changes."""
    now["eval_sequences"] = before.get("eval_sequences", now["eval_sequences"])
    if before.get("eval_batches", now["eval_batches"]) != now["eval_batches"]:
        changed = {"before": before["eval_batches"], "after": now["eval_batches"]}
        context.warn("resume.eval_sample_kept", sequences=now["eval_sequences"], **changed)


def require_the_same_run(folder: Path, model: LanguageModel, now: dict[str, Any]) -> dict[str, Any]:
    """Return the fingerprint of a checkpoint.

    Raises `data.changed`, `resume.order_changed` or `checkpoint.mismatch` if a run with the present settings cannot
    continue from it.
    """
    before = checkpoint.read_run_fingerprint(folder)
    if before.get("data") != now["data"]:
        raise TraindeckError("data.changed", f"{before.get('data')} → {now['data']}")
    for setting in _SAMPLE_SETTINGS:
        if before.get(setting) != now[setting]:
            values = {"before": str(before.get(setting)), "after": str(now[setting])}
            raise TraindeckError("resume.order_changed", setting=setting, **values)
    # Other head counts or position bases may fit weights of the same shapes, but are another model.
    shape, shape_before = _model_values(model.config), _model_values(checkpoint.read_shape(folder))
    changed = [
        f"{name} {shape_before.get(name)} → {shape.get(name)}"
        for name in {**shape_before, **shape}
        if shape_before.get(name) != shape.get(name)
    ]
    adapter = [name for name in now if name == "method" or (name.startswith("lora_") and name != "lora_dropout")]
    changed += [f"{name} {before[name]} → {now[name]}" for name in adapter if before.get(name, now[name]) != now[name]]
    if changed:
        raise TraindeckError("checkpoint.mismatch", path=str(folder), reason=", ".join(changed))
    return before


def has_other_goal(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether evaluations before a resume cannot be compared with those after it."""
    return any(before.get(name) != now.get(name) for name in ("objective", "rewards"))


def _model_values(config: LanguageModelConfig) -> dict[str, Any]:
    """What belongs to the weights, by name."""
    flat: dict[str, Any] = {}
    for name, value in asdict(replace(config, dropout=0.0, max_seq_len=0, max_positions=0)).items():
        flat |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def require_steps_left(folder: Path, config: Config) -> None:
    """Raises `resume.past_max_steps` or `resume.past_max_epochs` if the checkpoint's run is already longer."""
    counters, before = checkpoint.read_counters(folder), checkpoint.read_run_fingerprint(folder)
    if 0 < config.max_steps < counters.step:
        raise TraindeckError("resume.past_max_steps", done=counters.step, wanted=config.max_steps)
    epochs = counters.position / max(1, before.get("samples_per_epoch", 0))
    if not config.max_steps and epochs > config.max_epochs:
        raise TraindeckError("resume.past_max_epochs", done=math.floor(epochs * 100) / 100, wanted=config.max_epochs)


def warn_about_changes(context: RunContext, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Warn about each difference. Skipped: values that the checkpoint does not record, and those that do not influence
    training or follow from others.
    """
    for what, value in now.items():
        if before.get(what, value) != value and what not in _NOT_COMPARED:
            context.warn("resume.not_exact", what=what, before=str(before[what]), after=str(value))
