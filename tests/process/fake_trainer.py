"""A fake trainer that emits events of the protocol and fails in various ways.

    python fake_trainer.py MODE [ARGUMENTS OF THE REAL TRAINER]

Each mode is a function. No torch, no Qt: it starts in a tenth of a second.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from trainer_core import protocol
from trainer_core.docgen.examples import EVENTS

FLOOD = 200_000
SLOW_SAVE_S = 3.0

_out = sys.stdout.buffer
_commands: queue.Queue[protocol.AnyCommand | None] = queue.Queue()
_seq = 0


def emit(event: protocol.AnyEvent) -> None:
    _out.write(encode_event(event))
    _out.flush()


def encode_event(event: protocol.AnyEvent) -> bytes:
    global _seq
    _seq += 1
    event.t, event.seq = time.time(), _seq
    return protocol.encode(event)


def write_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def hello(version: tuple[int, int] = protocol.VERSION) -> protocol.Hello:
    return protocol.Hello(
        version=version, pid=os.getpid(), run_dir="runs/假", traindeck="0", python="3", torch="none", config={}
    )


def step(number: int) -> protocol.Step:
    spent = protocol.StepTime(data=1.0, transfer=0.0, forward=2.0, backward=4.0, optimizer=1.0, other=0.1)
    return protocol.Step(
        step=number,
        epoch=number / 100,
        tokens=64 * number,
        samples=number,
        loss=5.0 / (1 + number),
        learning_rate=3e-4,
        tokens_per_s=1000.0,
        samples_per_s=10.0,
        time_ms=spent,
    )


def done(reason: protocol.DoneReason, steps: int, total: int = 20) -> protocol.Done:
    return protocol.Done(reason=reason, steps=steps, total_steps=total, model="checkpoints/step-00000020")


def checkpoint(number: int) -> protocol.Checkpoint:
    return protocol.Checkpoint(step=number, path=f"step-{number:08d}", bytes=1024, seconds=0.1, kind="final")


def listen() -> None:
    """Read commands into a queue, from a thread; None at the end of input.

    By `os.read`: a thread that waits in `sys.stdin` at exit is a fatal error of the interpreter.
    """

    def read() -> None:
        rest = b""
        while chunk := os.read(0, 4096):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                _commands.put(protocol.decode_command(line))
        _commands.put(None)

    threading.Thread(target=read, daemon=True).start()


def next_command(wait_s: float = 0.0) -> protocol.AnyCommand | bool | None:
    """Return and acknowledge the next command; None at the end of input; False if there is none."""
    try:
        command = _commands.get(timeout=wait_s) if wait_s else _commands.get_nowait()
    except queue.Empty:
        return False
    if command is not None:
        name = str(command.__struct_config__.tag)
        emit(protocol.Ack(command=name, id=command.id))
    return command


# --- modes ------------------------------------------------------------------------------------------


def ok() -> int:
    """Twenty steps, an evaluation, a checkpoint; prints and Chinese on stderr in between."""
    emit(hello())
    emit(protocol.Phase(phase="preparing"))
    emit(protocol.Progress(phase="preparing", done=5, total=10, unit="documents"))
    emit(protocol.Phase(phase="training", step=0))
    for number in range(1, 21):
        emit(step(number))
        emit(protocol.Progress(phase="training", done=number, total=20, eta_s=20.0 - number))
    write_stderr("警告：一行输出")
    emit(protocol.Eval(step=20, loss=1.5, perplexity=4.5, tokens=10, seconds=0.1, best=True))
    emit(protocol.Phase(phase="saving", step=20))
    emit(checkpoint(20))
    emit(done("finished", 20))
    return 0


def traceback() -> int:
    """An uncaught exception."""
    emit(hello())
    emit(step(1))
    raise RuntimeError("uncaught test error")


def abort() -> int:
    """A crash in the middle of a line."""
    emit(hello())
    emit(step(1))
    write_stderr("last output before the crash")
    _out.write(b'{"type":"step","st')
    _out.flush()
    os.abort()


def silent_exit() -> int:
    """Exits without a final event."""
    emit(hello())
    os._exit(77)


def flood() -> int:
    """Many events, encoded once: encoding each would be slower than reading it."""
    emit(hello())
    before, after = encode_event(step(7777)).split(b"7777", 1)
    for first in range(1, FLOOD + 1, 500):
        _out.write(b"".join(b"%b%d%b" % (before, number, after) for number in range(first, first + 500)))
    emit(done("finished", FLOOD, FLOOD))
    return 0


def flood_of_output() -> int:
    """Many lines on stderr, like a verbose library."""
    emit(hello())
    for number in range(50_000):
        sys.stderr.write(f"debug line {number}\n")
    sys.stderr.flush()
    emit(done("finished", 1))
    return 0


def garbage() -> int:
    """Events among invalid lines."""
    emit(hello())
    for line in (
        b"\xff\xfe\x00 not utf-8\n",
        b"plain text\r\n",
        b"\n",
        b'{"type":"nonsense"}\n',
        b"[1,2,3]\n",
        b"{{{\n",
    ):
        _out.write(line)
        emit(step(_seq))
    _out.write("进度 10%\r进度 100%\n".encode())
    _out.write(b"\x00" * 10 + b"\n")
    emit(done("finished", 1))
    _out.write(b"no newline at the end")
    _out.flush()
    return 0


def endless_line() -> int:
    """Three megabytes without a newline, then an event."""
    emit(hello())
    for _ in range(48):
        _out.write(b"x" * 65536)
        _out.flush()
    _out.write(b"\n")
    emit(done("finished", 1))
    return 0


def split_lines() -> int:
    """Lines that arrive in pieces, also split within characters."""
    parts = encode_event(hello()) + "训练中\n".encode() + encode_event(step(1)) + encode_event(done("finished", 1))
    for start in range(0, len(parts), 37):
        _out.write(parts[start : start + 37])
        _out.flush()
        time.sleep(0.01)
    return 0


def echo() -> int:
    """Acknowledges every command; saves and exits when its input ends."""
    emit(hello())
    emit(protocol.Phase(phase="training", step=0))
    while (command := next_command(60.0)) is not None:
        if isinstance(command, protocol.Pause):
            emit(protocol.Phase(phase="paused"))
        if isinstance(command, protocol.Resume):
            emit(protocol.Phase(phase="training"))
        if isinstance(command, protocol.Stop):
            emit(checkpoint(3))
            emit(done("stopped", 3))
            return 3
    emit(checkpoint(3))
    emit(done("parent_lost", 3))
    return 3


def slow_stop() -> int:
    """Steps until Stop, then saves slowly, with progress."""
    emit(hello())
    number = 0
    while not isinstance(next_command(0.02), protocol.Stop):
        number += 1
        emit(step(number))
    emit(protocol.Phase(phase="saving", step=number))
    for part in range(1, 11):
        time.sleep(SLOW_SAVE_S / 10)
        emit(protocol.Progress(phase="saving", done=part * 100, total=1000, unit="bytes"))
    emit(checkpoint(number))
    emit(done("stopped", number))
    return 3


def ignored_stop() -> int:
    """Ignores every command."""
    emit(hello())
    number = 0
    while True:
        number += 1
        emit(step(number))
        time.sleep(0.05)


def child_process() -> int:
    """Has a child process, like a loader worker, and ignores commands."""
    code = "import time; print(flush=True); time.sleep(120)"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()  # Wine keeps a process that is killed while it starts
    emit(hello())
    write_stderr(f"child {child.pid}")
    time.sleep(120)
    return 0


def newer_version() -> int:
    """A newer protocol version with compatible events."""
    emit(hello((protocol.VERSION[0] + 1, 4)))
    emit(step(1))
    return 0


def error() -> int:
    """An error event for missing data."""
    emit(hello())
    emit(protocol.Error(code="data.not_found", params={"path": "C:\\数据\\a.txt"}, exit_code=4))
    return 4


def preview() -> int:
    """Previews data, as `prepare --preview`."""
    emit(protocol.Phase(phase="preparing"))
    emit(protocol.Progress(phase="preparing", done=5, total=10, unit="bytes"))
    emit(protocol.Warn(code="data.truncated", params={"count": 402, "total": 153_450, "limit": 256}))
    emit(EVENTS[protocol.DataReport])
    emit(protocol.Phase(phase="done"))
    return 0


def slow_preview() -> int:
    """Previews data until Stop."""
    emit(protocol.Phase(phase="preparing"))
    emit(protocol.Progress(phase="preparing", done=5, total=10, unit="bytes"))
    while not isinstance(next_command(60.0), protocol.Stop):
        pass
    return 3


def check_report() -> protocol.CheckReport:
    """Fits up to a micro-batch of 8 sequences; tight up to 16."""
    report: protocol.CheckReport = EVENTS[protocol.CheckReport]
    arguments = sys.argv
    size = (
        int(arguments[arguments.index("--batch-size") + 1]) if "--batch-size" in arguments else report.chosen.batch_size
    )
    report.chosen.batch_size = size
    if size <= 8:
        report.verdict, report.alternatives, report.chosen.peak = "fits", [], 13 * 2**30
    elif size > 16:
        report.verdict, report.chosen.fits, report.seconds = "does_not_fit", False, None
        report.chosen.peak = report.chosen.tokens_per_s = None
    return report


def check() -> int:
    """Checks a configuration, as `check`."""
    emit(protocol.Phase(phase="checking"))
    emit(protocol.Phase(phase="compiling"))
    emit(protocol.Phase(phase="checking"))
    emit(protocol.Progress(phase="checking", done=2, total=6))
    emit(check_report())
    emit(protocol.Phase(phase="done"))
    return 0


def slow_check() -> int:
    """Checks until Stop."""
    emit(protocol.Phase(phase="checking"))
    emit(protocol.Progress(phase="checking", done=2, total=6))
    while not isinstance(next_command(60.0), protocol.Stop):
        pass
    return 3


MODES: tuple[Callable[[], int], ...] = (
    ok, traceback, abort, silent_exit, flood, flood_of_output, garbage, endless_line, split_lines, echo, slow_stop,
    ignored_stop, child_process, newer_version, error, preview, slow_preview, check, slow_check,
)  # fmt: skip

if __name__ == "__main__":
    listen()
    sys.exit({mode.__name__: mode for mode in MODES}[sys.argv[1]]())
