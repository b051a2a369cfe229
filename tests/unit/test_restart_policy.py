"""Restart policy, and the final event that the supervisor reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.docgen.examples import EVENTS
from trainer_core.restart_policy import GiveUp, ProcessExit, Restart, RestartPolicy
from trainer_core.run_plan import RunPlan
from trainer_core.runs.run_dir import RunDir
from trainer_core.supervisor import is_enabled, read_final_event

SEGFAULT = 0xC0000005 if sys.platform == "win32" else -11
CRASH = ProcessExit(SEGFAULT)


def crash(step: int, started: bool = True) -> ProcessExit:
    return ProcessExit(SEGFAULT, started=started, step=step)


def test_the_delay_grows_until_the_policy_gives_up() -> None:
    restarts = RestartPolicy(3)
    decisions = [restarts.decide(CRASH) for _ in range(4)]
    assert [decision.delay_s for decision in decisions if isinstance(decision, Restart)] == [5, 15, 45]
    assert [decision.attempt for decision in decisions if isinstance(decision, Restart)] == [1, 2, 3]
    assert decisions[-1] == GiveUp(3, "failure.access_violation")


def test_the_delay_is_at_most_five_minutes() -> None:
    restarts = RestartPolicy(20)
    delays = [decision.delay_s for _ in range(20) if isinstance(decision := restarts.decide(CRASH), Restart)]
    assert len(delays) == 20
    assert max(delays) == 300


def test_a_newer_checkpoint_resets_the_count() -> None:
    restarts = RestartPolicy(1)
    assert isinstance(restarts.decide(crash(10)), Restart)
    assert isinstance(restarts.decide(crash(20)), Restart)
    assert isinstance(restarts.decide(crash(20)), GiveUp)


def test_a_checkpoint_from_before_the_start_is_not_progress() -> None:
    restarts = RestartPolicy(1, step=10)
    assert isinstance(restarts.decide(crash(10)), Restart)
    assert isinstance(restarts.decide(crash(10)), GiveUp)


@pytest.mark.parametrize(
    "exit",
    [
        ProcessExit(0),
        ProcessExit(3),
        ProcessExit(1),
        ProcessExit(5, error="memory.out"),
        ProcessExit(7, error="disk.full"),
        ProcessExit(4, error="data.empty"),
        ProcessExit(130),
        ProcessExit(-9),  # killed by the user or by the OOM killer
        ProcessExit(-15),
        ProcessExit(SEGFAULT, error="disk.full"),  # reported an error before the crash
    ],
)
def test_finished_stopped_and_permanently_failed_runs_are_not_restarted(exit: ProcessExit) -> None:
    assert RestartPolicy(3).decide(exit) is None


@pytest.mark.parametrize("code", ["device.failed", "failure.launch", "failure.ecc", "failure.worker_died"])
def test_device_and_worker_failures_are_restarted(code: str) -> None:
    decision = RestartPolicy(3).decide(ProcessExit(6, error=code))
    assert isinstance(decision, Restart)
    assert decision.reason == code


def test_a_first_start_without_hello_is_not_restarted() -> None:
    assert RestartPolicy(3).decide(crash(0, started=False)) is None


def test_a_later_start_without_hello_is_restarted() -> None:
    restarts = RestartPolicy(3)
    restarts.decide(crash(0))
    assert isinstance(restarts.decide(crash(0, started=False)), Restart)


def test_a_limit_of_zero_disables_restarts() -> None:
    assert RestartPolicy(0).decide(CRASH) is None


def test_a_crash_reported_by_qt_is_restarted() -> None:
    qt_exit_code = -0x3FFFFFFB if sys.platform == "win32" else 11
    assert isinstance(RestartPolicy(1).decide(ProcessExit(qt_exit_code, crashed=True)), Restart)


@pytest.mark.parametrize(("restarts", "elastic", "enabled"), [(3, False, True), (0, False, False), (3, True, False)])
def test_the_supervisor_is_disabled_without_restarts_and_under_torchrun(
    monkeypatch: pytest.MonkeyPatch, restarts: int, elastic: bool, enabled: bool
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if elastic:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert is_enabled(RunPlan(Config(restarts=restarts), RunDir(Path("run")))) is enabled


# --- final event ----------------------------------------------------------------------------------------


HELLO, STEP, ERROR, DONE = (EVENTS[kind] for kind in (protocol.Hello, protocol.Step, protocol.Error, protocol.Done))


def encode_events(*events: protocol.AnyEvent) -> bytes:
    return b"".join(map(protocol.encode, events))


def test_the_final_event_of_a_long_run_is_found(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_bytes(encode_events(HELLO, *[STEP] * 2000, ERROR))
    assert len(events.read_bytes()) > 300_000
    assert read_final_event(events, 0) == ERROR


@pytest.mark.parametrize(("later", "expected"), [((), None), ((HELLO, STEP), None), ((HELLO, DONE), DONE)])
@pytest.mark.parametrize("partial_line", [b"", b'{"type":"step","st'])
def test_events_of_earlier_processes_are_ignored(
    tmp_path: Path, later: tuple[protocol.AnyEvent, ...], expected: object, partial_line: bytes
) -> None:
    events = tmp_path / "events.jsonl"
    before = encode_events(HELLO, STEP, ERROR) + partial_line
    events.write_bytes(before + (b"\n" if partial_line else b"") + encode_events(*later))
    assert read_final_event(events, len(before)) == expected


def test_a_missing_event_file_has_no_events(tmp_path: Path) -> None:
    assert read_final_event(tmp_path / "events.jsonl", 0) is None
