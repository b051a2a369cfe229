"""`builtin:tasks` and `builtin:new_tasks`: generated exercises with answers that can be checked (English and Chinese).

The wording of each kind is fixed and the numbers vary, so that a model of one million parameters learns the rules in a
minute or two on a CPU, and exact match on held-out prompts says whether training works.

- `tasks`: sums and differences, the date after a date, the length of a month, larger units in smaller ones.
- `new_tasks`, to fine-tune a model of `tasks`: dates as numbers, the month after a month, smaller units in larger ones.
  Questions have words and answers have digits of `tasks`, because tokenizer and embeddings stay the same.
"""

from __future__ import annotations

import calendar
import datetime
import functools
import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from trainer_core.data.builtin import NEW_TASKS, TASKS
from trainer_core.data.readers.base import FileInput, Row

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


def _random_day(rng: random.Random) -> datetime.date:
    return datetime.date(1950, 1, 1) + datetime.timedelta(rng.randrange(150 * 365))


def _next_day(rng: random.Random, chinese: bool) -> Example:
    day = _random_day(rng)
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
_DECIMAL_UNITS: Final = _UNITS[:4]


def _units(rng: random.Random, chinese: bool) -> Example:
    large, small, large_zh, small_zh, factor, limit = rng.choice(_UNITS)
    count = rng.randrange(2, limit)
    if chinese:
        return f"{count} {large_zh}是多少{small_zh}？", f"{count * factor} {small_zh}"
    return f"How many {small} are {count} {large}?", f"{count * factor} {small}"


def _date_as_number(rng: random.Random, chinese: bool) -> Example:
    day = _random_day(rng)
    if chinese:
        return f"{day.year} 年 {day.month} 月 {day.day} 日是哪天？", str(day)
    return f"Which date is {day.day} {_MONTHS[day.month - 1]} {day.year}?", str(day)


def _next_month(rng: random.Random, chinese: bool) -> Example:
    year, month = rng.randrange(1950, 2100), rng.randrange(1, 13)
    following = f"{year}-{month + 1:02}" if month < 12 else f"{year + 1}-01"
    if chinese:
        return f"{year} 年 {month} 月的后一月是哪月？", following
    return f"Which month follows {_MONTHS[month - 1]} {year}?", following


def _larger_unit(rng: random.Random, chinese: bool) -> Example:
    large, small, large_zh, small_zh, factor, limit = rng.choice(_DECIMAL_UNITS)
    count = rng.randrange(2, limit)
    if chinese:
        return f"{count * factor} {small_zh}是多少{large_zh}？", str(count)
    return f"How many {large} are {count * factor} {small}?", str(count)


class _ExerciseSet(NamedTuple):
    version: int  # raise it when the exercises change: token caches made from others are then left alone
    kinds: tuple[tuple[TaskGenerator, int], ...]  # with the number of exercises


_SETS: Final = {
    TASKS: _ExerciseSet(
        3, ((_sum, 5000), (_difference, 5000), (_next_day, 5000), (_month_length, 2000), (_units, 5000))
    ),
    NEW_TASKS: _ExerciseSet(1, ((_date_as_number, 5000), (_next_month, 2000), (_larger_unit, 4000))),
}


@functools.cache
def examples(name: str = TASKS) -> tuple[Example, ...]:
    """All exercises as (prompt, response), always the same ones in the same order; no prompt twice."""
    rng = random.Random(_SEED)
    made: dict[str, str] = {}
    for kind, count in _SETS[name].kinds:
        wanted = len(made) + count
        while len(made) < wanted:
            prompt, response = kind(rng, rng.random() < 0.5)
            made[prompt] = response
    pairs = list(made.items())
    rng.shuffle(pairs)
    return tuple(pairs)


def count_examples(name: str) -> int:
    """How many exercises there are, without making them."""
    return sum(number for _, number in _SETS[name].kinds)


def read_tasks(file: FileInput) -> Iterator[tuple[str, Row]]:
    """The exercises as rows with the columns `prompt` and `response`."""
    for number, (prompt, response) in enumerate(examples(str(file.source.path)), 1):
        yield f"row {number}", {"prompt": prompt, "response": response}
        file.advance(number * EXAMPLE_BYTES)


def content_version(name: str) -> int | str:
    """Value that differs for other exercises."""
    version = _SETS[name].version
    return version if name == TASKS else f"{name} {version}"
