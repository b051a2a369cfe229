"""Child processes of the benchmarks: output, events, duration, memory."""

import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any, Final

import psutil

ROOT: Final = Path(__file__).resolve().parent.parent
_MAX_STDERR_CHARS: Final = 2000  # in an error message
_MEMORY_MEASURE: Final = "PSS" if sys.platform == "linux" else "RSS"
_SAMPLE_INTERVAL_S: Final = 0.02  # minimum between two samples of memory
_SAMPLING_CPU_SHARE: Final = 0.1  # maximum share of a core for sampling
_SMAPS_LINE: Final = re.compile(rb"^(Pss|Pss_Anon|Pss_File|Pss_Shmem):\s+(\d+) kB", re.MULTILINE)

Event = dict[str, Any]
Env = Mapping[str, str] | None  # changes of the environment


class Events(list[Event]):
    """Decoded events of a process: Traindeck's protocol, or the part of it that the peers emit."""

    def of(self, kind: str) -> list[Event]:
        return [event for event in self if event["type"] == kind]

    def first(self, kind: str) -> Event:
        """The first event of a kind; empty if there is none."""
        return next(iter(self.of(kind)), {})

    def steps_per_s(self) -> float:
        """Between the reports after a quarter of the steps and after the last."""
        steps = self.of("step")
        first, last = steps[len(steps) // 4], steps[-1]
        return float((last["step"] - first["step"]) / (last["t"] - first["t"]))


class ChildProcess:
    """A child process in the repository root. A thread reads its stdout, whose lines of JSON are events."""

    def __init__(self, command: Sequence[str], env: Env = None) -> None:
        self.command, self.events = list(command), Events()
        self.output_is_open = True  # further events can arrive
        self._lines, self._changed = list[bytes](), threading.Condition()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        env = {**os.environ, "TRAINDECK_LANG": "en", **(env or {})}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        self.started_at = time.time()
        self._process = Popen(self.command, stdin=PIPE, stdout=PIPE, stderr=self._stderr, cwd=ROOT, env=env)
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                if line.startswith(b'{"type"') and line.endswith(b"\n"):  # a kill can truncate the last line
                    self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self.output_is_open = False
            self._changed.notify_all()

    @property
    def output(self) -> str:
        return b"".join(self._lines).decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Stderr of the exited process."""
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace")

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait_until(self, condition: Callable[[Events], bool], timeout_s: float | None = None) -> bool:
        """Wait until the events meet a condition. Returns False if the output ends or the time is over before."""
        with self._changed:
            self._changed.wait_for(lambda: condition(self.events) or not self.output_is_open, timeout_s)
            return condition(self.events)

    def send(self, **command: Any) -> None:
        """Send one of Traindeck's commands. Does nothing if the process has exited."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def request_stop(self) -> None:
        self.send(command="stop")

    def wait(self, timeout_s: float | None = None, allowed: Container[int] | None = None) -> int:
        """Wait for the exit and return its code. Kills the process at the timeout.

        Raises `RuntimeError` at the timeout or if the code is not `allowed`; None: every code is.
        """
        try:
            code = self._process.wait(timeout_s)
        except TimeoutExpired as error:
            self.kill()
            raise RuntimeError(f"{' '.join(self.command)} took more than {timeout_s:.0f} s") from error
        self._reader.join()
        if allowed is not None and code not in allowed:
            raise RuntimeError(self.describe_exit())
        return code

    def kill(self) -> None:
        """Send SIGKILL, or call TerminateProcess on Windows, and wait for the exit."""
        self._process.kill()
        self.wait()

    def describe_exit(self) -> str:
        """The reason of a failure on the first line, then the command and the end of stderr."""
        error, text = self.events.first("error"), self.stderr.strip()[-_MAX_STDERR_CHARS:]
        reason = f"{error['code']} {error['params']} {error['detail']}" if error else text.rpartition("\n")[2]
        return f"{reason} (exit code {self.exit_code})\n{' '.join(self.command)}\n{text}"


def python(module: str, *arguments: object) -> list[str]:
    """Command line of `python -m MODULE ARGUMENTS`."""
    return [sys.executable, "-m", module, *map(str, arguments)]


@dataclass(slots=True)
class Finished:
    """A successful process. CPU seconds include its children; None where the system does not report them."""

    seconds: float
    cpu_seconds: float | None
    output: str
    memory: dict[str, Any] | None
    events: Events

    def document(self) -> dict[str, Any]:
        """Measurements for JSON."""
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "memory": self.memory}


def run(
    command: Sequence[str], env: Env = None, sample_memory: bool = False, timeout_s: float | None = None
) -> Finished:
    """Run a command to its end. Sampling memory slows it down. Raises `RuntimeError` if it fails."""
    cpu_before, started_at = _cpu_seconds_of_children(), time.perf_counter()
    child = ChildProcess(command, env)
    sampler = _MemorySampler(child.pid) if sample_memory else None
    try:
        child.wait(timeout_s, allowed=[0])
    finally:
        memory = sampler.stop() if sampler else None
    seconds = time.perf_counter() - started_at
    cpu_after = _cpu_seconds_of_children()
    cpu_seconds = None if cpu_before is None or cpu_after is None else cpu_after - cpu_before
    return Finished(seconds, cpu_seconds, child.output, memory, child.events)


def _cpu_seconds_of_children() -> float | None:
    times = psutil.Process().cpu_times()
    return times.children_user + times.children_system if sys.platform == "linux" else None


class _MemorySampler:
    """Samples the memory of a process and its descendants until `stop`."""

    def __init__(self, pid: int) -> None:
        self._root, self._started_at, self._stopped = psutil.Process(pid), time.monotonic(), threading.Event()
        self._memory: dict[str, Any] = {"measure": _MEMORY_MEASURE, "peak": 0, "processes": 0}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, Any]:
        """The peak in bytes, its parts, and at that moment each process and the seconds since the start."""
        self._stopped.set()
        self._thread.join()
        return self._memory

    def _run(self) -> None:
        interval = _SAMPLE_INTERVAL_S
        while not self._stopped.wait(interval):
            cpu_before = time.thread_time()
            with contextlib.suppress(psutil.NoSuchProcess):
                self._sample([self._root, *self._root.children(recursive=True)])
            interval = max(_SAMPLE_INTERVAL_S, (time.thread_time() - cpu_before) / _SAMPLING_CPU_SHARE)

    def _sample(self, processes: list[psutil.Process]) -> None:
        sizes = [size for process in processes if (size := _read_memory(process))]
        total = sum(map(Counter, sizes), Counter[str]())
        self._memory["processes"] = max(self._memory["processes"], len(sizes))
        if total["Pss"] > self._memory["peak"]:
            self._memory |= {
                "peak": total["Pss"], "anonymous": total["Pss_Anon"], "files": total["Pss_File"],
                "shared": total["Pss_Shmem"], "each": [size["Pss"] for size in sizes],
                "peak_at": round(time.monotonic() - self._started_at, 3),
            }  # fmt: skip


def _read_memory(process: psutil.Process) -> dict[str, int]:
    """PSS, which counts a page shared by n processes as 1/n, and its parts in bytes; RSS where there is no PSS."""
    with contextlib.suppress(OSError, psutil.Error):
        if _MEMORY_MEASURE == "RSS":
            return {"Pss": process.memory_info().rss}
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_bytes()
        return {name.decode(): int(size) * 1024 for name, size in _SMAPS_LINE.findall(text)}
    return {}
