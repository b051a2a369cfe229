"""List of runs on disk, and reading their events."""

from __future__ import annotations

import gc
import json
import os
import time
from pathlib import Path

import psutil
import pytest

from app.core.history import run_list
from app.core.history.run_list import RunList
from tests.events import hello
from trainer_core import protocol
from trainer_core.runs import run_dir


def make_run(root: Path, name: str, started: float, *events: protocol.AnyEvent) -> Path:
    path = root / name
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(f"preset: {name}\ndata: [数据.txt]\n", encoding="utf-8")
    (path / "events.jsonl").write_bytes(b"".join(map(protocol.encode, (hello(started), *events))))
    return path


def read_events(path: Path) -> list[protocol.AnyEvent]:
    return [event for events, _ in run_list.read_events(path) for event in events]


def lock(path: Path) -> None:
    """Lock a run as if this process trained it."""
    started = psutil.Process().create_time()
    (path / "run.lock").write_text(json.dumps({"pid": os.getpid(), "started": started}), encoding="utf-8")


def phase(step: int) -> protocol.Phase:
    return protocol.Phase(t=float(step), phase="training", step=step)


@pytest.fixture
def read_runs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths of the runs whose files were read."""
    paths: list[Path] = []
    summarize = run_dir.summarize
    monkeypatch.setattr(run_dir, "summarize", lambda run: (paths.append(run.path), summarize(run))[1])
    return paths


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    for name, started in (("a", 100.0), ("b", 300.0), ("c", 200.0)):
        make_run(tmp_path, name, started)
    (tmp_path / "no run").mkdir()
    assert [run.name for run in RunList(tmp_path).refresh()] == ["b", "c", "a"]


def test_a_missing_folder_has_no_runs(tmp_path: Path) -> None:
    assert RunList(tmp_path / "none").refresh() == []


@pytest.mark.skipif(os.name == "nt", reason="creating links needs a privilege")
def test_a_folder_that_cannot_be_read_does_not_hide_other_runs(tmp_path: Path) -> None:
    unreadable = tmp_path / "lost+found"
    unreadable.symlink_to("a" * 300)  # raises OSError when it is read, for root too
    make_run(tmp_path, "a", 1.0)
    assert [run.name for run in RunList(tmp_path).refresh()] == ["a"]
    assert [run.name for run in run_dir.list_runs(tmp_path)] == ["a"]
    assert RunList(tmp_path).get(unreadable) is None


def test_an_unchanged_run_is_not_read_again(tmp_path: Path, read_runs: list[Path]) -> None:
    first, second = make_run(tmp_path, "a", 1.0), make_run(tmp_path, "b", 2.0)
    history = RunList(tmp_path)
    history.refresh()
    history.refresh()
    assert sorted(read_runs) == [first, second]
    with (second / "events.jsonl").open("ab") as file:
        file.write(protocol.encode(protocol.Done(t=9.0, reason="finished", steps=1, total_steps=1)))
    assert {run.name: run.state for run in history.refresh()} == {"a": "interrupted", "b": "finished"}
    assert read_runs[2:] == [second]


def test_a_run_is_running_only_while_its_process_exists(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", 1.0)
    history = RunList(tmp_path)
    assert history.refresh()[0].state == "interrupted"
    lock(path)
    assert history.refresh()[0].state == "running"
    (path / "run.lock").write_text(json.dumps({"pid": os.getpid(), "started": 5.0}), encoding="utf-8")
    assert history.refresh()[0].state == "interrupted"


def test_a_deleted_run_is_removed_from_the_list(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", 1.0)
    history = RunList(tmp_path)
    assert len(history.refresh()) == 1
    (path / "config.yaml").unlink()
    assert history.refresh() == []
    assert history.get(path) is None


def test_a_refresh_reads_one_run_per_iteration(tmp_path: Path, read_runs: list[Path]) -> None:
    for number in range(3):
        make_run(tmp_path, f"r{number}", float(number))
    slices = RunList(tmp_path).iter_refresh()
    for count in (1, 2, 3):
        next(slices)
        assert len(read_runs) == count


def test_events_are_read_in_order_and_damaged_lines_are_skipped(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", 1.0, *map(phase, range(1, 50)))
    with (path / "events.jsonl").open("ab") as file:
        file.write(b"\xff\xfe garbage\n\n" + protocol.encode(phase(50)) + b'{"type":"phase","pha')
    steps = [event.step for event in read_events(path) if isinstance(event, protocol.Phase)]
    assert steps == list(range(1, 51))


def test_the_last_event_needs_no_newline(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", 1.0)
    with (path / "events.jsonl").open("ab") as file:
        file.write(protocol.encode(phase(1)).rstrip())
    assert len(read_events(path)) == 2


def test_a_run_without_an_events_file_has_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path) == []


def test_events_are_read_completely_for_any_chunk_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run(tmp_path, "a", 1.0, *map(phase, range(1, 30)))
    for size in (1, 7, 100):
        monkeypatch.setattr(run_list, "_CHUNK_LINES", size)
        assert len(read_events(path)) == 30


def test_a_line_longer_than_any_event_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "_MAX_LINE_BYTES", 5000)
    path = make_run(tmp_path, "a", 1.0)
    with (path / "events.jsonl").open("ab") as file:
        file.write(b"x" * 100_000 + b"\n" + protocol.encode(phase(1)))
    assert [type(event) for event in read_events(path)] == [protocol.Hello, protocol.Phase]


def test_a_long_run_is_read_in_short_slices(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", 1.0)
    line = protocol.encode(phase(1))
    (path / "events.jsonl").write_bytes(line * 300_000)
    slices, durations, events, fraction = run_list.read_events(path), [0.0], 0, 0.0
    gc.collect()
    gc.freeze()  # exclude the objects of earlier tests from garbage collection
    before = time.thread_time()
    for batch, fraction in slices:  # noqa: B007 - the last one
        events += len(batch)
        durations.append(time.thread_time() - before)
        before = time.thread_time()
    gc.unfreeze()
    assert (events, fraction) == (300_000, 1.0)
    assert sorted(durations)[-2] < 0.1  # one may be longer on a busy machine
