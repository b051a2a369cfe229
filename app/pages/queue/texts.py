"""Texts of queue items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.core.queue import QueueItem
from app.texts import tr
from app.widgets import formatting
from trainer_core.config import knobs

if TYPE_CHECKING:
    from app.core.run_state import RunStateMachine

_MAX_SOURCES: Final = 4  # listed in the details


def format_state(item: QueueItem, *, restarting: bool = False) -> str:
    """`restarting`: a running item waits for its automatic restart."""
    if item.state == "waiting":
        return tr("queue.waiting")
    if item.state == "running" and restarting:
        return tr("queue.restarting")
    return formatting.format_stored_run_state("finished" if item.state == "done" else item.state)


def format_changes(item: QueueItem) -> str:
    """Changed settings and the preset."""
    known = {name: value for name, value in item.changes.items() if name in knobs()}
    return f"{formatting.format_settings(known)}  ·  {item.preset}" if known else item.preset


def format_progress(machine: RunStateMachine) -> str:
    """Steps and remaining time of the running item."""
    if machine.total_steps and machine.step:
        parts = [f"{formatting.format_count(machine.step)} / {formatting.format_count(machine.total_steps)}"]
        if machine.eta_s is not None:
            left = tr("queue.time_left")
            parts.append(left.format(time=formatting.format_duration(machine.eta_s)))
        return "  ·  ".join(parts)
    return formatting.format_run_state(machine.state)


def format_result(item: QueueItem) -> str:
    if item.state == "failed":
        return format_failure(item)
    if item.state == "waiting" or item.state == "running":
        return "–"
    if item.best_loss is not None:
        return tr("queue.best_loss_loss", loss=formatting.format_loss(item.best_loss))
    if item.steps:
        return tr("common.step_step", step=formatting.format_count(item.steps))
    return "–"


def format_failure(item: QueueItem) -> str:
    """Error message of a failed item."""
    if item.error:
        return formatting.localized_message(item.error, item.params)
    text = tr("queue.trainer_ended_unexpectedly_code_code")
    return text.format(code="–" if item.exit_code is None else item.exit_code)


def format_details(item: QueueItem) -> str:
    """All details of an item, in several lines."""
    lines = []
    if item.state == "failed":
        lines.append(format_failure(item))
    elif item.state == "interrupted":
        key = "queue.interrupted_resumable" if item.can_resume else "queue.interrupted_before_checkpoint"
        lines.append(tr(key, step=formatting.format_count(item.steps)))
    settings = tr("queue.settings_settings", settings=format_changes(item))
    more = f", … (+{len(item.data) - _MAX_SOURCES})" if len(item.data) > _MAX_SOURCES else ""
    names = ", ".join(formatting.format_data_source(path) for path in item.data[:_MAX_SOURCES])
    data = tr("queue.data_data", data=names + more)
    times = [tr("queue.added_when", when=formatting.format_timestamp(item.added))]
    if item.started:
        times.append(tr("queue.started_when", when=formatting.format_timestamp(item.started)))
    if item.ended:
        times.append(tr("queue.ended_when", when=formatting.format_timestamp(item.ended)))
    return "\n".join([*lines, settings, data, "  ·  ".join(times)])
