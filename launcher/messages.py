"""Messages to the user, on stderr (stdout carries the trainer's events) and in the log."""

import contextlib
import datetime
import functools
import json
import locale
import os
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
