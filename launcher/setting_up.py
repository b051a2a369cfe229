"""Creates an environment and installs its packages. Each step can be interrupted and repeated."""

import shutil
import time
from pathlib import Path

from launcher import places
from launcher.choices import setup_fingerprint
from launcher.environment import Environment
from launcher.failures import SetupError, tool_error
from launcher.folders import remove_environment
from launcher.messages import emit, message, print_and_log
from launcher.packages import (
    Package,
    Resolver,
    batches,
    fetch_and_install,
    install_files,
    installed_versions,
    received_bytes,
    requirements,
    source_options,
    torch_pin,
    verify_torch,
    window_requirements,
    with_sizes,
    write_constraints,
)
from launcher.processes import run_logged
from launcher.pythons import find_python, try_python
from launcher.torch_builds import choose_torch, query_driver
from launcher.uv import bundled_pip, find_uv, uv_environment

UNPACKED_FACTOR = 2.5  # bytes on disk for each byte of a wheel: of torch 2.13 and its CUDA libraries, rounded up


def python_problem(env: Environment, chosen: str) -> "str | None":
    """Return why the Python of the environment must be replaced, or None."""
    python = try_python(str(env.python))
    if python.reason:
        return message("launcher.reason.unusable_python", reason=python.reason)
    if chosen and Path(find_python(chosen)).resolve() != Path(python.executable).resolve():
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
    uv = find_uv()
    if uv:
        command = [uv, "venv", "--relocatable", "--no-project", "--prompt", "traindeck", "--python", python]
        code, output = run_logged([*command, str(env.folder)], activity, env=uv_environment({}))
        pip = bundled_pip()
        if not code and pip:  # for those who add packages of their own
            install_files(env, [pip], compile_all=False)
    else:
        command = [python, "-I", "-m", "venv", "--prompt", "traindeck"]
        code, output = run_logged([*command, str(env.folder)], activity)
    if code or not env.python_version():
        raise tool_error(message("launcher.venv_failed", folder=env.folder), output)


def install_window(env: Environment, choices: "dict[str, str]", dev: bool) -> None:
    """Install what the window needs to open. It has the rest installed."""
    env.write_state(dict(env.state, complete=False, dev=dev))
    constraints = write_constraints(env.folder, choices["constraints"], "torch==" + torch_pin())
    resolver = Resolver(env.folder)
    packages, output = resolver.resolve(window_requirements(), constraints, source_options(choices))
    if not packages:
        raise tool_error(message("launcher.packages_not_installed"), output)
    # Compiling takes 5 s, for which the window would have to wait.
    fetch_and_install(env, [("window", missing(env, packages))], keep=True, compile_all=False)


def install_packages(env: Environment, choices: "dict[str, str]", dev: bool) -> None:
    """Install missing packages and verify them."""
    state = dict(env.state, complete=False, dev=dev)
    env.write_state(state)
    tag, reason = choose_torch(query_driver())
    if choices["torch"]:
        tag, reason = choices["torch"], message("launcher.reason.chosen")
    print_and_log(message("launcher.torch_build", tag=tag, reason=reason), indent="  ")
    emit("stage", stage="resolve", text=message("launcher.activity.resolve"))
    resolver = Resolver(env.folder)
    source = resolver.find_torch(tag, choices["mirror"])
    constraints = write_constraints(env.folder, choices["constraints"], "torch===" + source.version)
    lock, output = resolver.resolve(requirements(dev), constraints, source.options)
    if not lock:
        raise tool_error(message("launcher.packages_not_installed"), output)
    own = window_requirements()
    window = resolver.resolve(own, constraints, source.options)[0] if own else []
    wanted = with_sizes(missing(env, lock))
    announce_download(env, wanted, torch=tag, reason=reason, source=source.label, mirror=choices["mirror"])
    keep = choices["keep_downloads"] == "yes"
    fetch_and_install(env, batches(wanted, {one.name for one in window}), keep)
    if tag != "cpu" and "+cu" not in env.torch_version():
        raise SetupError(
            message("launcher.torch_cpu_only", source=source.label, installed=env.torch_version(), tag=tag)
        )
    env.write_state(dict(env.state, tag=tag, torch=env.torch_version(), torch_pin=torch_pin(), window=True))
    verify_torch(env, tag)


def missing(env: Environment, packages: "list[Package]") -> "list[Package]":
    """Packages of the lock that are not installed in this version."""
    installed = installed_versions(env)
    return [one for one in packages if installed.get(one.name) != one.version]


def announce_download(env: Environment, packages: "list[Package]", **about: str) -> None:
    """Say what is going to be downloaded. Raises SetupError if the disk is too small for it."""
    files = [one.file for one in packages if one.path is None]
    total = sum(file.size for file in files)
    there = sum(received_bytes(file) for file in files)
    needed = total - there + round(UNPACKED_FACTOR * sum(one.file.size for one in packages))
    free = shutil.disk_usage(str(env.folder)).free
    emit("plan", **about, bytes=total, done=there, free=free, needed=needed)
    if files:
        print_and_log(message("launcher.download", count=len(files), size=total / 1e6, free=free / 1e9), indent="  ")
    if free < needed:
        raise SetupError(message("launcher.disk_too_small", needed=needed / 1e9, free=free / 1e9, folder=env.folder), 7)


def mark_complete(env: Environment, choices: "dict[str, str]") -> None:
    """Record that the environment is verified, and for which inputs."""
    env.write_state(dict(env.state, complete=True, stamp=setup_fingerprint(choices, env.python_version())))


def make_usable(env: Environment, choices: "dict[str, str]") -> None:
    """Create the environment, or replace it if its Python cannot be used."""
    if env.state:
        env.write_state(dict(env.state, complete=False))
    fault = env.folder.exists() and (python_problem(env, choices["python"]) or (not find_uv() and env.pip_problem()))
    if fault:
        print_and_log(message("launcher.recreating", reason=fault), indent="  ")
    if fault or not env.folder.exists():
        create_environment(env, choices["python"])


def set_up_window(env: Environment, choices: "dict[str, str]", dev: bool) -> None:
    """Prepare an environment so far that the window opens."""
    make_usable(env, choices)
    install_window(env, choices, dev)


def set_up(env: Environment, choices: "dict[str, str]", dev: bool) -> None:
    """Create or complete an environment in place. It does not work yet."""
    started = time.monotonic()
    dev = dev or bool(env.state.get("dev"))
    make_usable(env, choices)
    install_packages(env, choices, dev)
    mark_complete(env, choices)
    print_and_log(message("launcher.set_up", seconds=round(time.monotonic() - started)))
