"""Texts of the queue and its items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.core.installation import installation
from app.core.queue import QueueItem
from app.core.run_state import RunStateMachine
from app.texts import tr
from app.widgets import formatting
from trainer_core.config import knobs

if TYPE_CHECKING:
    from app.pages.queue.queue_controller import QueueController

_MAX_SOURCES: Final = 4  # listed in the details


def format_status(controller: QueueController) -> str:
    """Which run starts next and when, or why none does."""
    queue, hold, error = controller.queue, controller.hold_reason, controller.open_error
    if controller.owner_pid is not None:
        return tr("queue.used_by_other_window", pid=controller.owner_pid)
    if error is not None:
        return formatting.localized_message(error.code, error.params)
    if queue.damaged_backup is not None and hold in ("", "opened"):
        return tr("queue.file_damaged", path=queue.damaged_backup)
    if not queue.waiting:
        return tr("queue.nothing_queued")
    starts_next = "queue.added_starts_next" if installation.is_complete else "queue.starts_after_setup"
    key = {
        "": starts_next if controller.is_busy else "queue.added_starts_now",
        "opened": "queue.paused_at_launch",
        "stopped": "queue.paused_after_stop",
        "failed": "queue.paused_after_failure",
        "paused": "queue.paused_next",
    }[hold]
    return tr(key, name=queue.waiting[0].name)


def format_item_state(item: QueueItem, *, restarting: bool) -> str:
    """`restarting`: the running item waits for its automatic restart."""
    if item.state == "waiting":
        return tr("queue.queued")
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
            parts.append(tr("queue.time_left", time=formatting.format_duration(machine.eta_s)))
        return "  ·  ".join(parts)
    return formatting.format_run_state(machine.state)


def format_result(item: QueueItem) -> str:
    if item.state == "failed":
        return format_failure(item)
    if item.best_loss is not None:
        return tr("queue.best_loss", loss=formatting.format_loss(item.best_loss))
    if item.steps:
        return tr("common.step_lower", step=formatting.format_count(item.steps))
    return "–"


def format_failure(item: QueueItem) -> str:
    """Error message of a failed item."""
    if item.error:
        return formatting.localized_message(item.error, item.params)
    return tr("queue.trainer_exited", code="–" if item.exit_code is None else item.exit_code)


def format_details(item: QueueItem) -> str:
    """All details of an item, in several lines."""
    lines = []
    if item.state == "failed":
        lines.append(format_failure(item))
    elif item.state == "interrupted":
        key = "queue.interrupted_resumable" if item.can_resume else "queue.interrupted_before_checkpoint"
        lines.append(tr(key, step=formatting.format_count(item.steps)))
    lines.append(tr("queue.settings_list", settings=format_changes(item)))
    more = f", … (+{len(item.data) - _MAX_SOURCES})" if len(item.data) > _MAX_SOURCES else ""
    data = formatting.join_items(map(formatting.format_data_source, item.data[:_MAX_SOURCES]))
    lines.append(tr("queue.data", data=data + more))
    times = [("queue.added_at", item.added), ("queue.started_at", item.started), ("queue.ended_at", item.ended)]
    lines.append("  ·  ".join(tr(key, when=formatting.format_timestamp(when)) for key, when in times if when))
    return "\n".join(lines)
