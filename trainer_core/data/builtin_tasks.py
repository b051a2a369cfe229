"""`builtin:tasks`: generated exercises with answers that can be checked, in English and Chinese.

Sums and differences, the date after a date, the length of a month, and units of measure. The
wording of each kind is fixed and the numbers vary, so that a model of one million parameters learns
the rules in a minute or two on a CPU, and exact match on held-out prompts says whether training works.
"""

from __future__ import annotations

import calendar
import datetime
import functools
import random
from collections.abc import Callable, Iterator
from typing import Final

from trainer_core.data.readers.base import FileInput, Row

VERSION: Final = 3  # raise it when the exercises change: token caches made from others are then left alone
EXAMPLE_BYTES: Final = 32  # an exercise's length, near enough to show progress
_SEED: Final = 20_240_229

Example = tuple[str, str]
TaskGenerator = Callable[[random.Random, bool], Example]

# Written out: `calendar.month_name` follows the locale.
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip

# Sums of two free numbers take a small model many thousands of steps; a few fixed steps, some hundred.
_OPERANDS: Final = (1, 2, 10, 100)


def _sum(rng: random.Random, chinese: bool) -> Example:
    a, b = rng.randrange(100, 900), rng.choice(_OPERANDS)
    return (f"{a} 加 {b} 等于多少？" if chinese else f"What is {a} plus {b}?"), str(a + b)


def _difference(rng: random.Random, chinese: bool) -> Example:
    a, b = rng.randrange(100, 1000), rng.choice(_OPERANDS)
    return (f"{a} 减 {b} 等于多少？" if chinese else f"What is {a} minus {b}?"), str(a - b)


def _next_day(rng: random.Random, chinese: bool) -> Example:
    first = datetime.date(1950, 1, 1)
    day = first + datetime.timedelta(rng.randrange(150 * 365))
    prompt = f"{day} 的后一天是哪天？" if chinese else f"Which date follows {day}?"
    return prompt, str(day + datetime.timedelta(1))


def _month_length(rng: random.Random, chinese: bool) -> Example:
    year, month = rng.randrange(1950, 2100), rng.randrange(1, 13)
    days = str(calendar.monthrange(year, month)[1])
    if chinese:
        return f"{year} 年 {month} 月有多少天？", days
    return f"How many days are in {_MONTHS[month - 1]} {year}?", days


_UNITS: Final = (
    ("kilometres", "metres", "千米", "米", 1000, 1000),
    ("kilograms", "grams", "千克", "克", 1000, 1000),
    ("metres", "centimetres", "米", "厘米", 100, 1000),
    ("centimetres", "millimetres", "厘米", "毫米", 10, 1000),
    ("hours", "minutes", "小时", "分钟", 60, 100),
    ("minutes", "seconds", "分钟", "秒", 60, 100),
)


def _units(rng: random.Random, chinese: bool) -> Example:
    large, small, large_zh, small_zh, factor, limit = rng.choice(_UNITS)
    count = rng.randrange(2, limit)
    if chinese:
        return f"{count} {large_zh}是多少{small_zh}？", f"{count * factor} {small_zh}"
    return f"How many {small} are {count} {large}?", f"{count * factor} {small}"


_GENERATORS: Final[tuple[tuple[TaskGenerator, int], ...]] = (
    (_sum, 5000),
    (_difference, 5000),
    (_next_day, 5000),
    (_month_length, 2000),
    (_units, 5000),
)


@functools.cache
def examples() -> tuple[Example, ...]:
    """All exercises as (prompt, response), always the same ones in the same order; no prompt twice."""
    rng = random.Random(_SEED)
    made: dict[str, str] = {}
    for kind, count in _GENERATORS:
        wanted = len(made) + count
        while len(made) < wanted:
            prompt, response = kind(rng, rng.random() < 0.5)
            made[prompt] = response
    pairs = list(made.items())
    rng.shuffle(pairs)
    return tuple(pairs)


def count_examples() -> int:
    """How many exercises there are, without making them."""
    return sum(number for _, number in _GENERATORS)


def read_tasks(file: FileInput) -> Iterator[tuple[str, Row]]:
    """The exercises as rows with the columns `prompt` and `response`."""
    for number, (prompt, response) in enumerate(examples(), 1):
        yield f"row {number}", {"prompt": prompt, "response": response}
        file.advance(number * EXAMPLE_BYTES)
