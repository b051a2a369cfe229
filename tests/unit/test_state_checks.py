"""What a check depends on: a stale one must say so, and a change without effect must not."""

from __future__ import annotations

import pytest

from app.core.check_inputs import changed_settings, check_key, trial_settings
from trainer_core.config import knobs
from trainer_core.docgen.examples import EVENTS
from trainer_core.protocol import CheckReport

REPORT: CheckReport = EVENTS[CheckReport]


@pytest.mark.parametrize(
    ("changed", "matters"),
    [
        ({"batch_size": 3}, True),
        ({"hidden_dim": 8}, True),
        ({"optimizer": "muon"}, True),
        ({"keep_last": 9}, True),
        ({"max_steps": 9}, True),
        ({"learning_rate": 1.0}, False),
        ({"seed": 4}, False),
        ({"use_wandb": True}, False),
        ({"sample_prompts": ["a"]}, False),
        ({"batch_size": knobs()["batch_size"].default}, False),  # the default, said
    ],
)
def test_a_check_is_true_of_what_it_measured_only(changed: dict[str, object], matters: bool) -> None:
    assert (check_key(changed, ["a"]) != check_key({}, ["a"])) is matters
    assert check_key({}, ["b"]) != check_key({}, ["a"])


def test_an_offer_is_settings_and_only_what_differs_is_told() -> None:
    [offer] = REPORT.alternatives
    assert set(trial_settings(offer)) <= set(knobs())
    assert changed_settings(offer, REPORT.chosen) == {"batch_size": 8, "gradient_accumulation_steps": 8}
