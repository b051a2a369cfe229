"""Texts of log entries in the current language."""

from __future__ import annotations

from app.core.log_store import MAX_TEXT_CHARS, LogEntry
from app.texts import current_language, tr
from app.widgets import formatting
from trainer_core import protocol
from trainer_core.console.events import format_event


def format_entry(entry: LogEntry) -> str:
    """Return the text of an entry, with details on further lines, cut to `MAX_TEXT_CHARS`. It can be empty.

    Events without their own case are formatted as in the terminal (`format_event`).
    """
    match entry.event:
        case None:
            return entry.text
        case protocol.MessageEvent():
            text = _format_message(entry.event)
        case protocol.Phase():
            reason = formatting.format_pause_reason(entry.event.reason or "", entry.event.until)
            phase = formatting.format_phase(entry.event.phase)
            text = tr("log.phase", phase=tr("common.list_separator").join(filter(None, (phase, reason))))
        case protocol.Ack():  # rejected: `LogStore` drops accepted commands
            text = tr("log.command_rejected", command=entry.event.command, reason=entry.event.reason)
        case _:
            text = format_event(entry.event, current_language())
            text = text[:1].upper() + text[1:]
    return text[:MAX_TEXT_CHARS]


def _format_message(event: protocol.MessageEvent) -> str:
    """Return the message of a code, then its technical detail on a new line. An unknown code has its parameters."""
    if isinstance(event, protocol.Advice) and event.resolved:
        problem, _ = formatting.format_advice(event.code, event.params)
        return tr("log.advice_resolved", advice=problem)
    text = formatting.localized_message(event.code, event.params)
    return f"{text}\n{event.detail}" if event.detail else text
