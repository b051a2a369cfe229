"""Messages to the user, on stderr (stdout carries the trainer's events) and in the log; errors and their advice."""

import contextlib
import datetime
import functools
import json
import locale
import os
import re
import sys
from pathlib import Path
from typing import Any, TextIO

from launcher import places

EVENTS: "list[TextIO]" = []  # where JSON events go, for the window (`setup --output json`)
CATALOGUES = Path(__file__).resolve().parents[1] / "trainer_core" / "texts"


def message(key: str, **params: object) -> str:
    """Return the text of `key`, such as `launcher.ready`, in the language of the terminal."""
    text = functools.reduce(dict.__getitem__, key.split("."), catalogue(terminal_language()))
    return str(text).format(**params)


def terminal_language() -> str:
    """Return `zh` or `en` by the same rule as `trainer_core.messages.terminal_language`."""
    chosen = os.environ.get("TRAINDECK_LANG") or os.environ.get("LC_ALL") or os.environ.get("LANG")
    return "zh" if (chosen or locale.getlocale()[0] or "").lower().startswith(("zh", "chinese")) else "en"


@functools.lru_cache(maxsize=2)
def catalogue(language: str) -> "dict[str, Any]":
    """Return the catalogue of texts that the trainer and the window share."""
    texts: dict[str, Any] = json.loads((CATALOGUES / f"{language}.json").read_text(encoding="utf-8"))
    return texts


def log(text: str) -> None:
    """Append `text` to the log. Errors are ignored: an unwritable log must not prevent a start."""
    with contextlib.suppress(OSError):
        places.LOG.parent.mkdir(parents=True, exist_ok=True)
        with places.LOG.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")


def print_and_log(text: str, indent: str = "") -> None:
    """Print `text` and append it to the log."""
    print_message(text, indent)
    log(indent + text)


def print_message(text: str, indent: str = "") -> None:
    print(indent + text, file=sys.stderr, flush=True)
    emit("text", text=indent + text)


def emit(event: str, **fields: object) -> None:
    """Write an event for the window, if it has started this setup. It may have ended meanwhile."""
    for stream in EVENTS:
        with contextlib.suppress(OSError):
            stream.write(json.dumps(dict(fields, type=event)) + "\n")
            stream.flush()


# --- errors --------------------------------------------------------------------------------------------


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
    (r"Long Path|path too long|WinError 206|OSError.*'[A-Z]:[^'\n]{259,}'", "launcher.advice.path_too_long", 1),
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
)


def mirror_advice() -> str:
    """How to use a mirror: by a button of the window, if it has started this setup, or by a command."""
    return message("launcher.advice.mirror_button" if EVENTS else "launcher.advice.mirror_command")


def tool_error(what: str, output: str, code: int = 1) -> SetupError:
    """Return an error with the last lines of a tool's output and, for a known failure, advice."""
    known = [found[1:] for found in KNOWN_FAILURES if re.search(found[0], output, re.IGNORECASE)]
    key, code = known[0] if known else ("", code)
    lines = output.strip().splitlines()
    last = ([line for line in lines if re.match(r"ERROR|\w*Error:", line)] or lines)[-4:]
    advice = [message(key)] if key else []
    advice += [mirror_advice()] if key == "launcher.advice.network" else []
    log_hint = message("launcher.full_log", log=places.LOG)
    text = "\n".join([what, *("    " + line for line in last), *advice, log_hint])
    return SetupError(text, code, " ".join([what, *(advice or last[-1:])]))
