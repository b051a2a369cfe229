"""The base model of a checkpoint, as others find it. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_core.base_model import modelscope, summary
from trainer_core.base_model.weight_files import ADAPTER_CONFIG_FILE
from trainer_core.export.checkpoint_files import read_json

_HUB_ORIGIN: Final = re.compile(r"([^/\\:@]+/[^/\\:@]+)@(.+)")
_HUB_CACHE: Final = re.compile(r".*[/\\]models--([^/\\]+)--([^/\\]+)[/\\]snapshots[/\\]([0-9a-f]{40})")
_EMBEDDING: Final = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class BaseRecord:
    """`name`: on the Hugging Face Hub if `revision` is not empty, else a folder or the name on another hub."""

    name: str
    revision: str
    license: str  # empty: not stated
    rows: int  # of the embedding; 0: not known
    is_adapter: bool  # itself a LoRA adapter, of a further base model


def read_base(checkpoint: Path) -> BaseRecord | None:
    """The base model that the checkpoint records; None for a model trained from scratch. Needs no network."""
    base = read_json(checkpoint / "state.json").get("base")
    origin = base.get("origin") if isinstance(base, dict) else None
    if not isinstance(origin, str) or not origin:
        return None
    found = summary.summarize(origin)
    name, revision = origin.removeprefix(modelscope.PREFIX), ""
    if match := _HUB_CACHE.fullmatch(origin):
        name, revision = f"{match[1]}/{match[2]}", match[3]
    elif match := _HUB_ORIGIN.fullmatch(name):
        name, revision = match[1], "" if origin.startswith(modelscope.PREFIX) else match[2]
        name = found.entry.id if found.entry is not None else name
    rows = found.weights.get(_EMBEDDING, (0,))[0]
    return BaseRecord(name, revision, found.license, rows, (Path(origin) / ADAPTER_CONFIG_FILE).is_file())
