"""Settings for loading batches, and the prefetching thread.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from trainer_core.config import Config
from trainer_core.system.hardware import usable_threads
from trainer_core.system.memory import system_memory

T = TypeVar("T")
Reason = Literal["set", "low_memory", "cpu", "gpu", "disk"]

_LOW_MEMORY_BYTES: Final = 15e9
_MAX_WORKERS: Final = 16
_MAX_CACHED_FRACTION: Final = 0.5  # of the memory: a smaller token cache stays in memory once read


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """How batches are loaded, and why.

    Reasons: `set`: as configured. `low_memory`: `low_memory`, or less than 15 GB of RAM. `cpu`: training computes on
    all cores, and a memory-mapped cache needs no help. `gpu`: a thread prefetches batches; to receive one from a
    process costs the trainer more time than to build it (0.7 ms against 0.2 for 12 windows of 1024). `disk`: the data
    does not fit in memory, so several processes wait for the disk.
    """

    num_workers: int  # processes
    prefetch_batches: int  # by all processes together, or by a thread; 0: none
    pin_memory: bool
    reason: Reason


def choose_loader_settings(
    config: Config,
    device_type: str,
    data_bytes: int,
    cores: int | None = None,
    memory_bytes: int | None = None,
    platform: str = sys.platform,
) -> LoaderSettings:
    """Choose processes, prefetching and pinning for this machine or the described one."""
    memory = memory_bytes or system_memory().total
    cores = cores or usable_threads()
    workers, reason = _choose_num_workers(config, device_type, data_bytes, cores, memory, platform)
    prefetch = workers * config.prefetch_factor
    if not workers and device_type != "cpu":  # a step takes all its micro-batches at once
        prefetch = max(config.prefetch_factor, config.gradient_accumulation_steps)
    pin = config.pin_memory and not config.low_memory and device_type == "cuda" and memory >= _LOW_MEMORY_BYTES
    return LoaderSettings(workers, prefetch, pin, reason)


def _choose_num_workers(
    config: Config, device_type: str, data_bytes: int, cores: int, memory: int, platform: str
) -> tuple[int, Reason]:
    if config.low_memory:
        return 0, "low_memory"
    if config.num_workers >= 0:
        return min(config.num_workers, cores, _MAX_WORKERS), "set"
    if memory < _LOW_MEMORY_BYTES:
        return 0, "low_memory"
    if device_type == "cpu":
        return 0, "cpu"
    if data_bytes <= memory * _MAX_CACHED_FRACTION:
        return 0, "gpu"
    # Each spawned process takes seconds and hundreds of megabytes.
    return min(cores // 2, 1 if platform in ("win32", "darwin") else 4), "disk"


class PrefetchIterator(Generic[T]):
    """Iterates over `source` in a thread, up to `depth` items ahead.

    Exceptions of `source` are raised in place of the item. `on_start` runs first in the thread.
    """

    def __init__(self, source: Iterator[T], depth: int, on_start: Callable[[], None] = lambda: None) -> None:
        self._items: queue.Queue[T | BaseException] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(source, on_start), name="batches", daemon=True)
        self._thread.start()

    def _fill(self, source: Iterator[T], on_start: Callable[[], None]) -> None:
        try:
            on_start()
            for item in source:
                self._items.put(item)
                if self._closed.is_set():
                    return
            self._items.put(StopIteration())
        except Exception as error:  # noqa: BLE001 - raised by `__next__`
            self._items.put(error)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        item = self._items.get()
        if isinstance(item, BaseException):
            self._items.put(item)  # the next call ends as well
            raise item
        return item

    def close(self) -> None:
        """End the thread and the iteration."""
        self._closed.set()
        while self._thread.is_alive():
            self._drain()  # lets the thread put its last item
            self._thread.join(0.005)
        self._drain()
        self._items.put(StopIteration())

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()
