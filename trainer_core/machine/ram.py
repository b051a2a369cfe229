"""The machine's memory, or what a container or a service may have of it (control groups of Linux). No torch, no Qt."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psutil

_GROUPS: Final = Path("/proc/self/cgroup")
_ROOT: Final = Path("/sys/fs/cgroup")
_OLD: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")  # version 1; with the groups below
_NEW: Final = ("memory.max", "memory.current", "")
_SPARED: Final = ("inactive_file", "active_file")  # the machine's free memory counts both, too


class Ram(NamedTuple):
    """Bytes that this process and its like may have, and that are free."""

    total: int
    available: int


def system_memory() -> Ram:
    """The memory now; about 0.1 ms. psutil tells the machine's, of which a container may have a small part."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    if sys.platform == "linux":
        for limit, used in limits(_GROUPS, _ROOT):
            total, available = min(total, limit), min(available, max(0, limit - used))
    return Ram(total, available)


def limits(groups: Path, root: Path) -> Iterator[tuple[int, int]]:
    """What each group around this process may take, and takes, but for files that the system would let go of."""
    with contextlib.suppress(OSError, ValueError):
        for line in groups.read_text(encoding="ascii", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            top, names = (root / "memory", _OLD) if controllers else (root, _NEW)
            folder = top / path.lstrip("/")  # in a container it may not be there: then the root is its group
            for group in (folder, *folder.parents):
                yield from _limit(group, *names)
                if group == top:
                    break


def _limit(group: Path, most: str, taken: str, prefix: str) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError, ValueError):  # not there, or `max`
        limit, used = int((group / most).read_text()), int((group / taken).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        yield limit, used - sum(int(stat.get(prefix + name, 0)) for name in _SPARED)
