"""Events that a pipe kept back, read from disk: all of them, rarely, and not twice."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from app.state.following import Follower
from trainer_core import protocol
from trainer_core.runs.run_dir import RunDir


def lines(numbers: Iterable[int]) -> bytes:
    return b"".join(protocol.encode(protocol.Progress(seq=seq, phase="training", done=seq)) for seq in numbers)


class Counting(Follower):
    """Knows how often the file was looked at, and how often it was opened."""

    looks = opened = 0

    def _size(self) -> int:
        self.looks += 1
        return super()._size()

    def _piece(self, place: int) -> bytes:
        self.opened += 1
        return super()._piece(place)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "我的 run")
    made.create()
    made.events.write_bytes(lines(range(1, 10)))  # of an earlier process
    return made


def append(run: RunDir, text: bytes) -> None:
    with run.events.open("ab") as file:
        file.write(text)


def seen(follower: Follower, last_seq: int, now: float, heard: float = 0.0) -> list[int]:
    return [event.seq for event in follower.look(last_seq, now, heard)]


def test_what_comes_on_disk_is_found_and_earlier_processes_are_not(run: RunDir) -> None:
    follower = Follower(run.path)
    assert seen(follower, 2, 10.0) == []
    append(run, lines(range(1, 6)))
    assert seen(follower, 2, 20.0) == [3, 4, 5]
    assert seen(follower, 5, 30.0) == []


def test_in_a_long_pause_it_looks_every_few_seconds_and_opens_nothing(run: RunDir) -> None:
    follower = Counting(run.path)
    append(run, lines([1, 2, 3]))
    seen(follower, 3, 0.0)
    looks, opened = follower.looks, follower.opened
    for tick in range(1, 8 * 600):  # ten minutes
        assert seen(follower, 3, tick / 8) == []
    assert follower.looks - looks < 130
    assert follower.opened == opened


def test_after_a_long_pause_it_looks_often_again_once_something_comes(run: RunDir) -> None:
    follower = Counting(run.path)
    for tick in range(8 * 60):
        seen(follower, 0, tick / 8)
    append(run, lines([1]))
    assert seen(follower, 0, 66.0) == [1]
    append(run, lines([2]))
    assert seen(follower, 1, 66.5) == [2]


def test_once_the_pipe_has_spoken_it_does_not_wait_for_its_turn(run: RunDir) -> None:
    follower = Follower(run.path)
    for tick in range(8 * 60):
        seen(follower, 0, tick / 8)
    append(run, lines([1, 2]))
    assert seen(follower, 1, 60.0, heard=59.9) == [2]


def test_what_the_pipe_brought_is_not_read_again(run: RunDir) -> None:
    follower = Counting(run.path)
    append(run, lines(range(1, 40_001)))
    assert run.events.stat().st_size > 4_000_000
    assert seen(follower, 39_990, 5.0, heard=1.0) == list(range(39_991, 40_001))
    assert follower.opened <= 3


def test_a_long_silence_before_the_end_is_made_up_for(run: RunDir) -> None:
    follower = Follower(run.path)
    append(run, lines(range(1, 40_001)))
    assert [event.seq for event in follower.rest(100)] == list(range(101, 40_001))


def test_half_a_line_waits_for_its_other_half(run: RunDir) -> None:
    follower = Follower(run.path)
    text = lines([1, 2])
    append(run, text[:-9])
    assert seen(follower, 0, 1.0) == [1]
    append(run, text[-9:])
    assert seen(follower, 1, 2.0) == [2]
