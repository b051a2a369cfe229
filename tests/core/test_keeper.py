"""A trainer that is kept running while connections to it come and go, as real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from app.core.command_line import config_arguments
from tests.waiting import wait_until
from trainer_core import presets, protocol
from trainer_core.remote import keeper
from trainer_core.runs import file_locks, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import child_process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the other machine is Linux")
PROGRAM: Final = [sys.executable, "-P", "-X", "utf8", "-m", "trainer_core", "remote"]
TINY: Final = {
    "hidden_dim": 32, "n_layers": 1, "max_seq_len": 32, "batch_size": 4, "vocab_size": 300, "device": "cpu",
    "cpu_threads": 1, "log_steps": 1, "save_steps": 20, "eval_steps": 20, "advice": False,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDir]:
    """The folder of a run, whose processes are killed at the end of the test."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path / "远程 home"))
    folder = RunDir(run_dir.runs_root() / "a run")
    yield folder
    for lock in (keeper.KeeperDir(folder).lock, folder.lock):
        if (owner := file_locks.read_owner(lock)) is not None and owner.alive:
            psutil.Process(owner.pid).kill()


def start(run: RunDir, *arguments: str, steps: int = 100_000) -> None:
    settings = config_arguments(presets.load("quickstart"), {**TINY, "max_steps": steps}, ())
    command = [*PROGRAM, "start", str(run.path), "--run-dir", str(run.path), *settings, *arguments]
    subprocess.run(command, env=child_process.environment(), check=True, timeout=90)


def open_connection(run: RunDir, after: int = 0) -> subprocess.Popen[bytes]:
    command = [*PROGRAM, "follow", str(run.path), "--after", str(after)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=child_process.environment(), stdin=pipe, stdout=pipe, stderr=pipe)


def send(connection: subprocess.Popen[bytes], commands: Sequence[tuple[str, protocol.AnyCommand]]) -> None:
    assert connection.stdin is not None
    for key, command in commands:
        entry = {"key": key, "command": json.loads(protocol.encode(command))}
        connection.stdin.write(json.dumps(entry).encode() + b"\n")
    connection.stdin.flush()


def finish(connection: subprocess.Popen[bytes]) -> tuple[bytes, dict[str, Any]]:
    """Events until the end of the run, and how it ended."""
    assert connection.stdout is not None
    assert connection.stderr is not None
    output = connection.stdout.read()  # `communicate` would close stdin, which ends the connection
    return output, json.loads(connection.stderr.read())


def acknowledged(content: bytes) -> list[tuple[str, int | None]]:
    events = run_dir.decode_events(content.splitlines())
    return [(event.command, event.id) for event in events if isinstance(event, protocol.Ack)]


def test_connections_that_are_killed_together_receive_every_event_once(run: RunDir) -> None:
    start(run, steps=120)
    received = b""
    for _ in range(3):
        connection = open_connection(run, len(received))
        assert connection.stdout is not None
        received += os.read(connection.stdout.fileno(), 100_000)
        connection.kill()
        received += connection.communicate()[0]
    rest, end = finish(open_connection(run, len(received)))
    assert received + rest == run.events.read_bytes()
    assert end["exit_code"] == 0
    assert run_dir.summarize(run).state == "finished"


def test_a_repeated_command_is_carried_out_once_and_a_second_stop_kills(run: RunDir) -> None:
    start(run)
    wait_until(lambda: b'"type":"step"' in (run.events.read_bytes() if run.events.is_file() else b""), 90)
    connection = open_connection(run)
    save = protocol.Save(id=7)
    send(connection, [("1", save), ("1", save), ("2", protocol.Pause(id=8))])
    wait_until(lambda: ("pause", 8) in acknowledged(run.events.read_bytes()), 60)
    assert acknowledged(run.events.read_bytes()) == [("save", 7), ("pause", 8)]
    stop = protocol.Stop(id=9)
    send(connection, [("3", stop), ("3", stop)])
    output, end = finish(connection)
    assert end["exit_code"] == 3
    assert acknowledged(output)[2:] == [("stop", 9)]
    start(run, "--resume", str(run.path))
    wait_until(lambda: run.events.read_bytes().count(b'"type":"hello"') == 2, 90)
    connection = open_connection(run)
    send(connection, [("1", protocol.Stop()), ("2", protocol.Stop())])
    assert finish(connection)[1]["exit_code"] < 0
    assert not keeper.is_running(run)


def test_a_trainer_whose_keeper_was_killed_saves_and_its_end_is_unknown(run: RunDir) -> None:
    start(run)
    wait_until(lambda: b'"type":"step"' in (run.events.read_bytes() if run.events.is_file() else b""), 90)
    owner = file_locks.read_owner(keeper.KeeperDir(run).lock)
    assert owner is not None
    psutil.Process(owner.pid).kill()
    _, end = finish(open_connection(run))
    assert end["exit_code"] is None
    assert run_dir.summarize(run).resumable


def test_a_run_that_cannot_begin_reports_why(run: RunDir) -> None:
    start(run, "--data", "missing.txt")
    output, end = finish(open_connection(run))
    assert output == b""
    error = protocol.decode_event(end["unrecorded"][-1].encode())
    assert isinstance(error, protocol.Error)
    assert (error.code, end["exit_code"]) == ("data.not_found", error.exit_code)


def test_only_one_keeper_runs_a_run(run: RunDir) -> None:
    keeper.KeeperDir(run).path.mkdir(parents=True)
    with file_locks.file_lock(keeper.KeeperDir(run).lock):
        command = [*PROGRAM, "start", str(run.path), "--run-dir", str(run.path)]
        environment = child_process.environment()
        refused = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert str(run.path) in refused.stderr.decode("utf-8")
