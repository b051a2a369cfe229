#!/usr/bin/env python3
"""Set Traindeck up in .venv, then start it. Standard library only.

    train_gpu.py                     the window
    train_gpu.py setup [options]     set up and stop; the options are remembered (setup --help)
    train_gpu.py pack FILE.zip       Traindeck with all packages, for a machine without internet (pack --help)
    train_gpu.py shortcut            a shortcut in the menu (Linux) and on the desktop
    train_gpu.py uninstall [options] remove what Traindeck created, after confirmation (uninstall --help)
    train_gpu.py test [pytest args]  every check of the repository
    train_gpu.py ANYTHING ELSE       the headless trainer with these arguments

The code is in launcher/, whose __init__.py explains the limits of its syntax.
"""

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

if "launcher" not in sys.modules:
    # By path, not through sys.path: a json.py in this folder must not shadow the standard library.
    package = Path(__file__).resolve().parent / "launcher" / "__init__.py"
    spec = importlib.util.spec_from_file_location("launcher", str(package))
    assert spec is not None
    assert spec.loader is not None
    sys.modules["launcher"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["launcher"])

from launcher import places
from launcher.choices import get_choices, setup_reason
from launcher.environment import current_environment, new_environment
from launcher.failures import SetupError
from launcher.locking import setup_lock
from launcher.messages import EVENTS, emit, message, print_and_log, print_message
from launcher.mirrors import measure_mirrors
from launcher.moving import repair_python
from launcher.packing import pack
from launcher.pythons import OLDEST_PYTHON, find_python
from launcher.removing import uninstall
from launcher.shortcuts import make_shortcut
from launcher.starting import exec_command, run_checks, start_window
from launcher.updating import ensure_environment, ensure_window, go_back, recover_switch, update_in_window


def main(argv: "list[str]") -> int:
    """Run a command. Returns its exit code; errors are printed."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # code page 1252 cannot show Chinese paths
    with contextlib.suppress(OSError):  # train_gpu.bat changes the folder; paths are relative to the previous one
        os.chdir(os.environ.pop("TRAINDECK_CALLED_FROM", "."))
    command = argv[0] if argv else ""
    if command in ("--help", "-h"):
        # The trainer's own help follows.
        called = "train_gpu.bat" if places.WINDOWS else "./train_gpu.sh"
        print((__doc__ or "").split("\n\n")[1].replace("train_gpu.py", called) + "\n", flush=True)
    if command == "setup" and "json" in argv:
        send_events_to_stdout()
    code, failure = 0, ""
    try:
        own = {"uninstall": uninstall, "pack": pack}
        code = own[command](argv[1:]) if command in own else start(command, argv)
    except SetupError as error:
        code, failure = error.code, str(error)
        print_and_log(message("launcher.error", error=error))
    except OSError as error:
        code = 7 if error.errno == 28 else 1
        failure = message("launcher.not_writable", error=error, folder=places.ROOT)
        print_and_log(failure)
    except KeyboardInterrupt:
        code, failure = 130, message("launcher.interrupted")
        print_and_log(failure)
    emit("end", code=code, text=failure, restart=not code and new_environment().folder.exists())
    return code


def send_events_to_stdout() -> None:
    """Send events of the setup to the window, and everything else that is printed to stderr."""
    EVENTS.append(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)


def start(command: str, argv: "list[str]") -> int:
    """Set up if anything has changed, then start."""
    before = current_environment().folder
    choices = get_choices(argv[1:] if command == "setup" else None)
    dev = command == "test" or (command == "setup" and "--dev" in argv)
    if new_environment().folder.exists() or not before.exists():
        with setup_lock():
            recover_switch()
    repair_python(current_environment())
    if sys.version_info < OLDEST_PYTHON and setup_reason(current_environment(), choices, dev):
        return exec_command([find_python(choices["python"]), str(Path(__file__).resolve()), *argv])
    if "--mirrors" in argv[1:] and command == "setup":
        measure_mirrors()
        return 0
    if "--back" in argv[1:] and command == "setup":
        go_back()
        return start_window() if "--open" in argv else 0
    if not argv:
        update = update_in_window(choices)
        if ensure_window(choices) or update:
            return start_window(update or "")
    as_wanted = ensure_environment(choices, dev, requested=command == "setup")
    if command == "setup":
        if as_wanted:
            print_message(message("launcher.ready", version=current_environment().torch_version()))
            if before != current_environment().folder and before.exists():
                print_and_log(message("launcher.unused_packages", folder=before))
        return 0
    if command == "shortcut":
        return make_shortcut()
    if command == "test":
        return run_checks(argv[1:])
    return (
        exec_command([str(current_environment().python), "-P", "-m", "trainer_core", *argv]) if argv else start_window()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
