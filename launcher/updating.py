"""An update that cannot break what works: made beside it in .venv.new, tried out, and switched when it is whole.

.venv → .venv.old, .venv.new → .venv. It may be cut off at any instant: `settle` finds out from what lies there, and
the next start goes on. While something runs from .venv the finished .venv.new waits.
"""

import hashlib
import os
import time
from pathlib import Path

from launcher import places
from launcher.choices import make_stamp, why_other_torch, why_set_up
from launcher.cloning import clone, say_name
from launcher.environment import Environment, coming, current, leaving
from launcher.failures import SetupError
from launcher.folders import discard, finish_step_aside, move, remove
from launcher.locking import only_one
from launcher.packages import opens_windows
from launcher.places import WINDOWS, read_json, write_json
from launcher.setting_up import complete, fill, make, set_up, unfit_python
from launcher.users import users
from launcher.words import log, say, show

SETUP = "train_gpu.bat setup" if WINDOWS else "./train_gpu.sh setup"


def settle() -> None:
    """Finish, or take back, a switch that was cut off."""
    old, new, gone = current(), coming(), leaving()
    for env in (old, new, gone):
        finish_step_aside(env)
    if not old.folder.exists():
        if new.state.get("complete"):
            move(new, old)
        elif gone.folder.exists():
            move(gone, old)
    discard(gone)


def make_ready(choices: "dict[str, str]", dev: bool, asked: bool) -> bool:
    """See to it that .venv is what is wanted (True), or at least still what it was, which was said then.

    `asked`: by the command `setup`, so that a failure is told as one (SetupError) and one of before is tried again.
    """
    reason = why(choices, dev, asked)
    if not reason and not coming().folder.exists():
        return True
    if reason and not asked and went_wrong(reason, choices, dev):
        return False
    with only_one():
        reason = why(choices, dev, asked)
        if reason and current().working():
            return update(reason, choices, dev, asked)
        if reason:
            tell(current(), reason)
            set_up(current(), choices, dev)
        discard(coming())
        return True


def why(choices: "dict[str, str]", dev: bool, asked: bool) -> str:
    """The reason why .venv is not what is wanted, or nothing."""
    return why_set_up(current(), choices, dev) or (asked and why_other_torch(current(), choices)) or ""


def tell(env: Environment, reason: str) -> None:
    say(f"Setting up Traindeck in {env.folder}: {reason}. Details: {places.LOG}")


def update(reason: str, choices: "dict[str, str]", dev: bool, asked: bool) -> bool:
    """Make and switch, or say why not and leave everything as it was."""
    started = time.monotonic()
    lacking = dev and not current().state.get("dev")  # what was asked for cannot go on without
    dev = dev or bool(current().state.get("dev"))
    wish = wish_of(reason, choices, dev)
    try:
        if why_set_up(coming(), choices, dev):  # nothing says that it is finished, and what is wanted
            tell(coming(), reason)
            prepare(wish, choices, dev)
        forget_failure()
        done = switched()
    except (SetupError, OSError) as error:
        told = error if isinstance(error, SetupError) else SetupError(f"{error}")
        discard(coming())
        if isinstance(error, SetupError):  # what the system refuses may be granted in a minute
            write_json(failed_file(), {"wish": wish, "why": told.brief})
        if asked or lacking:
            words = f"The update failed, and what was there before goes on working. {told}"
            raise SetupError(words, told.code) from error
        log(f"The update failed: {told}")
        say(f"The update failed, so Traindeck starts as it was: {told.brief} To try again: {SETUP}")
        return False
    if done:
        say(f"Updated in {time.monotonic() - started:.0f} s.")
        return True
    ready = "The update is ready, and takes effect when Traindeck is closed and started again."
    if lacking:
        raise SetupError(ready)
    say(ready)
    return False


def prepare(wish: str, choices: "dict[str, str]", dev: bool) -> None:
    """Make .venv.new, from .venv's files as far as they stay the same, and try it out."""
    old, new = current(), coming()
    wait_for_the_installer()
    if new.state.get("wish") != wish or unfit_python(new, choices["python"]) or new.half_made():
        remove(new)
        unfit = unfit_python(old, choices["python"])
        if unfit:
            say(f"  It is made from nothing: {unfit}")
            make(new, choices["python"])
        else:
            clone(old, new)
        made_of = {} if unfit else old.state
        new.remember(dict(made_of, complete=False, wish=wish))  # the last file: what lies there is whole
    fill(new, choices, dev)
    if not opens_windows(new) and opens_windows(old):
        raise SetupError("The window's packages can no longer be loaded. The whole story is in the log.")
    say_name(new, old.folder.name)
    complete(new, choices)


def wait_for_the_installer() -> None:
    """On Windows a pip may outlive its parent that was killed; elsewhere it keeps the lock."""
    said = False
    while users(coming().folder):
        if not said:
            say("An earlier update still installs; waiting for it.")
            said = True
        time.sleep(0.5)


def switched() -> bool:
    """Put the finished environment in the place of the old one; False where that is in use, and nothing happened."""
    old, new, gone = current(), coming(), leaving()
    discard(gone)
    who = users(old.folder) or users(gone.folder)
    if who:
        log(f"{old.folder} is in use by {who}")
        return False
    try:
        remove(gone)
        move(old, gone)
        try:
            move(new, old)
        except OSError:
            move(gone, old)
            raise
    except PermissionError as error:  # on Windows, an open file is enough
        log(f"{old.folder} cannot be moved: {error}")
        return False
    discard(gone)
    return True


# --- an update that failed is not tried again at every start: that would mean to wait for a network that is not there


def failed_file() -> Path:
    return places.KEEP / "failed.json"


def forget_failure() -> None:
    if failed_file().exists():
        failed_file().unlink()


def wish_of(reason: str, choices: "dict[str, str]", dev: bool) -> str:
    """A fingerprint of the update and of everything that it may fail by, but for what the network holds."""
    sources = {name: value for name, value in os.environ.items() if name.upper().startswith("PIP_")}
    sources.update((name, value) for name, value in os.environ.items() if name.upper().endswith("_PROXY"))
    parts = [
        reason,
        make_stamp(choices, current().version()),
        choices["mirror"],
        str(dev),
        str(sorted(sources.items())),
    ]
    return hashlib.sha256("|".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def went_wrong(reason: str, choices: "dict[str, str]", dev: bool) -> bool:
    """Whether just this update failed before, which is then said; not where the tests need their tools."""
    if dev and not current().state.get("dev"):
        return False
    failed = read_json(failed_file())
    if failed.get("wish") != wish_of(reason, choices, dev or bool(current().state.get("dev"))):
        return False
    show(f"Traindeck starts as it was before an update that failed: {failed.get('why')} To try again: {SETUP}")
    return True
