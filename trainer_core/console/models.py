"""Output of the command `models`: a table of models to fine-tune, each with what it is for. No torch, no Qt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from trainer_core.base_model.catalogue import CatalogueModel, Method, estimate_memory
from trainer_core.console.tables import format_table
from trainer_core.messages import Language
from trainer_core.messages.amounts import format_bytes
from trainer_core.texts import get

_COLUMNS: Final = ("model", "parameters", "download", "context", "memory", "languages", "license")
_METHODS: Final[tuple[Method, ...]] = ("lora", "qlora")  # whose memory is estimated
_SHOWN_LANGUAGES: Final = 2


def format_models(models: Sequence[CatalogueModel], language: Language) -> str:
    """Return a table of `models` in their order, with the purpose below each row, and notes."""
    head = [get(f"console.model_table.{name}", language) for name in _COLUMNS]
    titles, rule, *rows = format_table(head, [_row(model) for model in models])
    described = [f"{row}\n  {model.purpose[language]}" for row, model in zip(rows, models, strict=True)]
    notes = [get(f"console.models.{name}", language) for name in ("memory", "gated", "page")]
    return "\n".join([titles, rule, *described, "", *notes])


def to_document(model: CatalogueModel) -> dict[str, Any]:
    """Return the entry for `--output json`: all fields, the name and the estimated memory in bytes."""
    fields: dict[str, Any] = msgspec.to_builtins(model)
    memory = {f"{method}_memory": estimate_memory(model.shape, model.parameters, method) for method in _METHODS}
    return {"name": model.name, **fields, **memory}


def _row(model: CatalogueModel) -> list[str]:
    lora, qlora = (-(-estimate_memory(model.shape, model.parameters, method) // 2**30) for method in _METHODS)
    return [
        model.id,
        f"{model.parameters / 1e9:.2f} B",
        format_bytes(model.download_bytes),
        f"{model.context:,}",
        f"{lora}/{qlora}",
        model.format_languages(_SHOWN_LANGUAGES) or "-",
        f"{model.license} *" if model.gated else model.license,
    ]
