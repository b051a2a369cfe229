"""What is told: on the terminal (stderr, because stdout belongs to the trainer's events) and in the log."""

import contextlib
import datetime
import locale
import os
import sys
import unicodedata

from launcher import places


def log(text: str) -> None:
    """Append to the log; a log that cannot be written must not stop a start."""
    with contextlib.suppress(OSError):
        places.LOG.parent.mkdir(parents=True, exist_ok=True)
        with places.LOG.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {text}\n")


def say(text: str) -> None:
    """Show it, and keep it in the log, in English."""
    show(text)
    log(text)


def show(text: str) -> None:
    print(shown(text), file=sys.stderr, flush=True)


def shown(text: str) -> str:
    """A sentence as the person reads it: in Chinese where the terminal is Chinese, as the trainer decides it too."""
    chosen = os.environ.get("TRAINDECK_LANG") or os.environ.get("LC_ALL") or os.environ.get("LANG")
    if not (chosen or locale.getlocale()[0] or "").lower().startswith(("zh", "chinese")):
        return text
    from launcher.chinese import in_chinese

    return in_chinese(text)


def cut(text: str, columns: int) -> str:
    """Exactly so many columns of a terminal, where Chinese characters take two each."""
    kept, used = "", 0
    for character in text:
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used >= columns:
            break
        kept += character
    return kept + " " * (columns - sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in kept))
