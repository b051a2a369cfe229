"""The trainer on Windows: encodings, commands through a pipe, files held open by other programs.

UTF-8 mode is off in all processes, so a missing `encoding` would use the code page.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from prepared_data import decode_split, prepare_files, read_files

from tests.core.trainer_process import (
    TINY,
    TrainerResult,
    entered_phase,
    environment,
    finish,
    reached_step,
    read_until,
    send,
)
from trainer_core import protocol
from trainer_core.data import encoder
from trainer_core.messages import ExitCode
from trainer_core.runs import checkpoint_dir
from trainer_core.system import files
from trainer_core.train import checkpoint

ROOT = Path(__file__).resolve().parents[2]
STEPS = 120
RUN_ARGUMENTS = [*TINY, "--max-steps", str(STEPS), "--save-steps", "40", "--keep-last", "1", "--keep-best", "0"]
RUN_ARGUMENTS += ["--eval-steps", "60", "--sample-steps", "0"]
WORKERS = ["--num-workers", "2"]
CONTROL = ["--control", "stdin"]
LINES = [f"第{n}行：春眠不觉晓，处处闻啼鸟。Line {n} of the text, {n * n}." for n in range(600)]


def start(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the trainer without environment variables that set an encoding."""
    env = {name: value for name, value in environment(home).items() if name not in ("PYTHONUTF8", "PYTHONIOENCODING")}
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "trainer_core", *arguments]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=home)


def wait_for(process: subprocess.Popen[bytes], last: Callable[[protocol.AnyEvent], bool]) -> list[protocol.AnyEvent]:
    """Read events up to the first for which `last` is true. Fails if there is none."""
    events = read_until(process, last)
    assert events, process.communicate(timeout=30)[1].decode("utf-8", "replace")
    assert last(events[-1]), events[-1]
    return events


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("家 home (x)")


@pytest.fixture(scope="module")
def texts(home: Path) -> list[str]:
    """`--data` arguments of one text in four encodings: GB18030, UTF-8 with BOM, UTF-16, and UTF-8 with CRLF."""
    text = "\n".join(LINES)
    saved = {
        "旧 gb18030.txt": text.encode("gb18030"),
        "记事本 bom.txt": b"\xef\xbb\xbf" + text.encode("utf-8"),
        "统一码 utf-16.txt": b"\xff\xfe" + text.encode("utf-16-le"),
        "行尾 crlf.txt": text.replace("\n", "\r\n").encode("utf-8"),
    }
    for name, raw in saved.items():
        (home / name).write_bytes(raw)
    return [part for name in saved for part in ("--data", str(home / name))]


@dataclass
class FinishedRun:
    """A run during which another program held its first checkpoint open."""

    result: TrainerResult
    checkpoints: Path
    unchanged: bool


@pytest.fixture(scope="module")
def uninterrupted(home: Path, texts: list[str]) -> FinishedRun:
    """An uninterrupted run."""
    process = start(home, "train", *RUN_ARGUMENTS, *texts, "--run-dir", "整 whole")
    before = wait_for(process, lambda event: isinstance(event, protocol.Checkpoint))
    first = home / "整 whole" / "checkpoints" / checkpoint_dir.folder_name(40)
    with (first / "model.safetensors").open("rb") as weights:
        content = weights.read()
        rest = finish(process, 170)
        weights.seek(0)
        unchanged = weights.read() == content
    return FinishedRun(TrainerResult(rest.code, before + rest.events, rest.stderr), first.parent, unchanged)


# --- a first run ---------------------------------------------------------------------------------------------


@pytest.mark.in_english
@pytest.mark.skipif(not (ROOT / ".venv" / "traindeck.json").exists(), reason="not started through train_gpu.bat")
def test_the_batch_file_trains_a_short_quickstart(home: Path) -> None:
    short = "--max-steps 4 --tokenizer-sample-mib 1 --eval-steps 4 --eval-batches 1 --sample-tokens 4 --output json"
    line = f'cmd /d /s /c ""{ROOT}\\train_gpu.bat" train --preset quickstart --run-dir "runs\\快速 & 好!" {short}"'
    done = subprocess.run(
        line, env=environment(home), stdin=subprocess.DEVNULL, capture_output=True, timeout=280, check=False
    )
    assert done.returncode == ExitCode.FINISHED, done.stderr.decode("utf-8", "replace")
    events = [protocol.decode_event(raw) for raw in done.stdout.splitlines()]
    assert isinstance(events[0], protocol.Hello)
    assert isinstance(events[-1], protocol.Done)
    assert events[-1].steps == 4
    assert Path(events[0].run_dir).name == "快速 & 好!"
    assert checkpoint_dir.latest_valid(Path(events[0].run_dir) / "checkpoints")[0] is not None


# --- encodings -------------------------------------------------------------------------------


def test_the_encoding_of_each_file_is_detected(uninterrupted: FinishedRun) -> None:
    assert uninterrupted.result.code == ExitCode.FINISHED, uninterrupted.result.stderr
    [ready] = uninterrupted.result.events_of(protocol.Ready)
    detected = [(Path(source.path).name.split()[0], source.encoding) for source in ready.sources]
    assert [name for name, _ in detected] == ["旧", "记事本", "统一码", "行尾"]
    assert [encoding for _, encoding in detected] == ["gb18030", "utf-8-sig", "utf-16-le", "utf-8"]


def test_events_are_utf_8_on_disk_and_on_stdout(home: Path, uninterrupted: FinishedRun) -> None:
    lines = (home / "整 whole" / "events.jsonl").read_bytes().splitlines()
    assert [protocol.decode_event(line).seq for line in lines] == sorted(
        event.seq for event in uninterrupted.result.events
    )
    assert "整 whole" in uninterrupted.result.events_of(protocol.Hello)[0].run_dir
    assert b"\r" not in b"".join(lines)


def test_an_open_checkpoint_stays_readable_and_training_continues(uninterrupted: FinishedRun) -> None:
    """Windows does not rename the folder; Wine renames but does not delete it."""
    assert uninterrupted.unchanged
    assert not uninterrupted.result.events_of(protocol.Error)
    good, bad = checkpoint_dir.latest_valid(uninterrupted.checkpoints)
    assert good is not None
    assert (
        good.name == uninterrupted.result.events_of(protocol.Checkpoint)[-1].path == checkpoint_dir.folder_name(STEPS)
    )
    assert not bad


def test_all_encodings_decode_to_the_same_text(texts: list[str], monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(home / "prepared"))
    paths = [Path(path) for path in texts[1::2]]
    results = [prepare_files(path, validation_fraction=0.0) for path in paths]
    assert len({decode_split(result, "train") for result in results}) == 1


@pytest.mark.in_chinese
def test_several_processes_prepare_the_same_tokens_as_one(
    texts: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = [Path(path) for path in texts[1::2]]
    token_files = []
    for processes in (0, 2):
        monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path / str(processes)))
        monkeypatch.setattr(encoder, "choose_num_processes", lambda *_, count=processes: count)
        token_files.append(read_files(prepare_files(*paths).folder))
    assert token_files[0] == token_files[1]
    assert token_files[0]


# --- commands ------------------------------------------------------------------------------------------------


@pytest.mark.in_chinese
def test_a_paused_stopped_and_resumed_run_equals_an_uninterrupted_run(
    home: Path, texts: list[str], uninterrupted: FinishedRun
) -> None:
    process = start(home, "train", *RUN_ARGUMENTS, *CONTROL, *texts, "--run-dir", "断 parts")
    wait_for(process, reached_step(5))
    send(process, protocol.Pause(id=1))
    wait_for(process, entered_phase("paused"))
    send(process, protocol.Resume(id=2))
    wait_for(process, reached_step(20))
    send(process, protocol.Stop(id=3))
    stopped = finish(process)
    assert stopped.code == ExitCode.STOPPED, stopped.stderr
    assert stopped.events_of(protocol.Done)[0].reason == "stopped"

    process = start(home, "train", "--resume", "断 parts", *CONTROL)
    wait_for(process, reached_step(60))
    interrupted = finish(process)  # closes stdin
    assert interrupted.code == ExitCode.STOPPED, interrupted.stderr

    result = finish(start(home, "train", "--resume", "断 parts"))
    assert result.code == ExitCode.FINISHED, result.stderr
    assert (
        result.events_of(protocol.Hello)[0].resumed_from_step == interrupted.events_of(protocol.Done)[0].steps < STEPS
    )
    last = f"checkpoints/{checkpoint_dir.folder_name(STEPS)}"
    for file in ("model.safetensors", "optimizer.safetensors", "tokenizer.json"):
        parts, expected = (home / name / last / file for name in ("断 parts", "整 whole"))
        assert parts.read_bytes() == expected.read_bytes(), file


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["train", "--no-such-flag", "1"], ExitCode.USAGE, "--no-such-flag"),
        (["train", "--data", "没有 nothing.txt", *TINY], ExitCode.DATA, "没有 nothing.txt"),
    ],
)
def test_usage_and_data_errors_have_distinct_exit_codes(
    home: Path, arguments: list[str], code: ExitCode, word: str
) -> None:
    result = finish(start(home, *arguments, "--output", "json"))
    assert result.code == code
    assert word in str(result.error.params) + result.error.detail


@pytest.fixture
def all_cores() -> Iterator[None]:
    """Let child processes use all cores: .ci/windows allows one, which limits the number of loader processes."""
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    process = ctypes.c_void_p(kernel.GetCurrentProcess())
    own, system = ctypes.c_size_t(), ctypes.c_size_t()
    assert kernel.GetProcessAffinityMask(process, ctypes.byref(own), ctypes.byref(system))
    assert kernel.SetProcessAffinityMask(process, system)
    yield
    assert kernel.SetProcessAffinityMask(process, own)


@pytest.mark.in_chinese
@pytest.mark.usefixtures("all_cores")
def test_loader_processes_exit_when_the_trainer_is_killed(home: Path, texts: list[str]) -> None:
    process = start(home, "train", *RUN_ARGUMENTS, *texts, "--run-dir", "杀 killed", *WORKERS)
    [hello, *_] = wait_for(process, reached_step(1))
    assert isinstance(hello, protocol.Hello)
    trainer = psutil.Process(hello.pid)
    workers = [child for child in trainer.children(recursive=True) if "spawn_main" in " ".join(child.cmdline())]
    assert len(workers) >= 2
    trainer.kill()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
    process.wait(30)
    assert process.stdout is not None
    process.stdout.close()


# --- files held open -------------------------------------------------------------------------------


@pytest.mark.in_chinese
def test_a_file_is_replaced_when_its_reader_closes_it(tmp_path: Path) -> None:
    target = tmp_path / "状态.json"
    target.write_bytes(b"old")
    reader = target.open("rb")
    threading.Timer(1.0, reader.close).start()
    start_time = time.monotonic()
    files.write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    assert time.monotonic() - start_time > 0.5
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("file", [checkpoint_dir.MANIFEST, "config.json", "model.safetensors"])
@pytest.mark.in_english
def test_checkpoint_files_locked_for_a_moment_are_read_again(uninterrupted: FinishedRun, file: str) -> None:
    folder = uninterrupted.checkpoints / checkpoint_dir.folder_name(STEPS)
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    kernel.CreateFileW.restype = ctypes.c_void_p
    generic_read, no_sharing, open_existing = 0x80000000, 0, 3
    for check in (checkpoint_dir.find_problem, load_config):
        handle = kernel.CreateFileW(str(folder / file), generic_read, no_sharing, None, open_existing, 0, None)
        with pytest.raises(PermissionError):
            (folder / file).read_bytes()
        threading.Timer(0.7, kernel.CloseHandle, [ctypes.c_void_p(handle)]).start()
        assert check(folder) is None


def load_config(folder: Path) -> None:
    """Read the configuration and the weights like a resume and `generate`."""
    checkpoint.require_weights(folder, checkpoint.read_shape(folder))


@pytest.mark.parametrize("action", ["replace", "remove"])
@pytest.mark.in_chinese
def test_a_file_held_open_raises_and_is_unchanged(tmp_path: Path, action: str) -> None:
    folder, new = tmp_path / "held", tmp_path / "new"
    folder.mkdir()
    (folder / "a").write_bytes(b"old")
    new.write_bytes(b"new")
    actions = {
        "replace": lambda: files.replace(new, folder / "a", seconds=0.3),
        "remove": lambda: files.remove_tree(folder, seconds=0.3),
    }
    with (folder / "a").open("rb"):
        with pytest.raises(PermissionError) as error:
            actions[action]()
        assert (folder / "a").read_bytes() == b"old"
    assert getattr(error.value, "winerror", None) in (5, 32)
    assert new.read_bytes() == b"new"
