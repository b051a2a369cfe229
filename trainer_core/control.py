"""Commands on stdin, read by polling between steps.

No reader thread: on Windows a thread blocked in a read of a pipe can hang imports and exit, so the
pipe is asked how much waits (`PeekNamedPipe`; `select` elsewhere) and only that much is read.
End of input means that the parent is gone.
"""

from __future__ import annotations

import os
import sys
from typing import Final, Protocol

from trainer_core import protocol

_READ_SIZE: Final = 65_536


class Control(Protocol):
    """Where commands come from."""

    @property
    def closed(self) -> bool:
        """Whether the input has ended: nobody is there any more."""

    def poll(self) -> list[protocol.AnyCommand | bytes]:
        """The commands that wait; a line that is none comes back as it is. Never blocks."""


class NoControl:
    """Nobody gives commands (a terminal: Ctrl+C is the way)."""

    closed = False

    def poll(self) -> list[protocol.AnyCommand | bytes]:
        return []


class StdinControl:
    """Commands as JSON lines on a file descriptor (stdin by default)."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor, self._rest = descriptor, b""
        self.closed = False

    def poll(self) -> list[protocol.AnyCommand | bytes]:
        while not self.closed and (waiting := bytes_waiting(self._descriptor)) != 0:
            chunk = self._read(waiting)
            self.closed = not chunk
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        return [_parsed(line) for line in lines if line.strip()]

    def _read(self, waiting: int) -> bytes:
        """What waits; nothing at the end of input, which a terminal that was hung up says as an error."""
        try:
            return os.read(self._descriptor, min(waiting, _READ_SIZE)) if waiting > 0 else b""
        except OSError:
            return b""


def _parsed(line: bytes) -> protocol.AnyCommand | bytes:
    try:
        return protocol.decode_command(line)
    except protocol.ProtocolError:
        return line


if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _PIPE = 3

    def bytes_waiting(descriptor: int) -> int:
        """Bytes that can be read without waiting; -1 at the end of input. Only pipes are polled on
        Windows: anything else (a console, a file) counts as silent."""
        try:
            handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
        except OSError:  # there is no such descriptor
            return -1
        if _kernel32.GetFileType(handle) != _PIPE:
            return 0
        waiting = wintypes.DWORD()
        if _kernel32.PeekNamedPipe(handle, None, 0, None, ctypes.byref(waiting), None):
            return waiting.value
        return -1  # ERROR_BROKEN_PIPE: the writer has closed

else:
    import select

    def bytes_waiting(descriptor: int) -> int:
        """Bytes that can be read without waiting (at most what one read takes); -1 at the end of input
        is found by the read itself."""
        try:
            ready, _, _ = select.select([descriptor], [], [], 0)
        except OSError:  # there is no such descriptor
            return -1
        return _READ_SIZE if ready else 0
