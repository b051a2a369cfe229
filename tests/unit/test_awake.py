"""The computer stays awake while it trains, and may sleep in a pause and afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.kept import Kept
from trainer_core import protocol
from trainer_core.command_reader import CommandReader
from trainer_core.run_context import RunContext
from trainer_core.system.keep_awake import inhibit_sleep, prevent_sleep, suspended_s
from trainer_core.wire import EventDispatcher

ROOT = Path(__file__).resolve().parents[2]
needs_a_shell = pytest.mark.skipif(sys.platform == "win32", reason="there sleep is held back by a thread")

# As systemd's: it holds for as long as its command runs. Each run leaves a file with its number and arguments.
INHIBITOR = """#!/bin/sh
printf '%s\\n' "$$" "$@" > "$HELD/$$.tmp"
mv "$HELD/$$.tmp" "$HELD/$$"
trap 'rm "$HELD/$$"' EXIT
for last; do :; done
"$last"
"""


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which an inhibitor that holds has a file."""
    folder, programs = tmp_path / "held", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    program = programs / "systemd-inhibit"
    program.write_text(INHIBITOR, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("HELD", str(folder))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return folder


def until(said: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not said():
        assert time.monotonic() < end
        time.sleep(0.01)


def running(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.suffix != ".tmp"]


@needs_a_shell
def test_sleep_is_held_back_for_as_long_as_the_work_lasts(held: Path) -> None:
    with inhibit_sleep():
        until(lambda: running(held))
        number, *arguments = running(held)[0].read_text(encoding="utf-8").split("\n")
        assert "--what=sleep:idle" in arguments
    assert not running(held)
    assert not psutil.pid_exists(int(number))


@needs_a_shell
def test_a_pause_lets_the_computer_sleep(held: Path) -> None:
    reading, writing = os.pipe()
    session = RunContext(EventDispatcher(Kept()), CommandReader(reading))
    seen: list[int] = []

    def look_and_resume() -> None:
        seen.append(len(running(held)))
        os.write(writing, protocol.encode(protocol.Resume()))

    with prevent_sleep(session, enabled=True):
        until(lambda: running(held))
        os.write(writing, protocol.encode(protocol.Pause()))
        threading.Timer(0.3, look_and_resume).start()
        session.poll()
        until(lambda: running(held))
    assert seen == [0]
    assert not running(held)
    assert session.pause_contexts == []


@needs_a_shell
def test_a_run_that_is_killed_holds_nothing_back(held: Path) -> None:
    program = (
        "import time\nfrom trainer_core.system.keep_awake import inhibit_sleep\n"
        "with inhibit_sleep():\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    until(lambda: running(held))
    process.kill()
    process.wait()
    until(lambda: not running(held))


def test_where_it_is_not_wanted_nothing_is_held_back(held: Path) -> None:
    session = RunContext(EventDispatcher(Kept()))
    with prevent_sleep(session, enabled=False):
        assert session.pause_contexts == []
    assert not running(held)


@pytest.mark.parametrize(
    "program", ["#!/bin/sh\nexit 1\n", "no program at all", None], ids=["refused", "broken", "none"]
)
def test_where_it_cannot_be_done_the_work_goes_on(
    program: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program is not None:
        (tmp_path / "systemd-inhibit").write_text(program, encoding="utf-8")
        (tmp_path / "systemd-inhibit").chmod(0o755)
        with contextlib.suppress(OSError):
            (tmp_path / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(tmp_path))
    done = False
    with inhibit_sleep():
        done = True
    assert done


@pytest.mark.skipif(sys.platform not in ("linux", "win32"), reason="no clock tells there")
def test_hours_asleep_are_known_from_the_systems_own_clocks() -> None:
    before = suspended_s()
    time.sleep(0.3)
    after = suspended_s()
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(0, abs=0.25), "waiting is not sleeping"
    if sys.platform == "linux":  # where it may, a process has a clock as after a sleep of 90 minutes
        told = "from trainer_core.system.keep_awake import suspended_s\nprint(suspended_s())"
        command = ["unshare", "--time", "--fork", "--boottime", "5400", sys.executable, "-c", told]
        with contextlib.suppress(OSError):
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
            if done.returncode == 0:
                assert float(done.stdout) == pytest.approx(after + 5400, abs=5)
