"""What goes into an environment: exactly this torch, then everything else around it; and whether it works."""

import re
from pathlib import Path

from launcher import places
from launcher.environment import Environment
from launcher.failures import SetupError, failure
from launcher.processes import child_env, own_env, run_logged
from launcher.torch_builds import find_mirror, torch_sources
from launcher.words import say


def pip(env: Environment, doing: str, *arguments: str) -> "tuple[int, str]":
    """Run .venv's pip with the person's own sources and proxies, but installing nowhere else than .venv."""
    variables = dict(
        own_env(), PIP_USER="0", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_PROGRESS_BAR="off"
    )
    command = [str(env.python), "-I", "-X", "utf8", "-m", "pip", *arguments]
    return run_logged(command, doing, env=variables, cwd=str(places.ROOT))


def write_constraints(env: Environment, extra: str, torch: str) -> str:
    """Write what one installation is bound to: our pins, a person's own before them, and this torch build."""

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
        raise SetupError("constraints.txt pins no torch version")
    return match.group(1)


def install_torch(env: Environment, tag: str, choices: "dict[str, str]") -> None:
    """Install exactly this build from the first source that has it."""
    answers: dict[str, str] = {}
    tried: list[str] = []
    for source in torch_sources(tag, torch_pin(), find_mirror(choices["mirror"])):
        key = str(source.options)
        if key not in answers:
            # Asking first costs a second and spares the wait for an index that is out of reach.
            question = ("index", "versions", "torch", "--retries=1", "--timeout=15", *source.options)
            answers[key] = pip(env, "looking for PyTorch", *question)[1]
        listed = re.search(r"Available versions: (.+)", answers[key])
        if source.version not in (listed.group(1).split(", ") if listed else []):
            cut_off = re.search(r"Retrying|Could not fetch|timed out", answers[key])
            tried.append(f"  {source.version} from {source.label}: {'no answer' if cut_off else 'not there'}")
            continue
        say(f"  PyTorch {source.version} from {source.label}")
        if source.warning:
            say(f"  WARNING: {source.warning}")
        # === compares text: torch==2.13.0 would also take 2.13.0+cpu, which counts as newer.
        wanted = f"torch==={source.version}"
        constraints = write_constraints(env, choices["constraints"], wanted)
        again = ["--force-reinstall"] if env.torch() else []
        code, output = pip(env, "installing PyTorch", "install", wanted, "-c", constraints, *again, *source.options)
        if code:
            raise failure(f"PyTorch {source.version} could not be installed:", output)
        if tag != "cpu" and "+cu" not in env.torch():
            raise SetupError(f"{source.label} gave a CPU-only PyTorch ({env.torch()}) instead of {tag}.")
        return
    looked = "\n".join(tried)
    without = "" if tag == "cpu" else ", or do without the GPU: setup --torch cpu"
    raise SetupError(
        f"No source has PyTorch {torch_pin()} ({tag}) for this Python:\n{looked}\n"
        f"Check the network (and HTTPS_PROXY), or name a mirror: setup --mirror tsinghua{without}"
    )


def install_rest(env: Environment, choices: "dict[str, str]", dev: bool) -> None:
    """Install everything else with the torch build nailed down, and see that it is still the same."""
    import tomllib  # Python 3.11; `main` has seen to that

    project = tomllib.loads((places.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted: list[str] = project["dependencies"] + (project["optional-dependencies"]["dev"] if dev else [])
    before = env.torch()
    # By pip's word: PyPI's CUDA build calls itself 2.13.0 there and 2.13.0+cu130 in torch.__version__.
    info = next(iter(env.site_packages.glob("torch-*.dist-info"))).name
    constraints = write_constraints(env, choices["constraints"], "torch===" + info[len("torch-") : -len(".dist-info")])
    mirror = find_mirror(choices["mirror"])
    source = ["--index-url", mirror.pypi] if mirror else []
    code, output = pip(env, "installing the other packages", "install", "-c", constraints, *source, *wanted)
    if code:
        raise failure("The packages could not be installed:", output)
    if env.torch() != before:
        raise SetupError(f"Installing the packages changed PyTorch from {before} to {env.torch()}.")


VERIFY = """
import sys, torch
if sys.argv[1] != "cpu":
    assert (torch.ones(1, device="cuda") + 1).item() == 2
    print("GPU: " + torch.cuda.get_device_name(0))
print("PyTorch " + torch.__version__)
"""


def verify(env: Environment, tag: str) -> None:
    """Import torch and, with a CUDA build, run a kernel on the GPU."""
    variables = {name: value for name, value in child_env().items() if name != "CUDA_VISIBLE_DEVICES"}
    code, output = run_logged([str(env.python), "-P", "-c", VERIFY, tag], "trying PyTorch out", env=variables)
    if code:
        what = "PyTorch cannot be imported:" if tag == "cpu" else "PyTorch cannot use the GPU:"
        without = "" if tag == "cpu" else "\n(To go on without the GPU: setup --torch cpu)"
        raise failure(what, output + without, 1 if tag == "cpu" else 6)
    say("  " + ", ".join(output.splitlines()[-2:]))


def opens_windows(env: Environment) -> bool:
    """Whether the window's packages can be loaded; that may be missing from the start on a server."""
    command = [str(env.python), "-P", "-c", "import PySide6.QtWidgets, pyqtgraph"]
    return run_logged(command, "trying the window's packages out", env=child_env())[0] == 0
