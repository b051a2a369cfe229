"""Effects of a setting on memory and speed.

`EFFECTS` holds the direction of a higher value, or of a switch that is on; `depends`: the effect text says on what.
Memory is that of the device that computes, unless the text says otherwise; speed is tokens per second. Settings without
an entry affect neither. The effect texts are below `knob` in `trainer_core/texts`. No torch, no Qt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from trainer_core import texts
from trainer_core.config import Knob
from trainer_core.texts import Language

MemoryEffect = Literal["more", "less", "none", "depends"]
SpeedEffect = Literal["faster", "slower", "none", "depends"]


@dataclass(frozen=True, slots=True)
class KnobEffect:
    """Direction of a setting's effect."""

    memory: MemoryEffect
    speed: SpeedEffect


EFFECTS: Final[dict[str, KnobEffect]] = {
    # --- data ---
    "validation_fraction": KnobEffect("none", "none"),
    "tokenizer": KnobEffect("none", "none"),
    "vocab_size": KnobEffect("more", "depends"),
    "pre_tokenizer": KnobEffect("none", "none"),
    "tokenizer_sample_mib": KnobEffect("more", "none"),
    "token_cache": KnobEffect("none", "faster"),
    "packing": KnobEffect("none", "faster"),
    "attend_across_documents": KnobEffect("none", "faster"),
    # --- model ---
    "hidden_dim": KnobEffect("more", "slower"),
    "n_layers": KnobEffect("more", "slower"),
    "n_heads": KnobEffect("none", "depends"),
    "n_kv_heads": KnobEffect("more", "slower"),
    "mlp_dim": KnobEffect("more", "slower"),
    "max_seq_len": KnobEffect("more", "depends"),
    "rope_theta": KnobEffect("none", "none"),
    "norm_eps": KnobEffect("none", "none"),
    "dropout": KnobEffect("more", "slower"),
    "qkv_bias": KnobEffect("none", "none"),
    "qk_norm": KnobEffect("more", "slower"),
    "tie_embeddings": KnobEffect("less", "none"),
    "vocab_multiple": KnobEffect("more", "faster"),
    # --- training ---
    "batch_size": KnobEffect("more", "faster"),
    "gradient_accumulation_steps": KnobEffect("none", "none"),
    "auto_batch": KnobEffect("depends", "faster"),
    "max_epochs": KnobEffect("none", "none"),
    "max_steps": KnobEffect("none", "none"),
    "learning_rate": KnobEffect("none", "none"),
    "min_learning_rate_ratio": KnobEffect("none", "none"),
    "warmup_steps": KnobEffect("none", "none"),
    "lr_schedule": KnobEffect("none", "none"),
    "plateau_patience": KnobEffect("none", "none"),
    "plateau_factor": KnobEffect("none", "none"),
    "optimizer": KnobEffect("depends", "depends"),
    "muon_momentum": KnobEffect("none", "none"),
    "weight_decay": KnobEffect("none", "none"),
    "beta1": KnobEffect("none", "none"),
    "beta2": KnobEffect("none", "none"),
    "adam_epsilon": KnobEffect("none", "none"),
    "grad_clip": KnobEffect("none", "none"),
    "on_bad_step": KnobEffect("none", "none"),
    "spike_factor": KnobEffect("none", "none"),
    "bad_step_limit": KnobEffect("none", "none"),
    "seed": KnobEffect("none", "none"),
    # --- hardware ---
    "device": KnobEffect("depends", "depends"),
    "ranks": KnobEffect("depends", "depends"),
    "mixed_precision": KnobEffect("depends", "depends"),
    "cpu_threads": KnobEffect("none", "depends"),
    "deterministic": KnobEffect("none", "slower"),
    "compile": KnobEffect("depends", "depends"),
    "cuda_graphs": KnobEffect("more", "faster"),
    "attention": KnobEffect("depends", "depends"),
    "chunked_loss": KnobEffect("less", "depends"),
    "activation_checkpointing": KnobEffect("less", "slower"),
    "activation_memory_budget": KnobEffect("more", "faster"),
    "tf32": KnobEffect("none", "faster"),
    "num_workers": KnobEffect("more", "depends"),
    "prefetch_factor": KnobEffect("more", "depends"),
    "pin_memory": KnobEffect("more", "faster"),
    "persistent_workers": KnobEffect("more", "faster"),
    "low_memory": KnobEffect("less", "slower"),
    "pause_between": KnobEffect("depends", "none"),
    "pause_for_others": KnobEffect("depends", "none"),
    "keep_awake": KnobEffect("none", "none"),
    # --- checkpoints ---
    "save_steps": KnobEffect("none", "faster"),
    "keep_last": KnobEffect("none", "none"),
    "keep_best": KnobEffect("none", "none"),
    "background_saving": KnobEffect("more", "faster"),
    "restarts": KnobEffect("none", "none"),
    # --- monitoring ---
    "log_steps": KnobEffect("none", "none"),
    "perf_steps": KnobEffect("none", "faster"),
    "flops_steps": KnobEffect("none", "faster"),
    "eval_steps": KnobEffect("none", "faster"),
    "eval_batches": KnobEffect("none", "slower"),
    "eval_examples": KnobEffect("none", "slower"),
    "eval_max_new_tokens": KnobEffect("none", "slower"),
    "sample_steps": KnobEffect("none", "faster"),
    "sample_tokens": KnobEffect("none", "slower"),
    "hardware_interval_s": KnobEffect("none", "none"),
}

_DIRECTIONS: Final = ("more", "less", "faster", "slower")


def format_direction(knob: Knob, language: Language) -> str:
    """Return the effect of a higher value or of a switch that is on: `Higher: more memory, slower.`"""
    effect = EFFECTS.get(knob.name)
    if effect is None:
        return ""
    if effect.memory == effect.speed == "none":
        return texts.get("knob_effect.no_effect", language)
    parts = [
        texts.get(f"knob_effect.{part}", language) for part in (effect.memory, effect.speed) if part in _DIRECTIONS
    ]
    if not parts or knob.kind not in ("int", "float", "bool", "choice"):
        return ""
    direction = texts.get("knob_effect.higher" if knob.kind in ("int", "float") else "knob_effect.on", language)
    effects = texts.get("knob_effect.separator", language).join(parts)
    return texts.get("knob_effect.sentence", language, direction=direction, effects=effects)


def format_effect(knob: Knob, language: Language) -> str:
    """Return direction and effect text; empty for a setting without an entry."""
    if knob.name not in EFFECTS:
        return ""
    separator = "" if language == "zh" else " "
    effect = texts.get(f"knob.{knob.name}.effect", language)
    return separator.join(filter(None, (format_direction(knob, language), effect)))
