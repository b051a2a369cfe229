"""Transactional updates: the new environment is made and verified in .venv.new, then renamed.

.venv → .venv.old, .venv.new → .venv. After an interruption, `recover_switch` and the next start continue from the
folders that exist. While a process runs from .venv, the finished .venv.new is kept for a later start.
"""

import hashlib
import os
import time
from pathlib import Path

from launcher import places
from launcher.choices import get_choices, setup_fingerprint, setup_reason, torch_change_reason
from launcher.cloning import can_be_cloned, clone_environment
from launcher.environment import Environment, current_environment, new_environment, previous_environment
from launcher.environment_processes import processes_using
from launcher.failures import SetupError
from launcher.folders import remove_environment, remove_if_unused, rename_environment, restore_programs
from launcher.locking import setup_lock
from launcher.messages import log, message, print_and_log, print_message
from launcher.packages import (
    can_load_window,
    installed_versions,
    name_of,
    pinned_versions,
    requirements,
    window_requirements,
)
from launcher.places import WINDOWS, read_json, write_json
from launcher.setting_up import (
    create_environment,
    install_packages,
    mark_complete,
    python_problem,
    set_up,
    set_up_window,
)

CLOSING_S = 5.0  # for the window that asked to go back
SETUP_COMMAND = "train_gpu.bat setup" if WINDOWS else "./train_gpu.sh setup"


def recover_switch() -> None:
    """Complete or revert an interrupted switch."""
    old, new, gone = current_environment(), new_environment(), previous_environment()
    for env in (old, new, gone):
        restore_programs(env)
    if not old.folder.exists():
        if new.state.get("complete"):
            rename_environment(new, old)
        elif gone.folder.exists():
            rename_environment(gone, old)


def go_back() -> None:
    """Exchange the packages for those before the last update. The same update is made again only by `setup`."""
    with setup_lock():
        old, new, gone = current_environment(), new_environment(), previous_environment()
        if not gone.is_usable():
            raise SetupError(message("launcher.nothing_to_go_back_to"), 2)
        until = time.monotonic() + CLOSING_S
        running = processes_using(old.folder)
        while running and time.monotonic() < until:
            time.sleep(0.2)
            running = processes_using(old.folder)
        if running:
            raise SetupError(message("launcher.running", pids=", ".join(map(str, running))))
        remove_environment(new)
        rename_environment(old, new)
        rename_environment(gone, old)
        rename_environment(new, gone)
    choices, dev = get_choices(None), bool(current_environment().state.get("dev"))
    wish = update_fingerprint(setup_reason(current_environment(), choices, dev) or "", choices, dev)
    write_json(failure_file(), {"wish": wish, "why": message("launcher.went_back")})
    print_and_log(message("launcher.ready", version=current_environment().torch_version()))


def ensure_environment(choices: "dict[str, str]", dev: bool, requested: bool) -> bool:
    """Set up or update .venv if needed. Returns whether it is current; if not, the previous one still works.

    `requested`, by the command `setup`: a failure raises SetupError, and an update that failed before is retried.
    """
    reason = update_reason(choices, dev, requested)
    if not reason and not new_environment().folder.exists():
        return True
    if reason and not requested and has_failed_before(reason, choices, dev):
        return False
    with setup_lock():
        reason = update_reason(choices, dev, requested)
        if reason and current_environment().is_usable():
            return update(reason, choices, dev, requested)
        if reason:
            announce_setup(current_environment(), reason)
            set_up(current_environment(), choices, dev)
        remove_if_unused(new_environment())
        return True


def ensure_window(choices: "dict[str, str]") -> bool:
    """At the first start, install only what the window needs: it shows how the rest is installed. Returns whether the
    rest is missing."""
    env = current_environment()
    if env.state.get("complete") or not window_requirements():
        return False
    with setup_lock():
        env = current_environment()
        if not env.state.get("window") or not env.python_version():
            announce_setup(env, message("launcher.reason.first_start"))
            set_up_window(env, choices, dev=False)
    return True


def update_in_window(choices: "dict[str, str]") -> "str | None":
    """Return the reason of an update that the window can make itself, beside the packages that it runs with. It cannot
    if its own packages change, and need not if the update only waits for the switch."""
    env = current_environment()
    reason = setup_reason(env, choices, dev=False)
    if not reason or not env.is_usable() or not window_requirements():
        return None
    if not setup_reason(new_environment(), choices, dev=False):
        return None
    if earlier_failure(reason, choices, dev=False):
        return None
    changed = changed_versions(env, choices)
    if any(name_of(one) in changed for one in window_requirements()):
        return None
    own = map(name_of, requirements(dev=False))
    return ", ".join(f"{name} {changed[name]}" for name in own if name in changed) or reason


def changed_versions(env: Environment, choices: "dict[str, str]") -> "dict[str, str]":
    """`before → after` of installed packages with another pin, by normalized name."""
    pins, installed = pinned_versions(choices["constraints"]), installed_versions(env)
    both = {name: (installed[name].split("+")[0], pins[name]) for name in installed if name in pins}
    return {name: f"{before} → {after}" for name, (before, after) in both.items() if before != after}


def update_reason(choices: "dict[str, str]", dev: bool, requested: bool) -> "str | None":
    """Return the reason why .venv must change, or None."""
    reason = setup_reason(current_environment(), choices, dev)
    return reason or (torch_change_reason(current_environment(), choices) if requested else None)


def announce_setup(env: Environment, reason: str) -> None:
    print_and_log(message("launcher.setting_up", folder=env.folder, reason=reason, log=places.LOG))


def update(reason: str, choices: "dict[str, str]", dev: bool, requested: bool) -> bool:
    """Prepare .venv.new and switch to it. Returns whether it is in use; a failure leaves .venv unchanged."""
    started = time.monotonic()
    required = dev and not current_environment().state.get("dev")  # the tests cannot run without
    dev = dev or bool(current_environment().state.get("dev"))
    wish = update_fingerprint(reason, choices, dev)
    try:
        if setup_reason(new_environment(), choices, dev):  # not finished, or of other inputs
            announce_setup(new_environment(), reason)
            prepare_update(wish, choices, dev)
        clear_failure()
        done = switch_environments()
    except (SetupError, OSError) as error:
        failure = error if isinstance(error, SetupError) else SetupError(str(error))
        remove_if_unused(new_environment())
        if isinstance(error, SetupError):  # an OSError may be temporary
            write_json(failure_file(), {"wish": wish, "why": failure.summary})
        if requested or required:
            raise SetupError(message("launcher.update_failed", error=failure), failure.code) from error
        log(f"Update failed: {failure}")
        print_and_log(message("launcher.update_failed_starting", error=failure.summary, command=SETUP_COMMAND))
        return False
    if done:
        print_and_log(message("launcher.updated", seconds=round(time.monotonic() - started)))
        return True
    ready = message("launcher.update_ready")
    if required:
        raise SetupError(ready)
    print_and_log(ready)
    return False


def prepare_update(wish: str, choices: "dict[str, str]", dev: bool) -> None:
    """Create .venv.new from the files of .venv, install what has changed, and verify it."""
    old, new = current_environment(), new_environment()
    wait_for_installer()
    if new.state.get("wish") != wish or python_problem(new, choices["python"]):
        remove_environment(new)
        unfit = python_problem(old, choices["python"])
        if unfit:
            print_and_log(message("launcher.recreating", reason=unfit), indent="  ")
        is_clone = not unfit and can_be_cloned(old)
        if is_clone:
            clone_environment(old, new)
        else:
            create_environment(new, choices["python"])
        made_of = old.state if is_clone else {}
        new.write_state(dict(made_of, complete=False, wish=wish))  # written last: the copy is complete
    install_packages(new, choices, dev)
    if not can_load_window(new) and can_load_window(old):
        raise SetupError(message("launcher.window_unloadable", log=places.LOG))
    mark_complete(new, choices)


def wait_for_installer() -> None:
    """On Windows pip may outlive a killed parent; elsewhere it keeps the lock."""
    announced = False
    while processes_using(new_environment().folder):
        if not announced:
            print_and_log(message("launcher.waiting_for_update"))
            announced = True
        time.sleep(0.5)


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


# --- failed updates are not retried at every start: without a network each would take long


def failure_file() -> Path:
    return places.STATE_FOLDER / "failed.json"


def clear_failure() -> None:
    if failure_file().exists():
        failure_file().unlink()


def update_fingerprint(reason: str, choices: "dict[str, str]", dev: bool) -> str:
    """Fingerprint of an update and of the settings on which its success depends."""
    sources = {name: value for name, value in os.environ.items() if name.upper().startswith("PIP_")}
    sources.update((name, value) for name, value in os.environ.items() if name.upper().endswith("_PROXY"))
    parts = [
        reason,
        setup_fingerprint(choices, current_environment().python_version()),
        choices["mirror"],
        str(dev),
        str(sorted(sources.items())),
    ]
    return hashlib.sha256("|".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def earlier_failure(reason: str, choices: "dict[str, str]", dev: bool) -> str:
    """Why the same update failed before, or was taken back; else empty."""
    failed = read_json(failure_file())
    dev = dev or bool(current_environment().state.get("dev"))
    return str(failed.get("why")) if failed.get("wish") == update_fingerprint(reason, choices, dev) else ""


def has_failed_before(reason: str, choices: "dict[str, str]", dev: bool) -> bool:
    """Whether the same update has failed before; prints so. Always False if the tests need their tools."""
    if dev and not current_environment().state.get("dev"):
        return False
    why = earlier_failure(reason, choices, dev)
    if why:
        print_message(message("launcher.update_failed_before", error=why, command=SETUP_COMMAND))
    return bool(why)
