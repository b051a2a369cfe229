"""The trainer as a child process, with the behaviors of `fake_trainer.py`."""

from __future__ import annotations

import sys
import time
from array import array
from pathlib import Path

import psutil
import pytest
from fake_trainer import FLOOD, SLOW_SAVE_S
from pytestqt.qtbot import QtBot
from recording import LONGEST_GAP_S, Heartbeat, RecordedProcess, StartFake

from app.core.metrics.metric_store import MetricStore
from app.core.run_state import ProcessExited, ProcessStarted, RunRequest, RunState, RunStateMachine
from app.services import trainer_process
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from trainer_core import protocol


def test_events_and_output_of_a_run_are_emitted_in_order(run_fake: StartFake) -> None:
    run = run_fake("ok", "train", "--preset", "quickstart")
    assert run.outcome() == ProcessOutcome(0, False, ["警告：一行输出"])
    assert [event.seq for event in run.events] == list(range(1, len(run.events) + 1))
    assert isinstance(run.events[0], protocol.Hello)
    assert run.events[0].run_dir == "runs/假"
    assert isinstance(run.events[-1], protocol.Done)
    assert run.output == ["警告：一行输出"]
    assert not run.process.is_running


def test_only_one_process_runs_at_a_time(run_fake: StartFake) -> None:
    run = run_fake("echo")
    run.wait_for(protocol.Hello)
    assert not run.process.start(["train"])
    run.process.send(protocol.Stop())
    run.outcome()
    assert run.process.start(["train"])
    run.wait_for(protocol.Hello, count=2)


def test_the_output_tail_ends_with_the_traceback_of_an_uncaught_exception(run_fake: StartFake) -> None:
    outcome = run_fake("traceback").outcome()
    assert (outcome.exit_code, outcome.crashed) == (1, False)
    assert outcome.output_tail[-1] == "RuntimeError: uncaught test error"
    assert outcome.error_event is None


def test_an_aborted_process_counts_as_crashed_and_its_incomplete_last_line_is_output(run_fake: StartFake) -> None:
    run = run_fake("abort")
    outcome = run.outcome()
    assert outcome.crashed or sys.platform == "win32"  # on Windows, abort() only sets an exit code
    assert "last output before the crash" in outcome.output_tail
    assert '{"type":"step","st' in run.output
    assert len(run.events_of(protocol.Step)) == 1


def test_the_exit_code_of_a_silent_exit_is_reported(run_fake: StartFake) -> None:
    assert run_fake("silent_exit").outcome().exit_code == 77


def test_a_flood_of_events_does_not_block_the_window(run_fake: StartFake, heartbeat: Heartbeat) -> None:
    store, steps = MetricStore(), array("q")
    run = run_fake("flood", keep_events=False)  # a list of 200,000 events would slow down garbage collection
    run.process.event_received.connect(store.add)
    run.process.event_received.connect(
        lambda event: steps.append(event.step) if isinstance(event, protocol.Step) else None
    )
    run.outcome(timeout_s=60.0)
    longest_gap_s = heartbeat.longest_gap_s
    print(f"longest gap {1000 * longest_gap_s:.0f} ms")  # noqa: T201
    assert steps == array("q", range(1, FLOOD + 1))
    assert store.series("train_loss")[1].size == FLOOD
    assert longest_gap_s < LONGEST_GAP_S
    assert heartbeat.beats > 20


def test_a_flood_of_output_does_not_block_the_window(run_fake: StartFake, heartbeat: Heartbeat) -> None:
    run = run_fake("flood_of_output")
    outcome, longest_gap_s = run.outcome(), heartbeat.longest_gap_s
    assert run.output == [f"debug line {number}" for number in range(50_000)]
    assert outcome.output_tail == run.output[-trainer_process.OUTPUT_TAIL_LINES :]
    assert longest_gap_s < LONGEST_GAP_S


def test_slow_slots_do_not_block_the_window(run_fake: StartFake, heartbeat: Heartbeat) -> None:
    run = run_fake("flood")
    run.process.event_received.connect(lambda event: time.sleep(0.001))
    run.wait_for(protocol.Step, count=500)
    assert heartbeat.longest_gap_s < LONGEST_GAP_S
    assert heartbeat.beats > 20


def test_lines_that_are_not_events_become_output(run_fake: StartFake) -> None:
    run = run_fake("garbage")
    run.outcome()
    assert len(run.events_of(protocol.Step)) == 6
    assert len(run.events_of(protocol.Done)) == 1
    assert run.output[0].endswith("not utf-8")
    expected = ["plain text", '{"type":"nonsense"}', "[1,2,3]", "{{{", "进度 100%", "\0" * 10, "no newline at the end"]
    assert run.output[1:] == expected


def test_an_endless_line_is_cut_and_the_next_event_is_decoded(run_fake: StartFake) -> None:
    run = run_fake("endless_line")
    run.outcome()
    assert len(run.events_of(protocol.Done)) == 1
    assert [(text[:3], text[-1], len(text) < 5000) for text in run.output] == [("xxx", "…", True)]


def test_lines_that_arrive_in_pieces_are_joined(run_fake: StartFake) -> None:
    run = run_fake("split_lines")
    run.outcome()
    assert [type(event) for event in run.events] == [protocol.Hello, protocol.Step, protocol.Done]
    assert run.output == ["训练中"]


def test_each_command_is_acknowledged_with_its_id(run_fake: StartFake) -> None:
    run = run_fake("echo")
    run.wait_for(protocol.Hello)
    process = run.process
    sample = protocol.SampleCommand(prompt="从前")
    assert all(map(process.send, (protocol.Pause(), protocol.Resume(), protocol.Save(), sample, protocol.Stop())))
    assert run.outcome().exit_code == 3
    acknowledged = [(ack.command, ack.id) for ack in run.events_of(protocol.Ack) if isinstance(ack, protocol.Ack)]
    assert acknowledged == [("pause", 1), ("resume", 2), ("save", 3), ("sample", 4), ("stop", 5)]
    assert not process.send(protocol.Stop())


def test_a_command_sent_before_the_first_event_is_received(run_fake: StartFake, qtbot: QtBot) -> None:
    run = run_fake("echo")
    qtbot.waitUntil(lambda: run.process.pid is not None)
    assert not run.events
    assert run.process.send(protocol.Stop())
    assert run.outcome().exit_code == 3


def test_the_trainer_saves_and_exits_when_its_input_is_closed(run_fake: StartFake) -> None:
    run = run_fake("echo")
    run.wait_for(protocol.Hello)
    run.process.close_input()
    assert run.outcome().exit_code == 3
    last = run.events[-1]
    assert isinstance(last, protocol.Done)
    assert last.reason == "parent_lost"


def test_an_error_event_is_part_of_the_outcome(run_fake: StartFake) -> None:
    outcome = run_fake("error").outcome()
    assert outcome.exit_code == 4
    assert outcome.error_event is not None
    assert outcome.error_event.params == {"path": "C:\\数据\\a.txt"}


def test_a_newer_protocol_version_is_reported(run_fake: StartFake) -> None:
    run = run_fake("newer_version")
    run.outcome()
    assert run.incompatible == [(protocol.VERSION[0] + 1, 4)]


def test_kill_ends_the_descendants(run_fake: StartFake, qtbot: QtBot) -> None:
    run = run_fake("child_process")
    qtbot.waitUntil(lambda: bool(run.output), timeout=20_000)
    child = psutil.Process(int(run.output[0].removeprefix("child ")))
    for _ in range(3):  # like the window at every tick
        run.process.kill()
    assert run.outcome(5.0).exit_code != 0
    qtbot.waitUntil(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, timeout=5_000)


def test_shutdown_lets_the_trainer_save(run_fake: StartFake) -> None:
    run = run_fake("echo")
    run.wait_for(protocol.Hello)
    start = time.monotonic()
    run.process.shutdown(grace_s=10.0)
    assert time.monotonic() - start < 5.0
    assert run.outcome().exit_code == 3


def test_shutdown_kills_a_trainer_that_does_not_respond(run_fake: StartFake) -> None:
    run = run_fake("ignored_stop")
    run.wait_for(protocol.Hello)
    start = time.monotonic()
    run.process.shutdown(grace_s=0.3)
    assert time.monotonic() - start < 3.0
    assert run.outcome().exit_code != 0


def test_a_missing_program_ends_in_an_outcome(qtbot: QtBot, tmp_path: Path) -> None:
    process = TrainerProcess(command=[str(tmp_path / "no such program")])
    with qtbot.waitSignal(process.finished) as finished:
        assert process.start([])
    outcome = finished.args[0]
    assert outcome.failed_to_start
    assert outcome.output_tail
    assert not process.is_running


def test_the_trainer_command_is_unbuffered_utf8_and_not_pythonw(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "python.exe").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "pythonw.exe"))
    expected = [str(tmp_path / "python.exe"), "-u", "-P", "-X", "utf8", "-m", "trainer_core"]
    assert trainer_process.trainer_command() == expected


# --- with the run state machine -----------------------------------------------------------------------


def drive(run_machine: RunStateMachine, run_fake: StartFake, mode: str) -> RecordedProcess:
    """Start a fake trainer that feeds a state machine."""
    run = run_fake(mode)
    run_machine.feed(ProcessStarted(), time.monotonic())
    run.process.event_received.connect(lambda event: run_machine.feed(event, time.monotonic()))
    run.process.finished.connect(
        lambda end: run_machine.feed(ProcessExited(end.exit_code, end.crashed), time.monotonic())
    )
    return run


def test_progress_of_a_save_extends_the_stop_deadline(run_fake: StartFake, qtbot: QtBot) -> None:
    machine = RunStateMachine(stop_timeout_s=SLOW_SAVE_S / 3)
    run = drive(machine, run_fake, "slow_stop")
    run.wait_for(protocol.Step)
    run.process.send(protocol.Stop())
    machine.feed(RunRequest.STOP, time.monotonic())
    while machine.state in (RunState.STOPPING, RunState.KILLING):
        qtbot.wait(50)
        machine.feed(RunRequest.TICK, time.monotonic())
    assert (machine.state, machine.killed, machine.exit_code) == (RunState.STOPPED, False, 3)
    assert machine.can_resume_from_disk


def test_a_trainer_that_ignores_a_stop_is_killed(run_fake: StartFake, qtbot: QtBot) -> None:
    machine = RunStateMachine(stop_timeout_s=0.5)
    run = drive(machine, run_fake, "ignored_stop")
    run.wait_for(protocol.Step)
    run.process.send(protocol.Stop())
    machine.feed(RunRequest.STOP, time.monotonic())
    assert machine.stop_deadline_s == pytest.approx(0.5, abs=0.1)
    while machine.state is RunState.STOPPING:
        qtbot.wait(50)
        machine.feed(RunRequest.TICK, time.monotonic())
    assert machine.state is RunState.KILLING
    run.process.kill()
    qtbot.waitUntil(lambda: machine.state is RunState.STOPPED, timeout=5_000)
    assert machine.killed


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        ("ok", RunState.FINISHED),
        ("error", RunState.FAILED),
        ("traceback", RunState.CRASHED),
        ("abort", RunState.CRASHED),
        ("silent_exit", RunState.CRASHED),
    ],
)
def test_each_kind_of_exit_leads_to_its_final_state(
    run_fake: StartFake, qtbot: QtBot, mode: str, state: RunState
) -> None:
    machine = RunStateMachine()
    drive(machine, run_fake, mode)
    qtbot.waitUntil(lambda: not machine.is_active, timeout=20_000)
    assert machine.state is state
