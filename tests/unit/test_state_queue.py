"""The queue as data: its order, its file, and what a damaged one leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.core.queue import QueueItem, RunQueue, new_item, unique_name
from trainer_core.messages import TraindeckError
from trainer_core.runs import file_locks


@pytest.fixture
def queue(tmp_path: Path) -> RunQueue:
    """Four items: a, b, c, d."""
    queue = RunQueue(tmp_path / "设置 folder" / "queue.json")
    queue.open()
    queue.add(new_item(name, "quickstart", {"learning_rate": 1e-3}, ["D:/数据/a b.txt"]) for name in "abcd")
    return queue


def names(queue: RunQueue) -> str:
    return "".join(item.name for item in queue.items)


def ids(queue: RunQueue, wanted: str) -> list[str]:
    return [item.id for item in queue.items if item.name in wanted]


def again(queue: RunQueue) -> RunQueue:
    """The queue as another start of the program finds it."""
    queue.close()
    found = RunQueue(queue.path)
    found.open()
    return found


def test_it_comes_back_as_it_was_with_its_order_and_its_policy(queue: RunQueue) -> None:
    queue.after_failure = "hold"
    queue.move(ids(queue, "d"), -1)
    found = again(queue)
    assert names(found) == "abdc"
    assert found.after_failure == "hold"
    assert found.items == queue.items


def test_an_item_that_was_being_trained_comes_back_as_interrupted(queue: RunQueue) -> None:
    queue.items[0].state, queue.items[0].run_dir = "running", "runs/a"
    queue.items[0].has_checkpoint = True
    queue.items[1].state = "done"
    queue.save()
    found = again(queue)
    assert [item.state for item in found.items] == ["interrupted", "done", "waiting", "waiting"]
    assert found.items[0].can_resume


@pytest.mark.parametrize(
    ("chosen", "by", "order"),
    [
        ("b", -1, "bacd"),
        ("a", -1, "abcd"),
        ("d", 1, "abcd"),
        ("bc", -1, "bcad"),
        ("ab", -1, "abcd"),
        ("bc", 1, "adbc"),
        ("bd", -1, "badc"),
        ("ac", -1, "acbd"),
    ],
)
def test_items_move_one_place_and_stop_at_the_ends(queue: RunQueue, chosen: str, by: int, order: str) -> None:
    queue.move(ids(queue, chosen), by)
    assert names(queue) == order


@pytest.mark.parametrize(
    ("chosen", "before", "order"),
    [("a", 4, "bcda"), ("d", 0, "dabc"), ("ad", 2, "badc"), ("bc", 2, "abcd"), ("abcd", 1, "abcd")],
)
def test_items_are_put_where_they_are_dropped(queue: RunQueue, chosen: str, before: int, order: str) -> None:
    queue.move_before(ids(queue, chosen), before)
    assert names(queue) == order


def test_what_was_removed_can_be_put_back_where_it_stood(queue: RunQueue) -> None:
    queue.remove(ids(queue, "bd"))
    queue.remove(ids(queue, "a"))
    assert names(queue) == "c"
    assert queue.can_undo
    queue.undo()
    queue.undo()
    assert names(queue) == "abcd"
    assert not queue.can_undo
    queue.undo()
    assert names(queue) == "abcd"


def test_the_one_that_is_being_trained_is_not_removed(queue: RunQueue) -> None:
    queue.items[1].state = "running"
    queue.remove(ids(queue, "abcd"))
    assert names(queue) == "b"


def test_only_finished_ones_are_cleared(queue: RunQueue) -> None:
    queue.items[0].state, queue.items[1].state, queue.items[2].state = "done", "failed", "stopped"
    queue.clear_finished()
    assert names(queue) == "bcd"


def test_a_duplicate_stands_behind_its_original_under_a_name_of_its_own(queue: RunQueue) -> None:
    queue.items[0].state = "done"
    copies = queue.duplicate(ids(queue, "a"), {"a-2"})
    assert [item.name for item in queue.items] == ["a", "a-3", "b", "c", "d"]
    assert copies[0].state == "waiting"
    assert copies[0].changes == queue.items[0].changes
    assert copies[0].changes is not queue.items[0].changes


def test_what_is_put_back_in_line_begins_anew_and_leaves_its_run_alone(queue: RunQueue) -> None:
    item = queue.items[0]
    item.state, item.run_dir, item.error, item.exit_code = "failed", "runs/a", "data.not_found", 4
    queue.requeue([item.id, queue.items[1].id], {"a"})
    fresh = queue.items[0]
    assert (fresh.name, fresh.state, fresh.run_dir, fresh.error, fresh.exit_code) == ("a-2", "waiting", "", "", None)
    assert queue.items[1].name == "b"


def test_names_are_folder_names_that_nobody_has() -> None:
    assert unique_name("a:b", {"a-b"}) == "a-b-2"
    assert unique_name("  ", set()) == "run"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"items": 3}', b"\xff\xfe\x00", b"[" * 100_000])
def test_a_file_that_is_no_queue_is_put_aside_as_it_was(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "queue.json"
    path.write_bytes(content)
    queue = RunQueue(path)
    queue.open()
    assert queue.items == []
    queue.add([new_item("new", "quickstart", {}, [])])
    assert queue.damaged_backup is not None
    assert queue.damaged_backup.read_bytes() == content
    assert names(again(queue)) == "new"


def test_of_a_file_with_a_damaged_item_the_others_are_kept_and_the_file_too(queue: RunQueue) -> None:
    queue.close()
    content = json.loads(queue.path.read_text(encoding="utf-8"))
    content["items"][1]["data"] = 17
    content["items"][2]["id"] = content["items"][0]["id"]
    queue.path.write_text(json.dumps(content), encoding="utf-8")
    found = again(queue)
    assert names(found) == "acd"
    assert len({item.id for item in found.items}) == 3
    assert found.damaged_backup is not None
    assert json.loads(found.damaged_backup.read_text(encoding="utf-8")) == content


def test_a_file_of_a_later_traindeck_is_kept_beside_ours(queue: RunQueue) -> None:
    queue.close()
    content = json.loads(queue.path.read_text(encoding="utf-8")) | {"version": 9, "nights_only": True}
    queue.path.write_text(json.dumps(content), encoding="utf-8")
    found = again(queue)
    assert names(found) == "abcd"
    assert found.damaged_backup is not None


def test_another_window_does_not_get_it_until_this_one_has_let_go(queue: RunQueue) -> None:
    other = RunQueue(queue.path)
    with pytest.raises(file_locks.LockHeldError) as refused:
        other.open()
    assert refused.value.pid == os.getpid()
    queue.close()
    other.open()
    assert names(other) == "abcd"


def test_a_disk_that_takes_nothing_is_told_and_nothing_is_lost(queue: RunQueue, tmp_path: Path) -> None:
    before = queue.path.read_bytes()
    queue.path.unlink()
    queue.path.mkdir()  # a name that no file can have now
    with pytest.raises(TraindeckError) as refused:
        queue.add([new_item("e", "quickstart", {}, [])])
    assert refused.value.code == "disk.not_writable"
    assert names(queue) == "abcde"
    queue.path.rmdir()
    queue.save()
    assert len(queue.path.read_bytes()) > len(before)


def test_a_file_that_cannot_be_read_is_told_and_nobody_is_kept_out(queue: RunQueue) -> None:
    queue.close()
    content = queue.path.read_bytes()
    queue.path.unlink()
    queue.path.mkdir()  # what nobody can read
    found = RunQueue(queue.path)
    with pytest.raises(TraindeckError) as refused:
        found.open()
    assert refused.value.code == "data.unreadable"
    assert refused.value.params["path"] == str(queue.path)
    assert not queue.path.with_suffix(".lock").exists()
    queue.path.rmdir()
    queue.path.write_bytes(content)
    found.open()
    assert names(found) == "abcd"
    with pytest.raises(file_locks.LockHeldError):
        queue.open()


def test_an_item_is_found_by_the_folder_of_its_run(queue: RunQueue, tmp_path: Path) -> None:
    queue.items[2].run_dir = str(tmp_path / "runs" / "c")
    found = queue.find_by_run_dir(tmp_path / "runs" / "c")
    assert isinstance(found, QueueItem)
    assert found.name == "c"
    assert queue.find_by_run_dir(tmp_path / "runs") is None
