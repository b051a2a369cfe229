#!/usr/bin/env python3
"""Set Traindeck up in .venv, then start it. Standard library only.

    train_gpu.py                     the window
    train_gpu.py setup [options]     set up and stop; the options are remembered (setup --help)
    train_gpu.py pack FILE.zip       Traindeck with all packages, for a machine without internet (pack --help)
    train_gpu.py shortcut            a shortcut on the desktop (Windows) or in the menu (Linux)
    train_gpu.py uninstall [options] remove what Traindeck created, after confirmation (uninstall --help)
    train_gpu.py test [pytest args]  every check of the repository
    train_gpu.py ANYTHING ELSE       the headless trainer with these arguments

The code is in launcher/, whose __init__.py explains the limits of its syntax.
"""

import argparse
import contextlib
import os
import sys
from pathlib import Path

# Last, so that a json.py in this folder does not shadow the standard library; `-I` left the folder out.
sys.path.append(str(Path(__file__).resolve().parent))

from launcher import places
from launcher.choices import get_choices, parse_options
from launcher.environment import current_environment, new_environment
from launcher.messages import EVENTS, SetupError, emit, message, print_and_log, print_message
from launcher.packing import pack
from launcher.processes import exec_command, start_window
from launcher.pythons import OLDEST_PYTHON, find_python
from launcher.removing import uninstall
from launcher.shortcuts import make_shortcut
from launcher.sources import measure_mirrors
from launcher.updating import (
    ensure_environment,
    ensure_window,
    go_back,
    recover_switch,
    unfinished_run,
    update_in_window,
)


def main(argv: "list[str]") -> int:
    """Run a command. Returns its exit code; errors are printed."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # code page 1252 cannot show Chinese paths
    with contextlib.suppress(OSError):  # train_gpu.bat changes the folder; paths are relative to the previous one
        os.chdir(os.environ.pop("TRAINDECK_CALLED_FROM", "."))
    code, failure = 0, ""
    try:
        code = run(argv[0] if argv else "", argv)
    except SetupError as error:
        code, failure = error.code, str(error)
        print_and_log(message("launcher.error", error=error))
    except OSError as error:
        code = 7 if error.errno == 28 else 1
        failure = message("launcher.not_writable", error=error)
        print_and_log(failure)
    except KeyboardInterrupt:
        code, failure = 130, message("launcher.interrupted")
        print_and_log(failure)
    emit("end", code=code, text=failure, restart=not code and new_environment().folder.exists())
    return code


def run(command: str, argv: "list[str]") -> int:
    """Set up if anything has changed, then start."""
    if command == "uninstall":
        return uninstall(argv[1:])
    if command == "shortcut":
        return make_shortcut()
    options = parse_options(argv[1:]) if command == "setup" else None
    if options and options.output == "json":  # events go to the window, and everything else that is printed to stderr
        EVENTS.append(os.fdopen(os.dup(1), "w", encoding="utf-8"))
        os.dup2(2, 1)
    choices = get_choices(options)
    if options and options.mirrors:  # beside a setup
        measure_mirrors()
        return 0
    recover_switch()
    if sys.version_info < OLDEST_PYTHON:
        return exec_command([find_python(choices["python"]), str(Path(__file__).resolve()), *argv])
    current_environment().repair_python()
    if command == "pack":
        return pack(argv[1:])
    if options:
        return run_setup(options, choices)
    if not argv:
        update = update_in_window(choices)
        if ensure_window(choices) or update:
            os.environ["TRAINDECK_UNFINISHED_RUN"] = unfinished_run()
            return start_window(current_environment().python, update or "")
    needs_tools = command == "test" and not current_environment().state.get("dev")
    ensure_environment(choices, dev=command == "test", requested=needs_tools)
    python = current_environment().python
    start = [str(python), "-P"]
    if command == "test":
        return exec_command([*start, str(places.ROOT / "tests" / "checks.py"), *argv[1:]])
    if command in ("--help", "-h"):
        # The trainer's own help follows.
        called = "train_gpu.bat" if places.WINDOWS else "./train_gpu.sh"
        print((__doc__ or "").split("\n\n")[1].replace("train_gpu.py", called) + "\n", flush=True)
    return exec_command([*start, "-m", "trainer_core", *argv]) if argv else start_window(python)


def run_setup(options: argparse.Namespace, choices: "dict[str, str]") -> int:
    """Command `setup`."""
    if options.back:
        go_back()
        return start_window(current_environment().python) if options.open else 0
    if ensure_environment(choices, options.dev, requested=True):
        print_message(message("launcher.ready", version=current_environment().torch_version()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
