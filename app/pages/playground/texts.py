"""Texts of the playground page."""

from __future__ import annotations

from app.core.conversation import DeviceChoice, Turn
from app.pages.performance import execution_texts
from app.texts import tr
from app.widgets import formatting
from trainer_core import protocol
from trainer_core.runs.checkpoint_dir import CheckpointInfo

SEPARATOR = " · "


def format_checkpoint(info: CheckpointInfo) -> str:
    """`Step 400 · final · loss 3.402`."""
    kinds = {
        "regular": "",
        "best": tr("playground.best"),
        "final": tr("playground.final"),
        "emergency": tr("playground.before_a_failure"),
    }
    parts = [tr("common.step_step_2", step=formatting.format_count(info.step)), kinds.get(info.kind, info.kind)]
    if info.eval_loss is not None:
        parts.append(tr("playground.loss_loss", loss=formatting.format_loss(info.eval_loss)))
    return SEPARATOR.join(filter(None, parts))


def format_newest_checkpoint(info: CheckpointInfo | None) -> str:
    """Name of the choice that follows a run."""
    if info is None:
        return tr("playground.newest_none_yet")
    return tr("playground.newest_checkpoint", checkpoint=format_checkpoint(info))


def format_device_choice(chosen: DeviceChoice) -> str:
    """The device that models are loaded on, and why."""
    return {
        "gpu": tr("playground.on_the_gpu"),
        "no_gpu": tr("playground.on_cpu_no_gpu_was"),
        "run_has_gpu": tr("playground.on_cpu_training_has_only"),
        "other_gpu": tr("playground.on_another_gpu_than_training"),
    }.get(chosen.reason, "")


def format_heading(turn: Turn) -> str:
    """Step of the model and seed of a text."""
    if turn.step is None:
        return tr("playground.seed_seed", seed=turn.sampling.seed)
    return tr("playground.step_step_seed_seed", step=formatting.format_count(turn.step), seed=turn.sampling.seed)


def format_ending(turn: Turn) -> str:
    """Why a text ended before the model ended it, or empty."""
    return {
        "length": tr("playground.set_length_reached"),
        "interrupted": tr("playground.stopped"),
    }.get(turn.status, "")


def format_error(turn: Turn) -> str:
    """Why a text could not be generated, or empty."""
    if turn.status != "failed" or turn.error is None:
        return ""
    return formatting.localized_message(*turn.error)


def format_speed(turn: Turn, loaded: protocol.ModelLoaded | None) -> str:
    """Tokens, speed, device, and whether the context was truncated."""
    rate = formatting.format_rate(turn.tokens_per_s)
    parts = [tr("playground.tokens_tokens_rate_tokens_s", tokens=formatting.format_count(turn.tokens), rate=rate)]
    if loaded is not None:
        parts.append(execution_texts.format_device(loaded.device))
        if turn.prompt_tokens >= loaded.max_seq_len:
            seen, given = (formatting.format_count(count) for count in (loaded.max_seq_len - 1, turn.prompt_tokens))
            parts.append(tr("playground.sees_only_newest_seen_given", seen=seen, given=given))
    return SEPARATOR.join(parts)
