"""Memory of the machine or of the container (Linux control groups). No torch, no Qt."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psutil

_CGROUP_FILE: Final = Path("/proc/self/cgroup")
_CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
_CGROUP_V1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")  # version 1; includes nested groups
_CGROUP_V2: Final = ("memory.max", "memory.current", "")
_RECLAIMABLE: Final = ("inactive_file", "active_file")  # counted as free, like in the machine's figures


class SystemMemory(NamedTuple):
    """Total and free bytes available to this process."""

    total: int
    available: int


def system_memory() -> SystemMemory:
    """Current memory; about 0.1 ms. Respects container limits, unlike psutil."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    if sys.platform == "linux":
        for limit, used in cgroup_limits(_CGROUP_FILE, _CGROUP_ROOT):
            total, available = min(total, limit), min(available, max(0, limit - used))
    return SystemMemory(total, available)


def cgroup_limits(groups: Path, root: Path) -> Iterator[tuple[int, int]]:
    """Limit and usage of each enclosing control group, without reclaimable caches."""
    with contextlib.suppress(OSError, ValueError):
        for line in groups.read_text(encoding="ascii", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            top, names = (root / "memory", _CGROUP_V1) if controllers else (root, _CGROUP_V2)
            folder = top / path.lstrip("/")  # inside a container the root may be its own group
            for group in (folder, *folder.parents):
                yield from _read_limit(group, *names)
                if group == top:
                    break


def _read_limit(group: Path, limit_file: str, usage_file: str, prefix: str) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError, ValueError):  # missing, or `max`
        limit, used = int((group / limit_file).read_text()), int((group / usage_file).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        yield limit, used - sum(int(stat.get(prefix + name, 0)) for name in _RECLAIMABLE)
