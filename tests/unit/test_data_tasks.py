"""Built-in data: the Python library, and exercises with correct answers."""

from __future__ import annotations

import calendar
import datetime
import re

import numpy as np

from trainer_core.config import Config
from trainer_core.data import builtin, builtin_tasks
from trainer_core.data.documents import DocumentStream
from trainer_core.data.sources import scan_path
from trainer_core.data.split_files import HeldOutSelector


def test_prompts_are_unique() -> None:
    prompts = [prompt for prompt, _ in builtin_tasks.examples()]
    assert len(prompts) == len(set(prompts)) > 10_000
    assert 0.04 < HeldOutSelector(0.05).mask(np.arange(len(prompts))).mean() < 0.06


def test_exercises_are_deterministic() -> None:
    first = builtin_tasks.examples()
    builtin_tasks.examples.cache_clear()
    assert builtin_tasks.examples() == first


def test_answers_are_correct() -> None:
    checked = 0
    for prompt, response in builtin_tasks.examples():
        numbers = [int(n) for n in re.findall(r"\d+", prompt)]
        if "plus" in prompt or "加" in prompt:
            assert int(response) == sum(numbers)
        elif "minus" in prompt or "减" in prompt:
            assert int(response) == numbers[0] - numbers[1] >= 0
        elif found := re.search(r"\d{4}-\d\d-\d\d", prompt):
            before, after = (datetime.date.fromisoformat(text) for text in (found[0], response))
            assert (after - before).days == 1
        else:
            continue
        checked += 1
    assert checked > 10_000


def test_new_exercises_have_other_questions_and_correct_answers() -> None:
    new = dict(builtin_tasks.examples(builtin.NEW_TASKS))
    assert not new.keys() & dict(builtin_tasks.examples()).keys()
    months = {name: number for number, name in enumerate(calendar.month_name) if name}
    factors = {"毫米是多少厘米": 10, "厘米是多少米": 100, "millimetres": 10, "centimetres": 100}
    for prompt, response in new.items():
        numbers = [months.get(word) or int(word) for word in re.findall(r"[A-Z][a-z]+(?= \d)|\d+", prompt)]
        if "date" in prompt:
            assert datetime.date(*reversed(numbers)) == datetime.date.fromisoformat(response)
        elif "哪天" in prompt:
            assert datetime.date(*numbers) == datetime.date.fromisoformat(response)
        elif "month" in prompt or "哪月" in prompt:
            year, month = sorted(numbers, reverse=True)
            following = datetime.date(year, month, 1) + datetime.timedelta(31)
            assert f"{following:%Y-%m}" == response
        else:
            factor = next((factor for words, factor in factors.items() if words in prompt.split("are")[-1]), 1000)
            assert numbers == [int(response) * factor]


def test_both_languages_are_equally_frequent() -> None:
    for name in (builtin.TASKS, builtin.NEW_TASKS):
        examples = builtin_tasks.examples(name)
        assert 0.4 < sum(not prompt.isascii() for prompt, _ in examples) / len(examples) < 0.6


def test_the_python_library_is_listed_without_tests_and_installed_packages() -> None:
    root, files = builtin.list_python_library()
    names = [file.relative_to(root).as_posix() for file in files]
    assert "json/decoder.py" in names
    assert not [name for name in names if "test" in name.split("/")[:-1] or "site-packages" in name]
    assert 3e6 < sum(file.stat().st_size for file in files) < 30e6


def test_built_in_data_is_streamed() -> None:
    config = Config()
    library = DocumentStream([scan_path("builtin:python", config)], config)
    assert sum(1 for _ in library) > 300
    exercises = DocumentStream([scan_path("builtin:tasks", config)], config)
    assert [(prompt, response) for (_, prompt), (_, response) in (document.turns for document in exercises)] == list(
        builtin_tasks.examples()
    )
    assert exercises.bytes_done == exercises.total_bytes
