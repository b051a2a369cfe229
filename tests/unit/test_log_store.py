"""Log of a run: levels of events, and the limited number of entries."""

from __future__ import annotations

from app.core.log_store import Level, LogStore
from trainer_core import protocol
from trainer_core.docgen import examples

LEVELS: dict[type, Level | None] = {
    protocol.Hello: "info",
    protocol.Ready: "info",
    protocol.Phase: "info",
    protocol.Eval: "info",
    protocol.Sample: "info",
    protocol.BadStep: "warning",
    protocol.OomRecovery: "warning",
    protocol.Checkpoint: "info",
    protocol.Done: "info",
    protocol.Warn: "warning",
    protocol.Advice: "advice",
    protocol.Error: "error",
    protocol.Step: None,
    protocol.Hardware: None,
    protocol.Progress: None,
    protocol.Performance: None,
}


def phase(step: int) -> protocol.Phase:
    return protocol.Phase(t=float(step), phase="training", step=step)


def test_events_have_a_level_and_measurements_are_not_logged() -> None:
    for kind, level in LEVELS.items():
        entry = LogStore().add(examples.EVENTS[kind])
        assert (entry.level if entry else None) == level, kind


def test_the_level_depends_on_whether_advice_is_resolved_or_a_command_rejected() -> None:
    log = LogStore()
    resolved = log.add(protocol.Advice(code="hardware.no_nvml", resolved=True))
    rejected = log.add(protocol.Ack(command="set", accepted=False, reason="no"))
    grown = log.add(
        protocol.OomRecovery(step=9, action="grown", during="none", batch_size=16, gradient_accumulation_steps=1)
    )
    assert resolved is not None
    assert rejected is not None
    assert grown is not None
    assert (resolved.level, rejected.level, grown.level) == ("info", "warning", "info")
    assert log.add(protocol.Ack(command="stop")) is None


def test_only_the_newest_entries_are_kept_with_consecutive_numbers() -> None:
    log = LogStore(capacity=5)
    for number in range(12):
        log.add(phase(number))
    assert [entry.time for entry in log] == [7, 8, 9, 10, 11]
    assert [entry.time for entry in log.since(10)] == [10, 11]
    assert [entry.time for entry in log.since(0)] == [7, 8, 9, 10, 11]
    assert log.since(12) == []


def test_a_long_line_of_output_is_truncated() -> None:
    assert len(LogStore().add_output("x" * 1_000_000, 0.0).text) < 10_000
