"""Loader settings for a machine, and the prefetching thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from trainer_core.config import Config
from trainer_core.data.prefetch import LoaderSettings, PrefetchIterator, choose_loader_settings

SMALL, HUGE = 10**9, 10**12


def settings_for(
    device: str, cores: int, gigabytes: float, data: int = SMALL, system: str = "linux", **knobs: Any
) -> LoaderSettings:
    return choose_loader_settings(Config(**knobs), device, data, cores, int(gigabytes * 1e9), system)


def workers(*machine: Any, **knobs: Any) -> tuple[int, str]:
    choice = settings_for(*machine, **knobs)
    return choice.num_workers, choice.reason


def test_loader_processes_are_used_only_for_data_larger_than_memory() -> None:
    assert workers("cpu", 8, 32) == (0, "cpu")
    assert workers("cuda", 16, 64) == (0, "gpu")
    assert workers("cuda", 16, 64, HUGE) == (4, "disk")
    assert workers("cuda", 4, 64, HUGE) == (2, "disk")
    assert workers("cuda", 1, 64, HUGE) == (0, "disk")
    assert workers("cuda", 16, 64, HUGE, "win32") == (1, "disk")
    assert workers("cuda", 16, 12, HUGE) == (0, "low_memory")


def test_num_workers_is_limited_to_the_cores() -> None:
    assert workers("cuda", 16, 64, num_workers=8) == (8, "set")
    assert workers("cuda", 16, 12, num_workers=2) == (2, "set")
    assert workers("cuda", 6, 64, num_workers=64) == (6, "set")
    assert workers("cuda", 64, 64, num_workers=64) == (16, "set")
    assert workers("cuda", 16, 64, low_memory=True, num_workers=8) == (0, "low_memory")


def test_memory_is_pinned_for_cuda_if_there_is_enough() -> None:
    assert settings_for("cuda", 16, 64).pin_memory
    assert not settings_for("cuda", 16, 12).pin_memory
    assert not settings_for("cuda", 16, 64, pin_memory=False).pin_memory
    assert not settings_for("cuda", 16, 64, low_memory=True).pin_memory
    assert not settings_for("cpu", 16, 64).pin_memory


def test_the_thread_prefetches_all_batches_of_a_step_for_a_gpu() -> None:
    assert settings_for("cpu", 8, 32).prefetch_batches == 0
    assert settings_for("cuda", 8, 32, gradient_accumulation_steps=40).prefetch_batches == 40
    assert settings_for("cuda", 8, 32, prefetch_factor=4).prefetch_batches == 4
    assert settings_for("cuda", 8, 32, num_workers=3, prefetch_factor=4).prefetch_batches == 12


# --- the thread ------------------------------------------------------------------------------------


def threads() -> int:
    return sum(thread.name == "batches" for thread in threading.enumerate())


@pytest.mark.parametrize("depth", [1, 3, 50])
def test_items_are_yielded_in_order(depth: int) -> None:
    iterator = PrefetchIterator(iter(range(20)), depth)
    assert list(iterator) == list(range(20))
    assert list(iterator) == []
    iterator.close()


def test_the_thread_loads_at_most_depth_items_ahead() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    iterator = PrefetchIterator(source(), 5)
    time.sleep(0.1)
    assert len(made) == 6  # five in the queue, and one that the thread holds
    assert next(iterator) == 0
    iterator.close()


def test_an_exception_is_raised_in_place_of_the_item() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    iterator = PrefetchIterator(source(), 4)
    assert next(iterator) == 1
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            next(iterator)
    iterator.close()


def test_close_ends_a_busy_thread_and_the_iteration() -> None:
    def slow() -> Iterator[int]:
        while True:
            time.sleep(0.02)
            yield 0

    before = threads()
    iterator = PrefetchIterator(slow(), 2)
    next(iterator)
    iterator.close()
    assert threads() == before
    assert next(iterator, None) is None


def test_on_start_runs_in_the_thread_before_the_first_item() -> None:
    seen: list[str] = []

    def source() -> Iterator[int]:
        seen.append("source")
        yield 1

    iterator = PrefetchIterator(source(), 1, lambda: seen.append(threading.current_thread().name))
    assert list(iterator) == [1]
    assert seen == ["batches", "source"]
    iterator.close()
