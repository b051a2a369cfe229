"""In a container, memory is what its control group leaves, not what the machine has."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from trainer_core.system import memory

MIB = 2**20


def group(folder: Path, limit: str, used: int, cached: int, version: int) -> None:
    most, taken = {1: ("limit_in_bytes", "usage_in_bytes"), 2: ("max", "current")}[version]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"memory.{most}").write_text(f"{limit}\n")
    (folder / f"memory.{taken}").write_text(f"{used}\n")
    stat = {"inactive_file": cached // 4, "active_file": cached - cached // 4}
    if version == 1:  # which tells the group's own beside those with the groups below it
        stat |= {f"total_{name}": size for name, size in stat.items()}
    (folder / "memory.stat").write_text("".join(f"{name} {size}\n" for name, size in stat.items()))


@pytest.mark.parametrize(("version", "line"), [(1, "4:memory:/outer/inner"), (2, "0::/outer/inner")])
def test_of_the_groups_around_it_the_narrowest_counts(tmp_path: Path, version: int, line: str) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "sys"
    groups.write_text(f"3:cpuset:/elsewhere\n{line}\n")
    top = root / "memory" if version == 1 else root
    group(top / "outer", str(900 * MIB), 500 * MIB, 100 * MIB, version)
    group(top / "outer" / "inner", "9223372036854771712" if version == 1 else "max", 400 * MIB, 0, version)
    found = list(memory.cgroup_limits(groups, root))
    assert min(found) == (900 * MIB, 400 * MIB), "files that can be read again are no need"


def test_a_group_that_cannot_be_seen_from_inside_is_looked_for_at_the_root(tmp_path: Path) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "sys"
    groups.write_text("0::/system.slice/docker-1234.scope\n")
    group(root, str(512 * MIB), 12 * MIB, 0, 2)
    assert list(memory.cgroup_limits(groups, root)) == [(512 * MIB, 12 * MIB)]


def test_what_a_group_leaves_is_all_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "sys"
    groups.write_text("0::/\n")
    group(root, str(64 * MIB), 60 * MIB, 0, 2)
    monkeypatch.setattr(memory, "_CGROUP_FILE", groups)
    monkeypatch.setattr(memory, "_CGROUP_ROOT", root)
    monkeypatch.setattr(sys, "platform", "linux")
    assert memory.system_memory() == (64 * MIB, 4 * MIB)


def test_without_groups_it_is_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUP_FILE", tmp_path / "none")
    found = memory.system_memory()
    assert found.total == psutil.virtual_memory().total
    assert 0 < found.available < found.total
