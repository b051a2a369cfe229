"""Formatting of the verification of an export, for the terminal, the model card and the window. No torch, no Qt."""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from trainer_core.console.tables import format_table
from trainer_core.messages import Language, format_message
from trainer_core.protocol import Verification, VerificationCheck
from trainer_core.texts import get

_MAX_SHOWN: Final = 60  # characters of a value in a line of text
_CONTEXT: Final = 20  # characters before the first difference


def verdict(event: Verification, language: Language) -> str:
    """Return one sentence: the model is verified, is different, or why it is not verified."""
    if event.reason:
        return get("verification.not_verified", language, reason=format_message(event.reason, event.params, language))
    is_quantized = any(check.name == "perplexity" for check in event.checks)
    passed = "verification.passed_quantized" if is_quantized else "verification.passed"
    return get(passed if event.passed else "verification.failed", language, program=event.program)


def check_name(check: VerificationCheck, language: Language) -> str:
    return get(f"verification.check.{check.name}", language)


def check_status(check: VerificationCheck, language: Language) -> str:
    passed = "verification.equal" if check.value is None else "verification.within_bound"
    return get(passed if check.passed else "verification.different", language)


def check_figures(check: VerificationCheck, language: Language) -> str:
    """Return counts, the measured value and its bound."""
    values = {"equal": check.equal, "compared": check.compared, "bound": check.bound or 0.0}
    values |= {"value": check.value or 0.0, "reference": check.reference or 0.0}
    return get(f"verification.figures.{check.name}", language, **values)


def first_difference(check: VerificationCheck, language: Language, max_chars: int = _MAX_SHOWN) -> str:
    """Return where the first difference is, and both values; empty if there is none."""
    if check.passed or not check.place:
        return ""
    pairs = zip(check.expected, check.found, strict=False)
    start = max(0, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) - _CONTEXT)
    expected, found = (_one_line(value, max_chars, start) for value in (check.expected, check.found))
    place = _one_line(check.place, max_chars)
    return get(f"verification.difference.{check.name}", language, place=place, expected=expected, found=found)


def limitations(event: Verification, language: Language) -> list[str]:
    """Return a sentence for each known difference that does not fail."""
    return [get(f"verification.limitation.{name}", language) for name in event.limitations]


def format_verification(event: Verification, language: Language) -> str:
    """Return the lines for a terminal."""
    rows = [
        (check_status(one, language), check_name(one, language), check_figures(one, language)) for one in event.checks
    ]
    lines = [verdict(event, language)]
    if rows:
        lines += format_table(_head(language), rows)
    lines += filter(None, (first_difference(check, language) for check in event.checks))
    return "\n".join([*lines, *limitations(event, language)])


def format_markdown(event: Verification, language: Language) -> str:
    """Return a section of a model card."""
    lines = [f"\n## {get('verification.title', language)}", "", verdict(event, language), ""]
    if event.checks:
        lines += [f"| {' | '.join(_head(language))} |", "| --- | --- | --- |"]
    for check in event.checks:
        row = (check_status(check, language), check_name(check, language), check_figures(check, language))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, "", *limitations(event, language)]).rstrip() + "\n"


def _head(language: Language) -> list[str]:
    return [get(f"verification.head.{name}", language) for name in ("result", "check", "figures")]


def _one_line(text: str, max_chars: int, start: int = 0) -> str:
    """Up to `max_chars` characters from `start` on."""
    shown = text[start : start + max_chars].replace("\n", "⏎")
    return f"{'…' if start else ''}{shown}{'…' if start + max_chars < len(text) else ''}"
