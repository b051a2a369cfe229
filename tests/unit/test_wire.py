"""Event output: no interference, no blocking, no lost events."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from trainer_core import protocol
from trainer_core.console.display import ConsoleSink
from trainer_core.wire import EventDispatcher, FileSink, StreamSink

ROOT = Path(__file__).resolve().parents[2]


def step(number: int) -> protocol.Step:
    times = protocol.StepTime(data=0, transfer=0, forward=0, backward=0, optimizer=0, other=0)
    return protocol.Step(
        step=number, epoch=0, tokens=0, samples=0, loss=1.0, learning_rate=0, tokens_per_s=0, samples_per_s=0,
        time_ms=times,
    )  # fmt: skip


class SlowReader(io.RawIOBase):
    """A pipe whose reader takes nothing until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.taken = b""

    def write(self, data: object) -> int:
        self.go.wait(20)
        self.taken += bytes(cast(bytes, data))
        return len(cast(bytes, data))


def test_events_have_numbers_and_times_in_order(tmp_path: Path) -> None:
    wire = EventDispatcher(FileSink(tmp_path / "events.jsonl"))
    before = time.time()
    for number in range(3):
        wire.emit(step(number))
    wire.close()
    events = [protocol.decode_event(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    assert [event.seq for event in events] == [1, 2, 3]
    assert all(before <= event.t <= time.time() for event in events)


def test_a_blocked_reader_does_not_block_the_sender() -> None:
    reader = SlowReader()
    wire = EventDispatcher(StreamSink(cast(BinaryIO, reader), capacity=50))
    since = time.monotonic()
    for number in range(5000):
        wire.emit(step(number))
    assert time.monotonic() - since < 2
    reader.go.set()
    wire.close()


def test_a_slow_reader_loses_only_droppable_events_and_gets_their_number() -> None:
    reader = SlowReader()
    wire = EventDispatcher(StreamSink(cast(BinaryIO, reader), capacity=50))
    for number in range(300):
        wire.emit(step(number))
        if number % 10 == 0:
            wire.emit(protocol.Phase(phase="evaluating", step=number))
    reader.go.set()
    wire.close()
    events = [protocol.decode_event(line) for line in reader.taken.splitlines()]
    phases = [event.step for event in events if isinstance(event, protocol.Phase)]
    steps = [event for event in events if isinstance(event, protocol.Step)]
    dropped = sum(int(event.params["count"] or 0) for event in events if isinstance(event, protocol.Warn))
    assert phases == list(range(0, 300, 10))
    assert dropped > 0
    assert len(steps) + dropped == 300
    assert steps[-1].step == 299, "the newest are kept"


def test_a_disconnected_reader_is_reported_once() -> None:
    read, write = os.pipe()
    os.close(read)
    sink, calls = StreamSink(os.fdopen(write, "wb", buffering=0)), []
    sink.on_disconnect(lambda: calls.append("gone"))
    wire = EventDispatcher(sink)
    for number in range(100):
        wire.emit(step(number))
        time.sleep(0.001)
    wire.close()
    assert calls == ["gone"]
    assert not sink._thread.is_alive()


def test_every_event_is_written_immediately(tmp_path: Path) -> None:
    wire = EventDispatcher(FileSink(tmp_path / "events.jsonl"))
    wire.emit(step(1))
    assert b'"step":1' in (tmp_path / "events.jsonl").read_bytes()
    wire.close()


def test_an_incomplete_line_of_a_killed_process_is_terminated(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"type":"step","st')
    wire = EventDispatcher(FileSink(path))
    wire.emit(protocol.Phase(phase="training"))
    wire.close()
    broken, whole = path.read_bytes().splitlines()
    assert protocol.decode_event(whole) is not None
    with pytest.raises(protocol.ProtocolError):
        protocol.decode_event(broken)


@pytest.mark.skipif(sys.platform == "win32", reason="a file's size cannot be limited there")
def test_events_after_a_full_disk_are_complete(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "events.jsonl"
    sink = FileSink(path)
    wire = EventDispatcher(sink)
    wire.emit(step(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
    try:
        wire.emit(step(2))  # its beginning finds room
        wire.emit(step(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    wire.emit(step(4))
    wire.close()
    first, cut, last = path.read_bytes().splitlines()
    assert (protocol.decode_event(first).seq, len(cut), protocol.decode_event(last).seq) == (1, 20, 4)
    assert sink.problem is not None


def test_prints_go_to_stderr_after_stdout_is_claimed() -> None:
    program = (
        "import os, subprocess, sys\n"
        "from trainer_core.wire import claim_stdout\n"
        "stream = claim_stdout()\n"
        "print('from python')\n"
        "os.write(1, b'from c\\n')\n"
        "subprocess.run([sys.executable, '-c', 'print(\"from a child\")'])\n"
        "stream.write(b'{\"real\": 1}\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT, timeout=60, check=True)
    assert json.loads(done.stdout) == {"real": 1}
    for stray in (b"from python", b"from c", b"from a child"):
        assert stray in done.stderr


class Choosy(io.RawIOBase):
    """A pipe that takes a few bytes at a time, and every other time none."""

    calls, taken = 0, b""

    def write(self, data: object) -> int | None:  # type: ignore[override]
        self.calls += 1
        if self.calls % 2:
            return None
        self.taken += bytes(cast(bytes, data))[:7]
        return min(7, len(cast(bytes, data)))


def test_partial_writes_are_completed() -> None:
    reader = Choosy()
    wire = EventDispatcher(StreamSink(cast(BinaryIO, reader)))
    for number in range(3):
        wire.emit(step(number))
    wire.close()
    assert [json.loads(line)["step"] for line in reader.taken.splitlines()] == [0, 1, 2]


class Closed(io.StringIO):
    """A terminal that went away."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_closed_terminal_is_ignored(tmp_path: Path) -> None:
    console = ConsoleSink(Closed(), "en")
    wire = EventDispatcher(console, FileSink(tmp_path / "events.jsonl"))
    for number in range(3):
        wire.emit(step(number))
    wire.emit(protocol.Error(code="usage", params={"problem": "?"}, exit_code=2))
    wire.close()
    assert len((tmp_path / "events.jsonl").read_bytes().splitlines()) == 4


def test_events_returned_by_a_listener_follow_the_event(tmp_path: Path) -> None:
    wire = EventDispatcher(FileSink(tmp_path / "events.jsonl"))
    wire.add_listener(
        lambda event: [protocol.Advice(code="advice.battery")] if isinstance(event, protocol.Step) else []
    )
    wire.emit(protocol.Phase(phase="training"))
    wire.emit(step(1))
    wire.emit(protocol.Phase(phase="done"))
    wire.close()
    written = [json.loads(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    assert [event["type"] for event in written] == ["phase", "step", "advice", "phase"]
    assert [event["seq"] for event in written] == [1, 2, 3, 4]
    assert written[1]["t"] <= written[2]["t"]
