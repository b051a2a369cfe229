"""Installs packages into an environment: one torch build, then all others; and verifies them."""

import re
from pathlib import Path

from launcher import places
from launcher.environment import Environment
from launcher.failures import SetupError, tool_error
from launcher.messages import message, print_and_log
from launcher.processes import child_env, clean_env, run_logged
from launcher.torch_builds import find_mirror, torch_sources


def pip(env: Environment, activity: str, *arguments: str) -> "tuple[int, str]":
    """Run the environment's pip with the user's sources and proxies: (exit code, output)."""
    variables = dict(
        clean_env(), PIP_USER="0", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_PROGRESS_BAR="off"
    )
    command = [str(env.python), "-I", "-X", "utf8", "-m", "pip", *arguments]
    return run_logged(command, activity, env=variables, cwd=str(places.ROOT))


def write_constraints(env: Environment, extra: str, torch: str) -> str:
    """Write the constraints of one installation: the user's pins, ours for other packages, and the torch build."""

    def name_of(line: str) -> str:
        return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", line.strip(), maxsplit=1)[0]).lower()

    def lines(path: Path) -> "list[str]":
        return [line for line in path.read_text(encoding="utf-8").splitlines() if name_of(line) not in ("", "torch")]

    own = lines(Path(extra)) if extra else []
    taken = {name_of(line) for line in own}
    ours = [line for line in lines(places.ROOT / "constraints.txt") if name_of(line) not in taken]
    path = env.folder / "constraints.txt"
    path.write_text("\n".join([*ours, *own, torch]) + "\n", encoding="utf-8")
    return str(path)


def torch_pin() -> str:
    """The torch version that constraints.txt asks for, without a build tag."""
    match = re.search(r"^torch==([\d.]+)", (places.ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if not match:
        raise SetupError(message("launcher.no_torch_pin"))
    return match.group(1)


def install_torch(env: Environment, tag: str, choices: "dict[str, str]") -> None:
    """Install exactly this build from the first source that has it."""
    answers: dict[str, str] = {}
    tried: list[str] = []
    for source in torch_sources(tag, torch_pin(), find_mirror(choices["mirror"])):
        key = str(source.options)
        if key not in answers:
            # Takes a second, and avoids the long retries of `install` when an index is unreachable.
            question = ("index", "versions", "torch", "--retries=1", "--timeout=15", *source.options)
            answers[key] = pip(env, message("launcher.activity.find_torch"), *question)[1]
        listed = re.search(r"Available versions: (.+)", answers[key])
        if source.version not in (listed.group(1).split(", ") if listed else []):
            cut_off = re.search(r"Retrying|Could not fetch|timed out", answers[key])
            found = message("launcher.source.no_answer" if cut_off else "launcher.source.not_found")
            tried.append(message("launcher.source.tried", version=source.version, source=source.label, found=found))
            continue
        print_and_log(message("launcher.source.used", version=source.version, source=source.label), indent="  ")
        if source.warning:
            print_and_log(source.warning, indent="  ")
        # === compares text: torch==2.13.0 would also take 2.13.0+cpu, which counts as newer.
        wanted = f"torch==={source.version}"
        constraints = write_constraints(env, choices["constraints"], wanted)
        again = ["--force-reinstall"] if env.torch_version() else []
        activity = message("launcher.activity.install_torch")
        code, output = pip(env, activity, "install", wanted, "-c", constraints, *again, *source.options)
        if code:
            raise tool_error(message("launcher.torch_not_installed", version=source.version), output)
        installed = env.torch_version()
        if tag != "cpu" and "+cu" not in installed:
            raise SetupError(message("launcher.torch_cpu_only", source=source.label, installed=installed, tag=tag))
        return
    advice = [message("launcher.advice.torch_sources")] + ([] if tag == "cpu" else [message("launcher.advice.use_cpu")])
    raise SetupError("\n".join([message("launcher.torch_not_found", version=torch_pin(), tag=tag), *tried, *advice]))


def install_rest(env: Environment, choices: "dict[str, str]", dev: bool) -> None:
    """Install all other packages. Raises if that changes the torch build."""
    import tomllib  # Python 3.11: `main` has switched to one

    project = tomllib.loads((places.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted: list[str] = project["dependencies"] + (project["optional-dependencies"]["dev"] if dev else [])
    before = env.torch_version()
    # The version that pip knows: 2.13.0 for PyPI's CUDA build, whose torch.__version__ is 2.13.0+cu130.
    info = next(iter(env.site_packages.glob("torch-*.dist-info"))).name
    constraints = write_constraints(env, choices["constraints"], "torch===" + info[len("torch-") : -len(".dist-info")])
    mirror = find_mirror(choices["mirror"])
    source = ["--index-url", mirror.pypi] if mirror else []
    activity = message("launcher.activity.install_packages")
    code, output = pip(env, activity, "install", "-c", constraints, *source, *wanted)
    if code:
        raise tool_error(message("launcher.packages_not_installed"), output)
    if env.torch_version() != before:
        raise SetupError(message("launcher.torch_replaced", before=before, after=env.torch_version()))


VERIFY_SCRIPT = """
import sys, torch
if sys.argv[1] != "cpu":
    assert (torch.ones(1, device="cuda") + 1).item() == 2
    print("GPU: " + torch.cuda.get_device_name(0))
print("PyTorch " + torch.__version__)
"""


def verify_torch(env: Environment, tag: str) -> None:
    """Import torch and, with a CUDA build, run a kernel on the GPU."""
    variables = {name: value for name, value in child_env().items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [str(env.python), "-P", "-c", VERIFY_SCRIPT, tag]
    code, output = run_logged(command, message("launcher.activity.test_torch"), env=variables)
    if code and tag == "cpu":
        raise tool_error(message("launcher.torch_not_imported"), output)
    if code:
        raise tool_error(message("launcher.gpu_unusable"), output, 6)
    print_and_log(", ".join(output.splitlines()[-2:]), indent="  ")


def can_load_window(env: Environment) -> bool:
    """Whether the window's packages can be imported. On a server they may never have been."""
    command = [str(env.python), "-P", "-c", "import PySide6.QtWidgets, pyqtgraph"]
    return run_logged(command, message("launcher.activity.test_window"), env=child_env())[0] == 0
