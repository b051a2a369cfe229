"""Starts the window and the trainer."""

import os
import signal
import subprocess
import sys
from subprocess import DEVNULL

from launcher import places
from launcher.environment import current_environment
from launcher.failures import SetupError
from launcher.messages import message, print_and_log
from launcher.places import WINDOWS
from launcher.processes import child_env


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


def start_window(update: str = "") -> int:
    """Start the window. On Windows it is detached from the console, and observed for 4 s. `update`: why the packages
    should be updated, for the window to offer."""
    os.environ["TRAINDECK_UPDATE"] = update
    if not WINDOWS:
        return exec_command([str(current_environment().python), "-P", "-m", "app"])
    words = places.LOG.with_name("window.log")
    words.parent.mkdir(parents=True, exist_ok=True)  # it may have been deleted
    words.write_bytes(b"")
    detached = 0x00000008 | 0x00000200  # DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP
    command = [str(current_environment().python.with_name("pythonw.exe")), "-P", "-c", WINDOW_SCRIPT, str(words)]
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
