"""Run folders: atomic writes, locks, and summaries of complete and damaged runs."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.events import hello, step
from trainer_core import protocol
from trainer_core.config import Config, ConfigLayer, resolve
from trainer_core.messages import TraindeckError
from trainer_core.runs import checkpoint_dir, file_locks, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files

ROOT = Path(__file__).resolve().parents[2]
LOCK_SCRIPT = """
import os, sys
from pathlib import Path
from trainer_core.runs import run_dir
with run_dir.lock(run_dir.RunDir(Path(sys.argv[1]))):
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""
RACE_SCRIPT = """
import sys, time
from pathlib import Path
from trainer_core.runs import run_dir
from trainer_core.messages import TraindeckError
acquired, locks = [], []
for number, folder in enumerate(sorted(Path(sys.argv[1]).iterdir())):
    while time.time() < float(sys.argv[2]) + number * 0.02:
        pass
    lock = run_dir.lock(run_dir.RunDir(folder))
    locks.append(lock)  # a lock is released when it is garbage-collected
    try:
        lock.__enter__()
        acquired.append(folder.name)
    except TraindeckError as error:
        assert error.code == "run.in_use", error
print(*acquired, flush=True)
sys.stdin.readline()
"""


def start_script(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        cwd=ROOT,
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "运行 one")
    run.create()
    run.write_config(Config(preset="cpu", data=["数据.txt"]))
    return run


class LockingProcess:
    """A process that holds the lock of a run. `pid` differs from `process.pid` if python.exe starts another process."""

    def __init__(self, run: RunDir) -> None:
        self.process = start_script(LOCK_SCRIPT, run.path)
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())

    def kill(self) -> None:
        psutil.Process(self.pid).kill()
        self.process.communicate()


@pytest.fixture
def owner_process(run: RunDir) -> Iterator[LockingProcess]:
    owner = LockingProcess(run)
    yield owner
    if owner.process.poll() is None:
        owner.kill()


# --- writing ---------------------------------------------------------------------------------------


def test_a_failed_atomic_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    files.write_atomic(path, b"old")

    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_readers_never_see_a_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    script = (
        "import sys; from pathlib import Path; from trainer_core.system import files\n"
        "for number in range(60): files.write_atomic(Path(sys.argv[1]), str(number % 10).encode() * 50_000)"
    )
    process = start_script(script, path)
    reads = 0
    while process.poll() is None:
        if path.exists():
            content = files.retry_sharing_violation(path.read_bytes)
            assert len(content) == 50_000
            assert len(set(content)) == 1
            reads += 1
        time.sleep(0.005)  # on Windows, a reader without pauses blocks the writer
    process.communicate()
    assert process.returncode == 0
    assert reads > 3


@pytest.mark.skipif(os.name == "nt", reason="folders are not flushed on Windows")
def test_a_disk_without_folder_fsync_is_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def reject_folders(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").resolve().is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", reject_folders)
    files.write_atomic(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


def test_an_access_error_counts_as_sharing_violation_only_on_windows() -> None:
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert files.is_sharing_violation(denied) == (os.name == "nt")
    assert not files.is_sharing_violation(FileNotFoundError(errno.ENOENT, "No such file"))


def test_sharing_violations_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    class SharingError(OSError):
        winerror = 32

    def action() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise SharingError
        return "done"

    assert files.retry_sharing_violation(action) == "done"
    attempts.clear()
    with pytest.raises(SharingError):
        files.retry_sharing_violation(action, seconds=-1.0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "full"), "disk.full"),
        (PermissionError(errno.EACCES, "denied"), "disk.not_writable"),
        (FileExistsError(errno.EEXIST, "exists"), "disk.not_writable"),
    ],
)
def test_write_errors_are_translated(tmp_path: Path, error: OSError, code: str) -> None:
    with pytest.raises(TraindeckError) as caught, files.translate_os_errors(tmp_path, needed=3 * 2**20):
        raise error
    assert caught.value.code == code
    assert caught.value.params["path"] == str(tmp_path)


def test_the_written_configuration_can_be_loaded(run: RunDir) -> None:
    loaded = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    assert resolve([ConfigLayer("config.yaml", loaded)]) == Config(preset="cpu", data=["数据.txt"])


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("my run", "my run"),
        ("我的运行", "我的运行"),
        ('a/b\\c:d*e?f"g<h>i|j', "a-b-c-d-e-f-g-h-i-j"),
        ("con", "_con"),
        ("NUL.txt", "_NUL.txt"),
        ("COM1", "_COM1"),
        ("lpt²", "_lpt²"),
        ("con .tar.gz", "_con .tar.gz"),
        ("conout$", "_conout$"),
        ("console", "console"),
        ("com10", "com10"),
        ("trailing. . ", "trailing"),
        ("..", ""),
        ("", ""),
        ("a\tb\nc", "a-b-c"),
    ],
)
def test_safe_name_is_valid_on_windows(text: str, name: str) -> None:
    assert run_dir.safe_name(text) == name


@pytest.mark.parametrize("text", ["x" * 500, "中" * 500, "🙂" * 500, "a" * 79 + " b"])
def test_long_names_are_truncated(text: str, tmp_path: Path) -> None:
    path = run_dir.new_run_path(tmp_path, text)
    path.mkdir()
    assert path.is_dir()


def test_a_new_run_gets_an_unused_folder(tmp_path: Path) -> None:
    first = run_dir.new_run_path(tmp_path, "cpu", when=0.0)
    first.mkdir()
    second = run_dir.new_run_path(tmp_path, "cpu", when=0.0)
    assert second.name == f"{first.name}-2"


# --- locks --------------------------------------------------------------------------------------------


def test_a_lock_is_released(run: RunDir) -> None:
    with run_dir.lock(run):
        owner = file_locks.read_owner(run.lock)
        assert owner is not None
        assert (owner.pid, owner.alive) == (os.getpid(), True)
    assert file_locks.read_owner(run.lock) is None


def test_a_lock_of_a_running_process_raises_run_in_use(run: RunDir, owner_process: LockingProcess) -> None:
    before = run.lock.read_bytes()
    with pytest.raises(TraindeckError) as caught, run_dir.lock(run):
        pass
    assert (caught.value.code, caught.value.params["pid"]) == ("run.in_use", str(owner_process.pid))
    assert run.lock.read_bytes() == before
    assert run_dir.summarize(run).state == "running"


def test_a_lock_of_a_killed_process_is_replaced(run: RunDir, owner_process: LockingProcess) -> None:
    owner_process.kill()
    owner = file_locks.read_owner(run.lock)
    assert owner is not None
    assert not owner.alive
    with run_dir.lock(run):
        assert json.loads(run.lock.read_bytes())["pid"] == os.getpid()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no zombies")
def test_a_zombie_holds_no_lock(run: RunDir, owner_process: LockingProcess) -> None:
    process = psutil.Process(owner_process.pid)
    process.kill()
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    owner = file_locks.read_owner(run.lock)
    assert owner is not None
    assert not owner.alive


def test_a_reused_pid_is_not_the_owner(run: RunDir) -> None:
    started = psutil.Process().create_time() - 1000.0
    run.lock.write_text(json.dumps({"pid": os.getpid(), "started": started}), encoding="utf-8")
    with run_dir.lock(run):
        assert json.loads(run.lock.read_bytes())["started"] != started


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"pid": "x"}', b'{"pid": -5, "started": 1}', b'{"pid": 1e300, "started": 1}', b"x" * 999],
)
def test_a_damaged_lock_is_replaced(run: RunDir, content: bytes) -> None:
    run.lock.write_bytes(content)
    owner = file_locks.read_owner(run.lock)
    assert owner is not None
    assert not owner.alive
    with run_dir.lock(run):
        assert json.loads(run.lock.read_bytes())["pid"] == os.getpid()


def test_one_of_several_processes_replaces_an_exited_owner(tmp_path: Path) -> None:
    for number in range(25):
        run = RunDir(tmp_path / f"{number:02}")
        run.create()
        run.lock.write_text(json.dumps({"pid": 2**22 + 1, "started": 1.0}), encoding="utf-8")
    start = time.time() + 1.0
    racers = [start_script(RACE_SCRIPT, tmp_path, start) for _ in range(3)]
    wins = [name for racer in racers if racer.stdout for name in racer.stdout.readline().split()]
    for racer in racers:
        racer.communicate("\n")
        assert racer.returncode == 0
    assert sorted(wins) == [f"{number:02}" for number in range(25)]


# --- summary -------------------------------------------------------------------------------------------


def write_events(run: RunDir, *events: protocol.AnyEvent) -> None:
    run.events.write_bytes(b"".join(protocol.encode(event) for event in events))


def test_a_run_is_summarized_from_its_files(run: RunDir) -> None:
    progress = protocol.Progress(t=101, phase="training", done=1, total=50)
    evaluation = protocol.Eval(t=103, step=10, loss=1.5, perplexity=4.5, tokens=5, seconds=1)
    done = protocol.Done(t=110, reason="finished", steps=50, total_steps=50)
    write_events(run, hello(100.0), progress, step(10, 102), evaluation, step(50, 109, 1.0), done)
    summary = run_dir.summarize(run)
    assert (summary.state, summary.started, summary.seconds) == ("finished", 100.0, 10.0)
    assert (summary.step, summary.total_steps, summary.last_loss, summary.best_loss) == (50, 50, 1.0, 1.5)
    assert (summary.preset, summary.data, summary.tokens_per_s) == ("cpu", ["数据.txt"], 1000.0)


def test_the_duration_is_that_of_the_done_event(run: RunDir) -> None:
    done = protocol.Done(t=40, reason="finished", steps=50, total_steps=50, seconds=217.0)
    host = protocol.Host(ram_used=1, ram_total=2, rss=1, cpu=0.0, disk_free=1)
    write_events(run, hello(100.0), step(50, 109, 1.0), done, protocol.Hardware(t=41, gpus=[], host=host))
    assert run_dir.summarize(run).seconds == 217.0


def test_the_step_is_that_of_the_newest_step_or_done_event(run: RunDir) -> None:
    stopped = protocol.Done(t=110, reason="stopped", steps=21, total_steps=50)
    write_events(run, hello(100.0), step(20, 102), stopped)
    assert run_dir.summarize(run).step == 21
    write_events(run, hello(100.0), step(20, 102), stopped, step(30, 120))
    assert run_dir.summarize(run).step == 30


@pytest.mark.parametrize(
    ("last", "state"),
    [
        (protocol.Done(t=2, reason="stopped", steps=1, total_steps=2), "stopped"),
        (protocol.Done(t=2, reason="early_stop", steps=1, total_steps=2), "finished"),
        (protocol.Done(t=2, reason="parent_lost", steps=1, total_steps=2), "interrupted"),
        (protocol.Error(t=2, code="memory.out", exit_code=5), "failed"),
        (protocol.Phase(t=2, phase="training"), "interrupted"),
        (hello(2.0), "interrupted"),
    ],
)
def test_the_state_is_that_of_the_last_process(run: RunDir, last: protocol.AnyEvent, state: str) -> None:
    finished = protocol.Done(t=1, reason="finished", steps=1, total_steps=1)
    write_events(run, hello(1.0), finished, hello(1.5), step(2, 1.6), last)
    assert run_dir.summarize(run).state == state


def test_a_process_that_failed_before_training_does_not_change_the_state(run: RunDir) -> None:
    finished = protocol.Done(t=2, reason="finished", steps=1, total_steps=1)
    error = protocol.Error(t=9, code="data.changed", exit_code=4)
    preparation = [protocol.Progress(t=4, phase="preparing", done=number, total=9e9) for number in range(3000)]
    write_events(run, hello(1.0), step(1, 1.5), finished, hello(3.0), *preparation, error)
    assert run.events.stat().st_size > 256 * 1024
    summary = run_dir.summarize(run)
    assert (summary.state, summary.error, summary.step) == ("finished", None, 1)


def test_a_process_that_failed_before_hello_does_not_change_the_state(run: RunDir) -> None:
    finished = protocol.Done(t=2, seq=9, reason="stopped", steps=1, total_steps=2)
    error = protocol.Error(t=3, seq=1, code="checkpoint.damaged", exit_code=1)
    write_events(run, hello(1.0), step(1, 1.5), finished, error)
    assert run_dir.summarize(run).state == "stopped"


def test_a_run_that_never_trained_has_failed(run: RunDir) -> None:
    error = protocol.Error(t=2, code="data.too_short", exit_code=4)
    write_events(run, hello(1.0), error, hello(3.0), error)
    assert run_dir.summarize(run).state == "failed"


def test_the_error_that_ended_a_run_is_reported(run: RunDir) -> None:
    write_events(run, hello(100.0), protocol.Error(t=2, code="memory.out", params={"step": 3}, exit_code=5))
    assert run_dir.summarize(run).error == ("memory.out", {"step": 3})


def test_a_stopped_run_with_a_checkpoint_can_be_resumed(run: RunDir) -> None:
    folder = run.checkpoints / checkpoint_dir.folder_name(7)
    folder.mkdir()
    (folder / "state.json").write_bytes(b"{}")
    checkpoint_dir.write_manifest(folder, 7, "regular", 1.25)
    write_events(run, hello(100.0))
    summary = run_dir.summarize(run)
    assert (summary.resumable, summary.step, summary.best_loss, summary.checkpoints) == (True, 7, 1.25, 1)


@pytest.mark.parametrize("config", [b"", b"data: 5", b"data: a.txt", b"- x", b"\xff", b"preset: [", b"preset: {a: b}"])
@pytest.mark.parametrize(
    "events", [b"", b"\n\n", b"\x00" * 100, b'{"type":"step"}\n', b'{"type":"hello","pid":1'], ids=range(5)
)
def test_damaged_files_do_not_prevent_a_summary(run: RunDir, config: bytes, events: bytes) -> None:
    run.config.write_bytes(config)
    run.events.write_bytes(events)
    (run.checkpoints / checkpoint_dir.folder_name(1)).mkdir()
    assert run_dir.list_runs(run.path.parent)[0].state == "interrupted"


def test_runs_are_listed_newest_first_without_other_folders(tmp_path: Path) -> None:
    for name, t in (("old", 100.0), ("new", 200.0)):
        run = RunDir(tmp_path / name)
        run.create()
        run.write_config(Config())
        write_events(run, hello(t))
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.txt").write_bytes(b"")
    assert [run.name for run in run_dir.list_runs(tmp_path)] == ["new", "old"]
    assert run_dir.find_run("latest", tmp_path).path.name == "new"
    assert run_dir.find_run("old", tmp_path).path == (tmp_path / "old").resolve()
    os.utime(tmp_path / "old" / "events.jsonl", (2e9, 2e9))  # it trains again
    assert run_dir.find_run("latest", tmp_path).path.name == "old"


def test_an_inaccessible_folder_does_not_hide_other_runs(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.path.parent / "closed").mkdir()
    original = Path.is_file

    def is_file(self: Path) -> bool:
        if self.parent.name == "closed":
            raise PermissionError(errno.EACCES, "denied")
        return original(self)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert [listed.name for listed in run_dir.list_runs(run.path.parent)] == [run.path.name]


def test_an_unknown_run_raises_run_not_found(tmp_path: Path) -> None:
    for text in ("latest", "nothing", ""):
        with pytest.raises(TraindeckError) as caught:
            run_dir.find_run(text, tmp_path)
        assert caught.value.code == "run.not_found"


def test_only_the_tail_of_the_events_is_read(run: RunDir) -> None:
    write_events(run, hello(100.0), *(step(number, 100.0 + number) for number in range(1, 3000)))
    events = list(run_dir.tail_events(run.events, size=2000))
    assert 1 < len(events) < 20
    assert isinstance(events[-1], protocol.Step)
    assert run_dir.summarize(run).started == 100.0


def test_the_home_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    assert run_dir.runs_root() == tmp_path.resolve() / "runs"
    monkeypatch.delenv("TRAINDECK_HOME")
    assert run_dir.home() == ROOT
