"""Transactional updates: the new environment is made and verified in .venv.new, then renamed.

.venv → .venv.old, .venv.new → .venv. After an interruption, `recover_switch` and the next start continue from the
folders that exist. While a process runs from .venv, the finished .venv.new is kept for a later start.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from pathlib import Path

from launcher.choices import get_choices, setup_inputs, setup_reason
from launcher.environment import (
    Environment,
    clone_environment,
    current_environment,
    new_environment,
    previous_environment,
    remove_environment,
    remove_if_unused,
    rename_environment,
    restore_programs,
)
from launcher.messages import SetupError, log, message, print_and_log, print_message
from launcher.packages import name_of, pinned_versions, requirements, torch_pin, window_requirements
from launcher.places import WINDOWS, read_json, runs_home, write_json
from launcher.running import processes_using, setup_lock
from launcher.setting_up import python_problem, set_up, set_up_window

CLOSING_S = 5.0  # for the window that asked to go back
TAIL_BYTES = 1 << 18  # of the events of a run
_WENT_BACK = "went_back"  # in place of the reason why an update failed
SETUP_COMMAND = "train_gpu.bat setup" if WINDOWS else "./train_gpu.sh setup"


def ensure_window(choices: "dict[str, str]") -> bool:
    """At the first start, install only what the window needs: it shows how the rest is installed. Returns whether the
    rest is missing."""
    env = current_environment()
    if env.state.get("complete") or not window_requirements():
        return False
    if not can_open_window(env):  # else another start may be installing the rest, for minutes
        with setup_lock():
            if not can_open_window(env):
                set_up_window(env, choices)
    return True


def can_open_window(env: Environment) -> bool:
    return bool(env.state.get("window") and env.python_version())


def ensure_environment(choices: "dict[str, str]", dev: bool, requested: bool) -> bool:
    """Set up or update .venv if needed. Returns whether it is current; if not, the previous one still works.

    `requested`, by a command: a failure raises SetupError, and an update that failed before is retried.
    """
    env, new = current_environment(), new_environment()
    reason = setup_reason(env, choices, dev, requested)
    if not reason and not new.folder.exists():
        return True
    failure = earlier_failure(choices) if reason and not requested else ""
    if failure:
        print_message(message("launcher.update_failed_before", error=failure, command=SETUP_COMMAND))
        return False
    run = unfinished_run() if reason and not (requested or new.state.get("requested")) else ""
    if run:
        print_message(message("launcher.update_waits", name=run, command=SETUP_COMMAND))
        return False
    with setup_lock():
        reason = setup_reason(env, choices, dev, requested)
        if reason and env.is_usable(thorough=requested):
            return update(reason, choices, dev, requested)
        if reason:
            if env.state.get("complete"):
                refuse_while_running()
            set_up(env, choices, dev, reason)
        remove_if_unused(new)
        return True


def update(reason: str, choices: "dict[str, str]", dev: bool, requested: bool) -> bool:
    """Prepare .venv.new and switch to it. Returns whether it is in use; a failure leaves .venv unchanged."""
    env, new = current_environment(), new_environment()
    dev, wish = dev or bool(env.state.get("dev")), update_fingerprint(choices)
    try:
        is_stale = bool(setup_reason(new, choices, dev))  # not finished, or of other inputs
        if is_stale:
            prepare_update(new, choices, dev, reason)
        if is_stale or requested:
            new.update_state(requested=requested)
        env.update_state(failed=None)
        done = switch_environments()
    except (SetupError, OSError) as error:
        summary = getattr(error, "summary", str(error))
        remove_if_unused(new)
        if isinstance(error, SetupError):  # an OSError may be temporary
            env.update_state(failed=[wish, summary])
        if requested:
            raise SetupError(message("launcher.update_failed", error=error), getattr(error, "code", 1)) from error
        log(f"Update failed: {error}")
        print_and_log(message("launcher.update_failed_starting", error=summary, command=SETUP_COMMAND))
        return False
    if not done:
        print_and_log(message("launcher.update_ready"))
    return done


def prepare_update(new: Environment, choices: "dict[str, str]", dev: bool, reason: str) -> None:
    """Create .venv.new from the files of .venv, install what has changed, and verify it."""
    old = current_environment()
    if not new.state:  # the copy is not complete
        remove_environment(new)
        unfit = python_problem(old, choices["python"])
        if unfit:
            print_and_log(message("launcher.recreating", reason=unfit), indent="  ")
        elif old.is_relocatable():
            clone_environment(old, new)
            write_json(new.state_file, dict(old.state, complete=False, failed=None))
    set_up(new, choices, dev, reason)


def switch_environments() -> bool:
    """Replace .venv by .venv.new. Returns False, without changes, if .venv is in use.

    The previous one is kept until the next update (`go_back`).
    """
    old, new, gone = current_environment(), new_environment(), previous_environment()
    who = processes_using(old.folder) or processes_using(gone.folder)
    if who:
        log(f"{old.folder} is in use by {who}")
        return False
    try:
        remove_environment(gone)
        rename_environment(old, gone)
        try:
            rename_environment(new, old)
        except OSError:
            rename_environment(gone, old)
            raise
    except PermissionError as error:  # on Windows, an open file is enough
        log(f"{old.folder} cannot be moved: {error}")
        return False
    return True


def recover_switch() -> None:
    """Complete or revert an interrupted switch."""
    old, new, gone = current_environment(), new_environment(), previous_environment()
    if old.folder.exists() and not new.folder.exists():
        return
    with setup_lock():
        for env in (old, new, gone):
            restore_programs(env)
        if not old.folder.exists():
            if new.state.get("complete"):
                rename_environment(new, old)
            elif gone.folder.exists():
                rename_environment(gone, old)


def go_back() -> None:
    """Exchange the packages for those before the last update. The same update is made again only by `setup`."""
    old, new, gone = current_environment(), new_environment(), previous_environment()
    with setup_lock():
        if not gone.is_usable():
            raise SetupError(message("launcher.nothing_to_go_back_to"), 2)
        until = time.monotonic() + CLOSING_S
        while processes_using(old.folder) and time.monotonic() < until:
            time.sleep(0.2)
        refuse_while_running()
        remove_environment(new)
        rename_environment(old, new)
        rename_environment(gone, old)
        rename_environment(new, gone)
    old.update_state(failed=[update_fingerprint(get_choices()), _WENT_BACK])
    print_and_log(message("launcher.ready", version=old.torch_version()))


def refuse_while_running(*homes: Path) -> None:
    """Raise SetupError while a process runs from the environment, or from one in `homes`."""
    folders = [home / ".venv" for home in homes] or [current_environment().folder]
    running = [process for folder in folders for process in processes_using(folder)]
    if running:
        raise SetupError(message("launcher.running", pids=", ".join(map(str, running))))


# --- an update in the window ---------------------------------------------------------------------------


def update_in_window(choices: "dict[str, str]") -> "str | None":
    """Return the reason of an update that the window can make itself, beside the packages that it runs with. It cannot
    if its own packages change, and need not if the update only waits for the switch."""
    env = current_environment()
    reason = setup_reason(env, choices, dev=False)
    if not reason or not env.is_usable() or not window_requirements():
        return None
    if not setup_reason(new_environment(), choices, dev=False) or earlier_failure(choices):
        return None
    changed = changed_versions(env, choices)
    if any(name_of(one) in changed for one in window_requirements()):
        return None
    own = map(name_of, requirements())
    return ", ".join(f"{name} {changed[name]}" for name in own if name in changed) or reason


def unfinished_run() -> str:
    """Name of a run that continues exactly only with the torch in use, if an update replaces that; else empty."""
    env = current_environment()
    torch = env.torch_version().split("+")[0]
    if torch == torch_pin() or not env.is_usable():
        return ""
    for run in sorted((runs_home() / "runs").glob("*")):
        newest = max(run.glob("checkpoints/step-*/state.json"), default=run)
        if read_json(newest).get("run_fingerprint", {}).get("torch") == torch and not is_finished(run):
            return run.name
    return ""


def is_finished(run: Path) -> bool:
    """Whether the newest event that tells is the end of a complete run (trainer_core/runs/run_dir.py)."""
    with contextlib.suppress(OSError), (run / "events.jsonl").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        last = re.findall(rb'^{"type":"(?:step|done)".*', file.read(), re.MULTILINE)[-1:]
        return bool(last and re.search(rb'"reason":"(finished|early_stop)"', last[0]))
    return False


def changed_versions(env: Environment, choices: "dict[str, str]") -> "dict[str, str]":
    """`before → after` of required packages with another pin, and the version of new ones, by normalized name."""
    installed, changed = env.installed_versions(), {}
    for name, after in pinned_versions(choices).items():
        before = installed.get(name, "").split("+")[0]
        if before != after:
            changed[name] = f"{before} → {after}" if before else after
    return changed


# --- failed updates are not retried at every start: without a network each would take long


def earlier_failure(choices: "dict[str, str]") -> str:
    """Why the same update failed before, or was taken back; else empty, also if packages are damaged."""
    env = current_environment()
    wish, why = env.state.get("failed") or ("", "")
    is_intact = env.is_usable() and env.torch_version() == env.state.get("torch")
    if not is_intact or wish != update_fingerprint(choices):
        return ""
    return message("launcher.went_back") if why == _WENT_BACK else str(why)


def update_fingerprint(choices: "dict[str, str]") -> str:
    """Fingerprint of an update and of the settings on which its success depends."""
    settings = {name: value for name, value in os.environ.items() if name.upper().startswith("PIP_")}
    settings.update((name, value) for name, value in os.environ.items() if name.upper().endswith("_PROXY"))
    inputs = setup_inputs(choices, current_environment().python_version())
    text = json.dumps([inputs, choices["mirror"], settings], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
