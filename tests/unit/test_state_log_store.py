"""The log: codes and parameters, bounded, filtered."""

from __future__ import annotations

import pytest

from app.core.log_store import LOG_CODES, LogFilter, LogStore
from trainer_core import protocol
from trainer_core.docgen import examples as reference_examples
from trainer_core.messages import is_known


def phase(step: int) -> protocol.Phase:
    return protocol.Phase(t=float(step), phase="training", step=step)


REPORT: protocol.DataReport = reference_examples.EVENTS[protocol.DataReport]
EVENTS: list[tuple[protocol.AnyEvent, str, str]] = [
    (protocol.Hello(pid=1, run_dir="r", traindeck="0", python="3", torch="2", devices=["a", "b"]), "info", "log.hello"),
    (
        protocol.Ready(
            task="sft",
            train_documents=9,
            train_tokens=900,
            validation_documents=1,
            validation_tokens=100,
            vocab_size=300,
            parameters=1_000_000,
            steps_per_epoch=10,
            total_steps=20,
        ),
        "info",
        "log.ready",
    ),
    (REPORT, "info", "log.data_report"),
    (phase(1), "info", "log.phase"),
    (protocol.Eval(step=1, loss=2.0, perplexity=None, tokens=1, seconds=1.0), "info", "log.eval"),
    (protocol.Sample(step=1, prompt="p", text="written"), "info", "log.sample"),
    (protocol.BadStep(step=1, kind="spike", action="skipped", samples=[4, 2]), "warning", "log.bad_step"),
    (protocol.FlopsProfile(step=1, tokens=8, total=2e9, formula=2e9), "info", "log.flops_profile"),
    (protocol.Checkpoint(step=1, path="p", bytes=1, seconds=1.0, kind="best"), "info", "log.checkpoint"),
    (reference_examples.EVENTS[protocol.CheckReport], "warning", "log.check"),
    (reference_examples.EVENTS[protocol.OomRecovery], "warning", "log.oom_recovery"),
    (protocol.Advice(code="hardware.no_nvml", resolved=True), "info", "log.advice_cleared"),
    (protocol.Done(reason="finished", steps=1, total_steps=1), "info", "log.done"),
    (protocol.Ack(command="set", accepted=False, reason="no"), "warning", "log.refused"),
    (protocol.Warn(code="data.truncated", params={"count": 3}), "warning", "data.truncated"),
    (protocol.Advice(code="hardware.no_nvml"), "advice", "hardware.no_nvml"),
    (protocol.Error(code="disk.full", detail="ENOSPC"), "error", "disk.full"),
]


@pytest.mark.parametrize(("event", "level", "code"), EVENTS)
def test_each_event_that_is_news_becomes_an_entry(event: protocol.AnyEvent, level: str, code: str) -> None:
    entry = LogStore().add(event)
    assert entry is not None
    assert (entry.level, entry.code) == (level, code)
    assert is_known(code) or set(entry.params) == set(LOG_CODES[code])


def test_measurements_and_plain_acknowledgements_are_no_news() -> None:
    log = LogStore()
    host = protocol.Host(ram_used=1, ram_total=2, rss=1, cpu=0.1, disk_free=1)
    for event in (
        protocol.Hardware(host=host),
        protocol.Progress(phase="training", done=1),
        protocol.Ack(command="stop"),
        protocol.Performance(step=1, data_ratio=0.1, compute_ratio=0.9, flops_per_token=1.0),
    ):
        assert log.add(event) is None
    assert len(log) == 0


def test_parameters_are_plain_values_and_texts_stay_beside_them() -> None:
    log = LogStore()
    hello, sample, error = (log.add(EVENTS[place][0]) for place in (0, 5, 16))
    assert hello is not None
    assert sample is not None
    assert error is not None
    assert hello.params["devices"] == "a, b"
    assert sample.text == "written"
    assert error.text == "ENOSPC"


def test_only_the_newest_entries_are_kept_and_their_numbers_go_on() -> None:
    log = LogStore(capacity=5)
    for number in range(12):
        log.add(phase(number))
    assert [entry.number for entry in log] == [7, 8, 9, 10, 11]
    assert log.first_number == 7
    assert [entry.number for entry in log.since(10)] == [10, 11]
    assert [entry.number for entry in log.since(0)] == [7, 8, 9, 10, 11]
    assert log.since(12) == []
    log.clear()
    assert (len(log), log.first_number) == (0, 12)


def test_a_filter_selects_by_level_and_by_the_text_that_is_shown() -> None:
    output = LogStore().add_output("Loading weights", 1.0)
    assert LogFilter().matches(output, "Loading WEIGHTS")
    assert LogFilter(frozenset({"output"}), "weights").matches(output, "Loading WEIGHTS")
    assert not LogFilter(frozenset({"warning"})).matches(output, "Loading WEIGHTS")
    assert not LogFilter(text="截断").matches(output, "Loading WEIGHTS")


def test_the_version_tells_of_every_change() -> None:
    log = LogStore()
    seen = [log.version]
    log.add(phase(1))
    seen.append(log.version)
    log.clear()
    seen.append(log.version)
    assert len(set(seen)) == 3


def test_an_endless_text_is_cut() -> None:
    assert len(LogStore().add_output("x" * 1_000_000, 0.0).text) < 10_000


def test_a_memory_move_knows_what_there_was_before_it() -> None:
    log = LogStore()
    log.add(protocol.Hello(pid=1, run_dir="r", traindeck="0", python="3", torch="2", config={"batch_size": 16}))
    moves = [
        protocol.OomRecovery(step=1, action="halved", during="forward", batch_size=8, gradient_accumulation_steps=2),
        protocol.OomRecovery(step=9, action="grown", during="none", batch_size=16, gradient_accumulation_steps=1),
    ]
    first, second = (log.add(move) for move in moves)
    assert first is not None
    assert second is not None
    assert (first.params["batch_before"], first.params["accumulation_before"]) == (16, None)
    assert (second.params["batch_before"], second.params["accumulation_before"]) == (8, 2)
    assert [first.level, second.level] == ["warning", "info"]
