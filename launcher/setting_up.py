"""Creates an environment and installs its packages. Each step can be interrupted and repeated."""

import time
from pathlib import Path

from launcher import places
from launcher.choices import setup_fingerprint
from launcher.environment import Environment
from launcher.failures import SetupError, tool_error
from launcher.folders import remove_environment
from launcher.messages import message, print_and_log
from launcher.packages import install_rest, install_torch, torch_pin, verify_torch
from launcher.processes import run_logged
from launcher.pythons import find_python, try_python
from launcher.torch_builds import choose_torch, query_driver


def python_problem(env: Environment, chosen: str) -> "str | None":
    """Return why the Python of the environment must be replaced, or None."""
    base, reason = try_python([str(env.python)])
    if reason:
        return message("launcher.reason.unusable_python", reason=reason)
    if chosen and Path(find_python(chosen)).resolve() != Path(base).resolve():
        return message("launcher.reason.other_python")
    return None


def create_home(folder: Path) -> None:
    """Create the folder of the environment. Raises SetupError, such as for a missing disk."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(message("launcher.folder_not_created", error=error), 2) from error
    places.write_home_file()


def location_notes() -> "list[str]":
    """Return notes on folders outside Traindeck's own and on paths that may be too long, shown before any download."""
    found = []
    home, runs = places.environment_home(), places.runs_home()
    if home != places.ROOT:
        found.append(message("launcher.packages_in", folder=home))
    if runs != places.ROOT:
        found.append(message("launcher.runs_in", folder=runs))
    if not places.path_fits(home):
        limit = 259 - places.MAX_ENVIRONMENT_SUBPATH
        found.append(message("launcher.long_path", folder=home, length=len(str(home)), limit=limit))
    return found


def create_environment(env: Environment, chosen: str) -> None:
    """Create an environment with only pip in it."""
    python = find_python(chosen)
    remove_environment(env)
    create_home(env.folder.parent)
    for note in location_notes():
        print_and_log(note, indent="  ")
    print_and_log(message("launcher.python", path=python), indent="  ")
    activity = message("launcher.activity.create", name=env.folder.name)
    code, output = run_logged([python, "-I", "-m", "venv", "--prompt", "traindeck", str(env.folder)], activity)
    if code or not env.python_version():
        raise tool_error(message("launcher.venv_failed", folder=env.folder), output)


def install_packages(env: Environment, choices: "dict[str, str]", dev: bool) -> None:
    """Install missing packages and verify them."""
    state = dict(env.state, complete=False, dev=dev)
    env.write_state(state)
    tag, reason = choose_torch(query_driver())
    if choices["torch"]:
        tag, reason = choices["torch"], message("launcher.reason.chosen")
    print_and_log(message("launcher.torch_build", tag=tag, reason=reason), indent="  ")
    if (tag, env.torch_version()) != (state.get("tag"), state.get("torch")) or state.get("torch_pin") != torch_pin():
        install_torch(env, tag, choices)
        state.update(tag=tag, torch=env.torch_version(), torch_pin=torch_pin())
        env.write_state(state)
    install_rest(env, choices, dev)
    verify_torch(env, tag)


def mark_complete(env: Environment, choices: "dict[str, str]") -> None:
    """Record that the environment is verified, and for which inputs."""
    env.write_state(dict(env.state, complete=True, stamp=setup_fingerprint(choices, env.python_version())))


def set_up(env: Environment, choices: "dict[str, str]", dev: bool) -> None:
    """Create or complete an environment in place. It does not work yet."""
    started = time.monotonic()
    dev = dev or bool(env.state.get("dev"))
    if env.state:
        env.write_state(dict(env.state, complete=False))
    fault = env.folder.exists() and (python_problem(env, choices["python"]) or env.incomplete_reason())
    if fault:
        print_and_log(message("launcher.recreating", reason=fault), indent="  ")
    if fault or not env.folder.exists():
        create_environment(env, choices["python"])
    install_packages(env, choices, dev)
    mark_complete(env, choices)
    print_and_log(message("launcher.set_up", seconds=round(time.monotonic() - started)))
