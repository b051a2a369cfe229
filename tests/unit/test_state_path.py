"""Which of the four steps to a run are done, and which is next."""

from __future__ import annotations

import pytest

from app.state.path import Facts, marks

READY = {"has_data": True, "has_preset": True}


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        (Facts(has_data=False, has_preset=False), "next open open open"),
        (Facts(has_data=True, has_preset=False, blocked="x", place="preset"), "done next open open"),
        (Facts(has_data=False, has_preset=True, blocked="x", place="data"), "next done open open"),
        (Facts(**READY), "done done next open"),
        (Facts(**READY, looking=True), "working done open open"),
        (Facts(**READY, refused="mixed"), "wrong done open open"),
        (Facts(**READY, refused="as it was", looking=True), "working done open open"),
        (Facts(**READY, blocked="x", place="batch_size"), "done wrong open open"),
        (Facts(**READY, checking=True), "done done working open"),
        (Facts(**READY, verdict="fits"), "done done done next"),
        (Facts(**READY, verdict="tight"), "done done done next"),
        (Facts(**READY, verdict="does_not_fit"), "done done wrong open"),
        (Facts(**READY, active=True), "done done open working"),
        (Facts(**READY, active=True, verdict="fits"), "done done done working"),
    ],
)
def test_the_marks_follow_from_what_is_known(facts: Facts, shown: str) -> None:
    assert " ".join(marks(facts).values()) == shown


def test_at_most_one_step_is_next() -> None:
    for data in (False, True):
        for preset in (False, True):
            assert list(marks(Facts(has_data=data, has_preset=preset)).values()).count("next") == 1
