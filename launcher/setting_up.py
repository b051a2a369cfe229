"""Creates an environment and installs its packages. Each step can be interrupted and repeated."""

import shutil
import time
from pathlib import Path

from launcher import places
from launcher.choices import setup_inputs
from launcher.downloads import Downloads, Package, with_sizes
from launcher.environment import Environment, current_environment, remove_environment
from launcher.messages import SetupError, emit, message, print_and_log, tool_error
from launcher.packages import Resolver, pip_of, requirements, source_options, torch_pin, window_requirements
from launcher.processes import child_env, run_logged
from launcher.pythons import find_python, try_python
from launcher.sources import choose_torch, query_driver
from launcher.uv import bundled_pip, configured_sources, find_uv, pip_env, uv_env

LARGE_BYTES = 60_000_000  # data can be previewed before PyTorch and packages as large are there


# --- environment ---------------------------------------------------------------------------------------


def python_problem(env: Environment, chosen: str) -> "str | None":
    """Return why the environment must be replaced, or None."""
    python = try_python(str(env.python))
    if python.reason:
        return message("launcher.reason.unusable_python", reason=python.reason)
    is_compared = chosen or env.state.get("chosen_python")  # `auto` undoes an earlier choice
    if is_compared and Path(find_python(chosen)).resolve() != Path(python.executable).resolve():
        return message("launcher.reason.other_python")
    if not find_uv() and "pip" not in env.installed_versions():  # ensurepip may have been interrupted
        return message("launcher.reason.no_pip")
    return None


def make_usable(env: Environment, chosen: str, reason: str) -> None:
    """Create the environment, or replace it if its Python cannot be used."""
    print_and_log(message("launcher.setting_up", folder=env.folder, reason=reason, log=places.LOG))
    if env.state:
        env.update_state(complete=False)
    fault = python_problem(env, chosen) if env.folder.exists() else None
    if fault:
        print_and_log(message("launcher.recreating", reason=fault), indent="  ")
    if fault or not env.folder.exists():
        create_environment(env, chosen)
    env.update_state(chosen_python=chosen)


def create_environment(env: Environment, chosen: str) -> None:
    """Create an environment with only pip in it."""
    python, uv = find_python(chosen), find_uv()
    configured_sources()  # by the Python that runs this, which may be in the environment
    remove_environment(env)
    env.folder.parent.mkdir(parents=True, exist_ok=True)
    places.write_home_file()
    for note in [*location_notes(), message("launcher.python", path=python)]:
        print_and_log(note, indent="  ")
    activity = message("launcher.activity.create", name=env.folder.name)
    if uv:
        command = [uv, "venv", "--relocatable", "--no-project", "--prompt", "traindeck", "--python", python]
        code, output = run_logged([*command, str(env.folder)], activity, env=uv_env())
        pip = bundled_pip()
        if not code and pip:  # for those who add packages of their own
            install_files(env, [pip], compile_all=False)
    else:
        command = [python, "-I", "-m", "venv", "--prompt", "traindeck"]
        code, output = run_logged([*command, str(env.folder)], activity)
    if code or not env.python_version():
        raise tool_error(message("launcher.venv_failed", folder=env.folder), output)


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


# --- packages ------------------------------------------------------------------------------------------


def set_up_window(env: Environment, choices: "dict[str, str]") -> None:
    """Prepare an environment so far that the window opens. It has the rest installed."""
    make_usable(env, choices["python"], message("launcher.reason.first_start"))
    env.update_state(complete=False)
    packages = Resolver(env.folder, choices).lock(
        window_requirements(), "torch==" + torch_pin(), source_options(choices)
    )
    packages = with_sizes(missing(env, packages))
    with Downloads(packages) as downloads:
        # Compiling takes 5 s, for which the window would have to wait.
        install_files(env, downloads.wait_for(packages), compile_all=False)
    env.update_state(window=True)


def set_up(env: Environment, choices: "dict[str, str]", dev: bool, reason: str) -> None:
    """Create or complete an environment, and verify it. `reason` is shown."""
    started = time.monotonic()
    dev = dev or bool(env.state.get("dev"))
    make_usable(env, choices["python"], reason)
    env.update_state(complete=False, dev=dev)
    tag, why = choose_torch(query_driver())
    if choices["torch"]:
        tag, why = choices["torch"], message("launcher.reason.chosen")
    print_and_log(message("launcher.torch_build", tag=tag, reason=why), indent="  ")
    resolver = Resolver(env.folder, choices)
    source = resolver.find_torch(tag)
    packages = resolver.lock(requirements(dev), "torch===" + source.version, source.options)
    packages = with_sizes(missing(env, packages))
    announce_download(env, packages, torch=tag, reason=why, source=source.label, mirror=choices["mirror"])
    install(env, packages)
    if choices["keep_downloads"] != "yes":
        shutil.rmtree(str(places.DOWNLOADS), ignore_errors=True)
    installed = env.torch_version()
    if tag != "cpu" and "+cu" not in installed:
        raise SetupError(message("launcher.torch_cpu_only", source=source.label, installed=installed, tag=tag))
    verify_torch(env, tag)
    # On a server the window may never have been loadable.
    if not can_load_window(env) and can_load_window(current_environment()):
        raise SetupError(message("launcher.window_unloadable", log=places.LOG))
    inputs = setup_inputs(choices, env.python_version())
    env.update_state(complete=True, window=True, tag=tag, torch=installed, inputs=inputs)
    print_and_log(message("launcher.set_up", seconds=round(time.monotonic() - started)))


def missing(env: Environment, packages: "list[Package]") -> "list[Package]":
    """Packages that are not installed in this version, or are damaged."""
    removed = env.remove_damaged_packages({one.name for one in packages})
    if removed and find_uv():  # what changed a file in place also changed that of the cache, to which it is linked
        run_logged([find_uv(), "cache", "clean", *removed], message("launcher.activity.install_packages"), env=uv_env())
    installed = env.installed_versions()
    return [one for one in packages if installed.get(one.name) != one.version]


def unpacked_size(size: int) -> int:
    """Bytes on disk of wheels with `size` bytes, with compiled modules. The CPU build with all packages has 446 MB in
    wheels and 1758 MB on disk; torch's CUDA libraries unpack to less than 2.5 times their size."""
    return round(min(4.0 * size, 2.5 * size + 700e6))


def announce_download(env: Environment, packages: "list[Package]", **about: str) -> None:
    """Say what is going to be downloaded. Raises SetupError if the disk is too small for it."""
    remote = [package for package in packages if not package.is_local()]
    total, received = sum(one.size for one in remote), sum(one.received() for one in remote)
    needs = {env.folder: unpacked_size(sum(one.size for one in packages))}
    if env.folder.stat().st_dev == places.STATE_FOLDER.stat().st_dev:
        needs[env.folder] += total - received
    else:  # chosen by `--environment`
        needs[places.STATE_FOLDER] = total - received
    free = {folder: shutil.disk_usage(str(folder)).free for folder in needs}
    emit("plan", **about, bytes=total, done=received, free=free[env.folder], needed=needs[env.folder])
    if remote:
        text = message("launcher.download", count=len(remote), size=total / 1e6, free=free[env.folder] / 1e9)
        print_and_log(text, indent="  ")
    for folder, needed in needs.items():
        if free[folder] < needed:
            there = free[folder] / 1e9
            raise SetupError(message("launcher.disk_too_small", needed=needed / 1e9, free=there, folder=folder), 7)


def install(env: Environment, packages: "list[Package]") -> None:
    """Download packages in parallel, and install first what data needs, then PyTorch and the other large ones."""
    large = [one for one in packages if one.name == "torch" or one.size > LARGE_BYTES]
    with Downloads(packages) as downloads:
        for part, group in (("data", [one for one in packages if one not in large]), ("all", large)):
            install_files(env, downloads.wait_for(group))
            emit("ready", part=part)


def install_files(env: Environment, files: "list[Path]", compile_all: bool = True) -> None:
    """Install exactly these files. `compile_all`: compile their modules, else Python does so as it imports them."""
    uv, paths, activity = find_uv(), [str(path) for path in files], message("launcher.activity.install_packages")
    if not files:
        return
    if uv:
        command = [uv, "pip", "install", "--python", str(env.python), "--no-deps"]
        command += ["--compile-bytecode"] if compile_all else []
        command += configured_sources()  # source distributions are built with packages of these
        code, output = run_logged([*command, *paths], activity, env=uv_env())
    else:
        code, output = run_logged([*pip_of(env.python), "install", "--no-deps", *paths], activity, env=pip_env())
    if code:
        raise tool_error(message("launcher.packages_not_installed"), output)


VERIFY_SCRIPT = """
import sys, torch
if sys.argv[1] != "cpu":
    assert (torch.ones(1, device="cuda") + 1).item() == 2
    print("GPU: " + torch.cuda.get_device_name(0))
print("PyTorch " + torch.__version__)
"""


def verify_torch(env: Environment, tag: str) -> None:
    """Import torch and, with a CUDA build, run a kernel on the GPU."""
    activity = message("launcher.activity.test_torch")
    variables = {name: value for name, value in child_env().items() if name != "CUDA_VISIBLE_DEVICES"}
    code, output = run_logged([str(env.python), "-P", "-c", VERIFY_SCRIPT, tag], activity, env=variables)
    if code and tag == "cpu":
        raise tool_error(message("launcher.torch_not_imported"), output)
    if code:
        raise tool_error(message("launcher.gpu_unusable"), output, 6)
    print_and_log(", ".join(output.splitlines()[-2:]), indent="  ")


def can_load_window(env: Environment) -> bool:
    """Whether the window's packages can be imported."""
    command = [str(env.python), "-P", "-c", "import PySide6.QtWidgets, pyqtgraph"]
    return run_logged(command, message("launcher.activity.test_window"), env=child_env())[0] == 0
