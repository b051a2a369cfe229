"""Sleep is prevented during training, except in pauses."""

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

from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.command_reader import CommandReader
from trainer_core.run_context import RunContext
from trainer_core.system.keep_awake import inhibit_sleep, prevent_sleep, suspended_s
from trainer_core.wire import EventDispatcher

ROOT = Path(__file__).resolve().parents[2]
requires_posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows uses a thread")

# Like systemd's: active while its command runs. Each process writes a file with its PID and arguments.
INHIBITOR = """#!/bin/sh
printf '%s\\n' "$$" "$@" > "$INHIBITORS/$$.tmp"
mv "$INHIBITORS/$$.tmp" "$INHIBITORS/$$"
trap 'rm "$INHIBITORS/$$"' EXIT
for last; do :; done
"$last"
"""


@pytest.fixture
def inhibitors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with one file per active inhibitor."""
    folder, programs = tmp_path / "inhibitors", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    program = programs / "systemd-inhibit"
    program.write_text(INHIBITOR, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("INHIBITORS", str(folder))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return folder


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def running(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.suffix != ".tmp"]


@requires_posix
def test_sleep_is_inhibited_inside_the_context(inhibitors: Path) -> None:
    with inhibit_sleep():
        wait_until(lambda: running(inhibitors))
        number, *arguments = running(inhibitors)[0].read_text(encoding="utf-8").split("\n")
        assert "--what=sleep:idle" in arguments
    assert not running(inhibitors)
    assert not psutil.pid_exists(int(number))


@requires_posix
def test_a_pause_allows_sleep(inhibitors: Path) -> None:
    reading, writing = os.pipe()
    session = RunContext(EventDispatcher(RecordingSink()), CommandReader(reading))
    counts: list[int] = []

    def record_and_resume() -> None:
        counts.append(len(running(inhibitors)))
        os.write(writing, protocol.encode(protocol.Resume()))

    with prevent_sleep(session, enabled=True):
        wait_until(lambda: running(inhibitors))
        os.write(writing, protocol.encode(protocol.Pause()))
        threading.Timer(0.3, record_and_resume).start()
        session.poll()
        wait_until(lambda: running(inhibitors))
    assert counts == [0]
    assert not running(inhibitors)
    assert session.pause_contexts == []


@requires_posix
def test_the_inhibitor_ends_with_a_killed_process(inhibitors: Path) -> None:
    program = (
        "import time\nfrom trainer_core.system.keep_awake import inhibit_sleep\n"
        "with inhibit_sleep():\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    wait_until(lambda: running(inhibitors))
    process.kill()
    process.wait()
    wait_until(lambda: not running(inhibitors))


def test_nothing_is_inhibited_if_disabled(inhibitors: Path) -> None:
    session = RunContext(EventDispatcher(RecordingSink()))
    with prevent_sleep(session, enabled=False):
        assert session.pause_contexts == []
    assert not running(inhibitors)


@pytest.mark.parametrize(
    "program", ["#!/bin/sh\nexit 1\n", "no program at all", None], ids=["refused", "broken", "missing"]
)
def test_a_failing_inhibitor_is_ignored(program: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.skipif(sys.platform not in ("linux", "win32"), reason="no such clock")
def test_suspended_time_is_the_difference_of_two_clocks() -> None:
    before = suspended_s()
    time.sleep(0.3)
    after = suspended_s()
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(0, abs=0.25)
    if sys.platform == "linux":  # in a time namespace, if allowed, the clock is as after a sleep of 90 minutes
        script = "from trainer_core.system.keep_awake import suspended_s\nprint(suspended_s())"
        command = ["unshare", "--time", "--fork", "--boottime", "5400", sys.executable, "-c", script]
        with contextlib.suppress(OSError):
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
            if done.returncode == 0:
                assert float(done.stdout) == pytest.approx(after + 5400, abs=5)
