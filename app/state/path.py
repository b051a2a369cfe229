"""The way to a run in four steps: data, preset, check, start. Which are done, and which comes next. No Qt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Step = Literal["data", "preset", "check", "start"]
Mark = Literal["done", "next", "open", "wrong", "working"]
Verdict = Literal["fits", "tight", "does_not_fit"]

STEPS: Final[tuple[Step, ...]] = ("data", "preset", "check", "start")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known. `blocked`: why Start is not possible; `place`: what is to blame, as in `Blocked`."""

    has_data: bool
    has_preset: bool
    blocked: str = ""
    place: str = ""
    checking: bool = False
    refused: str = ""  # why the data cannot be trained on
    looking: bool = False  # at the data
    verdict: Verdict | None = None  # of a check of what is set now
    active: bool = False  # a run is on
    trained: bool = False  # the last run of these settings is finished


def marks(facts: Facts) -> dict[Step, Mark]:
    """What to show at each step."""
    if facts.active:
        return {"data": "done", "preset": "done", "check": "done" if facts.verdict else "open", "start": "working"}
    found: dict[Step, Mark] = {
        "data": _data(facts),
        "preset": _preset(facts),
        "check": "open",
        "start": "open",
    }
    if facts.checking:
        found["check"] = "working"
    elif facts.verdict is not None:
        found["check"] = "wrong" if facts.verdict == "does_not_fit" else "done"
    following = next((step for step in STEPS if found[step] == "open"), None)
    ready = not {"next", "wrong", "working"} & set(found.values())
    if ready and following is not None:
        found[following] = "next"
    return found


def _data(facts: Facts) -> Mark:
    if not facts.has_data:
        return "next"
    return "working" if facts.looking else "wrong" if facts.refused else "done"


def _preset(facts: Facts) -> Mark:
    if not facts.has_preset:
        return "next" if facts.has_data else "open"
    return "wrong" if facts.blocked and facts.place != "data" else "done"
