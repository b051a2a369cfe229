"""Comparison of the answers of a program with those of the checkpoint. No torch, no Qt."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from trainer_core.export.verification.answers import ProgramAnswers, Request
from trainer_core.protocol import ExportCheck, VerificationCheck

_MAX_SHOWN: Final = 200  # characters of a place or a value
_MIN_LOSS: Final = 0.2  # nats, to which the bound of the perplexity is proportional, so that rounding always passes
_CONTEXT: Final = 3  # token ids shown before the first difference


class Bounds(NamedTuple):
    """What counts as equal.

    `gap`: difference of the two largest logits, in standard deviations of all logits, below which the chosen token may
    differ. `logprob`: difference of log-probabilities. `perplexity`: share by which it may be higher; at a loss below
    1 nat, this share times the loss. The first two are None for quantized weights, whose tokens differ; the last one
    for others.
    """

    gap: float | None = None
    logprob: float | None = None
    perplexity: float | None = None


def compare(
    request: Request, expected: ProgramAnswers, found: ProgramAnswers, bounds: Bounds
) -> list[VerificationCheck]:
    """All checks, in the order of the table."""
    checks = [
        _compare_values(
            "tokens",
            [*request.texts, request.texts[0]],
            [*expected.token_ids, expected.first_ids],
            [*found.token_ids, found.first_ids],
        ),
        _compare_values("vocabulary", request.vocabulary_texts, expected.vocabulary_ids, found.vocabulary_ids),
    ]
    if any(expected.rendered):
        checks.append(_template(request, expected, found))
    if bounds.gap is not None and bounds.logprob is not None:
        checks += [_greedy(request, expected, found, bounds.gap), _probabilities(expected, found, bounds)]
    if bounds.perplexity is not None:
        checks.append(_perplexity(expected, found, bounds.perplexity))
    place = "" if found.stops else str(request.end_token)
    checks.append(
        VerificationCheck(name="end_token", passed=found.stops, compared=1, equal=int(found.stops), place=place)
    )
    return checks


def _template(request: Request, expected: ProgramAnswers, found: ProgramAnswers) -> VerificationCheck:
    """Text and ids of each prompt; conversations that the model's own template refuses do not count."""
    rows = [
        (turns[-1][1], (text, ids), (other, other_ids))
        for turns, text, ids, other, other_ids in zip(
            request.conversations,
            expected.rendered,
            expected.rendered_ids,
            found.rendered,
            found.rendered_ids,
            strict=True,
        )
        if text is not None
    ]
    check = _compare_values("template", *(list(column) for column in zip(*rows, strict=True)))
    differing = next(((text, other) for _, (text, _), (other, _) in rows if text != other), None)
    if differing:
        check.expected, check.found = differing[0], differing[1] or ""
    return check


def _compare_values(
    name: ExportCheck, places: Sequence[str], expected: Sequence[Any], found: Sequence[Any]
) -> VerificationCheck:
    differing = [row for row in zip(places, expected, found, strict=True) if row[1] != row[2]]
    check = VerificationCheck(name=name, passed=not differing, compared=len(places), equal=len(places) - len(differing))
    if differing:
        place, value, other = differing[0]
        check.place, (check.expected, check.found) = place[:_MAX_SHOWN], _shown_pair(value, other)
    return check


def _greedy(request: Request, expected: ProgramAnswers, found: ProgramAnswers, bound: float) -> VerificationCheck:
    """Tokens of each prompt, up to where the two largest logits are nearly equal and the tokens differ."""
    check = VerificationCheck(name="greedy", passed=True, compared=len(request.prompts), equal=0, bound=bound)
    for number, (one, other) in enumerate(zip(expected.continuations, found.continuations, strict=True)):
        length = _common_length(one.tokens, other.tokens)
        ended = length == len(one.tokens) == len(other.tokens)
        if ended or (length < len(one.gaps) and one.gaps[length] < bound):
            check.equal += 1
        elif check.passed:
            check.passed, check.place = False, str(number + 1)
            check.expected, check.found = _shown_pair(one.tokens, other.tokens)
    return check


def _probabilities(expected: ProgramAnswers, found: ProgramAnswers, bounds: Bounds) -> VerificationCheck:
    """Log-probabilities of all equal tokens."""
    assert bounds.logprob is not None
    rows = list(_equal_tokens(expected, found))
    worst = max(rows, key=lambda row: abs(row[1] - row[2]), default=(0, 0.0, 0.0))
    difference = abs(worst[1] - worst[2])
    check = VerificationCheck(
        name="probabilities",
        passed=bool(rows) and difference <= bounds.logprob,
        compared=len(rows),
        equal=sum(abs(value - other) <= bounds.logprob for _, value, other in rows),
        value=difference,
        bound=bounds.logprob,
    )
    if not check.passed:
        check.place, check.expected, check.found = str(worst[0]), f"{worst[1]:.5f}", f"{worst[2]:.5f}"
    return check


def _perplexity(expected: ProgramAnswers, found: ProgramAnswers, bound: float) -> VerificationCheck:
    """Of the tokens whose loss both return."""
    places = zip(chain.from_iterable(expected.losses), chain.from_iterable(found.losses), strict=True)
    pairs = [(one, other) for one, other in places if one is not None and other is not None]
    loss, other_loss = (sum(losses) / len(pairs) for losses in zip(*pairs, strict=True))
    reference, value = math.exp(loss), math.exp(other_loss)
    limit = reference * (1 + bound * min(1.0, max(loss, _MIN_LOSS)))
    passed, count = value <= limit, len(pairs)
    check = VerificationCheck(name="perplexity", passed=passed, compared=count, equal=count if passed else 0)
    check.value, check.reference, check.bound = value, reference, limit
    if not passed:
        check.place, check.expected, check.found = str(count), f"{limit:.3f}", f"{value:.3f}"
    return check


def _equal_tokens(expected: ProgramAnswers, found: ProgramAnswers) -> Iterator[tuple[int, float, float]]:
    """Number of the prompt and both log-probabilities of each token before the first difference."""
    for number, (one, other) in enumerate(zip(expected.continuations, found.continuations, strict=True), 1):
        for place in range(_common_length(one.tokens, other.tokens)):
            value, other_value = one.logprobs[place], other.logprobs[place]
            if value is not None and other_value is not None:
                yield number, value, other_value


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _shown_pair(expected: Any, found: Any) -> tuple[str, str]:
    """Both values; of token ids, of prompts too, from shortly before the first difference."""
    if isinstance(expected, tuple) and expected[0] == found[0]:
        expected, found = expected[1], found[1]
    if isinstance(expected, list) and isinstance(found, list):
        start = max(0, _common_length(expected, found) - _CONTEXT)
        expected, found = expected[start:], found[start:]
    shown = [json.dumps(value, ensure_ascii=False)[:_MAX_SHOWN] for value in (expected, found)]
    return shown[0], shown[1]
