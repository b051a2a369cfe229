"""What an exact resume depends on: written into every checkpoint, and compared when it is gone on with."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trainer_core.config import Config
from trainer_core.data.prepare import Prepared
from trainer_core.messages import TraindeckError
from trainer_core.model.decoder import Decoder
from trainer_core.session import Session
from trainer_core.train import checkpoint
from trainer_core.train.device import Precision
from trainer_core.train.engine.engine import Engine


def made_with(config: Config, prepared: Prepared, device: torch.device, precision: Precision) -> dict[str, Any]:
    """What is settled by the settings, the data and the machine."""
    return {
        "data": prepared.fingerprint,
        "batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "max_seq_len": config.max_seq_len,
        "packing": prepared.packed,
        "attend_across_documents": prepared.attend_across_documents,
        "seed": config.seed,
        "optimizer": config.optimizer,
        "ranks": config.ranks,
        "device": device.type,
        "precision": precision.name,
        "torch": torch.__version__.split("+")[0],
    }


def made_by(engine: Engine, device: torch.device) -> dict[str, Any]:
    """What the engine chose, by name."""
    return {**engine.choices, "threads": torch.get_num_threads() if device.type == "cpu" else 0}


def require_the_same_run(folder: Path, model: Decoder, now: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint was made with. Raises `data.changed` or `checkpoint.mismatch` where none can go on with it."""
    before = checkpoint.read_made_with(folder)
    if before.get("data") != now["data"]:
        raise TraindeckError("data.changed", f"{before.get('data')} → {now['data']}")
    # Heads or positions that count otherwise fit weights of the same sizes, and make another model.
    shape, shape_before = asdict(model.config), asdict(checkpoint.read_shape(folder))
    shape.pop("dropout"), shape.pop("max_seq_len")  # no part of the weights: a change of these is allowed
    changed = [f"{name} {shape_before[name]} → {value}" for name, value in shape.items() if shape_before[name] != value]
    if changed:
        raise TraindeckError("checkpoint.mismatch", path=str(folder), what=", ".join(changed))
    return before


def say_what_changed(session: Session, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A warning for each difference. What older checkpoints do not tell of is not compared, nor the shape that was
    compiled: it follows from what is."""
    for what, value in now.items():
        if before.get(what, value) != value and what != "compiled_for":
            session.warn("resume.not_exact", what=what, before=str(before[what]), after=str(value))
