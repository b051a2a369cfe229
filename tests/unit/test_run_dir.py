"""A run on disk: whole files or none, one owner, and a summary from whatever can still be read."""

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

from trainer_core import protocol
from trainer_core.config import Config, ConfigLayer, resolve
from trainer_core.messages import TraindeckError
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import os, sys
from pathlib import Path
from trainer_core.runs import run_dir
with run_dir.lock(run_dir.RunDir(Path(sys.argv[1]))):
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""
RACE = """
import sys, time
from pathlib import Path
from trainer_core.runs import run_dir
from trainer_core.messages import TraindeckError
taken, kept = [], []
for number, folder in enumerate(sorted(Path(sys.argv[1]).iterdir())):
    while time.time() < float(sys.argv[2]) + number * 0.02:
        pass
    held = run_dir.lock(run_dir.RunDir(folder))
    kept.append(held)  # a lock is released when it is forgotten
    try:
        held.__enter__()
        taken.append(folder.name)
    except TraindeckError as error:
        assert error.code == "run.in_use", error
print(*taken, flush=True)
sys.stdin.readline()
"""


def child(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        cwd=ROOT,
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "运行 one")
    made.create()
    made.write_config(Config(preset="cpu", data=["数据.txt"]))
    return made


class Holder:
    """A process that holds a run. `pid` is its own: on Windows, a virtual environment's python.exe starts another."""

    def __init__(self, run: RunDir) -> None:
        self.process = child(HOLD, run.path)
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())

    def kill(self) -> None:
        psutil.Process(self.pid).kill()
        self.process.communicate()


@pytest.fixture
def holder(run: RunDir) -> Iterator[Holder]:
    held = Holder(run)
    yield held
    if held.process.poll() is None:
        held.kill()


# --- writing ---------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_replaced_keeps_its_content_and_leaves_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    files.write_atomic(path, b"old")

    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    script = (
        "import sys; from pathlib import Path; from trainer_core.system import files\n"
        "for number in range(60): files.write_atomic(Path(sys.argv[1]), str(number % 10).encode() * 50_000)"
    )
    process = child(script, path)
    seen = 0
    while process.poll() is None:
        if path.exists():
            content = files.retry_sharing_violation(path.read_bytes)
            assert len(content) == 50_000
            assert len(set(content)) == 1
            seen += 1
        time.sleep(0.005)  # on Windows a reader that hardly pauses keeps the writer out
    process.communicate()
    assert process.returncode == 0
    assert seen > 3


@pytest.mark.skipif(os.name == "nt", reason="folders are not flushed on Windows")
def test_a_disk_that_cannot_flush_folders_is_good_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def refuse_folders(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").resolve().is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        real(handle)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    files.write_atomic(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


def test_a_refusal_without_a_windows_number_is_tried_again_on_windows_only() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert files.is_sharing_violation(refused) == (os.name == "nt")
    assert not files.is_sharing_violation(FileNotFoundError(errno.ENOENT, "No such file"))


def test_a_sharing_violation_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    class HeldError(OSError):
        winerror = 32

    def action() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise HeldError
        return "done"

    assert files.retry_sharing_violation(action) == "done"
    attempts.clear()
    with pytest.raises(HeldError):
        files.retry_sharing_violation(action, seconds=-1.0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "full"), "disk.full"),
        (PermissionError(errno.EACCES, "denied"), "disk.not_writable"),
        (FileExistsError(errno.EEXIST, "exists"), "disk.not_writable"),
    ],
)
def test_a_failed_write_is_said_plainly(tmp_path: Path, error: OSError, code: str) -> None:
    with pytest.raises(TraindeckError) as caught, files.translate_os_errors(tmp_path, needed=3 * 2**20):
        raise error
    assert caught.value.code == code
    assert caught.value.params["path"] == str(tmp_path)


def test_a_run_folder_where_a_file_lies_is_refused_by_a_code(tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"")
    with pytest.raises(TraindeckError) as caught:
        RunDir(tmp_path / "run").create()
    assert caught.value.code == "disk.not_writable"


def test_the_written_configuration_repeats_the_run(run: RunDir) -> None:
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
def test_a_name_is_made_fit_for_windows(text: str, name: str) -> None:
    assert run_dir.safe_name(text) == name


@pytest.mark.parametrize("text", ["x" * 500, "中" * 500, "🙂" * 500, "a" * 79 + " b"])
def test_a_long_name_is_cut_to_what_every_disk_takes(text: str, tmp_path: Path) -> None:
    path = run_dir.new_run_path(tmp_path, text)
    path.mkdir()
    assert path.is_dir()


def test_a_new_run_gets_a_free_folder(tmp_path: Path) -> None:
    first = run_dir.new_run_path(tmp_path, "cpu", when=0.0)
    first.mkdir()
    second = run_dir.new_run_path(tmp_path, "cpu", when=0.0)
    assert second.name == f"{first.name}-2"


# --- who owns a run ----------------------------------------------------------------------------------


def test_a_run_is_free_again_after_its_owner_left(run: RunDir) -> None:
    with run_dir.lock(run):
        owner = run_dir.read_owner(run)
        assert owner is not None
        assert (owner.pid, owner.alive) == (os.getpid(), True)
    assert run_dir.read_owner(run) is None


def test_a_run_of_a_living_process_is_refused_and_left_alone(run: RunDir, holder: Holder) -> None:
    before = run.lock.read_bytes()
    with pytest.raises(TraindeckError) as caught, run_dir.lock(run):
        pass
    assert (caught.value.code, caught.value.params["pid"]) == ("run.in_use", str(holder.pid))
    assert run.lock.read_bytes() == before
    assert run_dir.summarize(run).state == "running"


def test_a_run_of_a_killed_process_is_taken_over(run: RunDir, holder: Holder) -> None:
    holder.kill()
    owner = run_dir.read_owner(run)
    assert owner is not None
    assert not owner.alive
    with run_dir.lock(run):
        assert json.loads(run.lock.read_bytes())["pid"] == os.getpid()


@pytest.mark.skipif(sys.platform == "win32", reason="a process that has ended has gone there")
def test_a_killed_process_that_its_parent_has_not_asked_for_holds_no_run(run: RunDir, holder: Holder) -> None:
    process = psutil.Process(holder.pid)
    process.kill()
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    owner = run_dir.read_owner(run)
    assert owner is not None
    assert not owner.alive


def test_a_process_that_only_has_the_old_owners_pid_is_not_the_owner(run: RunDir) -> None:
    started = psutil.Process().create_time() - 1000.0
    run.lock.write_text(json.dumps({"pid": os.getpid(), "started": started}), encoding="utf-8")
    with run_dir.lock(run):
        assert json.loads(run.lock.read_bytes())["started"] != started


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"pid": "x"}', b'{"pid": -5, "started": 1}', b'{"pid": 1e300, "started": 1}', b"x" * 999],
)
def test_a_damaged_lock_holds_nobody_back(run: RunDir, content: bytes) -> None:
    run.lock.write_bytes(content)
    owner = run_dir.read_owner(run)
    assert owner is not None
    assert not owner.alive
    with run_dir.lock(run):
        assert json.loads(run.lock.read_bytes())["pid"] == os.getpid()


def test_of_many_who_find_a_dead_owner_at_once_one_gets_the_run(tmp_path: Path) -> None:
    for number in range(25):
        run = RunDir(tmp_path / f"{number:02}")
        run.create()
        run.lock.write_text(json.dumps({"pid": 2**22 + 1, "started": 1.0}), encoding="utf-8")
    start = time.time() + 1.0
    racers = [child(RACE, tmp_path, start) for _ in range(3)]
    wins = [name for racer in racers if racer.stdout for name in racer.stdout.readline().split()]
    for racer in racers:
        racer.communicate("\n")
        assert racer.returncode == 0
    assert sorted(wins) == [f"{number:02}" for number in range(25)]


# --- told from outside ---------------------------------------------------------------------------------


def write_events(run: RunDir, *events: protocol.AnyEvent) -> None:
    run.events.write_bytes(b"".join(protocol.encode(event) for event in events))


def hello(t: float = 100.0) -> protocol.Hello:
    return protocol.Hello(t=t, pid=1, run_dir="x", traindeck="0", python="3", torch="2")


def step(number: int, t: float, loss: float | None = 2.0) -> protocol.Step:
    times = protocol.StepTime(data=0, transfer=0, forward=1, backward=1, optimizer=1, other=0)
    return protocol.Step(
        t=t,
        step=number,
        epoch=0.1,
        tokens=10,
        samples=1,
        loss=loss,
        learning_rate=1e-3,
        tokens_per_s=1000.0,
        samples_per_s=1.0,
        time_ms=times,
    )


def test_a_run_is_summarised_from_its_files(run: RunDir) -> None:
    total = protocol.Progress(t=101, phase="training", done=1, total=50)
    measured = protocol.Eval(t=103, step=10, loss=1.5, perplexity=4.5, tokens=5, seconds=1)
    done = protocol.Done(t=110, reason="finished", steps=50, total_steps=50)
    write_events(run, hello(), total, step(10, 102), measured, step(50, 109, 1.0), done)
    summary = run_dir.summarize(run)
    assert (summary.state, summary.started, summary.seconds) == ("finished", 100.0, 10.0)
    assert (summary.step, summary.total_steps, summary.last_loss, summary.best_loss) == (50, 50, 1.0, 1.5)
    assert (summary.preset, summary.data, summary.tokens_per_s) == ("cpu", ["数据.txt"], 1000.0)


def test_the_time_of_a_run_is_that_of_its_steps_whatever_its_clock_says_and_whatever_comes_after_its_end(
    run: RunDir,
) -> None:
    done = protocol.Done(t=40, reason="finished", steps=50, total_steps=50, seconds=217.0)
    host = protocol.Host(ram_used=1, ram_total=2, rss=1, cpu=0.0, disk_free=1)
    write_events(run, hello(), step(50, 109, 1.0), done, protocol.Hardware(t=41, gpus=[], host=host))
    assert run_dir.summarize(run).seconds == 217.0


def test_a_run_that_was_stopped_between_two_steps_that_are_told_is_at_the_step_of_its_end(run: RunDir) -> None:
    stopped = protocol.Done(t=110, reason="stopped", steps=21, total_steps=50)
    write_events(run, hello(), step(20, 102), stopped)
    assert run_dir.summarize(run).step == 21
    write_events(run, hello(), step(20, 102), stopped, step(30, 120))
    assert run_dir.summarize(run).step == 30


@pytest.mark.parametrize(
    ("last", "state"),
    [
        (protocol.Done(t=2, reason="stopped", steps=1, total_steps=2), "stopped"),
        (protocol.Done(t=2, reason="parent_lost", steps=1, total_steps=2), "interrupted"),
        (protocol.Error(t=2, code="memory.out", exit_code=5), "failed"),
        (protocol.Phase(t=2, phase="training"), "interrupted"),
        (hello(2.0), "interrupted"),
    ],
)
def test_the_state_is_what_the_last_process_said(run: RunDir, last: protocol.AnyEvent, state: str) -> None:
    finished = protocol.Done(t=1, reason="finished", steps=1, total_steps=1)
    write_events(run, hello(1.0), finished, hello(1.5), step(2, 1.6), last)
    assert run_dir.summarize(run).state == state


def test_a_start_that_was_refused_leaves_a_run_as_it_was_however_long_it_prepared(run: RunDir) -> None:
    finished = protocol.Done(t=2, reason="finished", steps=1, total_steps=1)
    changed = protocol.Error(t=9, code="data.changed", exit_code=4)
    prepared = [protocol.Progress(t=4, phase="preparing", done=number, total=9e9) for number in range(3000)]
    write_events(run, hello(1.0), step(1, 1.5), finished, hello(3.0), *prepared, changed)
    assert run.events.stat().st_size > 256 * 1024
    summary = run_dir.summarize(run)
    assert (summary.state, summary.error, summary.step) == ("finished", None, 1)


def test_a_start_that_was_refused_before_it_said_hello_leaves_a_run_as_it_was(run: RunDir) -> None:
    finished = protocol.Done(t=2, seq=9, reason="stopped", steps=1, total_steps=2)
    damaged = protocol.Error(t=3, seq=1, code="checkpoint.damaged", exit_code=1)
    write_events(run, hello(1.0), step(1, 1.5), finished, damaged)
    assert run_dir.summarize(run).state == "stopped"


def test_a_run_of_which_every_start_was_refused_has_failed(run: RunDir) -> None:
    wrong = protocol.Error(t=2, code="data.too_short", exit_code=4)
    write_events(run, hello(1.0), wrong, hello(3.0), wrong)
    assert run_dir.summarize(run).state == "failed"


def test_the_error_that_ended_a_run_is_told(run: RunDir) -> None:
    write_events(run, hello(), protocol.Error(t=2, code="memory.out", params={"step": 3}, exit_code=5))
    assert run_dir.summarize(run).error == ("memory.out", {"step": 3})


def test_a_stopped_run_with_a_checkpoint_can_be_resumed(run: RunDir) -> None:
    folder = run.checkpoints / checkpoint_dir.folder_name(7)
    folder.mkdir()
    (folder / "state.json").write_bytes(b"{}")
    checkpoint_dir.write_manifest(folder, 7, "regular", 1.25)
    write_events(run, hello())
    summary = run_dir.summarize(run)
    assert (summary.resumable, summary.step, summary.best_loss, summary.checkpoints) == (True, 7, 1.25, 1)


@pytest.mark.parametrize("config", [b"", b"data: 5", b"data: a.txt", b"- x", b"\xff", b"preset: [", b"preset: {a: b}"])
@pytest.mark.parametrize(
    "events", [b"", b"\n\n", b"\x00" * 100, b'{"type":"step"}\n', b'{"type":"hello","pid":1'], ids=range(5)
)
def test_damaged_files_make_a_poorer_summary_and_no_error(run: RunDir, config: bytes, events: bytes) -> None:
    run.config.write_bytes(config)
    run.events.write_bytes(events)
    (run.checkpoints / checkpoint_dir.folder_name(1)).mkdir()
    assert run_dir.list_runs(run.path.parent)[0].state == "interrupted"


def test_runs_are_listed_newest_first_and_other_folders_left_out(tmp_path: Path) -> None:
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


def test_a_folder_that_may_not_be_entered_does_not_hide_the_other_runs(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.path.parent / "closed").mkdir()
    real = Path.is_file

    def is_file(self: Path) -> bool:
        if self.parent.name == "closed":
            raise PermissionError(errno.EACCES, "denied")
        return real(self)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert [found.name for found in run_dir.list_runs(run.path.parent)] == [run.path.name]


def test_a_run_that_is_not_there_is_refused_by_a_code(tmp_path: Path) -> None:
    for text in ("latest", "nothing", ""):
        with pytest.raises(TraindeckError) as caught:
            run_dir.find_run(text, tmp_path)
        assert caught.value.code == "run.not_found"


def test_only_the_tail_of_a_long_record_is_read(run: RunDir) -> None:
    write_events(run, hello(), *(step(number, 100.0 + number) for number in range(1, 3000)))
    events = list(run_dir.tail_events(run.events, size=2000))
    assert 1 < len(events) < 20
    assert isinstance(events[-1], protocol.Step)
    assert run_dir.summarize(run).started == 100.0


def test_the_home_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    assert run_dir.runs_root() == tmp_path.resolve() / "runs"
    monkeypatch.delenv("TRAINDECK_HOME")
    assert run_dir.home() == ROOT
