#!/usr/bin/env python3
"""Set Traindeck up in .venv, then start it. Standard library only.

    train_gpu.py                     the window
    train_gpu.py setup [options]     set up and stop; the options are remembered (setup --help)
    train_gpu.py shortcut            a shortcut on the desktop (Windows)
    train_gpu.py uninstall [options] remove what was made here, after asking (uninstall --help)
    train_gpu.py test [pytest args]  every check of the repository
    train_gpu.py ANYTHING ELSE       the headless trainer with these arguments

What it does is in launcher/, whose __init__.py says why the syntax stays within Python 3.6.
"""

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

if "launcher" not in sys.modules:
    # By its place, not through sys.path: a json.py that someone left in this folder must not become Python's own.
    package = Path(__file__).resolve().parent / "launcher" / "__init__.py"
    spec = importlib.util.spec_from_file_location("launcher", str(package))
    assert spec is not None
    assert spec.loader is not None
    sys.modules["launcher"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["launcher"])

from launcher import places
from launcher.choices import get_choices, why_set_up
from launcher.environment import coming, current, leaving
from launcher.failures import SetupError
from launcher.locking import only_one
from launcher.pythons import OLDEST, find_python
from launcher.removing import uninstall
from launcher.shortcuts import make_shortcut
from launcher.starting import hand_over, run_checks, start_window
from launcher.updating import make_ready, settle
from launcher.words import say, show


def main(argv: "list[str]") -> int:
    """Do what was asked; what fails ends in words and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a path in Chinese must not break a console of code page 1252
    with contextlib.suppress(OSError):  # train_gpu.bat had to leave it; what is typed is meant from there
        os.chdir(os.environ.pop("TRAINDECK_CALLED_FROM", "."))
    command = argv[0] if argv else ""
    if command in ("--help", "-h"):
        # The trainer's own help follows.
        called = "train_gpu.bat" if places.WINDOWS else "./train_gpu.sh"
        print((__doc__ or "").split("\n\n")[1].replace("train_gpu.py", called) + "\n", flush=True)
    try:
        return uninstall(argv[1:]) if command == "uninstall" else start(command, argv)
    except SetupError as error:
        say(f"ERROR: {error}")
        return error.code
    except OSError as error:
        say(f"ERROR: {error}\nTraindeck must be able to write in {places.ROOT}; is the disk full, or another running?")
        return 7 if error.errno == 28 else 1
    except KeyboardInterrupt:
        say("\nInterrupted. Start again to go on from here.")
        return 130


def start(command: str, argv: "list[str]") -> int:
    """Set up if anything changed, then start."""
    before = current().folder
    choices = get_choices(argv[1:] if command == "setup" else None)
    dev = command == "test" or (command == "setup" and "--dev" in argv)
    if coming().folder.exists() or leaving().folder.exists():
        with only_one():
            settle()
    if sys.version_info < OLDEST and why_set_up(current(), choices, dev):
        return hand_over([find_python(choices["python"]), str(Path(__file__).resolve()), *argv])
    as_wanted = make_ready(choices, dev, asked=command == "setup")
    if command == "setup":
        if as_wanted:
            show(f"Traindeck is ready: PyTorch {current().torch()}")
            if before != current().folder and before.exists():
                say(f"The packages in {before} are no longer used: that folder can be deleted.")
        return 0
    if command == "shortcut":
        return make_shortcut()
    if command == "test":
        return run_checks(argv[1:])
    return hand_over([str(current().python), "-P", "-m", "trainer_core", *argv]) if argv else start_window()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
