"""Runs programs with a clean environment: with logging and a progress line, or in place of this one."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any

from launcher import places
from launcher.messages import SetupError, emit, log, message, print_and_log, print_message
from launcher.places import WINDOWS, runs_home

CLEAR_LINE = "\r" + " " * 99 + "\r"
FOREIGN_VARIABLES = {f"PYTHON{name}" for name in ("HOME", "PATH", "STARTUP", "USERBASE", "EXECUTABLE", "IOENCODING")}
FOREIGN_VARIABLES |= {f"PIP_{name}" for name in ("TARGET", "PREFIX", "ROOT", "USER", "REQUIRE_VIRTUALENV", "PYTHON")}
FOREIGN_VARIABLES |= {"CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}


def clean_env() -> "dict[str, str]":
    """Environment variables without those that redirect Python or pip to other places than .venv."""
    return {name: value for name, value in os.environ.items() if name.upper() not in FOREIGN_VARIABLES}


def child_env() -> "dict[str, str]":
    """Environment variables of Traindeck's processes: UTF-8, importable from any folder."""
    env = dict(clean_env(), PYTHONUTF8="1", PYTHONPATH=str(places.ROOT))
    if runs_home() != places.ROOT:
        env["TRAINDECK_HOME"] = str(runs_home())
    if WINDOWS:
        env["USE_LIBUV"] = "0"  # torch's Windows wheels are built without libuv
    return env


def run_logged(command: "list[str]", activity: str, **options: Any) -> "tuple[int, str]":
    """Run a command with its output in the log and a progress line on the terminal: (exit code, output)."""
    log(f"{activity}: {command}")
    emit("stage", text=activity)
    started = time.monotonic()
    places.LOG.touch()  # raises here, rather than in the thread, if the log is not writable
    # POSIX: it keeps the setup lock, which it inherits.
    child: subprocess.Popen[bytes] = subprocess.Popen(
        command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, close_fds=WINDOWS, **options
    )
    lines: list[str] = []

    def read() -> None:
        with places.LOG.open("ab") as file:
            for raw in child.stdout or ():
                file.write(raw.rstrip(b"\r\n") + b"\n")
                lines.append(raw.decode("utf-8", "replace").rstrip())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    while reader.is_alive():
        reader.join(1.0)
        show_activity(activity, time.monotonic() - started, lines[-1] if lines else "")
    code = child.wait()
    if sys.stderr.isatty():
        print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
    log(f"exit code {code} after {time.monotonic() - started:.1f} s")
    return code, "\n".join(lines)


def show_activity(activity: str, seconds: float, last_line: str) -> None:
    """Show progress: one line that is rewritten on a terminal, a line every 30 s elsewhere."""
    if sys.stderr.isatty():
        text = f"  {activity}: {seconds:.0f} s  {last_line.strip()}"[:48]  # a Chinese character takes two columns
        print(CLEAR_LINE + text, end="", file=sys.stderr, flush=True)
    elif int(seconds) % 30 == 29:
        print_message(message("launcher.elapsed", activity=activity, seconds=round(seconds)), indent="  ")


# --- the trainer and the window ------------------------------------------------------------------------


def exec_command(command: "list[str]") -> int:
    """Replace this process by the command (POSIX), or run it in the foreground and return its exit code (Windows)."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not WINDOWS:
        os.execve(command[0], command, child_env())
    child = subprocess.Popen(command, env=child_env())
    signal.signal(signal.SIGINT, lambda _number, _frame: None)  # Ctrl+C reaches the child
    code = child.wait()
    return code if code < 2**31 else code - 2**32  # Windows reports crashes as unsigned numbers


# pythonw has no standard streams.
WINDOW_SCRIPT = """
import faulthandler, runpy, sys
sys.stdout = sys.stderr = open(sys.argv.pop(), "a", encoding="utf-8", buffering=1)
faulthandler.enable(sys.stderr)
runpy.run_module("app", run_name="__main__", alter_sys=True)
"""


def start_window(python: Path, update: str = "") -> int:
    """Start the window. On Windows it is detached from the console, and observed for 4 s. `update`: why the packages
    should be updated, for the window to offer."""
    os.environ["TRAINDECK_UPDATE"] = update
    if not WINDOWS:
        return exec_command([str(python), "-P", "-m", "app"])
    words = places.LOG.with_name("window.log")
    words.parent.mkdir(parents=True, exist_ok=True)  # it may have been deleted
    words.write_bytes(b"")
    detached = 0x00000008 | 0x00000200  # DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP
    command = [str(python.with_name("pythonw.exe")), "-P", "-c", WINDOW_SCRIPT, str(words)]
    root = str(places.ROOT)  # not System32, the folder of an administrator's console
    child = subprocess.Popen(
        command, env=child_env(), cwd=root, creationflags=detached, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
    )
    print_and_log(message("launcher.window_starting"))
    try:
        code = child.wait(4)
    except subprocess.TimeoutExpired:
        return 0
    if code:
        last = "\n".join(words.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        raise SetupError(message("launcher.window_failed", code=code, output=last))
    return 0
