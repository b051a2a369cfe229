"""Reward functions: each scores an answer from 0 to 1.

Rewards of the whole answer (exact, number, format, json-schema) are 0 for an answer that was cut off. Those that
compare with a reference or a schema leave out the reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, DecimalException
from typing import Final, NamedTuple

from trainer_core.data.columns import without_reasoning
from trainer_core.evaluation.judge import TIME_LIMIT_S, Judge, compile_pattern, load_judge
from trainer_core.evaluation.scores import chrf, is_exact


class Answer(NamedTuple):
    """A generated answer. `finish_reason`: end, limit or context."""

    text: str
    reference: str
    finish_reason: str

    @property
    def is_complete(self) -> bool:
        return self.finish_reason == "end"


RewardFunction = Callable[[Answer], float]

# A minus after a letter, digit or point is a hyphen or a difference; Chinese has no spaces before numbers.
_NUMBER: Final = re.compile(
    r"(?:(?<![A-Za-z0-9_.])[-−－])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)(?:[eE][-+]?\d{1,4})?"
)
_RELATIVE_TOLERANCE: Final = Decimal("1e-9")
_LENGTHS: Final = re.compile(r"(?P<low>\d*)-(?P<high>\d*)")
_LETTERS: Final = {  # of the scripts of languages
    "zh": r"[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]",
    "ja": r"[\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff]",
    "ko": r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]",
    "en": r"[A-Za-z]",
    "ru": r"[\u0400-\u04ff]",
    "ar": r"[\u0600-\u06ff\u0750-\u077f]",
}


def exact(value: str) -> RewardFunction:
    """1 if the answer equals the reference, without outer white space."""
    _require_none(value)
    return lambda answer: float(is_exact(answer.text, answer.reference, answer.finish_reason))


def contains(value: str) -> RewardFunction:
    """1 if the reference is a part of the answer."""
    _require_none(value)
    return lambda answer: float(without_reasoning(answer.reference).strip() in without_reasoning(answer.text))


def similar(value: str) -> RewardFunction:
    """The chrF score of the answer and the reference, divided by 100."""
    _require_none(value)
    metric = chrf()

    def score(answer: Answer) -> float:
        reference = without_reasoning(answer.reference).strip()
        return float(metric.sentence_score(without_reasoning(answer.text).strip(), [reference]).score) / 100

    return score


def number(value: str) -> RewardFunction:
    """1 if the last number of the answer differs by at most `value` (default 0) from the last one of the reference."""
    try:
        tolerance = Decimal(value or 0)
    except DecimalException as error:
        raise ValueError(value) from error
    if not tolerance.is_finite() or tolerance < 0:
        raise ValueError(value)

    def score(answer: Answer) -> float:
        found, wanted = _last_number(answer.text), _last_number(answer.reference)
        if found is None or wanted is None or not answer.is_complete:
            return 0.0
        return float(abs(found - wanted) <= max(tolerance, _RELATIVE_TOLERANCE * abs(wanted)))

    return score


def _last_number(text: str) -> Decimal | None:
    found = _NUMBER.findall(without_reasoning(text))
    return Decimal(re.sub("[−－]", "-", found[-1].replace(",", ""))) if found else None


def matches(value: str) -> RewardFunction:
    """1 if the answer contains a match of the regular expression."""
    judge = _judge("regex", value)
    return lambda answer: float(judge(answer.text))


def json_schema(value: str) -> RewardFunction:
    """1 if the answer is a JSON document of the schema in the file."""
    judge = _judge("json-schema", value)
    return lambda answer: float(answer.is_complete and judge(answer.text))


def whole_format(value: str) -> RewardFunction:
    """1 if the whole answer, without outer white space, matches the regular expression."""
    if not value:
        raise ValueError(value)
    pattern = compile_pattern(f"regex:{value}", value)
    return lambda answer: float(
        answer.is_complete and pattern.fullmatch(answer.text.strip(), timeout=TIME_LIMIT_S) is not None
    )


def _judge(kind: str, value: str) -> Judge:
    if not value:
        raise ValueError(value)
    return load_judge(f"{kind}:{value}")


def length(value: str) -> RewardFunction:
    """1 if the answer has MIN to MAX characters; otherwise the ratio of its length and the limit."""
    found = _LENGTHS.fullmatch(value)
    if found is None or value == "-":
        raise ValueError(value)
    low, high = int(found["low"] or 0), int(found["high"] or 0)
    if found["high"] and high < low:
        raise ValueError(value)

    def score(answer: Answer) -> float:
        chars = len(answer.text.strip())
        return min(1.0, chars / low if low else 1.0, high / chars if found["high"] and chars else 1.0)

    return score


def language(value: str) -> RewardFunction:
    """The share of letters in the script of the language; without letters 0."""
    letters = re.compile(_LETTERS[value])

    def score(answer: Answer) -> float:
        return len(letters.findall(answer.text)) / max(1, sum(map(str.isalpha, answer.text)))

    return score


def _require_none(value: str) -> None:
    if value:
        raise ValueError(value)


FUNCTIONS: Final[dict[str, Callable[[str], RewardFunction]]] = {
    "exact": exact,
    "contains": contains,
    "chrf": similar,
    "number": number,
    "regex": matches,
    "json-schema": json_schema,
    "format": whole_format,
    "length": length,
    "language": language,
}
"""By their names in settings. Raise `LookupError` or `ValueError` for a bad value, and as `load_judge`; the functions
raise `TimeoutError`."""

WITH_REFERENCE: Final = frozenset({"exact", "contains", "chrf", "number"})
"""Those that compare the answer with a reference."""
