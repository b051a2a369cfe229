"""Starting: the window, the trainer, the checks."""

import os
import signal
import subprocess
import sys
from subprocess import DEVNULL

from launcher import places
from launcher.environment import current
from launcher.failures import SetupError
from launcher.places import WINDOWS
from launcher.processes import child_env
from launcher.words import say


def hand_over(command: "list[str]") -> int:
    """Become the command (POSIX), or run it in the foreground and return its exit code (Windows)."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not WINDOWS:
        os.execve(command[0], command, child_env())
    return run_foreground(command)


def run_foreground(command: "list[str]", cwd: "str | None" = None) -> int:
    """Run with our standard streams. Ctrl+C goes to the whole console, so here it is only outwaited."""
    child = subprocess.Popen(command, env=child_env(), cwd=cwd)
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    code = child.wait()
    signal.signal(signal.SIGINT, before)
    return code if code < 2**31 else code - 2**32  # Windows states crashes as large unsigned numbers


# pythonw has no streams, and files as streams at the level of the system fail in some places: so in Python.
WINDOW = """
import faulthandler, runpy, sys
sys.stdout = sys.stderr = open(sys.argv.pop(), "a", encoding="utf-8", buffering=1)
faulthandler.enable(sys.stderr)
runpy.run_module("app", run_name="__main__", alter_sys=True)
"""


def start_window() -> int:
    """Start the window; on Windows detached from the console, once it has outlived its first seconds."""
    if not WINDOWS:
        return hand_over([str(current().python), "-P", "-m", "app"])
    words = places.LOG.with_name("window.log")
    words.parent.mkdir(parents=True, exist_ok=True)  # somebody may have tidied it away
    words.write_bytes(b"")
    detached = 0x00000008 | 0x00000200  # DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP
    command = [str(current().python.with_name("pythonw.exe")), "-P", "-c", WINDOW, str(words)]
    root = str(places.ROOT)  # as administrator one is in System32, which is no place to choose files from
    child = subprocess.Popen(
        command, env=child_env(), cwd=root, creationflags=detached, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
    )
    say("Traindeck starts; this console closes by itself.")
    try:
        code = child.wait(4)
    except subprocess.TimeoutExpired:
        return 0
    if code:
        last = "\n".join(words.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        raise SetupError(f"The window could not start (exit code {code}):\n{last}")
    return 0


def run_checks(arguments: "list[str]") -> int:
    """Run every check even if one fails; the exit code is the first failure's."""
    lint_imports = "import sys; from importlinter.cli import lint_imports_command as main; sys.exit(main())"
    checks = {
        "ruff": ["-m", "ruff", "check", "."],
        "mypy": ["-m", "mypy"],
        "import contracts": ["-c", lint_imports],
        "pytest": ["-m", "pytest", *arguments],
    }
    codes = {}
    for name, command in checks.items():
        print(f"== {name}", file=sys.stderr, flush=True)
        codes[name] = run_foreground([str(current().python), *command], cwd=str(places.ROOT))
        if codes[name] in (130, -signal.SIGINT):  # Ctrl+C means all of them
            break
    failed = {name: code for name, code in codes.items() if code}
    words = ", ".join(f"{name} (exit code {code})" for name, code in failed.items())
    print(f"== failed: {words}" if failed else "== all checks passed", file=sys.stderr, flush=True)
    return next(iter(failed.values()), 0)
