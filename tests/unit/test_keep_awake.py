"""Prevention of sleep during training, but not during pauses."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.recording_sink import RecordingSink
from tests.waiting import wait_until
from trainer_core import protocol
from trainer_core.command_reader import CommandReader
from trainer_core.run_context import RunContext
from trainer_core.system.keep_awake import inhibit_sleep, prevent_sleep, suspended_s
from trainer_core.wire import EventDispatcher

ROOT = Path(__file__).resolve().parents[2]
requires_posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows uses a thread")

# Imitates systemd-inhibit: it is active while its command runs. Writes its PID and arguments to a file.
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


def active(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.suffix != ".tmp"]


@requires_posix
def test_sleep_is_inhibited_inside_the_context(inhibitors: Path) -> None:
    with inhibit_sleep():
        wait_until(lambda: active(inhibitors))
        pid, *arguments = active(inhibitors)[0].read_text(encoding="utf-8").split("\n")
        assert "--what=sleep:idle" in arguments
    assert not active(inhibitors)
    assert not psutil.pid_exists(int(pid))


@requires_posix
def test_a_pause_allows_sleep(inhibitors: Path) -> None:
    reading, writing = os.pipe()
    run = RunContext(EventDispatcher(RecordingSink()), CommandReader(reading))
    counts: list[int] = []

    def record_and_resume() -> None:
        counts.append(len(active(inhibitors)))
        os.write(writing, protocol.encode(protocol.Resume()))

    with prevent_sleep(run, enabled=True):
        wait_until(lambda: active(inhibitors))
        os.write(writing, protocol.encode(protocol.Pause()))
        threading.Timer(0.3, record_and_resume).start()
        run.poll()
        wait_until(lambda: active(inhibitors))
    assert counts == [0]
    assert not active(inhibitors)
    assert run.pause_contexts == []


@requires_posix
def test_the_inhibitor_ends_with_a_killed_process(inhibitors: Path) -> None:
    program = (
        "import time\nfrom trainer_core.system.keep_awake import inhibit_sleep\n"
        "with inhibit_sleep():\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    wait_until(lambda: active(inhibitors))
    process.kill()
    process.wait()
    wait_until(lambda: not active(inhibitors))


def test_nothing_is_inhibited_if_disabled(inhibitors: Path) -> None:
    run = RunContext(EventDispatcher(RecordingSink()))
    with prevent_sleep(run, enabled=False):
        assert run.pause_contexts == []
    assert not active(inhibitors)


@pytest.mark.parametrize(
    "program", ["#!/bin/sh\nexit 1\n", "not a program", None], ids=["fails", "has an invalid format", "is missing"]
)
def test_a_failing_inhibitor_is_ignored(program: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if program is not None:
        (tmp_path / "systemd-inhibit").write_text(program, encoding="utf-8")
        (tmp_path / "systemd-inhibit").chmod(0o755)
        with contextlib.suppress(OSError):
            (tmp_path / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(tmp_path))
    entered = False
    with inhibit_sleep():
        entered = True
    assert entered


@pytest.mark.skipif(sys.platform not in ("linux", "win32"), reason="no clock that excludes sleep")
def test_suspended_time_does_not_increase_without_sleep() -> None:
    before = suspended_s()
    time.sleep(0.3)
    after = suspended_s()
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(0, abs=0.25)
    if sys.platform == "linux":  # a time namespace, where allowed, simulates 90 minutes of sleep
        script = "from trainer_core.system.keep_awake import suspended_s\nprint(suspended_s())"
        command = ["unshare", "--time", "--fork", "--boottime", "5400", sys.executable, "-c", script]
        with contextlib.suppress(OSError):
            result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
            if result.returncode == 0:
                assert float(result.stdout) == pytest.approx(after + 5400, abs=5)
