"""A run on another machine, followed through lost connections: its events come here, commands go there."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from trainer_core import protocol
from trainer_core.command_runner import CommandContext
from trainer_core.messages import TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.protocol import AnyCommand, PhaseName
from trainer_core.remote import ssh
from trainer_core.remote.host import RemoteHost
from trainer_core.remote.ssh import Connection
from trainer_core.run_context import RunContext
from trainer_core.runs.run_dir import RunDir, decode_events

_MAX_DELAY_S: Final = 60.0
_POLL_S: Final = 0.1
_READ_BYTES: Final = 256 * 1024
_PHASE: Final = b'"type":"phase"'
_NOTED: Final = tuple(f'"type":"{name}"'.encode() for name in ("done", "error", "hello"))
T = TypeVar("T")


class Reconnecting:
    """Repeats work whose connection was lost: after 1 s, then twice as long each time, up to a minute."""

    def __init__(self, context: RunContext, host: str, poll: Callable[[], None]) -> None:
        self._context, self._host, self._poll = context, host, poll
        self._delay = 1.0

    def reset(self) -> None:
        """A connection was made."""
        self._delay = 1.0

    def run(self, work: Callable[[], T], phase: PhaseName | None = None) -> T:
        """Report `phase` and do the work. Raises what `work` raises, but `remote.lost`."""
        while True:
            if phase is not None:
                self._context.emit(protocol.Phase(phase=phase))
            try:
                return work()
            except TraindeckError as error:
                if error.code != ssh.LOST:
                    raise
                self._wait(str(error.params["reason"]))

    def _wait(self, reason: str) -> None:
        self._context.emit(protocol.Phase(phase="connecting"))
        self._context.warn("remote.connection_lost", host=self._host, reason=reason, seconds=round(self._delay))
        until = time.monotonic() + self._delay
        self._delay = min(2 * self._delay, _MAX_DELAY_S)
        while time.monotonic() < until:
            time.sleep(_POLL_S)
            self._poll()


class Session:
    """Follows a run to its end. events.jsonl here is a copy of that there, whose length says what is missing.

    As a context manager, it receives all commands of this process.
    """

    def __init__(self, host: RemoteHost, there: str, run: RunDir, job: CommandContext) -> None:
        self._host, self._there, self._run, self._job = host, there, run, job
        self._context = job.run_context
        self._commands: dict[str, AnyCommand] = {}  # all, by key: each connection sends them again
        self._key = os.urandom(6).hex()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._retry = Reconnecting(self._context, host.name, self._poll)
        *lines, rest = (run.events.read_bytes() if run.events.is_file() else b"").split(b"\n")
        self._partial_line = rest  # of the copy, whose end follows
        self._phase = next((line for line in reversed(lines) if _PHASE in line), b"")  # last one of the trainer
        self.ending: protocol.Done | protocol.Error | None = None  # last event of the trainer

    def __enter__(self) -> Session:
        self._context.command_handler = self._send
        return self

    def __exit__(self, *_: object) -> None:
        self._context.command_handler = None

    def catch_up(self) -> dict[str, Any]:
        """Receive what is missing, without waiting for the end. Returns as `keeper.describe_end`."""
        return self._retry.run(lambda: self._follow("--once"))

    def follow(self) -> dict[str, Any]:
        """Receive events and send commands until the trainer has ended. Returns as `keeper.describe_end`.

        Raises `remote.…`, and `StopRequested` if this process shall end; the run continues.
        """
        return self._retry.run(self._follow)

    def _follow(self, *options: str) -> dict[str, Any]:
        known = self._run.events.stat().st_size if self._run.events.is_file() else 0
        command = ("remote", "follow", self._there, "--after", str(known), *options)
        with self._host.trainer(*command) as connection, self._run.events.open("ab", buffering=0) as copy:
            self._retry.reset()
            if self._phase and not options:  # replaces `connecting`
                self._job.relay(self._phase + b"\n")
            with self._lock:
                self._connection = connection
                for key in self._commands:
                    self._write(key)
            try:
                for chunk in self._read(connection):
                    copy.write(chunk)
                    self._relay(chunk)
            finally:
                with self._lock:
                    self._connection = None
            if connection.process.wait() == 0 and (end := connection.report()) is not None:
                return end
            raise connection.failure()

    def _read(self, connection: Connection) -> Iterator[bytes]:
        """Chunks of the connection until its end. Commands are handled meanwhile."""
        chunks: queue.Queue[bytes] = queue.Queue(maxsize=16)

        def read() -> None:
            while chunk := connection.stdout.read1(_READ_BYTES):
                chunks.put(chunk)
            chunks.put(b"")

        threading.Thread(target=read, name="ssh stdout", daemon=True).start()
        while True:
            self._poll()
            try:
                chunk = chunks.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if not chunk:
                return
            yield chunk

    def _poll(self) -> None:
        """Ctrl+C stops the run there; the end of the parent, or of the terminal, only this process."""
        try:
            self._context.poll()
        except StopRequested as stop:
            if stop.reason == "parent_lost":
                raise
            self._send(protocol.Stop())

    # --- events and commands -------------------------------------------------------------------------------

    def _relay(self, chunk: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        for line in lines:
            if _PHASE in line:
                self._phase = line
            elif any(kind in line for kind in _NOTED):
                for event in decode_events([line]):
                    self._note(event)
            self._job.relay(line + b"\n")

    def _note(self, event: protocol.AnyEvent) -> None:
        match event:
            case protocol.Done() | protocol.Error():
                self.ending = event
            case protocol.Hello():  # restarted
                self.ending = None

    def _send(self, command: AnyCommand) -> None:
        with self._lock:
            key = f"{self._key}-{len(self._commands)}"
            self._commands[key] = command
            if self._connection is not None:
                self._write(key)

    def _write(self, key: str) -> None:
        """Send a command. The keeper ignores a key that it knows."""
        assert self._connection is not None
        entry = {"key": key, "command": json.loads(protocol.encode(self._commands[key]))}
        self._connection.try_write(json.dumps(entry).encode() + b"\n")
