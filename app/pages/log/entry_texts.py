"""Texts of log entries in the current language."""

from __future__ import annotations

from app.core.log_store import MAX_TEXT_CHARS, LogEntry
from app.texts import current_language, tr
from app.widgets import formatting
from trainer_core import protocol
from trainer_core.console.events import format_event
from trainer_core.messages import is_known


def format_entry(entry: LogEntry) -> str:
    """Return the text of an entry, with details on further lines: mostly what a terminal shows."""
    match entry.event:
        case None:
            return entry.text
        case protocol.CodedEvent():
            text = _format_message(entry.event)
        case protocol.Phase():
            reason = formatting.format_pause_reason(entry.event.reason or "", entry.event.until)
            phase = formatting.format_phase(entry.event.phase)
            text = tr("log.phase", phase=tr("common.list_separator").join(filter(None, (phase, reason))))
        case protocol.Ack():
            text = tr("log.command_rejected", command=entry.event.command, reason=entry.event.reason)
        case _:
            text = format_event(entry.event, current_language())
            text = text[:1].upper() + text[1:]
    return text[:MAX_TEXT_CHARS]


def _format_message(event: protocol.CodedEvent) -> str:
    """Unknown codes are returned as they are."""
    if isinstance(event, protocol.Advice) and event.resolved:
        return tr("log.advice_resolved", advice=formatting.format_advice(event.code, event.params)[0])
    text = formatting.localized_message(event.code, event.params)
    return f"{text}\n{event.detail}" if event.detail and is_known(event.code) else text
