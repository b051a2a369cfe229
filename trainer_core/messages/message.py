"""What a message is, and the exit codes. No torch, no Qt."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ExitCode(enum.IntEnum):
    """What the process returns. 0 to 7 are a promise to scripts; anything else is 1."""

    FINISHED = 0
    FAILED = 1
    USAGE = 2
    STOPPED = 3
    DATA = 4
    OUT_OF_MEMORY = 5
    DEVICE = 6
    DISK_FULL = 7


@dataclass(frozen=True, slots=True)
class Words:
    """A message in one language. Both texts are `str.format` templates over the same parameters."""

    what: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One catalogue entry: its words in both languages, and the exit code when it ends a run."""

    en: Words
    zh: Words
    exit_code: ExitCode = ExitCode.FAILED


def error(exit_code: ExitCode, en: tuple[str, str], zh: tuple[str, str]) -> Message:
    """What ends a run: (what happened, what to do) in both languages."""
    return Message(Words(*en), Words(*zh), exit_code)


def note(en: tuple[str, str], zh: tuple[str, str]) -> Message:
    """What a run goes on after."""
    return Message(Words(*en), Words(*zh))
