"""Options of `setup`, and whether an environment matches them."""

import argparse
import contextlib
import hashlib
import os
from pathlib import Path

from launcher import places
from launcher.environment import Environment
from launcher.failures import SetupError
from launcher.messages import message
from launcher.mirrors import MIRRORS, find_mirror
from launcher.places import read_json, write_json
from launcher.torch_builds import TORCH_TAGS, choose_torch, driver_present, query_driver

# Also environment variables: TRAINDECK_NAME.
CHOICE_NAMES = ("torch", "mirror", "python", "constraints", "environment", "keep_downloads")


def get_choices(arguments: "list[str] | None") -> "dict[str, str]":
    """Options of `setup` (which are stored), else environment variables, else options of an earlier `setup`."""
    parser = argparse.ArgumentParser("train_gpu setup", description="Set up Traindeck and store these options.")
    tags = ("auto", *TORCH_TAGS)
    parser.add_argument("--torch", choices=tags, help="which PyTorch build; auto: by the NVIDIA driver")
    parser.add_argument("--mirror", help=f"{', '.join(MIRRORS)}, none, or PYPI_URL[,TORCH_WHEELS_URL]")
    parser.add_argument("--python", help="the Python (3.11 to 3.13) to build .venv with; auto: search")
    parser.add_argument("--constraints", help="a file of version pins that override constraints.txt; none: forget")
    parser.add_argument("--environment", help="the folder of .venv; here: Traindeck's folder; auto: where paths fit")
    parser.add_argument("--keep-downloads", choices=("yes", "no"), help="keep wheels, to repair without a network")
    parser.add_argument("--output", choices=("text", "json"), help="json: events for the window, on stdout")
    parser.add_argument("--back", action="store_true", help="go back to the packages before the last update")
    parser.add_argument("--open", action="store_true", help="with --back: open the window then")
    parser.add_argument("--mirrors", action="store_true", help="measure the mirrors and stop")
    parser.add_argument("--dev", action="store_true", help="also install the tools of the tests")
    given = vars(parser.parse_args(arguments or []))
    overriding = os.environ.get("TRAINDECK_ENVIRONMENT")
    if given["environment"] and overriding:
        raise SetupError(message("launcher.environment_variable", value=overriding), 2)
    stored = read_json(places.STATE_FOLDER / "choices.json")
    choices = {}
    for name in CHOICE_NAMES:
        value = given[name] or os.environ.get("TRAINDECK_" + name.upper()) or stored.get(name) or ""
        choices[name] = "" if value in ("auto", "none") else str(value)
    if choices["torch"] and choices["torch"] not in TORCH_TAGS:
        raise SetupError(message("launcher.no_such_build", name=choices["torch"], builds=", ".join(tags)), 2)
    if Path(choices["python"]).is_file():
        choices["python"] = str(Path(choices["python"]).absolute())
    if choices["constraints"]:
        choices["constraints"] = str(Path(choices["constraints"]).resolve())
        if not Path(choices["constraints"]).is_file():
            raise SetupError(message("launcher.no_constraints", path=choices["constraints"]), 2)
    find_mirror(choices["mirror"])
    if choices["environment"] not in ("", "here"):
        choices["environment"] = str(Path(choices["environment"]).absolute())  # independent of the current folder
    if arguments is not None:
        write_json(places.STATE_FOLDER / "choices.json", choices)
    return choices


def setup_fingerprint(choices: "dict[str, str]", python: str) -> str:
    """Fingerprint of all inputs of a setup."""
    parts = [python, choices["python"], choices["torch"], str(driver_present())]
    digest = hashlib.sha256("|".join(parts).encode("utf-8"))
    own = Path(choices["constraints"] or os.devnull)
    for path in (places.ROOT / "pyproject.toml", places.ROOT / "constraints.txt", own):
        with contextlib.suppress(OSError):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def setup_reason(env: Environment, choices: "dict[str, str]", dev: bool) -> "str | None":
    """Return the reason why a setup is needed, or None."""
    state = env.state
    if not env.folder.exists():
        return message("launcher.reason.first_start")
    if not state.get("complete"):
        return message("launcher.reason.unfinished")
    if env.torch_version() != state.get("torch"):
        after = env.torch_version() or message("launcher.none")
        return message("launcher.reason.torch_changed", before=state.get("torch"), after=after)
    if dev and not state.get("dev"):
        return message("launcher.reason.test_tools")
    if state.get("stamp") != setup_fingerprint(choices, env.python_version()):
        return message("launcher.reason.inputs_changed")
    unused_driver = state.get("tag") == "cpu" and driver_present() and not choices["torch"]
    if unused_driver and choose_torch(query_driver())[0] != "cpu":
        return message("launcher.reason.driver_available")
    return None


def torch_change_reason(env: Environment, choices: "dict[str, str]") -> "str | None":
    """Return the reason why the command `setup` changes the PyTorch build, or None: the GPU or its driver changed.

    Querying the driver takes too long for every start. A driver that does not respond keeps the current build.
    """
    if choices["torch"] or not env.state.get("complete"):
        return None
    driver = query_driver()
    if driver is None or not driver.compute_capability:  # without the GPU the build is unknown
        return None
    fitting = choose_torch(driver)[0]
    return None if fitting in ("cpu", env.state.get("tag")) else message("launcher.reason.other_build")
