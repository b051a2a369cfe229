"""Event output to stdout and `events.jsonl`, without blocking training.

Events go to a private copy of stdout. File descriptor 1 itself is redirected to stderr, so that a print in any library,
also in C, cannot corrupt the stream. A thread writes; if the reader is slow, the queue drops droppable events
(`protocol.DROPPABLE`) and reports how many.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from trainer_core import protocol
from trainer_core.messages import Value

_QUEUE_LENGTH: Final = 1000
_WRITE_RETRY_S: Final = 0.01  # delay between writes to a full non-blocking stream
_DRAIN_TIMEOUT_S: Final = 5.0  # maximum wait for a reader at exit


class Sink(Protocol):
    """Receives events. `write` must be fast and must not raise."""

    def write(self, event: protocol.AnyEvent) -> None: ...

    def close(self) -> object: ...


Listener = Callable[[protocol.AnyEvent], Iterable[protocol.AnyEvent]]
"""Receives an event that was sent; returned events are sent after it."""


def claim_stdout() -> BinaryIO:
    """A private binary stream to stdout; from now on descriptor 1 and `print` go to stderr."""
    if sys.stdout is None:  # closed by the parent: descriptor 1 must not become one of our files
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for good
        os.dup2(sys.stdout.fileno(), 1)
    sys.stdout.flush()
    private = os.dup(1)  # not inherited by child processes
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(private, os.O_BINARY)
    return os.fdopen(private, "wb", buffering=0)


class StreamSink:
    """JSON lines to a stream, written by a thread from a bounded queue."""

    def __init__(self, stream: BinaryIO, capacity: int = _QUEUE_LENGTH) -> None:
        self._stream, self._capacity = stream, capacity
        self._queue: deque[protocol.AnyEvent | bytes] = deque()  # bytes: an encoded event
        self._changed = threading.Condition()
        self._dropped, self._closing = 0, False
        self._disconnect_callback: Callable[[], object] = bool
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        self._thread.start()

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, in another thread, when the reader has disconnected."""
        self._disconnect_callback = callback

    def write(self, event: protocol.AnyEvent) -> None:
        with self._changed:
            full = len(self._queue) >= self._capacity and not self._drop_oldest()
            if full and isinstance(event, protocol.DROPPABLE):
                self._dropped += 1
                return
            self._queue.append(event)
            self._changed.notify()

    def relay(self, line: bytes) -> None:
        """Send an encoded event of another process. Waits for the reader instead of dropping it."""
        with self._changed:
            while len(self._queue) >= self._capacity > 0:
                self._changed.wait(_WRITE_RETRY_S)
            if self._capacity:  # 0: the reader has disconnected
                self._queue.append(line)
            self._changed.notify()

    def _drop_oldest(self) -> bool:
        """Drop the oldest droppable event; False if there is none."""
        for index, waiting in enumerate(self._queue):
            if isinstance(waiting, protocol.DROPPABLE):
                del self._queue[index]
                self._dropped += 1
                return True
        return False

    def close(self) -> bool:
        """Send pending events, but do not wait for a reader that has stopped reading. Returns whether all were sent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_DRAIN_TIMEOUT_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while batch := self._next_batch():
                self._send(b"".join(item if isinstance(item, bytes) else protocol.encode(item) for item in batch))
        except (OSError, ValueError):  # the reader has disconnected
            self._disconnect_callback()
        with self._changed:
            self._capacity = 0  # accept no more events

    def _send(self, content: bytes) -> None:
        """Write everything to an unbuffered stream that may accept less at a time (nothing, if it is non-blocking)."""
        rest = memoryview(content)
        while rest:
            written = self._stream.write(rest)
            if not written:
                time.sleep(_WRITE_RETRY_S)
            rest = rest[written or 0 :]

    def _next_batch(self) -> list[protocol.AnyEvent | bytes]:
        """All pending events, once there are any; empty when closed and drained."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            batch = list(self._queue)
            self._queue.clear()
            if self._dropped:
                params: dict[str, Value] = {"count": self._dropped}
                batch.append(protocol.Warn(t=time.time(), code="events.dropped", params=dict(params)))
                self._dropped = 0
            return batch


class FileSink:
    """Appends all events to `events.jsonl`; each line is passed to the system before `write` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._partial_line = False  # the file ends in an incomplete line
        self.problem: OSError | None = None  # first failure, reported once by the owner

    def write(self, event: protocol.AnyEvent) -> None:
        try:
            if self._file is None:
                self._file = self._open()
            line = protocol.encode(event)
            content = b"\n" + line if self._partial_line else line
            self._partial_line = (self._file.write(content) or 0) < len(content)
            if self._partial_line:  # a disk that becomes full may accept part of a line without an error
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.problem = self.problem or error

    def _open(self) -> BinaryIO:
        file = self._path.open("ab", buffering=0)
        if file.tell() and not _ends_with_newline(self._path):
            file.write(b"\n")  # a killed process left an incomplete line
        return file

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._file.fileno())
            self._file.close()


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


class EventDispatcher:
    """Numbers and timestamps events and passes them to all sinks. Thread-safe."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks, self._seq, self._lock = list(sinks), 0, threading.Lock()
        self._listeners: list[Listener] = []

    def add_sink(self, sink: Sink) -> None:
        with self._lock:
            self._sinks.append(sink)

    def add_listener(self, listener: Listener) -> None:
        """Pass every event to `listener` once it is sent. It must be fast and must not raise."""
        with self._lock:
            self._listeners.append(listener)

    def emit(self, event: protocol.AnyEvent) -> None:
        with self._lock:
            self._send(event)
            for listener in self._listeners:
                for answer in listener(event):
                    self._send(answer)

    def _send(self, event: protocol.AnyEvent) -> None:
        self._seq += 1
        event.seq, event.t = self._seq, time.time()
        for sink in self._sinks:
            sink.write(event)

    def close(self) -> None:
        with self._lock:
            sinks, self._sinks = self._sinks, []
        for sink in sinks:
            sink.close()
