"""What is wanted, and whether an environment is that."""

import argparse
import contextlib
import hashlib
import os
from pathlib import Path

from launcher import places
from launcher.environment import Environment
from launcher.failures import SetupError
from launcher.places import read_json, write_json
from launcher.torch_builds import MIRRORS, TORCH_TAGS, ask_driver, choose_torch, driver_present, find_mirror

# Each also as environment variable TRAINDECK_NAME.
CHOICES = ("torch", "mirror", "python", "constraints", "environment")


def get_choices(arguments: "list[str] | None") -> "dict[str, str]":
    """The choices of `setup` (then remembered), else of the environment, else of an earlier `setup`."""
    parser = argparse.ArgumentParser("train_gpu setup", description="Set Traindeck up and remember these choices.")
    tags = ("auto", *TORCH_TAGS)
    parser.add_argument("--torch", choices=tags, help="which PyTorch build; auto: by the NVIDIA driver")
    parser.add_argument("--mirror", help=f"{', '.join(MIRRORS)}, none, or PYPI_URL[,TORCH_WHEELS_URL]")
    parser.add_argument("--python", help="the Python (3.11 to 3.13) to build .venv with; auto: search")
    parser.add_argument("--constraints", help="a file of version pins that go before constraints.txt; none: forget")
    parser.add_argument("--environment", help="the folder to put .venv in; here: beside this; auto: where it fits")
    parser.add_argument("--dev", action="store_true", help="with the tools that the tests need")
    given = vars(parser.parse_args(arguments or []))
    told = os.environ.get("TRAINDECK_ENVIRONMENT")
    if given["environment"] and told:  # `home` goes by what is remembered, but by this before
        raise SetupError(f"TRAINDECK_ENVIRONMENT={told} goes before --environment: unset it first.", 2)
    remembered = read_json(places.KEEP / "choices.json")
    choices = {}
    for name in CHOICES:
        value = given[name] or os.environ.get("TRAINDECK_" + name.upper()) or remembered.get(name) or ""
        choices[name] = "" if value in ("auto", "none") else str(value)
    if choices["torch"] and choices["torch"] not in TORCH_TAGS:
        raise SetupError(f"There is no PyTorch build {choices['torch']!r}; there are {', '.join(tags)}.", 2)
    if Path(choices["python"]).is_file():
        choices["python"] = str(Path(choices["python"]).absolute())
    if choices["constraints"]:
        choices["constraints"] = str(Path(choices["constraints"]).resolve())
        if not Path(choices["constraints"]).is_file():
            raise SetupError(f"There is no constraints file {choices['constraints']}", 2)
    find_mirror(choices["mirror"])
    if choices["environment"] not in ("", "here"):
        choices["environment"] = str(Path(choices["environment"]).absolute())  # of now: the folder may be another then
    if arguments is not None:
        write_json(places.KEEP / "choices.json", choices)
    return choices


def make_stamp(choices: "dict[str, str]", python: str) -> str:
    """A fingerprint of everything that a set-up depends on."""
    parts = [python, choices["python"], choices["torch"], str(driver_present())]
    digest = hashlib.sha256("|".join(parts).encode("utf-8"))
    own = Path(choices["constraints"] or os.devnull)
    for path in (places.ROOT / "pyproject.toml", places.ROOT / "constraints.txt", own):
        with contextlib.suppress(OSError):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def why_set_up(env: Environment, choices: "dict[str, str]", dev: bool) -> str:
    """The reason why a set-up is needed, or nothing when everything is as it was left."""
    state = env.state
    if not env.folder.exists():
        return "this is the first start"
    if not state.get("complete"):
        return "an earlier set-up did not finish"
    if env.torch() != state.get("torch"):
        return f"PyTorch was changed from {state.get('torch')} to {env.torch() or 'nothing'} since then"
    if dev and not state.get("dev"):
        return "the tests need their tools"
    if state.get("stamp") != make_stamp(choices, env.version()):
        return "the requirements, the choices, Python or the driver changed"
    unused_driver = state.get("tag") == "cpu" and driver_present() and not choices["torch"]
    if unused_driver and choose_torch(ask_driver())[0] != "cpu":
        return "the NVIDIA driver can be used now"
    return ""


def why_other_torch(env: Environment, choices: "dict[str, str]") -> str:
    """The reason why the command `setup` takes another PyTorch: the GPU or its driver is another one than it was. To
    ask the driver takes too long for every start. A driver that is away for a while costs nobody the build for GPUs."""
    if choices["torch"] or not env.state.get("complete"):
        return ""
    driver = ask_driver()
    if driver is None or not driver.compute_capability:  # an answer without the card says too little
        return ""
    fitting = choose_torch(driver)[0]
    return "" if fitting in ("cpu", env.state.get("tag")) else "another PyTorch fits this GPU and its driver"
