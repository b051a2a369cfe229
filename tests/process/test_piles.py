"""A trainer that says more than can be taken in one by one: what piles up is the same run all the same."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.opening import RunRecord
from app.own_run import OwnRun
from app.services.trainer_process import MANY, TrainerProcess
from app.state.run_machine import RunState
from tests.gui import demo_run
from tests.unit.test_state_digest import assert_same
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.protocol import AnyEvent

PRINTING = "import shutil, sys; shutil.copyfileobj(open(sys.argv[1], 'rb'), sys.stdout.buffer)"


def events() -> list[AnyEvent]:
    """A run whose losses are not all numbers, and which stands still for a moment in between."""
    found = list(demo_run.events(Config(batch_size=4), steps=3000, every=1, gpu=True, done=True, began=1e9))
    steps = [event for event in found if isinstance(event, protocol.Step)]
    steps[1500].loss = steps[1501].loss = steps[-3].loss = None
    found.insert(2000, protocol.Phase(t=found[2000].t, phase="paused", step=1))
    found.insert(2001, protocol.Phase(t=found[2000].t, phase="training", step=1))
    found.insert(2500, protocol.Warn(t=found[2500].t, code="disk.waiting", params={"path": "D:", "needed_mib": 2}))
    for seq, event in enumerate(found, 1):
        event.seq = seq
    return found


def printed(found: list[AnyEvent]) -> list[bytes]:
    """As lines, with a few that are no events."""
    lines = [protocol.encode(event) for event in found]
    for place, text in ((1000, "警告\n"), (1001, '{"type":"step","seq":1}\n'), (3333, "[1,2]\n")):
        lines.insert(place, text.encode())
    return lines


def one_by_one(found: list[AnyEvent]) -> RunRecord:
    record = RunRecord()
    for event in found:
        record.add(protocol.decode_event(protocol.encode(event)))
    return record


class Listener:
    """What a run says of itself."""

    def __init__(self, own: OwnRun) -> None:
        self.own = own
        self.told: list[AnyEvent] = []
        self.output: list[str] = []
        self.states: list[RunState] = []
        own.told.connect(self.told.append)
        own.process.output.connect(self.output.append)
        own.changed.connect(lambda: self.states.append(own.machine.state))

    def assert_heard(self, found: list[AnyEvent]) -> None:
        """All that was no measurement, and each loss that is no number, in order; and the same curves."""
        record = self.own.record
        whole = one_by_one(found)
        record.log = whole.log  # the other one has what was printed, too
        assert_same(record, whole)
        measured = (protocol.Step, protocol.Hardware, protocol.Progress, protocol.Performance)
        wanted = [e for e in found if not isinstance(e, measured) or (isinstance(e, protocol.Step) and e.loss is None)]
        assert [e.seq for e in self.told if not isinstance(e, protocol.Performance)] == [e.seq for e in wanted]
        assert self.output == ["警告", '{"type":"step","seq":1}', "[1,2]"]
        assert RunState.PAUSED in self.states
        last = [event for event in found if isinstance(event, protocol.Step)][-1]
        assert (self.own.machine.step, self.own.machine.epoch) == (last.step, last.epoch)


@pytest.mark.parametrize("at_once", [1, MANY - 1, MANY, 1000, 100_000])
def test_lines_that_pile_up_are_the_same_run_however_many_come_at_once(
    qtbot: QtBot, tmp_path: Path, at_once: int
) -> None:
    own = OwnRun(TrainerProcess(command=[sys.executable, "-c", "input()"]))
    listener = Listener(own)
    own.start([], tmp_path)
    found = events()
    lines = printed(found)
    for begin in range(0, len(lines), at_once):
        own.process._out.feed(b"".join(lines[begin : begin + at_once]))
        own.process._handle_lines(float("inf"))
    listener.assert_heard(found)
    own.process.kill()
    qtbot.waitUntil(lambda: not own.process.is_running)


def test_a_trainer_that_prints_thousands_of_events_at_once_is_heard_whole(qtbot: QtBot, tmp_path: Path) -> None:
    found = events()
    (tmp_path / "said").write_bytes(b"".join(printed(found)))
    own = OwnRun(TrainerProcess(command=[sys.executable, "-c", PRINTING, str(tmp_path / "said")]))
    listener = Listener(own)
    own.start([], tmp_path)
    qtbot.waitUntil(lambda: not own.process.is_running, timeout=30_000)
    assert own.machine.state is RunState.FINISHED
    listener.assert_heard(found)


def test_what_came_from_the_disk_already_is_not_taken_again_from_the_pipe(qtbot: QtBot, tmp_path: Path) -> None:
    own = OwnRun(TrainerProcess(command=[sys.executable, "-c", "input()"]))
    listener = Listener(own)
    own.start([], tmp_path)
    found = events()
    lines = [protocol.encode(event) for event in found]
    known = random.Random(5).randrange(2 * MANY, 2000)
    for event in found[:known]:
        own.take(protocol.decode_event(protocol.encode(event)))
    for piece in (lines[:-500], lines[-1500:-500], lines):
        own.process._out.feed(b"".join(piece))
        own.process._handle_lines(float("inf"))
    listener.output = ["警告", '{"type":"step","seq":1}', "[1,2]"]
    listener.assert_heard(found)
    own.process.kill()
    qtbot.waitUntil(lambda: not own.process.is_running)
