"""What an exact resume depends on: written into every checkpoint and compared on resume."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch

from trainer_core.config import Config
from trainer_core.data.prepare import Prepared
from trainer_core.messages import TraindeckError
from trainer_core.model.decoder import Decoder
from trainer_core.session import Session
from trainer_core.train import checkpoint
from trainer_core.train.device import Precision
from trainer_core.train.engine.engine import Engine

_SAMPLE_SETTINGS: Final = ("max_seq_len", "packing")  # decide what a sample of the epoch is
_NOT_COMPARED: Final = ("compiled_for", "eval_batches", "eval_sequences")


def made_with(config: Config, prepared: Prepared, device: torch.device, precision: Precision) -> dict[str, Any]:
    """What is settled by the settings, the data and the machine."""
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
        "optimizer": config.optimizer,
        "ranks": config.ranks,
        "device": device.type,
        "precision": precision.name,
        "torch": torch.__version__.split("+")[0],
    }


def eval_sequences(config: Config, available: int) -> int:
    """Sequences of one evaluation of a new run: `eval_batches` times `batch_size`, or all `available` ones."""
    return min(available, config.eval_batches * config.batch_size or available)


def keep_eval_sample(session: Session, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Keep the validation sample of the run, so that its losses stay comparable whatever `batch_size` is now."""
    now["eval_sequences"] = before.get("eval_sequences", now["eval_sequences"])
    if before.get("eval_batches", now["eval_batches"]) != now["eval_batches"]:
        changed = {"before": before["eval_batches"], "after": now["eval_batches"]}
        session.warn("resume.eval_sample_kept", sequences=now["eval_sequences"], **changed)


def made_by(engine: Engine, device: torch.device) -> dict[str, Any]:
    """What the engine chose, by name."""
    return {**engine.choices, "threads": torch.get_num_threads() if device.type == "cpu" else 0}


def require_the_same_run(folder: Path, model: Decoder, now: dict[str, Any]) -> dict[str, Any]:
    """The settings that a checkpoint was made with.

    Raises `data.changed`, `resume.order_changed` or `checkpoint.mismatch` if no run with the present ones can continue
    from it.
    """
    before = checkpoint.read_made_with(folder)
    if before.get("data") != now["data"]:
        raise TraindeckError("data.changed", f"{before.get('data')} → {now['data']}")
    for setting in _SAMPLE_SETTINGS:
        if before.get(setting) != now[setting]:
            values = {"before": str(before.get(setting)), "after": str(now[setting])}
            raise TraindeckError("resume.order_changed", setting=setting, **values)
    # Heads or positions that count otherwise fit weights of the same sizes, and make another model.
    shape, shape_before = asdict(model.config), asdict(checkpoint.read_shape(folder))
    shape.pop("dropout"), shape.pop("max_seq_len")  # not part of the weights
    changed = [f"{name} {shape_before[name]} → {value}" for name, value in shape.items() if shape_before[name] != value]
    if changed:
        raise TraindeckError("checkpoint.mismatch", path=str(folder), what=", ".join(changed))
    return before


def require_steps_left(folder: Path, config: Config) -> None:
    """Raises `resume.past_max_steps` or `resume.past_max_epochs` if the run of a checkpoint is longer already."""
    counters, before = checkpoint.read_counters(folder), checkpoint.read_made_with(folder)
    if 0 < config.max_steps < counters.step:
        raise TraindeckError("resume.past_max_steps", done=counters.step, wanted=config.max_steps)
    epochs = counters.position / max(1, before.get("samples_per_epoch", 0))
    if not config.max_steps and epochs > config.max_epochs:
        raise TraindeckError("resume.past_max_epochs", done=math.floor(epochs * 100) / 100, wanted=config.max_epochs)


def say_what_changed(session: Session, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A warning for each difference. What older checkpoints do not tell of is not compared, nor what has no influence
    on training or follows from what is compared."""
    for what, value in now.items():
        if before.get(what, value) != value and what not in _NOT_COMPARED:
            session.warn("resume.not_exact", what=what, before=str(before[what]), after=str(value))
