"""Programs that are run here: in which environment, with their words in the log and a sign of life meanwhile."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any

from launcher import places
from launcher.homes import home_of_runs
from launcher.places import WINDOWS
from launcher.words import cut, log, show, shown

KEPT_OPEN: "list[int]" = []  # POSIX: the lock's descriptor; a pip that outlives its killed parent keeps the lock
FOREIGN = {f"PYTHON{name}" for name in ("HOME", "PATH", "STARTUP", "USERBASE", "EXECUTABLE", "IOENCODING")}
FOREIGN |= {f"PIP_{name}" for name in ("TARGET", "PREFIX", "ROOT", "USER", "REQUIRE_VIRTUALENV", "PYTHON")}
FOREIGN |= {"CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}


def own_env() -> "dict[str, str]":
    """The environment without what would lead Python elsewhere or let pip install elsewhere than in .venv."""
    return {name: value for name, value in os.environ.items() if name.upper() not in FOREIGN}


def child_env() -> "dict[str, str]":
    """The environment of Traindeck's own processes: UTF-8, and importable from any folder."""
    env = dict(own_env(), PYTHONUTF8="1", PYTHONPATH=str(places.ROOT))
    if home_of_runs() != places.ROOT:
        env["TRAINDECK_HOME"] = str(home_of_runs())
    if WINDOWS:
        env["USE_LIBUV"] = "0"  # torch's Windows wheels are built without libuv
    return env


def run_logged(command: "list[str]", doing: str, **options: Any) -> "tuple[int, str]":
    """Run a command with its output in the log and a sign of life on the terminal: (exit code, output)."""
    log(f"{doing}: {command}")
    started = time.monotonic()
    # A pipe, not the log file itself: the last line is shown, and errors are looked up in the text.
    places.LOG.touch()  # a log that cannot be written ends here in one sentence
    child: subprocess.Popen[bytes] = subprocess.Popen(
        command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, pass_fds=KEPT_OPEN, **options
    )
    lines: list[str] = []

    def read() -> None:
        with places.LOG.open("ab") as file:
            for raw in child.stdout or ():
                file.write(raw.rstrip(b"\r\n") + b"\n")
                lines.append(raw.decode("utf-8", "replace").rstrip())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while reader.is_alive():
            reader.join(1.0)
            heartbeat(doing, time.monotonic() - started, lines[-1] if lines else "")
        code = child.wait()
    except BaseException:  # Ctrl+C reaches the child too; it gets a moment to tidy up
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(10)
        child.kill()
        raise
    finally:
        if sys.stderr.isatty():
            print("\r" + " " * 100, end="\r", file=sys.stderr, flush=True)
    log(f"exit code {code} after {time.monotonic() - started:.1f} s")
    return code, "\n".join(lines)


def heartbeat(doing: str, seconds: float, last_line: str) -> None:
    """Show that work goes on: one line rewritten on a terminal, a line every half minute elsewhere."""
    if sys.stderr.isatty():
        text = f"  {shown(doing)}: {seconds:.0f} s  {last_line.strip()[:60]}"
        print("\r" + cut(text, 99), end="", file=sys.stderr, flush=True)
    elif int(seconds) % 30 == 29:
        show(f"  {doing}: {seconds:.0f} s so far")
