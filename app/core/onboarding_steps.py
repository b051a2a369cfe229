"""The four steps to a run (data, preset, check, start): which are done, and which is next. No Qt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

OnboardingStep = Literal["data", "preset", "check", "start"]
StepState = Literal["done", "next", "open", "wrong", "working"]
Verdict = Literal["fits", "tight", "does_not_fit"]

ONBOARDING_STEPS: Final[tuple[OnboardingStep, ...]] = ("data", "preset", "check", "start")


@dataclass(frozen=True, slots=True)
class OnboardingInputs:
    """State of the setup. `blocked`: why Start is not possible; `blocked_by`: the field that causes it."""

    has_data: bool
    has_preset: bool
    blocked: str = ""
    blocked_by: str = ""
    checking: bool = False
    data_error: str = ""  # why the data cannot be used
    inspecting_data: bool = False  # a preview is running
    verdict: Verdict | None = None  # of a check with the current settings
    run_active: bool = False  # a run is active
    run_finished: bool = False  # the last run with these settings has finished


def step_states(inputs: OnboardingInputs) -> dict[OnboardingStep, StepState]:
    """State of each step."""
    if inputs.run_active:
        return {"data": "done", "preset": "done", "check": "done" if inputs.verdict else "open", "start": "working"}
    found: dict[OnboardingStep, StepState] = {
        "data": _data_state(inputs),
        "preset": _preset_state(inputs),
        "check": "open",
        "start": "open",
    }
    if inputs.checking:
        found["check"] = "working"
    elif inputs.verdict is not None:
        found["check"] = "wrong" if inputs.verdict == "does_not_fit" else "done"
    following = next((step for step in ONBOARDING_STEPS if found[step] == "open"), None)
    ready = not {"next", "wrong", "working"} & set(found.values())
    if ready and following is not None:
        found[following] = "next"
    return found


def _data_state(inputs: OnboardingInputs) -> StepState:
    if not inputs.has_data:
        return "next"
    return "working" if inputs.inspecting_data else "wrong" if inputs.data_error else "done"


def _preset_state(inputs: OnboardingInputs) -> StepState:
    if not inputs.has_preset:
        return "next" if inputs.has_data else "open"
    return "wrong" if inputs.blocked and inputs.blocked_by != "data" else "done"
