"""What is told: on the terminal (stderr, because stdout belongs to the trainer's events) and in the log."""

import contextlib
import datetime
import sys

from launcher import places


def log(text: str) -> None:
    """Append to the log; a log that cannot be written must not stop a start."""
    with contextlib.suppress(OSError):
        places.LOG.parent.mkdir(parents=True, exist_ok=True)
        with places.LOG.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
    log(text)
