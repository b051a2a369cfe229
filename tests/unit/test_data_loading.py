"""Batches are ready before they are needed, and how that is done is chosen for the machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from trainer_core.config import Config
from trainer_core.data.prefetch import LoaderSettings, PrefetchIterator, choose_loader_settings

SMALL, HUGE = 10**9, 10**12


def chosen(
    device: str, cores: int, gigabytes: float, data: int = SMALL, system: str = "linux", **knobs: Any
) -> LoaderSettings:
    return choose_loader_settings(Config(**knobs), device, data, cores, int(gigabytes * 1e9), system)


def workers(*machine: Any, **knobs: Any) -> tuple[int, str]:
    choice = chosen(*machine, **knobs)
    return choice.num_workers, choice.reason


def test_processes_are_used_where_they_help_and_never_more_than_there_are_cores() -> None:
    assert workers("cpu", 8, 32) == (0, "cpu")
    assert workers("cuda", 16, 64) == (0, "gpu")
    assert workers("cuda", 16, 64, HUGE) == (4, "disk")
    assert workers("cuda", 4, 64, HUGE) == (2, "disk")
    assert workers("cuda", 1, 64, HUGE) == (0, "disk")
    assert workers("cuda", 16, 64, HUGE, "win32") == (1, "disk")
    assert workers("cuda", 16, 12, HUGE) == (0, "low_memory")


def test_what_a_person_sets_counts_within_what_there_is() -> None:
    assert workers("cuda", 16, 64, num_workers=8) == (8, "set")
    assert workers("cuda", 16, 12, num_workers=2) == (2, "set")
    assert workers("cuda", 6, 64, num_workers=64) == (6, "set")
    assert workers("cuda", 64, 64, num_workers=64) == (16, "set")
    assert workers("cuda", 16, 64, low_memory=True, num_workers=8) == (0, "low_memory")


def test_memory_is_pinned_for_a_gpu_where_there_is_enough_of_it() -> None:
    assert chosen("cuda", 16, 64).pin_memory
    assert not chosen("cuda", 16, 12).pin_memory
    assert not chosen("cuda", 16, 64, pin_memory=False).pin_memory
    assert not chosen("cuda", 16, 64, low_memory=True).pin_memory
    assert not chosen("cpu", 16, 64).pin_memory


def test_a_thread_keeps_all_batches_of_a_step_ready_for_a_gpu() -> None:
    assert chosen("cpu", 8, 32).prefetch_batches == 0
    assert chosen("cuda", 8, 32, gradient_accumulation_steps=40).prefetch_batches == 40
    assert chosen("cuda", 8, 32, prefetch_factor=4).prefetch_batches == 4
    assert chosen("cuda", 8, 32, num_workers=3, prefetch_factor=4).prefetch_batches == 12


# --- the thread ------------------------------------------------------------------------------------


def threads() -> int:
    return sum(thread.name == "batches" for thread in threading.enumerate())


@pytest.mark.parametrize("depth", [1, 3, 50])
def test_items_come_in_order_and_end(depth: int) -> None:
    ahead = PrefetchIterator(iter(range(20)), depth)
    assert list(ahead) == list(range(20))
    assert list(ahead) == []
    ahead.close()


def test_so_many_are_made_before_anybody_asks_and_no_more() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    ahead = PrefetchIterator(source(), 5)
    time.sleep(0.1)
    assert len(made) == 6  # five that wait, and one in the thread's hand
    assert next(ahead) == 0
    ahead.close()


def test_a_failure_comes_where_the_item_would_have_come() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    ahead = PrefetchIterator(source(), 4)
    assert next(ahead) == 1
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            next(ahead)
    ahead.close()


def test_closing_ends_the_thread_even_while_it_works_and_nobody_waits_for_ever() -> None:
    def slow() -> Iterator[int]:
        while True:
            time.sleep(0.02)
            yield 0

    before = threads()
    ahead = PrefetchIterator(slow(), 2)
    next(ahead)
    ahead.close()
    assert threads() == before
    assert next(ahead, None) is None


def test_the_thread_is_set_up_before_it_takes_anything() -> None:
    seen: list[str] = []

    def source() -> Iterator[int]:
        seen.append("source")
        yield 1

    ahead = PrefetchIterator(source(), 1, lambda: seen.append(threading.current_thread().name))
    assert list(ahead) == [1]
    assert seen == ["batches", "source"]
    ahead.close()
