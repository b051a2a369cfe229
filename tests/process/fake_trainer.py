"""A program that speaks the protocol and behaves as trainers do on their worst days.

    python fake_trainer.py MODE [ARGUMENTS OF THE REAL TRAINER]

Each function named after a mode is one. No torch, no Qt, starts in a tenth of a second.
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


def say(event: protocol.AnyEvent) -> None:
    _out.write(line_of(event))
    _out.flush()


def line_of(event: protocol.AnyEvent) -> bytes:
    global _seq
    _seq += 1
    event.t, event.seq = time.time(), _seq
    return protocol.encode(event)


def complain(text: str) -> None:
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
    """Commands into a queue; None at the end of input. A fake may read with a thread, if only by `os.read`:
    a thread that waits in `sys.stdin` at exit is a fatal error of the interpreter."""

    def read() -> None:
        rest = b""
        while chunk := os.read(0, 4096):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                _commands.put(protocol.decode_command(line))
        _commands.put(None)

    threading.Thread(target=read, daemon=True).start()


def take_command(wait_s: float = 0.0) -> protocol.AnyCommand | bool | None:
    """The next command, acknowledged; None at the end of input; False if there is none."""
    try:
        command = _commands.get(timeout=wait_s) if wait_s else _commands.get_nowait()
    except queue.Empty:
        return False
    if command is not None:
        name = str(command.__struct_config__.tag)
        say(protocol.Ack(command=name, id=command.id))
    return command


# --- modes ------------------------------------------------------------------------------------------


def ok() -> int:
    """Twenty steps, an evaluation, a checkpoint; prints and Chinese on stderr in between."""
    say(hello())
    say(protocol.Phase(phase="preparing"))
    say(protocol.Progress(phase="preparing", done=5, total=10, unit="documents"))
    say(protocol.Phase(phase="training", step=0))
    for number in range(1, 21):
        say(step(number))
        say(protocol.Progress(phase="training", done=number, total=20, eta_s=20.0 - number))
    complain("警告：一行输出")
    say(protocol.Eval(step=20, loss=1.5, perplexity=4.5, tokens=10, seconds=0.1, best=True))
    say(protocol.Phase(phase="saving", step=20))
    say(checkpoint(20))
    say(done("finished", 20))
    return 0


def traceback() -> int:
    """Dies of an exception that nobody caught."""
    say(hello())
    say(step(1))
    raise RuntimeError("the roof fell in")


def abort() -> int:
    """Dies as a segmentation fault does, with half a line on its lips."""
    say(hello())
    say(step(1))
    complain("last words before the crash")
    _out.write(b'{"type":"step","st')
    _out.flush()
    os.abort()


def vanish() -> int:
    """Ends without flushing, without a word."""
    say(hello())
    os._exit(77)


def flood() -> int:
    """As many events as a pipe takes: encoding each would be slower than reading it."""
    say(hello())
    before, after = line_of(step(7777)).split(b"7777", 1)
    for first in range(1, FLOOD + 1, 500):
        _out.write(b"".join(b"%b%d%b" % (before, number, after) for number in range(first, first + 500)))
    say(done("finished", FLOOD, FLOOD))
    return 0


def flood_of_output() -> int:
    """A library that logs without measure, on stderr."""
    say(hello())
    for number in range(50_000):
        sys.stderr.write(f"debug line {number}\n")
    sys.stderr.flush()
    say(done("finished", 1))
    return 0


def garbage() -> int:
    """Good events among lines that are none."""
    say(hello())
    for line in (
        b"\xff\xfe\x00 not utf-8\n",
        b"plain text\r\n",
        b"\n",
        b'{"type":"nonsense"}\n',
        b"[1,2,3]\n",
        b"{{{\n",
    ):
        _out.write(line)
        say(step(_seq))
    _out.write("进度 10%\r进度 100%\n".encode())
    _out.write(b"\x00" * 10 + b"\n")
    say(done("finished", 1))
    _out.write(b"no newline at the end")
    _out.flush()
    return 0


def endless_line() -> int:
    """Three megabytes without a newline, then an event."""
    say(hello())
    for _ in range(48):
        _out.write(b"x" * 65536)
        _out.flush()
    _out.write(b"\n")
    say(done("finished", 1))
    return 0


def halves() -> int:
    """Lines that arrive in pieces, cut within characters too."""
    parts = line_of(hello()) + "训练中\n".encode() + line_of(step(1)) + line_of(done("finished", 1))
    for start in range(0, len(parts), 37):
        _out.write(parts[start : start + 37])
        _out.flush()
        time.sleep(0.01)
    return 0


def echo() -> int:
    """Acknowledges every command; saves and ends when its input ends, as a trainer does without a parent."""
    say(hello())
    say(protocol.Phase(phase="training", step=0))
    while (command := take_command(60.0)) is not None:
        if isinstance(command, protocol.Pause):
            say(protocol.Phase(phase="paused"))
        if isinstance(command, protocol.Resume):
            say(protocol.Phase(phase="training"))
        if isinstance(command, protocol.Stop):
            say(checkpoint(3))
            say(done("stopped", 3))
            return 3
    say(checkpoint(3))
    say(done("parent_lost", 3))
    return 3


def slow_stop() -> int:
    """Steps until told to stop, then takes its time to save, and says how far it is."""
    say(hello())
    number = 0
    while not isinstance(take_command(0.02), protocol.Stop):
        number += 1
        say(step(number))
    say(protocol.Phase(phase="saving", step=number))
    for part in range(1, 11):
        time.sleep(SLOW_SAVE_S / 10)
        say(protocol.Progress(phase="saving", done=part * 100, total=1000, unit="bytes"))
    say(checkpoint(number))
    say(done("stopped", number))
    return 3


def ignored_stop() -> int:
    """Goes on stepping whatever it is told."""
    say(hello())
    number = 0
    while True:
        number += 1
        say(step(number))
        time.sleep(0.05)


def family() -> int:
    """Has a child of its own, as loader workers are, and hears nothing."""
    code = "import time; print(flush=True); time.sleep(120)"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()  # Wine leaves what is killed while it starts, as a process that does nothing
    say(hello())
    complain(f"child {child.pid}")
    time.sleep(120)
    return 0


def newer() -> int:
    """From a later time: the same words, more of them."""
    say(hello((protocol.VERSION[0] + 1, 4)))
    say(step(1))
    return 0


def newer_and_strange() -> int:
    """From a later time, and its hello has changed beyond reading."""
    _out.write(b'{"type":"hello","version":[%d,0,"beta"],"pid":"p-1"}\n' % (protocol.VERSION[0] + 2))
    _out.flush()
    return 0


def error() -> int:
    """A data problem, said as it should be."""
    say(hello())
    say(protocol.Error(code="data.not_found", params={"path": "C:\\数据\\a.txt"}, exit_code=4))
    return 4


def look() -> int:
    """Looks at data, as `prepare --preview` does."""
    say(protocol.Phase(phase="preparing"))
    say(protocol.Progress(phase="preparing", done=5, total=10, unit="bytes"))
    say(protocol.Warn(code="data.truncated", params={"count": 402, "total": 153_450, "limit": 256}))
    say(EVENTS[protocol.DataReport])
    say(protocol.Phase(phase="done"))
    return 0


def slow_look() -> int:
    """Goes on looking until it is told to stop."""
    say(protocol.Phase(phase="preparing"))
    say(protocol.Progress(phase="preparing", done=5, total=10, unit="bytes"))
    while not isinstance(take_command(60.0), protocol.Stop):
        pass
    return 3


def check_report() -> protocol.CheckReport:
    """Fits where no more than 8 sequences are in a micro-batch; tight up to 16."""
    report: protocol.CheckReport = EVENTS[protocol.CheckReport]
    given = sys.argv
    size = int(given[given.index("--batch-size") + 1]) if "--batch-size" in given else report.chosen.batch_size
    report.chosen.batch_size = size
    if size <= 8:
        report.verdict, report.alternatives, report.chosen.peak = "fits", [], 13 * 2**30
    elif size > 16:
        report.verdict, report.chosen.fits, report.seconds = "does_not_fit", False, None
        report.chosen.peak = report.chosen.tokens_per_s = None
    return report


def check() -> int:
    """Takes real steps before Start, as `check` does."""
    say(protocol.Phase(phase="checking"))
    say(protocol.Phase(phase="compiling"))
    say(protocol.Phase(phase="checking"))
    say(protocol.Progress(phase="checking", done=2, total=6))
    say(check_report())
    say(protocol.Phase(phase="done"))
    return 0


def slow_check() -> int:
    """Goes on checking until it is told to stop."""
    say(protocol.Phase(phase="checking"))
    say(protocol.Progress(phase="checking", done=2, total=6))
    while not isinstance(take_command(60.0), protocol.Stop):
        pass
    return 3


MODES: dict[str, Callable[[], int]] = {
    mode.__name__: mode
    for mode in (
        ok,
        traceback,
        abort,
        vanish,
        flood,
        flood_of_output,
        garbage,
        endless_line,
        halves,
        echo,
        slow_stop,
        ignored_stop,
        family,
        newer,
        newer_and_strange,
        error,
        look,
        slow_look,
        check,
        slow_check,
    )
}

if __name__ == "__main__":
    listen()
    sys.exit(MODES[sys.argv[1]]())
