"""Arbitrary input on the wire and in event files."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.history import run_list
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.command_reader import CommandReader
from trainer_core.docgen.examples import COMMANDS, EVENTS
from trainer_core.progress import StopRequested
from trainer_core.run_context import RunContext
from trainer_core.runs import file_locks, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.wire import EventDispatcher

EVENT_LINES = [protocol.encode(event) for event in EVENTS.values()]
COMMAND_LINES = [protocol.encode(command) for command in COMMANDS.values()]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def damaged(draw: st.DrawFn, lines: list[bytes]) -> bytes:
    """A valid line with changed, removed or inserted bytes."""
    line = bytearray(draw(st.sampled_from(lines)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(line)))
        line[start : start + draw(st.integers(0, 12))] = draw(st.binary(max_size=12))
    return bytes(line)


@st.composite
def with_other_values(draw: st.DrawFn, lines: list[bytes]) -> bytes:
    """A valid line with other values in some fields."""
    content: dict[str, Any] = json.loads(draw(st.sampled_from(lines)))
    for name in draw(st.lists(st.sampled_from(sorted(content)), max_size=4)):
        content[name] = draw(json_values)
    return json.dumps(content).encode()


def arbitrary_lines(lines: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.binary(max_size=200),
        damaged(lines),
        with_other_values(lines),
        json_values.map(lambda v: json.dumps(v).encode()),
    )


@pytest.mark.parametrize(
    ("decode", "lines"), [(protocol.decode_event, EVENT_LINES), (protocol.decode_command, COMMAND_LINES)]
)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_line_is_decoded_or_rejected(
    decode: Callable[[bytes], object], lines: list[bytes], data: st.DataObject
) -> None:
    with contextlib.suppress(protocol.ProtocolError):
        decoded = decode(data.draw(arbitrary_lines(lines)))
        assert protocol.encode(decoded), "a decoded message cannot be encoded"  # type: ignore[arg-type]


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"a":' * 100_000, b'{"type":"step","step":' + b"9" * 5000 + b"}"])
def test_malicious_lines_are_rejected(line: bytes) -> None:
    for decode in (protocol.decode_event, protocol.decode_command):
        with pytest.raises(protocol.ProtocolError):
            decode(line)


@settings(max_examples=60, deadline=None)
@given(inputs=st.lists(arbitrary_lines(COMMAND_LINES), max_size=12), chunk=st.integers(1, 40))
def test_the_trainer_answers_any_input_and_continues(inputs: list[bytes], chunk: int) -> None:
    """Each line is answered by an `ack` or a warning; only `stop` and the end of input stop the trainer."""
    read, write = os.pipe()
    sink = RecordingSink()
    context = RunContext(EventDispatcher(sink), CommandReader(read))
    lines = [line.replace(b"\n", b"") for line in inputs if b'"stop"' not in line and b"pause" not in line]
    content = b"".join(line + b"\n" for line in lines)
    try:
        try:
            for start in range(0, len(content), chunk * 50):
                os.write(write, content[start : start + chunk * 50])
                context.poll()
        finally:
            os.close(write)
        assert accepted_lines(sink) == [is_command(line) for line in lines if line.strip()]
        with pytest.raises(StopRequested, match="parent_lost"):
            context.poll()
    finally:
        os.close(read)


def is_command(line: bytes) -> bool:
    try:
        protocol.decode_command(line)
    except protocol.ProtocolError:
        return False
    return True


def accepted_lines(sink: RecordingSink) -> list[bool]:
    """Whether each line was accepted. A rejected line has a warning, and also an `ack` if it has an id."""
    return [
        isinstance(event, protocol.Ack)
        for event in sink.events
        if isinstance(event, protocol.Warn) or (isinstance(event, protocol.Ack) and event.reason != "no such command")
    ]


@settings(max_examples=40, deadline=None)
@given(lines=st.lists(arbitrary_lines(EVENT_LINES), max_size=12), end=st.sampled_from([b"", b"\n"]))
@example(lines=[b"[" * 100_000, EVENT_LINES[0], b"\0" * 1000], end=b"")
def test_any_event_file_is_read(lines: list[bytes], end: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        run.config.write_text("data: [a.txt]\n", encoding="utf-8")
        run.events.write_bytes(b"\n".join(lines) + end)
        read = [event for events, _ in run_list.read_events(run.path) for event in events]
        assert len(read) <= sum(line.count(b"\n") + 1 for line in lines)
        assert run_dir.summarize(run).path == run.path


@settings(max_examples=60, deadline=None)
@given(content=st.one_of(
    st.binary(max_size=80),
    st.fixed_dictionaries({"pid": json_values, "started": json_values}).map(lambda value: json.dumps(value).encode()),
))  # fmt: skip
@example(content=b"[" * 100_000)
@example(content=b'{"pid": 1e999, "started": NaN}')
@example(content=b'{"pid": ' + b"9" * 5000 + b', "started": 1}')
@example(content=b'{"pid": -1, "started": 1}')
def test_a_damaged_run_lock_has_no_owner(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "run.lock")
        lock.write_bytes(content)
        owner = file_locks.read_owner(lock)
        assert owner is not None
        assert not owner.alive
        with file_locks.file_lock(lock):
            assert file_locks.read_owner(lock).alive  # type: ignore[union-attr]
