"""Connections over the system's `ssh`, with the user's keys and configuration. No password is asked for or stored."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final, cast

from trainer_core.messages import TraindeckError

COMMAND_VARIABLE: Final = "TRAINDECK_SSH"  # replaces `ssh`, such as "ssh -F FILE"
_OPTIONS: Final = (
    "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=10", "-o",
    "ServerAliveCountMax=3",
)  # fmt: skip
# Reads a script from the first line of stdin, unbuffered. Quoted as every shell understands.
_REMOTE_COMMAND: Final = "python3 -c \"exec(eval(open(0,'rb',0,closefd=False).readline()))\""
_BOOTSTRAP: Final = Path(__file__).with_name("bootstrap.py")
_STDERR_LINES: Final = 20
_JOIN_S: Final = 5.0  # a proxy may keep stderr open
_EXIT_CODE_SSH: Final = 255
_NO_COMMAND: Final = 127  # exit code of shells
_CAUSES: Final = (
    (
        "remote.unknown_host",
        re.compile("Could not resolve hostname|Name or service not known|hostname contains invalid characters"),
    ),
    ("remote.host_key", re.compile("Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED")),
    ("remote.key_refused", re.compile(r"Permission denied \(|Too many authentication failures")),
    ("remote.no_python", re.compile("python3.{0,4}(command )?not found|not recognized as", re.IGNORECASE)),
)
"""Message codes, and what ssh or the shell of the other machine writes to stderr."""
LOST: Final = "remote.lost"
"""Message code of a connection that cannot be made or was lost, which can be tried again."""


class Connection:
    """A running `ssh`. `stdin` and `stdout` are binary; a thread reads stderr."""

    def __init__(self, host: str, request: dict[str, Any]) -> None:
        self.host = host
        self.reports: list[dict[str, Any]] = []  # JSON objects on stderr
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self.process = _start_ssh(host)
        assert self.process.stdin is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.stdout = cast(BufferedReader, self.process.stdout)
        self._reader = threading.Thread(target=self._read_stderr, name="ssh stderr", daemon=True)
        self._reader.start()
        script = ascii(_BOOTSTRAP.read_text(encoding="utf-8"))
        self.write(f"{script}\n{json.dumps(request)}\n".encode("ascii"))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, content: bytes) -> None:
        """Write to the other machine. Raises `remote.…` if it has refused the content or the connection is lost."""
        try:
            self.stdin.write(content)
            self.stdin.flush()
        except OSError:
            while True:  # until the answer that has the reason, or the end
                self.answer()

    def try_write(self, content: bytes) -> None:
        """Write unless the connection is lost."""
        with contextlib.suppress(OSError):
            self.stdin.write(content)
            self.stdin.flush()

    def report(self) -> dict[str, Any] | None:
        """The last JSON object that an ended program wrote to stderr."""
        self._reader.join(_JOIN_S)
        return self.reports[-1] if self.reports else None

    def answer(self) -> dict[str, Any]:
        """The next line of JSON. Raises `remote.…`."""
        while line := self.stdout.readline():
            with contextlib.suppress(ValueError):  # a line that the shell prints when it starts
                found = json.loads(line)
                if isinstance(found, dict):
                    return self._checked(found)
        raise self.failure()

    def _checked(self, found: dict[str, Any]) -> dict[str, Any]:
        match found.get("error"):
            case None:
                return found
            case "disk_full":
                needed, free = (int(found[name]) >> 20 for name in ("needed", "free"))
                raise TraindeckError("remote.disk_full", host=self.host, needed_mib=needed + 1, free_mib=free)
            case "busy":
                raise TraindeckError("remote.busy", host=self.host, run=str(found["run"]))
            case "changed":
                raise TraindeckError("remote.changed", host=self.host)
        raise TraindeckError(
            "remote.system", host=self.host, path=str(found.get("path")), reason=str(found.get("reason"))
        )

    def failure(self) -> TraindeckError:
        """Why the connection has ended."""
        code = self.process.wait()
        self._reader.join(_JOIN_S)
        text = "\n".join(self._stderr)
        last = next((line for line in reversed(self._stderr) if line.strip()), f"exit code {code}")
        found = next((cause for cause, pattern in _CAUSES if pattern.search(text)), "")
        if not found:
            # Killed by a signal: the connection, not the program on the other machine.
            found = LOST if code in (_EXIT_CODE_SSH, 0) or code < 0 else "remote.failed"
            found = "remote.no_python" if code == _NO_COMMAND else found
        return TraindeckError(found, detail=text, host=self.host, reason=last)

    def close(self) -> None:
        """End the connection at once."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.stdin.close()

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with contextlib.suppress(ValueError):
                if isinstance(report := json.loads(line), dict):
                    self.reports.append(report)
                    continue
            self._stderr.append(line.decode("utf-8", "replace").rstrip())


def request(host: str, action: str, **fields: Any) -> dict[str, Any]:
    """The answer to a request that has one. Raises `remote.…`."""
    with Connection(host, {"action": action, **fields}) as connection:
        return connection.answer()


def read_lines(connection: Connection) -> Iterator[str]:
    """Lines of a command until it ends. Raises `remote.…` if it fails."""
    for line in connection.stdout:
        yield line.decode("utf-8", "replace").rstrip()
    if connection.process.wait():
        raise connection.failure()


def _start_ssh(host: str) -> subprocess.Popen[bytes]:
    program = shlex.split(os.environ.get(COMMAND_VARIABLE) or "ssh", posix=os.name != "nt")
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NO_WINDOW
    pipe = subprocess.PIPE
    if host.startswith("-") or not host:  # an option of ssh
        raise TraindeckError("remote.unknown_host", host=host, reason="-")
    try:
        return subprocess.Popen(
            [*program, *_OPTIONS, host, _REMOTE_COMMAND], stdin=pipe, stdout=pipe, stderr=pipe, creationflags=flags
        )
    except OSError as error:
        raise TraindeckError("remote.no_ssh", detail=str(error), program=program[0]) from error
