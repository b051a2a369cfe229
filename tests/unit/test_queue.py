"""Run queue: order, undo, saving, and damaged files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.core.queue import QueueItem, RunQueue, new_item
from app.core.settings import RemoteMachine
from trainer_core.messages import TraindeckError
from trainer_core.runs import file_locks
from trainer_core.runs.run_dir import unique_name


@pytest.fixture
def queue(tmp_path: Path) -> RunQueue:
    """Four items: a, b, c, d."""
    queue = RunQueue(tmp_path / "设置 folder" / "queue.json")
    queue.open()
    queue.add(new_item(name, "quickstart", {"learning_rate": 1e-3}, ["D:/数据/a b.txt"]) for name in "abcd")
    return queue


def names(queue: RunQueue) -> str:
    return "".join(item.name for item in queue.items)


def ids(queue: RunQueue, letters: str) -> list[str]:
    return [item.id for item in queue.items if item.name in letters]


def reopen(queue: RunQueue) -> RunQueue:
    """Open the file again, as after a restart of the program."""
    queue.close()
    reopened = RunQueue(queue.path)
    reopened.open()
    return reopened


def test_order_and_failure_policy_are_restored(queue: RunQueue) -> None:
    queue.after_failure = "hold"
    queue.move(ids(queue, "d"), -1)
    reopened = reopen(queue)
    assert names(reopened) == "abdc"
    assert reopened.after_failure == "hold"
    assert reopened.items == queue.items


def test_an_item_its_copies_and_a_requeued_one_keep_their_machine(queue: RunQueue) -> None:
    machine = RemoteMachine("gpu-box", "~/训练")
    queue.items = [new_item("a", "quickstart", {}, [], machine)]
    queue.duplicate({queue.items[0].id}, set())
    queue.items[0].state = "done"
    queue.requeue({queue.items[0].id}, set())
    assert [item.machine for item in reopen(queue).items] == [machine, machine]


def test_a_running_item_is_interrupted_after_a_restart(queue: RunQueue) -> None:
    queue.items[0].state, queue.items[0].run_dir = "running", "runs/a"
    queue.items[0].has_checkpoint = True
    queue.items[1].state = "done"
    queue.save()
    reopened = reopen(queue)
    assert [item.state for item in reopened.items] == ["interrupted", "done", "waiting", "waiting"]
    assert reopened.items[0].can_resume


def test_items_move_one_row_as_a_block_and_stop_at_the_ends(queue: RunQueue) -> None:
    start = list(queue.items)
    for selected, offset, order in (
        ("b", -1, "bacd"), ("a", -1, "abcd"), ("d", 1, "abcd"), ("bc", -1, "bcad"), ("ab", -1, "abcd"),
        ("bc", 1, "adbc"), ("bd", -1, "bdac"), ("ac", -1, "acbd"), ("ac", 1, "bdac"),
    ):  # fmt: skip
        queue.items = list(start)
        queue.move(ids(queue, selected), offset)
        assert names(queue) == order, (selected, offset)


def test_dropped_items_move_in_front_of_a_row(queue: RunQueue) -> None:
    start = list(queue.items)
    for selected, row, order in (("a", 4, "bcda"), ("d", 0, "dabc"), ("ad", 2, "badc"), ("bc", 2, "abcd")):
        queue.items = list(start)
        queue.move_before(ids(queue, selected), row)
        assert names(queue) == order, (selected, row)


def test_undo_restores_removed_items_at_their_place(queue: RunQueue) -> None:
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


def test_a_running_item_is_not_removed(queue: RunQueue) -> None:
    queue.items[1].state = "running"
    queue.remove(ids(queue, "abcd"))
    assert names(queue) == "b"


def test_clear_removes_only_finished_items(queue: RunQueue) -> None:
    queue.items[0].state, queue.items[1].state, queue.items[2].state = "done", "failed", "stopped"
    queue.clear_finished()
    assert names(queue) == "bcd"


def test_a_duplicate_follows_its_original_with_a_new_name(queue: RunQueue) -> None:
    queue.items[0].state = "done"
    copies = queue.duplicate(ids(queue, "a"), {"a-2"})
    assert [item.name for item in queue.items] == ["a", "a-3", "b", "c", "d"]
    assert copies[0].state == "waiting"
    assert copies[0].changes == queue.items[0].changes
    assert copies[0].changes is not queue.items[0].changes


def test_a_requeued_item_is_a_new_run(queue: RunQueue) -> None:
    item = queue.items[0]
    item.state, item.run_dir, item.error, item.exit_code = "failed", "runs/a", "data.not_found", 4
    queue.requeue([item.id, queue.items[1].id], {"a"})
    fresh = queue.items[0]
    assert (fresh.name, fresh.state, fresh.run_dir, fresh.error, fresh.exit_code) == ("a-2", "waiting", "", "", None)
    assert queue.items[1].name == "b"


def test_unique_names_are_valid_folder_names() -> None:
    assert unique_name("a:b", {"a-b"}) == "a-b-2"
    assert unique_name("  ", set()) == "run"


def test_a_file_that_is_not_a_queue_is_backed_up(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"{", b"[1]", b'{"items": 3}', b"\xff\xfe\x00", b"[" * 100_000)):
        path = tmp_path / f"queue {number}.json"
        path.write_bytes(content)
        queue = RunQueue(path)
        queue.open()
        assert queue.items == []
        queue.add([new_item("new", "quickstart", {}, [])])
        assert queue.damaged_backup is not None
        assert queue.damaged_backup.read_bytes() == content
        assert names(reopen(queue)) == "new"


def test_a_file_with_a_damaged_item_or_of_a_later_version_is_backed_up(queue: RunQueue) -> None:
    queue.close()
    content = json.loads(queue.path.read_text(encoding="utf-8"))
    damaged = {**content, "items": [*content["items"][:3], {**content["items"][3], "data": 17}]}
    for changed in (damaged, {**content, "version": 9}, {**content, "later_key": True}):
        queue.path.write_text(json.dumps(changed), encoding="utf-8")
        reopened = reopen(queue)
        reopened.close()
        assert names(reopened) == ""
        assert reopened.damaged_backup is not None
        assert json.loads(reopened.damaged_backup.read_text(encoding="utf-8")) == changed


def test_another_window_cannot_open_the_queue_before_it_is_closed(queue: RunQueue) -> None:
    other = RunQueue(queue.path)
    with pytest.raises(file_locks.LockHeldError) as caught:
        other.open()
    assert caught.value.pid == os.getpid()
    queue.close()
    other.open()
    assert names(other) == "abcd"


def test_a_failed_save_raises_and_keeps_the_items(queue: RunQueue, tmp_path: Path) -> None:
    before = queue.path.read_bytes()
    queue.path.unlink()
    queue.path.mkdir()  # cannot be replaced by a file
    with pytest.raises(TraindeckError) as caught:
        queue.add([new_item("e", "quickstart", {}, [])])
    assert caught.value.code == "disk.not_writable"
    assert names(queue) == "abcde"
    queue.path.rmdir()
    queue.save()
    assert len(queue.path.read_bytes()) > len(before)


def test_an_unreadable_file_raises_and_leaves_no_lock(queue: RunQueue) -> None:
    queue.close()
    content = queue.path.read_bytes()
    queue.path.unlink()
    queue.path.mkdir()  # cannot be read as a file
    reopened = RunQueue(queue.path)
    with pytest.raises(TraindeckError) as caught:
        reopened.open()
    assert caught.value.code == "data.unreadable"
    assert caught.value.params["path"] == str(queue.path)
    assert not queue.path.with_suffix(".lock").exists()
    queue.path.rmdir()
    queue.path.write_bytes(content)
    reopened.open()
    assert names(reopened) == "abcd"
    with pytest.raises(file_locks.LockHeldError):
        queue.open()


def test_an_item_is_found_by_its_run_folder(queue: RunQueue, tmp_path: Path) -> None:
    queue.items[2].run_dir = str(tmp_path / "runs" / "c")
    found = queue.find_by_run_dir(tmp_path / "runs" / "c")
    assert isinstance(found, QueueItem)
    assert found.name == "c"
    assert queue.find_by_run_dir(tmp_path / "runs") is None
