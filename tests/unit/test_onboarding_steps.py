"""States of the onboarding steps."""

from __future__ import annotations

from app.core.onboarding_steps import OnboardingInputs, step_states

READY = {"has_data": True, "has_preset": True}


def test_states_follow_from_the_inputs() -> None:
    for inputs, states in (
        (OnboardingInputs(has_data=False, has_preset=False), "next open open open"),
        (OnboardingInputs(has_data=True, has_preset=False, blocked="x", blocked_by="preset"), "done next open open"),
        (OnboardingInputs(has_data=False, has_preset=True, blocked="x", blocked_by="data"), "next done open open"),
        (OnboardingInputs(**READY), "done done next open"),
        (OnboardingInputs(**READY, inspecting_data=True), "working done open open"),
        (OnboardingInputs(**READY, data_error="mixed"), "wrong done open open"),
        (OnboardingInputs(**READY, data_error="mixed", inspecting_data=True), "working done open open"),
        (OnboardingInputs(**READY, blocked="x", blocked_by="batch_size"), "done wrong open open"),
        (OnboardingInputs(**READY, checking=True), "done done working open"),
        (OnboardingInputs(**READY, verdict="fits"), "done done done next"),
        (OnboardingInputs(**READY, verdict="tight"), "done done done next"),
        (OnboardingInputs(**READY, verdict="does_not_fit"), "done done wrong open"),
        (OnboardingInputs(**READY, run_active=True), "done done open working"),
        (OnboardingInputs(**READY, run_active=True, verdict="fits"), "done done done working"),
    ):
        assert " ".join(step_states(inputs).values()) == states, inputs


def test_exactly_one_step_is_next() -> None:
    for data in (False, True):
        for preset in (False, True):
            assert list(step_states(OnboardingInputs(has_data=data, has_preset=preset)).values()).count("next") == 1
