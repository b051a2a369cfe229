"""Options of `setup`, and whether an environment matches them."""

import argparse
import contextlib
import hashlib
import os
from pathlib import Path

from launcher import places
from launcher.environment import Environment
from launcher.messages import message
from launcher.packages import read_constraints
from launcher.places import read_json, write_json
from launcher.sources import MIRRORS, TORCH_TAGS, choose_torch, find_mirror, has_driver, query_driver

# Also environment variables: TRAINDECK_NAME.
CHOICE_NAMES = ("torch", "mirror", "python", "constraints", "environment", "keep_downloads")
# What a setup depends on, and the reason for another one if that has changed.
INPUT_REASONS = {
    "requirements": "launcher.reason.requirements_changed",
    "python": "launcher.reason.other_python",
    "torch": "launcher.reason.torch_chosen",
    "driver": "launcher.reason.driver_changed",
}


def parse_options(arguments: "list[str]") -> argparse.Namespace:
    parser = argparse.ArgumentParser("train_gpu setup", description="Set up Traindeck and store these options.")
    parser.add_argument(
        "--torch", choices=("auto", *TORCH_TAGS), help="which PyTorch build; auto: by the NVIDIA driver"
    )
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
    return parser.parse_args(arguments)


def get_choices(given: "argparse.Namespace | None" = None) -> "dict[str, str]":
    """Options of `setup` (which are stored), else environment variables, else options of an earlier `setup`."""
    stored = read_json(places.STATE_FOLDER / "choices.json")
    choices = {}
    for name in CHOICE_NAMES:
        value = getattr(given, name, "") or os.environ.get("TRAINDECK_" + name.upper()) or stored.get(name) or ""
        choices[name] = "" if value in ("auto", "none") else str(value)
    find_mirror(choices["mirror"])
    for name in ("python", "constraints", "environment"):  # independent of the current folder
        is_path = name != "python" or Path(choices["python"]).is_file()  # else a command
        if is_path and choices[name] not in ("", "here"):
            choices[name] = str(Path(choices[name]).absolute())
    if choices["constraints"]:
        read_constraints(Path(choices["constraints"]))
    if given:
        kept = {name: choices[name] if getattr(given, name) else stored.get(name, "") for name in CHOICE_NAMES}
        write_json(places.STATE_FOLDER / "choices.json", kept)
    return choices


def setup_inputs(choices: "dict[str, str]", python: str) -> "dict[str, str]":
    """What a setup depends on, by the keys of INPUT_REASONS."""
    digest = hashlib.sha256()
    own = Path(choices["constraints"] or os.devnull)
    for path in (places.ROOT / "pyproject.toml", places.ROOT / "constraints.txt", own):
        with contextlib.suppress(OSError):
            digest.update(path.read_bytes())
    return {
        "requirements": digest.hexdigest(),
        "python": " ".join([python, choices["python"]]),
        "torch": choices["torch"],
        "driver": str(has_driver()),
    }


def setup_reason(env: Environment, choices: "dict[str, str]", dev: bool, requested: bool = False) -> "str | None":
    """Return the reason why a setup is needed, or None. `requested`: by the user, who accepts that it takes seconds."""
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
    for name, value in setup_inputs(choices, env.python_version()).items():
        if state.get("inputs", {}).get(name) != value:
            return message(INPUT_REASONS[name])
    damaged = env.damaged_packages() if requested else []
    if damaged:
        return message("launcher.reason.damaged", name=", ".join(info.stem for info in damaged))
    if choices["torch"] or not (requested or state.get("tag") == "cpu"):
        return None
    driver = query_driver()
    if driver is None or not driver.compute_capability:  # it does not respond: keep the build
        return None
    fits = choose_torch(driver)[0] in ("cpu", state.get("tag"))
    return None if fits else message("launcher.reason.other_build")
