"""Texts of the setup page: input errors, run length, contents of the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from app.core.number_input import normalize_number
from app.core.sources import BUILTIN_PREFIX, SourceSummary
from app.texts import current_language, tr
from app.widgets import formatting
from trainer_core.config import Knob, knobs

if TYPE_CHECKING:
    from trainer_core.base_model.summary import ModelSummary

_MAX_QUOTED_CHARS: Final = 24
_MAX_FORMATS: Final = 3
_LENGTH_KNOBS: Final = ("max_steps", "max_epochs", "batch_size", "gradient_accumulation_steps")


def format_input_error(knob: Knob, text: str) -> str:
    """Why `text` is not a valid value, and which values are."""
    allowed = tr("setup.allowed_range", range=formatting.format_allowed_values(knob))
    number = normalize_number(text)
    if knob.kind not in ("int", "float") or not number:
        return allowed
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        key = "setup.not_a_number"
    elif knob.kind == "int" and not value.is_integer():
        key = "setup.not_an_integer"
    else:
        return allowed
    quoted = text.strip()
    if len(quoted) > _MAX_QUOTED_CHARS:
        quoted = f"{quoted[:_MAX_QUOTED_CHARS]}…"
    return tr("setup.reason_allowed", reason=tr(key, text=quoted), allowed=allowed)


def format_run_length(values: Mapping[str, Any], samples_per_epoch: int | None) -> str:
    """Whether steps or epochs end the run, converted into the other if the number of sequences is known.

    `values`: settings by name, without defaults.
    """
    settings = {name: int(values.get(name, knobs()[name].default)) for name in _LENGTH_KNOBS}
    max_steps, epochs, batch_size, accumulation = settings.values()
    per_epoch = math.ceil(samples_per_epoch / (batch_size * accumulation)) if samples_per_epoch else 0
    if max_steps:
        key = "setup.ends_steps_about" if per_epoch else "setup.ends_steps_unknown"
        passes = _format_epochs(max_steps / per_epoch) if per_epoch else ""
        return tr(key, steps=formatting.format_count(max_steps), epochs=passes)
    if epochs == 1:
        key = "setup.ends_one_epoch_about" if per_epoch else "setup.ends_one_epoch_unknown"
    else:
        key = "setup.ends_epochs_about" if per_epoch else "setup.ends_epochs_unknown"
    return tr(key, steps=formatting.format_count(epochs * per_epoch), epochs=_format_epochs(epochs))


def _format_epochs(epochs: float) -> str:
    """`0.31`, `4`, `1,200`."""
    if epochs < 0.01:
        return "< 0.01"
    return f"{epochs:.2g}" if epochs < 10 else formatting.format_count(round(epochs))


def format_source_summary(summary: SourceSummary | None, paths: list[str]) -> tuple[str, bool]:
    """Contents of the sources, and whether that is a warning. `summary` covers those that are not built in."""
    if not paths:
        return "", False
    if all(path.startswith(BUILTIN_PREFIX) for path in paths):
        return tr("setup.builtin_preset"), False
    if summary is None:
        return tr("setup.loading"), False
    if summary.missing:
        return tr("setup.not_found", names=_join_names(summary.missing)), True
    if not summary.files:
        return tr("setup.no_readable_file"), True
    if summary.unknown:
        return tr("setup.unknown_file_type", names=_join_names(summary.unknown)), False
    more = "+" if summary.truncated else ""
    count = f"{formatting.format_count(summary.files)}{more}"
    files = tr("setup.one_file") if summary.files == 1 else tr("setup.file_count", count=count)
    formats = tr("setup.list_separator").join(summary.formats[:_MAX_FORMATS])
    return f"{formats} · {files} · {formatting.format_file_size(summary.bytes)}{more}", False


def format_model_summary(model: ModelSummary | None) -> str:
    """Parameters, license, context and download of a base model, or why it cannot be used. None: not known yet."""
    if model is None:
        return tr("setup.loading")
    if model.error is not None:
        return formatting.localized_message(model.error.code, model.error.params)
    if model.preset and not model.parameters:
        return tr("setup.model_of_preset", preset=model.preset)
    parts = [
        tr("setup.model_parameters", count=format_weights(model.parameters)) if model.parameters else "",
        model.license,
        tr("setup.model_context", count=formatting.format_count(model.context)) if model.context else "",
        _format_download(model),
        tr("setup.model_gated") if model.entry and model.entry.gated and not model.is_local else "",
    ]
    return "\u00a0· ".join(filter(None, parts))  # no line begins with a dot


def _format_download(model: ModelSummary) -> str:
    if model.is_local:
        return tr("setup.model_local")
    if not model.download_bytes:
        return tr("setup.model_download_unknown")
    return tr("setup.model_download", size=_unbroken(formatting.format_bytes(model.download_bytes)))


def format_trained_weights(trained: int, frozen: int) -> str:
    """`Trained: 4.9 million weights (3.5 %) · frozen: 134.5 million`."""
    if not frozen:
        return tr("setup.all_weights_trained", count=format_weights(trained))
    share = _unbroken(f"{100 * trained / (trained + frozen):.2g} %")
    return tr(
        "setup.weights_trained",
        count=format_weights(trained),
        share=share,
        frozen=_unbroken(format_weights(frozen)),
    )


def _unbroken(amount: str) -> str:
    """An amount that stays in one line."""
    return amount.replace(" ", "\u00a0")


def format_weights(count: int) -> str:
    """`4.9 million`, `8.03 billion`."""
    if current_language() == "zh" or count < 1e6:
        return formatting.format_large_number(count)
    return (
        tr("setup.billion", count=f"{count / 1e9:.2f}")
        if count >= 1e9
        else tr("setup.million", count=f"{count / 1e6:.1f}")
    )


def _join_names(paths: Sequence[str]) -> str:
    return formatting.join_items(Path(path).name or path for path in paths)
