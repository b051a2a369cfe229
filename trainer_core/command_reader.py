"""Commands on stdin, read by polling between steps.

Without a reader thread: on Windows a thread blocked in a read of a pipe can hang imports and exit. The number of
available bytes is queried (`PeekNamedPipe`; `select` elsewhere) and only these are read. End of input means that the
parent process has exited.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from trainer_core import protocol

_READ_SIZE: Final = 65_536


class CommandReader:
    """Commands as JSON lines on a file descriptor (stdin by default)."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor, self._buffer = descriptor, b""
        self.closed = False  # the input has ended

    def poll(self) -> list[protocol.AnyCommand | bytes]:
        """Available commands; an invalid line is returned as it is. Never blocks."""
        return [_parse(line) for line in self.poll_lines()]

    def poll_lines(self) -> list[bytes]:
        """Available lines without their newlines, but for empty ones. Never blocks."""
        while not self.closed and (waiting := bytes_waiting(self._descriptor)) != 0:
            chunk = self._read(waiting)
            self.closed = not chunk
            self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        return [line for line in lines if line.strip()]

    def _read(self, waiting: int) -> bytes:
        """Available bytes; none at the end of input, which a closed terminal reports as an error."""
        try:
            return os.read(self._descriptor, min(waiting, _READ_SIZE)) if waiting > 0 else b""
        except OSError:
            return b""


def _parse(line: bytes) -> protocol.AnyCommand | bytes:
    try:
        return protocol.decode_command(line)
    except protocol.ProtocolError:
        return line


if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _FILE_TYPE_PIPE = 3

    def bytes_waiting(descriptor: int) -> int:
        """Bytes readable without blocking; -1 at the end of input. On Windows only pipes are polled; a console or file
        counts as silent.
        """
        try:
            handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
        except OSError:  # no such descriptor
            return -1
        if _kernel32.GetFileType(handle) != _FILE_TYPE_PIPE:
            return 0
        waiting = wintypes.DWORD()
        if _kernel32.PeekNamedPipe(handle, None, 0, None, ctypes.byref(waiting), None):
            return waiting.value
        return -1  # ERROR_BROKEN_PIPE: the writer has closed

else:
    import select

    def bytes_waiting(descriptor: int) -> int:
        """Bytes readable without blocking (at most one read); the read itself detects the end of input."""
        try:
            ready, _, _ = select.select([descriptor], [], [], 0)
        except OSError:  # no such descriptor
            return -1
        return _READ_SIZE if ready else 0
