"""Making an environment: the Python in it, and how it is filled. Every step can be cut off and run again."""

import time
from pathlib import Path

from launcher import homes
from launcher.choices import make_stamp
from launcher.environment import Environment
from launcher.failures import SetupError, failure
from launcher.folders import remove
from launcher.packages import install_rest, install_torch, torch_pin, verify
from launcher.processes import run_logged
from launcher.pythons import find_python, try_python
from launcher.torch_builds import ask_driver, choose_torch
from launcher.words import say


def unfit_python(env: Environment, chosen: str) -> str:
    """Why the environment's Python cannot stay, or nothing."""
    base, reason = try_python([str(env.python)])
    if not base:
        return f"its Python {reason}" if reason.startswith("does") else reason
    if chosen and Path(find_python(chosen)).resolve() != Path(base).resolve():
        return "another Python was chosen"
    return ""


def make_home(folder: Path) -> None:
    """Where the environment goes; a chosen one may be on a disk that is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        another = "Choose another: setup --environment PATH (or auto)"
        raise SetupError(f"The folder for the packages cannot be made: {error}.\n{another}", 2) from error
    homes.note_home()


def make(env: Environment, chosen: str) -> None:
    """An environment with nothing but pip in it."""
    python = find_python(chosen)
    remove(env)
    make_home(env.folder.parent)
    for note in homes.notes():
        say(f"  {note}")
    say(f"  Python: {python}")
    name = env.folder.name
    code, output = run_logged([python, "-I", "-m", "venv", "--prompt", "traindeck", str(env.folder)], f"making {name}")
    if code or not env.version():
        raise failure(f"Python could not make {env.folder}:", output)


def fill(env: Environment, choices: "dict[str, str]", dev: bool) -> None:
    """Install what is missing, and try it out. What is there and right stays."""
    state = dict(env.state, complete=False, dev=dev)
    env.remember(state)
    tag, reason = choose_torch(ask_driver())
    if choices["torch"]:
        tag, reason = choices["torch"], "chosen"
    say(f"  PyTorch build: {tag} ({reason})")
    if (tag, env.torch()) != (state.get("tag"), state.get("torch")) or state.get("torch_pin") != torch_pin():
        install_torch(env, tag, choices)
        state.update(tag=tag, torch=env.torch(), torch_pin=torch_pin())
        env.remember(state)
    install_rest(env, choices, dev)
    verify(env, tag)


def complete(env: Environment, choices: "dict[str, str]") -> None:
    """Everything was verified: a start finds it as it was wanted."""
    env.remember(dict(env.state, complete=True, stamp=make_stamp(choices, env.version())))


def set_up(env: Environment, choices: "dict[str, str]", dev: bool) -> None:
    """Make the environment what it should be, in its place: there is none that works."""
    started = time.monotonic()
    dev = dev or bool(env.state.get("dev"))
    if env.state:
        env.remember(dict(env.state, complete=False))
    fault = unfit_python(env, choices["python"]) or env.half_made() if env.folder.exists() else "it is missing"
    if fault:
        if env.folder.exists():
            say(f"  .venv is made anew: {fault}")
        make(env, choices["python"])
    fill(env, choices, dev)
    complete(env, choices)
    say(f"Set up in {time.monotonic() - started:.0f} s.")
