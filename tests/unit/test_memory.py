"""System memory, limited by the control groups of a container."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from trainer_core.system import memory

MIB = 2**20


def write_group(folder: Path, limit: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    stat = {"inactive_file": cached // 4, "active_file": cached - cached // 4}
    (folder / "memory.stat").write_text("".join(f"{name} {size}\n" for name, size in stat.items()))


def test_the_lowest_limit_of_the_enclosing_groups_applies(tmp_path: Path) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "sys"
    groups.write_text("3:cpuset:/elsewhere\n0::/outer/inner\n")
    write_group(root / "outer", str(900 * MIB), 500 * MIB, 100 * MIB)
    write_group(root / "outer" / "inner", "max", 400 * MIB, 0)
    assert min(memory.cgroup_limits(groups, root)) == (900 * MIB, 400 * MIB), "file caches count as free"


def test_a_group_that_is_not_visible_inside_a_container_is_read_from_the_root(tmp_path: Path) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "sys"
    groups.write_text("0::/system.slice/docker-1234.scope\n")
    write_group(root, str(512 * MIB), 12 * MIB, 0)
    assert list(memory.cgroup_limits(groups, root)) == [(512 * MIB, 12 * MIB)]


def test_system_memory_respects_the_group_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, root = tmp_path / "cgroup", tmp_path / "sys"
    groups.write_text("0::/\n")
    write_group(root, str(64 * MIB), 60 * MIB, 0)
    monkeypatch.setattr(memory, "_CGROUP_FILE", groups)
    monkeypatch.setattr(memory, "_CGROUP_ROOT", root)
    monkeypatch.setattr(sys, "platform", "linux")
    assert memory.system_memory() == (64 * MIB, 4 * MIB)


def test_system_memory_without_groups_is_that_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CGROUP_FILE", tmp_path / "none")
    system = memory.system_memory()
    assert system.total == psutil.virtual_memory().total
    assert 0 < system.available < system.total
