"""Errors that the user has to resolve, and known failures of pip and PyTorch."""

import re
import shutil

from launcher import places
from launcher.messages import EVENTS, message
from launcher.places import environment_home


class SetupError(Exception):
    """The message says what happened and what to do; `summary` is its first line."""

    def __init__(self, text: str, code: int = 1, summary: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.summary = summary or text.splitlines()[0]


# Pattern in the output of a tool, key of the advice, exit code.
KNOWN_FAILURES = (
    (r"No space left|Errno 28|WinError 112", "launcher.advice.disk_full", 7),
    (r"WinError 126|WinError 1114|vcruntime140|msvcp140", "launcher.advice.vc_runtime", 1),
    (r"Long Path|path too long|WinError 206", "launcher.advice.path_too_long", 1),
    (r"no kernel image|not compatible with the current PyTorch", "launcher.advice.no_kernel_image", 6),
    (r"driver version is insufficient|driver on your system is too old", "launcher.advice.update_driver", 6),
    (r"Errno 13|WinError 5\b|WinError 32", "launcher.advice.files_in_use", 1),
    (
        r"Errno -?\d+\] (Temporary failure|Name or service|getaddrinfo)|Connection|timed out|SSLError|ProxyError"
        r"|error sending request|dns error",
        "launcher.advice.network",
        1,
    ),
    (r"No matching distribution|ResolutionImpossible|No solution found", "launcher.advice.package_sources", 1),
    (r"OSError.*'[A-Z]:[^'\n]{259,}'", "launcher.advice.path_too_long", 1),
)


def mirror_advice() -> str:
    """How to use a mirror: by a button of the window, if it has started this setup, or by a command."""
    return message("launcher.advice.mirror_button" if EVENTS else "launcher.advice.mirror_command")


def tool_error(what: str, output: str, code: int = 1) -> SetupError:
    """Return an error with the last lines of a tool's output and, for a known failure, advice."""
    disks = [str(place) for place in (places.ROOT, environment_home()) if place.exists()]
    if any(shutil.disk_usage(disk).free < 50_000_000 for disk in disks):
        output += "\nNo space left on device"  # ensurepip does not report it
    known = [found[1:] for found in KNOWN_FAILURES if re.search(found[0], output, re.IGNORECASE)]
    key, code = known[0] if known else ("", code)
    lines = output.strip().splitlines()
    last = ([line for line in lines if re.match(r"ERROR|\w*Error:", line)] or lines)[-4:]
    advice = [message(key)] if key else []
    advice += [mirror_advice()] if key == "launcher.advice.network" else []
    log_hint = message("launcher.full_log", log=places.LOG)
    text = "\n".join([what, *("    " + line for line in last), *advice, log_hint])
    return SetupError(text, code, " ".join([what, *(advice or last[-1:])]))
