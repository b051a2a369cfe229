"""How batches get ready before they are needed: the choice of processes or a thread, and the thread.

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
_MAX_CACHED_FRACTION: Final = 0.5  # a cache of at most this share of the memory stays in it once it was read


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """How batches are loaded, and why: `reason` is a short code, shown with the numbers.

    set: as configured. low_memory: spared on purpose or under 15 GB of RAM. cpu: the cores compute, and a
    memory-mapped cache needs no help. gpu: a thread keeps batches ready; taking one from a process costs the
    trainer more time than making it (0.7 ms against 0.2 for 12 windows of 1024). disk: the
    data is too large to stay in memory, so processes wait for the disk side by side.
    """

    num_workers: int  # processes
    prefetch_batches: int  # batches that are kept ready, by all processes together or by a thread; 0: none
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
    """Loader processes, batches ahead and pinning for this machine (or for the one described)."""
    cores = cores or usable_threads()
    memory = memory_bytes or system_memory().total
    workers, reason = _choose_num_workers(config, device_type, data_bytes, cores, memory, platform)
    ahead = workers * config.prefetch_factor
    if not workers and device_type != "cpu":  # a step takes all its micro-batches at once
        ahead = max(config.prefetch_factor, config.gradient_accumulation_steps)
    pin = config.pin_memory and not config.low_memory and device_type == "cuda" and memory >= _LOW_MEMORY_BYTES
    return LoaderSettings(workers, ahead, pin, reason)


def _choose_num_workers(
    config: Config, device_type: str, data_bytes: int, cores: int, memory: int, platform: str
) -> tuple[int, Reason]:
    if config.low_memory:
        return 0, "low_memory"
    if config.num_workers >= 0:  # what a person set counts, whatever the machine
        return min(config.num_workers, cores, _MAX_WORKERS), "set"
    if memory < _LOW_MEMORY_BYTES:
        return 0, "low_memory"
    if device_type == "cpu":
        return 0, "cpu"
    if data_bytes <= memory * _MAX_CACHED_FRACTION:
        return 0, "gpu"
    # Where a process is started anew (spawn) each takes seconds and hundreds of megabytes.
    return min(cores // 2, 1 if platform in ("win32", "darwin") else 4), "disk"


class PrefetchIterator(Generic[T]):
    """An iterator whose next items a thread takes from `source` before they are asked for.

    Only that thread touches `source`. What `source` raises is raised where the item would have come.
    """

    def __init__(self, source: Iterator[T], depth: int, on_start: Callable[[], None] = lambda: None) -> None:
        """Keep up to `depth` items ready. `begin` runs in the thread before anything else."""
        self._items: queue.Queue[T | BaseException] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(source, on_start), name="batches", daemon=True)
        self._thread.start()

    def _fill(self, source: Iterator[T], begin: Callable[[], None]) -> None:
        try:
            begin()
            for item in source:
                self._items.put(item)
                if self._closed.is_set():
                    return
            self._items.put(StopIteration())
        except Exception as error:  # noqa: BLE001 - whoever takes from here gets it
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
        """End the thread: it touches `source` no more. Who still asks for an item finds the end."""
        self._closed.set()
        while self._thread.is_alive():
            self._drain()  # makes room for what the thread is about to put
            self._thread.join(0.005)
        self._drain()
        self._items.put(StopIteration())

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()
