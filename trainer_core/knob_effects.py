"""Effects of a setting on memory and speed.

Memory is that of the device that computes, unless the effect text says otherwise; speed is tokens per second. The
effect texts are below `knob` in `trainer_core/texts`. No torch, no Qt.
"""

from __future__ import annotations

from typing import Final

from trainer_core import texts
from trainer_core.config import Knob
from trainer_core.texts import Language

EFFECTS: Final[dict[str, tuple[str, ...]]] = {
    "more": (
        "vocab_size", "tokenizer_sample_mib", "hidden_dim", "n_layers", "n_kv_heads", "mlp_dim", "max_seq_len",
        "dropout", "qk_norm", "vocab_multiple", "batch_size", "cuda_graphs", "activation_memory_budget",
        "num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "background_saving", "lora_rank",
        "lora_dropout", "lora_embeddings", "rollout_max_new_tokens",
    ),
    "less": (
        "tie_embeddings", "chunked_loss", "activation_checkpointing", "checkpointed_layers", "low_memory",
        "fsdp_reshard_after_forward", "fsdp_cpu_offload",
    ),
    "faster": (
        "token_cache", "packing", "attend_across_documents", "vocab_multiple", "batch_size", "auto_batch",
        "cuda_graphs", "activation_memory_budget", "tf32", "pin_memory", "persistent_workers", "save_steps",
        "background_saving", "perf_steps", "flops_steps", "eval_steps", "sample_steps", "steps_per_generation",
    ),
    "slower": (
        "hidden_dim", "n_layers", "n_kv_heads", "mlp_dim", "dropout", "qk_norm", "deterministic",
        "activation_checkpointing", "checkpointed_layers", "low_memory", "eval_batches", "eval_examples",
        "eval_max_new_tokens", "sample_tokens", "lora_rank", "lora_dropout", "lora_embeddings",
        "fsdp_reshard_after_forward", "fsdp_cpu_offload", "group_size", "rollout_max_new_tokens", "kl_beta",
    ),
    "depends": (
        "vocab_size", "n_heads", "max_seq_len", "auto_batch", "optimizer", "device", "nproc_per_node", "parallel",
        "mixed_precision", "cpu_threads", "compile", "attention", "chunked_loss", "num_workers", "prefetch_factor",
        "deepspeed_config", "pause_between", "pause_for_others", "objective", "method", "lora_targets", "lora_variant",
        "freeze",
    ),
}  # fmt: skip
"""Settings by the effect of a higher value or of a switch that is on: `more` or `less` memory, `faster` or `slower`.

`depends`: the effect text says on what. Settings that are not listed affect neither.
"""


def format_direction(knob: Knob, language: Language) -> str:
    """Return the effect of a higher value or of a switch that is on: `Higher: more memory, slower.`"""
    found = [effect for effect, names in EFFECTS.items() if knob.name in names]
    if not found:
        return texts.get("knob_effect.no_effect", language)
    parts = [texts.get(f"knob_effect.{effect}", language) for effect in found if effect != "depends"]
    if not parts:
        return ""
    direction = texts.get("knob_effect.higher" if knob.kind in ("int", "float") else "knob_effect.on", language)
    effects = texts.get("knob_effect.separator", language).join(parts)
    return texts.get("knob_effect.sentence", language, direction=direction, effects=effects)


def format_effect(knob: Knob, language: Language) -> str:
    """Return direction and effect text; empty for a setting without an effect text."""
    effect = texts.catalogue(language).get(f"knob.{knob.name}.effect")
    if effect is None:
        return ""
    separator = "" if language == "zh" else " "
    return separator.join(filter(None, (format_direction(knob, language), effect)))
