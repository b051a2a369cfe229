"""Results of data previews and checks, and their keys: the data and settings that a report depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from trainer_core import protocol
from trainer_core.config import Knob, knobs
from trainer_core.protocol import MeasuredSettings

PreviewKey = dict[str, Any]
"""The data and each setting, by name."""
ReportT = TypeVar("ReportT", bound=protocol.Event)

# A data preview depends on the settings of the group "data" and on these. The base model has tokenizer and template.
_MODEL_KEYS: Final = ("max_seq_len", "base_model", "objective", "method", "lora_embeddings")
_STEP_KEYS: Final = ("batch_size", "gradient_accumulation_steps", "max_epochs", "max_steps")
_NOT_PREVIEWED: Final = ("preset", "data", "cache_dir", "token_cache")
# Settings without influence on memory, speed, length and disk. A new one counts until it is listed here.
_NOT_CHECKED: Final = frozenset(
    (
        "preset", "data", "learning_rate", "min_learning_rate_ratio", "warmup_steps",
        "lr_schedule", "plateau_patience", "plateau_factor", "early_stop_patience", "muon_momentum", "weight_decay",
        "beta1", "beta2", "adam_epsilon", "grad_clip", "on_bad_step", "spike_factor", "bad_step_limit", "seed",
        "save_steps", "restarts",
    )
)  # fmt: skip
_OFFERED_KEYS: Final = (
    "batch_size", "gradient_accumulation_steps", "activation_checkpointing", "checkpointed_layers", "chunked_loss",
)  # fmt: skip


def preview_key(values: Mapping[str, Any], data: Sequence[str]) -> PreviewKey:
    """Key of a data preview. `values`: settings by name, without defaults."""

    def is_previewed(knob: Knob) -> bool:
        in_group = knob.group == "data" and knob.name not in _NOT_PREVIEWED
        return in_group or knob.name in (*_MODEL_KEYS, *_STEP_KEYS)

    return _build_key(values, data, is_previewed)


def check_key(values: Mapping[str, Any], data: Sequence[str]) -> PreviewKey:
    """Key of a check; arguments as for `preview_key`."""
    return _build_key(values, data, lambda knob: knob.name not in _NOT_CHECKED and knob.group != "monitoring")


def _build_key(values: Mapping[str, Any], data: Sequence[str], is_included: Callable[[Knob], bool]) -> PreviewKey:
    included = filter(is_included, knobs().values())
    return {"data": list(data), **{knob.name: values.get(knob.name, knob.default) for knob in included}}


def sequence_key(key: PreviewKey) -> PreviewKey:
    """Part of a preview's key that determines the sequences."""
    return {name: value for name, value in key.items() if name not in _STEP_KEYS}


def offered_settings(measured: MeasuredSettings) -> dict[str, Any]:
    """Settings that make a configuration the measured one."""
    return {name: getattr(measured, name) for name in _OFFERED_KEYS}


@dataclass(slots=True)
class PreviewResult(Generic[ReportT]):
    """Report of a preview or check, with its warnings and, until it ends, its progress."""

    key: PreviewKey
    report_type: type[ReportT]
    report: ReportT | None = None
    warnings: list[protocol.MessageEvent] = field(default_factory=list)
    phase: protocol.PhaseName | None = None
    progress: protocol.Progress | None = None

    def process(self, event: protocol.AnyEvent) -> None:
        """Process an event of the trainer."""
        match event:
            case protocol.Phase():
                self.phase = event.phase
            case protocol.Progress():
                self.progress = event
            case protocol.Warn() | protocol.Advice():
                self.warnings.append(event)
            case self.report_type():
                self.report = event
            case _:
                pass
