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

from tests.events import step
from trainer_core import protocol
from trainer_core.console.display import ConsoleSink
from trainer_core.wire import EventDispatcher, FileSink, StreamSink

ROOT = Path(__file__).resolve().parents[2]


class BlockedStream(io.RawIOBase):
    """Stream whose writes block until `released` is set."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.received = b""

    def write(self, data: object) -> int:
        self.released.wait(20)
        self.received += bytes(cast(bytes, data))
        return len(cast(bytes, data))


def test_events_have_numbers_and_times_in_order(tmp_path: Path) -> None:
    dispatcher = EventDispatcher(FileSink(tmp_path / "events.jsonl"))
    before = time.time()
    for number in range(3):
        dispatcher.emit(step(number))
    dispatcher.close()
    events = [protocol.decode_event(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    assert [event.seq for event in events] == [1, 2, 3]
    assert all(before <= event.t <= time.time() for event in events)


def test_a_blocked_reader_does_not_block_the_sender() -> None:
    stream = BlockedStream()
    dispatcher = EventDispatcher(StreamSink(cast(BinaryIO, stream), capacity=50))
    start = time.monotonic()
    for number in range(5000):
        dispatcher.emit(step(number))
    assert time.monotonic() - start < 2
    stream.released.set()
    dispatcher.close()


def test_a_slow_reader_loses_only_droppable_events_and_receives_their_count() -> None:
    stream = BlockedStream()
    dispatcher = EventDispatcher(StreamSink(cast(BinaryIO, stream), capacity=50))
    for number in range(300):
        dispatcher.emit(step(number))
        if number % 10 == 0:
            dispatcher.emit(protocol.Phase(phase="evaluating", step=number))
    stream.released.set()
    dispatcher.close()
    events = [protocol.decode_event(line) for line in stream.received.splitlines()]
    phases = [event.step for event in events if isinstance(event, protocol.Phase)]
    steps = [event for event in events if isinstance(event, protocol.Step)]
    dropped = sum(int(event.params["count"] or 0) for event in events if isinstance(event, protocol.Warn))
    assert phases == list(range(0, 300, 10))
    assert dropped > 0
    assert len(steps) + dropped == 300
    assert steps[-1].step == 299, "the newest events are kept"


def test_a_disconnected_reader_is_reported_once() -> None:
    read, write = os.pipe()
    os.close(read)
    sink, calls = StreamSink(os.fdopen(write, "wb", buffering=0)), []
    sink.on_disconnect(lambda: calls.append("disconnected"))
    dispatcher = EventDispatcher(sink)
    for number in range(100):
        dispatcher.emit(step(number))
        time.sleep(0.001)
    dispatcher.close()
    assert calls == ["disconnected"]
    assert not sink._thread.is_alive()


def test_every_event_is_written_immediately(tmp_path: Path) -> None:
    dispatcher = EventDispatcher(FileSink(tmp_path / "events.jsonl"))
    dispatcher.emit(step(1))
    assert b'"step":1' in (tmp_path / "events.jsonl").read_bytes()
    dispatcher.close()


def test_an_incomplete_line_of_a_killed_process_is_terminated(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"type":"step","st')
    dispatcher = EventDispatcher(FileSink(path))
    dispatcher.emit(protocol.Phase(phase="training"))
    dispatcher.close()
    incomplete, complete = path.read_bytes().splitlines()
    assert protocol.decode_event(complete) is not None
    with pytest.raises(protocol.ProtocolError):
        protocol.decode_event(incomplete)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot limit the size of a file")
def test_events_after_a_full_disk_are_complete(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "events.jsonl"
    sink = FileSink(path)
    dispatcher = EventDispatcher(sink)
    dispatcher.emit(step(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
    try:
        dispatcher.emit(step(2))  # only the first 20 bytes fit
        dispatcher.emit(step(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    dispatcher.emit(step(4))
    dispatcher.close()
    first, truncated, last = path.read_bytes().splitlines()
    assert (protocol.decode_event(first).seq, len(truncated), protocol.decode_event(last).seq) == (1, 20, 4)
    assert sink.problem is not None


def test_other_output_goes_to_stderr_after_stdout_is_claimed() -> None:
    program = (
        "import os, subprocess, sys\n"
        "from trainer_core.wire import claim_stdout\n"
        "stream = claim_stdout()\n"
        "print('from python')\n"
        "os.write(1, b'from c\\n')\n"
        "subprocess.run([sys.executable, '-c', 'print(\"from a child\")'])\n"
        "stream.write(b'{\"real\": 1}\\n')\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT, timeout=60, check=True)
    assert json.loads(result.stdout) == {"real": 1}
    for stray in (b"from python", b"from c", b"from a child"):
        assert stray in result.stderr


class PartialStream(io.RawIOBase):
    """Stream of which every other write accepts nothing, and the others at most 7 bytes."""

    calls, received = 0, b""

    def write(self, data: object) -> int | None:  # type: ignore[override]
        self.calls += 1
        if self.calls % 2:
            return None
        self.received += bytes(cast(bytes, data))[:7]
        return min(7, len(cast(bytes, data)))


def test_partial_writes_are_completed() -> None:
    stream = PartialStream()
    dispatcher = EventDispatcher(StreamSink(cast(BinaryIO, stream)))
    for number in range(3):
        dispatcher.emit(step(number))
    dispatcher.close()
    assert [json.loads(line)["step"] for line in stream.received.splitlines()] == [0, 1, 2]


class ClosedTerminal(io.StringIO):
    """Terminal that was closed."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_closed_terminal_is_ignored(tmp_path: Path) -> None:
    console = ConsoleSink(ClosedTerminal(), "en")
    dispatcher = EventDispatcher(console, FileSink(tmp_path / "events.jsonl"))
    for number in range(3):
        dispatcher.emit(step(number))
    dispatcher.emit(protocol.Error(code="usage", params={"problem": "?"}, exit_code=2))
    dispatcher.close()
    assert len((tmp_path / "events.jsonl").read_bytes().splitlines()) == 4


def test_events_returned_by_a_listener_follow_the_event(tmp_path: Path) -> None:
    dispatcher = EventDispatcher(FileSink(tmp_path / "events.jsonl"))
    dispatcher.add_listener(
        lambda event: [protocol.Advice(code="advice.battery")] if isinstance(event, protocol.Step) else []
    )
    dispatcher.emit(protocol.Phase(phase="training"))
    dispatcher.emit(step(1))
    dispatcher.emit(protocol.Phase(phase="done"))
    dispatcher.close()
    written = [json.loads(line) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]
    assert [event["type"] for event in written] == ["phase", "step", "advice", "phase"]
    assert [event["seq"] for event in written] == [1, 2, 3, 4]
    assert written[1]["t"] <= written[2]["t"]
