"""Comparison of a program's answers with those of the checkpoint, and its texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.recording_sink import RecordingSink
from trainer_core import protocol, verification_texts
from trainer_core.export.verification import samples
from trainer_core.export.verification.answers import Continuation, ProgramAnswers, Request
from trainer_core.export.verification.compare import Bounds, compare
from trainer_core.export.verification.verify import RESULT_FILE, emit_result
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.run_context import RunContext
from trainer_core.wire import EventDispatcher

REQUEST = Request(
    model="",
    texts=["one", "two"],
    decomposed_texts=["é"],
    vocabulary_texts=["a\nb"],
    before="",
    conversations=[[("system", "Be brief."), ("user", "Hi")], [("user", "Hi")]],
    prompts=[[1, 2], [3]],
    max_tokens=3,
    n_tokens=10,
    end_token=9,
)
EXPECTED = ProgramAnswers(
    program="Traindeck",
    token_ids=[[1], [2]],
    decomposed_ids=[[3]],
    vocabulary_ids=[[4, 5]],
    first_ids=[0, 1],
    rendered=[None, "<user>Hi<answer>"],
    rendered_ids=[None, [6, 7]],
    continuations=[
        Continuation([4, 5, 6], [-0.1, -0.2, -0.3], [0.5, 0.001, 0.5]),
        Continuation([4, 9], [-0.4, -0.5], [0.5, 0.5]),
    ],
    stops=True,
    losses=[[1.0, 2.0]],
)
BOUNDS = Bounds(gap=0.01, logprob=0.01)


def failing(bounds: Bounds = BOUNDS, **changes: Any) -> dict[str, protocol.VerificationCheck]:
    found = msgspec.structs.replace(EXPECTED, program="other", **changes)
    return {check.name: check for check in compare(REQUEST, EXPECTED, found, bounds) if not check.passed}


def test_equal_answers_pass_every_check() -> None:
    checks = compare(REQUEST, EXPECTED, EXPECTED, BOUNDS)
    assert [(check.name, check.equal, check.compared) for check in checks] == [
        ("tokens", 3, 3),
        ("vocabulary", 1, 1),
        ("template", 1, 1),  # the model's own template refuses the system prompt
        ("greedy", 2, 2),
        ("probabilities", 5, 5),
        ("end_token", 1, 1),
    ]
    assert all(check.passed for check in checks)


def test_the_first_different_text_is_named_with_both_ids() -> None:
    check = failing(token_ids=[[1], [2, 8]])["tokens"]
    assert (check.equal, check.place, check.expected, check.found) == (2, "two", "[2]", "[2, 8]")


def test_long_ids_are_shown_from_shortly_before_the_first_difference() -> None:
    common = list(range(1000))
    expected = msgspec.structs.replace(EXPECTED, token_ids=[[1], [*common, 7]])
    found = msgspec.structs.replace(EXPECTED, token_ids=[[1], [*common, 8]])
    (check,) = (one for one in compare(REQUEST, expected, found, BOUNDS) if not one.passed)
    assert (check.expected, check.found) == ("[997, 998, 999, 7]", "[997, 998, 999, 8]")


def test_a_missing_bos_token_is_a_difference() -> None:
    assert list(failing(first_ids=[1])) == ["tokens"]


def test_a_prompt_that_differs_in_one_byte_is_shown_whole() -> None:
    check = failing(rendered=["x", "<user>Hi <answer>"])["template"]
    assert (check.expected, check.found) == ("<user>Hi<answer>", "<user>Hi <answer>")


def test_a_prompt_of_equal_text_and_other_ids_is_a_difference() -> None:
    assert list(failing(rendered_ids=[None, [6, 8]])) == ["template"]


def test_a_token_may_differ_only_where_the_two_largest_logits_are_nearly_equal() -> None:
    near = [Continuation([4, 7, 7], [-0.1, -9.0, -9.0]), EXPECTED.continuations[1]]
    assert failing(continuations=near) == {}
    assert list(failing(Bounds(gap=0.0001, logprob=0.01), continuations=near)) == ["greedy"]
    far = [EXPECTED.continuations[0], Continuation([4, 5, 6], [-0.4, -9.0, -9.0])]
    assert failing(continuations=far)["greedy"].place == "2"


def test_a_continuation_that_does_not_end_is_a_difference() -> None:
    longer = [EXPECTED.continuations[0], Continuation([4, 9, 1], [-0.4, -0.5, -0.1])]
    assert list(failing(continuations=longer)) == ["greedy"]


def test_equal_tokens_with_other_probabilities_are_a_difference() -> None:
    other = [EXPECTED.continuations[0], Continuation([4, 9], [-0.4, -0.55])]
    check = failing(continuations=other)["probabilities"]
    assert (check.place, check.expected, check.found) == ("2", "-0.50000", "-0.55000")
    assert check.value == pytest.approx(0.05)


def test_quantized_weights_are_compared_by_perplexity() -> None:
    bounds = Bounds(perplexity=0.02)
    assert failing(bounds, losses=[[1.01, 2.01]]) == {}
    assert failing(bounds, losses=[[1.0, None]]) == {}  # only tokens whose loss both return
    check = failing(bounds, losses=[[1.1, 2.1]])["perplexity"]
    assert check.reference is not None
    assert check.value == pytest.approx(check.reference * 1.105, rel=1e-3)


def test_the_bound_of_the_perplexity_is_smaller_for_a_model_with_a_low_loss() -> None:
    bounds, loss = Bounds(perplexity=0.2), 0.0464
    expected = msgspec.structs.replace(EXPECTED, losses=[[0.0, 2 * loss]])

    def passes(other: float) -> bool:
        found = msgspec.structs.replace(expected, losses=[[0.0, 2 * other]])
        return all(check.passed for check in compare(REQUEST, expected, found, bounds))

    assert passes(loss + 0.03)
    assert not passes(loss + 0.05)
    assert not passes(0.2062)  # noise of 35% of the weights' standard deviation: half of the exact answers are lost


def test_a_failed_verification_is_emitted_and_ends_with_exit_code_8(tmp_path: Path) -> None:
    sink = RecordingSink()
    context = RunContext(EventDispatcher(sink))
    event = protocol.Verification(folder="m", format="hf", dtype="f32", program="transformers 5", passed=False)
    (tmp_path / RESULT_FILE).write_bytes(protocol.encode(event))
    with pytest.raises(TraindeckError) as error:
        emit_result(tmp_path, context)
    assert (error.value.code, error.value.exit_code) == ("export.different", ExitCode.NOT_VERIFIED)
    assert [type(one) for one in sink.events] == [protocol.Verification]


def test_the_samples_are_50_texts_and_20_prompts() -> None:
    assert len(set(samples.TEXTS)) == 50
    assert len(set(samples.PROMPTS)) == 20


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_failed_check_is_printed_with_its_first_difference(language: Any) -> None:
    checks = compare(REQUEST, EXPECTED, msgspec.structs.replace(EXPECTED, token_ids=[[1], [2, 8]]), BOUNDS)
    event = protocol.Verification(
        folder="m", format="hf", dtype="f32", program="transformers 5", passed=False, checks=checks
    )
    text = verification_texts.format_verification(event, language)
    assert "[2, 8]" in text
    assert text.count("transformers 5") == 1
    assert len(text.splitlines()) == 1 + 2 + len(checks) + 1
    assert "| --- |" in verification_texts.format_markdown(event, language)
