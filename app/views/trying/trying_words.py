"""Checkpoints, devices and what a model does, in words."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from app.state.trying import Device, Exchange
from app.views import computing_words, words
from trainer_core import protocol
from trainer_core.runs.checkpoint_dir import CheckpointInfo

DOT = " · "


def checkpoint(info: CheckpointInfo) -> str:
    """`Step 400 · final · loss 3.402`."""
    parts = [QCoreApplication.translate("Trying", "Step {step}").format(step=words.count(info.step)), kind(info.kind)]
    if info.eval_loss is not None:
        parts.append(QCoreApplication.translate("Trying", "loss {loss}").format(loss=words.loss(info.eval_loss)))
    return DOT.join(filter(None, parts))


def kind(name: str) -> str:
    """Why a checkpoint was made; empty where that is the usual reason."""
    return {
        "regular": "",
        "best": QCoreApplication.translate("Trying", "best"),
        "final": QCoreApplication.translate("Trying", "final"),
        "emergency": QCoreApplication.translate("Trying", "before a failure"),
    }.get(name, name)


def newest(info: CheckpointInfo | None) -> str:
    """The choice that follows a run."""
    if info is None:
        return QCoreApplication.translate("Trying", "Newest: none yet")
    return QCoreApplication.translate("Trying", "Newest: {checkpoint}").format(checkpoint=checkpoint(info))


def device(chosen: Device) -> str:
    """Where models are to write, and why there."""
    return {
        "gpu": QCoreApplication.translate("Trying", "On the GPU"),
        "no_gpu": QCoreApplication.translate("Trying", "On the CPU: no GPU was found"),
        "run_has_gpu": QCoreApplication.translate("Trying", "On the CPU: training has the only GPU"),
        "other_gpu": QCoreApplication.translate("Trying", "On another GPU than training"),
    }.get(chosen.why, "")


def heading(exchange: Exchange) -> str:
    """Above a text: which model wrote it, and how it can be had again."""
    if exchange.step is None:
        return QCoreApplication.translate("Trying", "Seed {seed}").format(seed=exchange.sampling.seed)
    text = QCoreApplication.translate("Trying", "Step {step}, seed {seed}")
    return text.format(step=words.count(exchange.step), seed=exchange.sampling.seed)


def ending(exchange: Exchange) -> str:
    """Below a text, where it did not come to its own end."""
    return {
        "length": QCoreApplication.translate("Trying", "… the set length is reached"),
        "interrupted": QCoreApplication.translate("Trying", "stopped"),
    }.get(exchange.ending, "")


def problem(exchange: Exchange) -> str:
    """Why a text could not be written; empty where it could, or where the line below tells it."""
    if exchange.ending != "failed" or exchange.problem is None:
        return ""
    return words.message(*exchange.problem)


def speed(exchange: Exchange, loaded: protocol.Loaded | None) -> str:
    """How much was written, how fast, and whether the model could see all that was said."""
    text = QCoreApplication.translate("Trying", "{tokens} tokens, {rate} tokens/s")
    told = text.format(tokens=words.count(exchange.tokens), rate=words.rate(exchange.tokens_per_s))
    if loaded is None:
        return told
    told += DOT + computing_words.device(loaded.device)
    if exchange.prompt_tokens >= loaded.max_seq_len:
        seen = QCoreApplication.translate("Trying", "it sees only the newest {seen} of {given} tokens")
        seen = seen.format(seen=words.count(loaded.max_seq_len - 1), given=words.count(exchange.prompt_tokens))
        told += DOT + seen
    return told


def newer(step: int) -> str:
    text = QCoreApplication.translate("Trying", "Step {step} is there now: the next text is written by it")
    return text.format(step=words.count(step))


def gone(*, in_use: bool) -> str:
    if in_use:
        return QCoreApplication.translate("Trying", "No longer on disk; it stays loaded until another is chosen")
    return QCoreApplication.translate(
        "Trying", "This checkpoint is no longer on disk: newer ones took its place. Choose another."
    )
