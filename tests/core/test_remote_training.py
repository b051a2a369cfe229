"""Training on another machine: a real OpenSSH server on this one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import psutil
import pytest

from app.core.command_line import config_arguments
from tests import ssh_server
from tests.core.test_keeper import TINY
from tests.ssh_server import HOST, SshServer
from tests.waiting import wait_until
from trainer_core import presets, protocol
from trainer_core.base_model import source
from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter, StopRequested
from trainer_core.remote import ssh
from trainer_core.remote.command import _send_files
from trainer_core.remote.host import RemoteHost, _receive
from trainer_core.remote.session import Reconnecting
from trainer_core.rewards.functions import Answer
from trainer_core.rewards.rewards import load_rewards
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir, file_locks, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import child_process
from trainer_core.wire import EventDispatcher

pytestmark = pytest.mark.skipif(not ssh_server.is_available, reason="needs ssh and sshd")
PROGRAM: Final = [sys.executable, "-P", "-X", "utf8", "-m", "trainer_core", "remote"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    # As a shell that prints when it starts.
    running = SshServer(tmp_path / "ssh", 'ForceCommand echo Welcome; exec sh -c "$SSH_ORIGINAL_COMMAND"')
    monkeypatch.setenv(ssh.COMMAND_VARIABLE, running.command)
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path / "near 家"))
    yield running
    running.stop()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Path]:
    """Traindeck's folder on the other machine. Keepers and trainers there are killed at the end."""
    folder = ssh_server.install(tmp_path / "far 主机")
    yield folder
    for lock in [*folder.glob("runs/*/keeper/lock"), *folder.glob("runs/*/run.lock")]:
        if (owner := file_locks.read_owner(lock)) is not None and owner.alive:
            psutil.Process(owner.pid).kill()


@dataclass
class RemoteRun:
    """A process of `remote ...`, and what it has written."""

    process: subprocess.Popen[bytes]
    lines: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def send(self, command: protocol.AnyCommand) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(protocol.encode(command))
        self.process.stdin.flush()

    def wait(self) -> int:
        code = self.process.wait(120)
        self._reader.join()
        return code

    def events(self) -> list[protocol.AnyEvent]:
        return list(run_dir.decode_events(list(self.lines)))

    def steps(self) -> list[int]:
        return [event.step for event in self.events() if isinstance(event, protocol.Step)]

    def warnings(self) -> list[str]:
        return [event.code for event in self.events() if isinstance(event, protocol.Warn)]

    def error(self) -> str:
        """Code of the error."""
        return next((event.code for event in self.events() if isinstance(event, protocol.Error)), "")


def start(*arguments: str) -> RemoteRun:
    pipe = subprocess.PIPE
    command = [*PROGRAM, *arguments, "--output", "json", "--control", "stdin"]
    environment = child_process.environment()
    return RemoteRun(subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL))


def train(run: RunDir, far: Path, data: Path, steps: int, **changes: Any) -> RemoteRun:
    settings = config_arguments(presets.load("quickstart"), {**TINY, "max_steps": steps, **changes}, [str(data)])
    return start("train", HOST, "--folder", str(far), "--run-dir", str(run.path), *settings)


def text_file(tmp_path: Path) -> Path:
    text = tmp_path / "我的 文本.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. 春眠不觉晓。\n" * 500, encoding="utf-8")
    return text


def write_checkpoint(run: RunDir, step: int, megabytes: int = 0) -> Path:
    folder = run.checkpoints / checkpoint_dir.folder_name(step)
    folder.mkdir(parents=True)
    for name, size in (("config.json", 2), ("model.safetensors", 1000), ("optimizer.safetensors", megabytes << 20)):
        (folder / name).write_bytes(random.Random(step).randbytes(size))
    checkpoint_dir.write_manifest(folder, step, "regular", None)
    return folder


def fetched_steps(run: RunDir) -> list[int]:
    folders = checkpoint_dir.list_checkpoints(run.checkpoints)
    assert not any(map(checkpoint_dir.find_problem, folders))
    assert not (run.path / ".fetching").exists()
    return [info.step for info in checkpoint_dir.list_infos(run.checkpoints)]


def test_a_run_whose_connection_is_cut_three_times_is_followed_without_a_gap(
    server: SshServer, far: Path, tmp_path: Path
) -> None:
    run, there = RunDir(run_dir.runs_root() / "run 一"), RunDir(far / "runs" / "run 一")
    data = text_file(tmp_path)
    remote = train(run, far, data, steps=2000)
    for cut in range(1, 4):
        seen = len(remote.steps())
        wait_until(lambda seen=seen: len(remote.steps()) > seen + 50, 120)
        assert server.cut() > 0
        wait_until(lambda cut=cut: remote.warnings().count("remote.connection_lost") >= cut, 60)
    assert remote.wait() == 0
    events = there.events.read_bytes()
    assert run.events.read_bytes() == events
    # The process repeats the phase after each cut, and reports its own phases and warnings.
    written = [line for line in events.splitlines(keepends=True) if b'"type":"phase"' not in line]
    assert [line for line in remote.lines if line in set(written)] == written
    assert remote.steps() == list(range(1, 2001))
    phases = [event.phase for event in remote.events() if isinstance(event, protocol.Phase)]
    assert phases.count("connecting") == 4
    checkpoints = checkpoint_dir.list_checkpoints(run.checkpoints)
    names = [folder.name for folder in checkpoint_dir.list_checkpoints(there.checkpoints)]
    assert [folder.name for folder in checkpoints] == names
    assert not any(map(checkpoint_dir.find_problem, checkpoints))
    assert run_dir.read_yaml(run.config)["data"] == [str(data)]
    summary = run_dir.summarize(run)
    assert (summary.state, summary.step, summary.host) == ("finished", 2000, HOST)


def test_a_run_continues_after_its_window_was_killed_and_is_stopped_and_resumed_later(
    server: SshServer, far: Path, tmp_path: Path
) -> None:
    run, there = RunDir(run_dir.runs_root() / "a"), RunDir(far / "runs" / "a")
    first = train(run, far, text_file(tmp_path), steps=100_000)
    wait_until(lambda: len(first.steps()) > 50, 120)
    first.process.kill()
    known = first.wait() and there.events.stat().st_size
    wait_until(lambda: there.events.stat().st_size > known, 30)
    second = start("resume", str(run.path))
    wait_until(lambda: len(second.steps()) > 50, 60)
    assert checkpoint_dir.list_checkpoints(run.checkpoints) == []
    assert start("fetch", str(run.path)).wait() == 0
    fetched = checkpoint_dir.list_checkpoints(run.checkpoints)
    assert fetched
    assert not any(map(checkpoint_dir.find_problem, fetched))
    assert second.process.poll() is None
    second.send(protocol.Stop(id=1))
    assert second.wait() == 3
    assert run.events.read_bytes() == there.events.read_bytes()
    summary = run_dir.summarize(run)
    assert summary.state == "stopped"
    assert summary.resumable
    third = start("resume", str(run.path))
    wait_until(lambda: len(third.steps()) > 10, 120)
    assert third.steps()[0] == summary.step + 1
    third.send(protocol.Pause(id=1))
    wait_until(lambda: any(isinstance(event, protocol.Phase) and event.phase == "paused" for event in third.events()))
    third.process.kill()
    fourth = start("resume", str(run.path))
    wait_until(lambda: any(isinstance(event, protocol.Phase) and event.phase == "paused" for event in fourth.events()))
    fourth.send(protocol.Stop(id=1))
    assert fourth.wait() == 3
    assert run.events.read_bytes() == there.events.read_bytes()


def test_a_run_that_is_killed_there_is_reported_and_resumed_from_its_checkpoint(
    server: SshServer, far: Path, tmp_path: Path
) -> None:
    run, there = RunDir(run_dir.runs_root() / "a"), RunDir(far / "runs" / "a")
    first = train(run, far, text_file(tmp_path), steps=100_000)
    wait_until(lambda: len(first.steps()) > 50, 120)
    for lock in (there.path / "keeper" / "lock", there.lock):  # as when the machine is turned off
        owner = file_locks.read_owner(lock)
        assert owner is not None
        psutil.Process(owner.pid).kill()
    assert first.wait() == 1
    assert first.error() == "remote.killed"
    assert run_dir.summarize(run).resumable
    second = start("resume", str(run.path))
    wait_until(lambda: len(second.steps()) > 10, 120)
    assert second.steps()[0] % 20 == 1
    second.send(protocol.Stop(id=1))
    assert second.wait() == 3


def test_runs_of_the_same_name_have_folders_of_their_own_there(server: SshServer, far: Path, tmp_path: Path) -> None:
    data, mine, theirs = text_file(tmp_path), RunDir(run_dir.runs_root() / "a"), RunDir(tmp_path / "another home" / "a")
    first = train(theirs, far, data, steps=100_000)
    wait_until(lambda: len(first.steps()) > 5, 120)
    second = train(mine, far, data, steps=20)
    assert second.wait() == 0
    assert second.steps() == list(range(1, 21))
    assert fetched_steps(mine) == [20]
    first.send(protocol.Stop(id=1))
    assert first.wait() == 3
    records = [run_dir.read_remote(run) for run in (theirs, mine)]
    assert [record.there for record in records if record] == [str(far / "runs" / name) for name in ("a", "a-2")]
    for run, name in ((theirs, "a"), (mine, "a-2")):
        assert run.events.read_bytes() == RunDir(far / "runs" / name).events.read_bytes()


def test_stop_ends_the_download_of_a_run(server: SshServer, far: Path, tmp_path: Path) -> None:
    run = RunDir(run_dir.runs_root() / "a")

    def stop_downloading(remote: RemoteRun) -> None:
        """Send Stop until the process has ended. `download.lock` is held, so it waits before its download."""
        wait_until(lambda: any(isinstance(event, protocol.Done) for event in remote.events()), 120)
        deadline = time.monotonic() + 30
        while remote.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(BrokenPipeError):
                remote.send(protocol.Stop(id=7))  # before the end of the connection, it is sent to the trainer
            time.sleep(0.5)
        assert remote.process.poll() == 3
        remote.wait()
        assert 7 in [event.id for event in remote.events() if isinstance(event, protocol.Ack) and event.accepted]

    first = train(run, far, text_file(tmp_path), steps=20)
    wait_until(run.config.is_file, 60)
    with file_locks.file_lock(run.path / "download.lock"):
        stop_downloading(first)
        stop_downloading(start("resume", str(run.path)))
    assert checkpoint_dir.list_checkpoints(run.checkpoints) == []
    assert start("resume", str(run.path)).wait() == 0
    assert fetched_steps(run) == [20]


def test_an_adapter_that_was_trained_there_finds_its_base_model_here(
    server: SshServer, far: Path, tmp_path: Path
) -> None:
    base, run, data = RunDir(run_dir.runs_root() / "基础"), RunDir(run_dir.runs_root() / "lora"), text_file(tmp_path)
    assert train(base, far, data, steps=20).wait() == 0
    (base_checkpoint,) = checkpoint_dir.list_checkpoints(base.checkpoints)
    shutil.rmtree(base_checkpoint)  # as if the download had not ended
    assert run_dir.summarize(base).resumable
    again = start("resume", str(base.path))
    assert again.wait() == 0
    assert [event.reason for event in again.events() if isinstance(event, protocol.Done)] == ["finished"]
    assert checkpoint_dir.list_checkpoints(base.checkpoints) == [base_checkpoint]
    assert train(run, far, data, steps=20, base_model="基础", method="lora", optimizer="adamw").wait() == 0
    (checkpoint,) = checkpoint_dir.list_checkpoints(run.checkpoints)
    assert checkpoint_dir.find_problem(checkpoint) is None
    shutil.rmtree(far / "sets")
    model = source.resolve(str(checkpoint), NullReporter())
    assert (model.folder, model.adapters) == (base_checkpoint, (checkpoint,))
    assert run_dir.read_yaml(run.config)["base_model"] == str(base_checkpoint)


def test_each_failure_has_its_message(
    server: SshServer, far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(host: str = HOST, folder: str = str(far)) -> str:
        with pytest.raises(TraindeckError) as failure:
            RemoteHost(host, folder, NullReporter()).check()
        return failure.value.code

    assert error("host.invalid") == "remote.unknown_host"
    assert error("-oProxyCommand=true") == "remote.unknown_host"
    assert error("a b") == "remote.unknown_host"
    assert error(folder="/proc/traindeck") == "remote.system"
    host = RemoteHost(HOST, str(far), NullReporter())
    host.check()
    (far / ".venv").unlink()
    with pytest.raises(TraindeckError) as failure:
        host.trainer("runs")
    assert failure.value.code == "remote.system"
    monkeypatch.setenv(ssh.COMMAND_VARIABLE, server.write_client("other_key"))
    assert error() == "remote.key_refused"
    monkeypatch.setenv(ssh.COMMAND_VARIABLE, server.write_client("user_key", "no_hosts"))
    assert error() == "remote.host_key"
    monkeypatch.setenv(ssh.COMMAND_VARIABLE, str(tmp_path / "no-ssh"))
    assert error() == "remote.no_ssh"
    bare = SshServer(tmp_path / "bare", "SetEnv PATH=/nothing")
    monkeypatch.setenv(ssh.COMMAND_VARIABLE, bare.command)
    assert error() == "remote.no_python"
    bare.stop()
    assert error() == "remote.lost"


def test_a_transfer_sends_only_what_is_missing(server: SshServer, far: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "in 里").mkdir(parents=True)
    (folder / ".hidden").write_bytes(b"no")
    for name, content in (("a.txt", b"one" * 10), ("in 里/b.txt", b"two"), ("same.txt", b"two"), ("empty.txt", b"")):
        (folder / name).write_bytes(content)
    amounts: list[float] = []

    class Recorder(NullReporter):
        def progress(self, phase: str, done: float, total: float | None, unit: str) -> None:
            if phase == "uploading":
                amounts.append(total or 0)

    host = RemoteHost(HOST, str(far), Recorder())
    check = host.check()
    assert (check.installed, check.folder) == (True, str(far))
    sent = Path(host.upload(tmp_path, ["data"]), "data")
    assert {file.name: file.read_bytes() for file in sent.rglob("*.txt")} == {
        "a.txt": b"one" * 10, "b.txt": b"two", "same.txt": b"two", "empty.txt": b"",
    }  # fmt: skip
    assert max(amounts) == 33
    assert not (sent / ".hidden").exists()
    amounts.clear()
    assert Path(host.upload(tmp_path, ["data"]), "data") == sent
    assert amounts == []
    (folder / "a.txt").write_bytes(b"new" * 10)
    digest = hashlib.blake2b(b"new" * 10, digest_size=16).hexdigest()
    (far / "blobs" / f"{digest}.part").write_bytes(b"new" * 3)
    host.upload(tmp_path, ["data"])
    assert max(amounts) == 21
    with pytest.raises(TraindeckError) as failure:
        ssh.request(HOST, "put", root=str(far), key="0", files=[["a", 10**18, "0"]])
    assert failure.value.code == "remote.disk_full"


def test_a_parent_folder_is_sent_by_its_name(
    server: SshServer, far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "数据" / "inner"
    inner.mkdir(parents=True)
    text_file(inner.parent)
    monkeypatch.chdir(inner)
    host = RemoteHost(HOST, str(far), NullReporter())
    host.check()
    config, sent = _send_files(Config(data=[".."]), host, RunContext(EventDispatcher()))
    (there,) = map(Path, config.data)
    assert [file.name for file in there.iterdir()] == ["我的 文本.txt"]
    assert (there.name, there.parent.parent) == ("数据", far / "sets")
    assert sent == {str(there): ".."}
    for name in ("../escaped.txt", "a/../../escaped.txt", str(far / "escaped.txt")):
        with pytest.raises(TraindeckError) as failure:
            ssh.request(HOST, "put", root=str(far), key="0", files=[[name, 0, "0"]])
        assert (failure.value.code, failure.value.params["path"]) == ("remote.system", name)
    assert not list(far.rglob("escaped.txt"))


def test_schemas_of_rewards_and_the_deepspeed_file_are_sent(
    server: SshServer, far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("模式 schema.json").write_text('{"type": "object"}', encoding="utf-8")
    Path("ds.json").write_text("{}", encoding="utf-8")
    rewards = ["exact", "-0.5 * json-schema:模式 schema.json", "regex:json-schema:x"]
    given = Config(objective="grpo", rewards=rewards, parallel="deepspeed", deepspeed_config="ds.json")
    host = RemoteHost(HOST, str(far), NullReporter())
    host.check()
    config, sent = _send_files(given, host, RunContext(EventDispatcher()))
    Path("模式 schema.json").unlink()
    part = load_rewards(config.rewards).parts[1]
    assert part.setting.weight == -0.5
    assert [part.score(Answer(text, "", "end")) for text in ("{}", "[]")] == [1, 0]
    assert config.rewards[1].startswith(f"-0.5 * json-schema:{far}/sets/")
    assert config.rewards[::2] == rewards[::2]
    assert Path(config.deepspeed_config).is_relative_to(far / "sets")
    assert Path(config.deepspeed_config).read_text(encoding="utf-8") == "{}"
    assert sent[config.deepspeed_config] == "ds.json"
    assert sent[config.rewards[1]] == rewards[1]
    Path("ds.json").unlink()
    with pytest.raises(TraindeckError) as failure:
        _send_files(Config(deepspeed_config="ds.json"), host, RunContext(EventDispatcher()))
    assert failure.value.code == "deepspeed.bad_file"


def test_a_file_that_changes_while_it_is_sent_is_reported(server: SshServer, far: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    contents = [bytes(64 * 2**20), *(b"%03d" % number for number in range(100))]
    digests = [hashlib.blake2b(content, digest_size=16).hexdigest() for content in contents]
    number = next(number for number in range(1, 101) if digests[number] < digests[0])  # sent before the large file
    (folder / "large.bin").write_bytes(contents[0])
    (folder / "small.txt").write_bytes(contents[number])

    class Change(NullReporter):
        """Changes the small file after it was hashed."""

        def progress(self, phase: str, done: float, total: float | None, unit: str) -> None:
            if phase == "preparing" and done == total:
                (folder / "small.txt").write_bytes(b"new")

    host = RemoteHost(HOST, str(far), Change())
    host.check()
    with pytest.raises(TraindeckError) as failure:
        host.upload(tmp_path, ["data"])
    assert failure.value.code == "remote.changed"


def test_a_download_continues_and_a_damaged_checkpoint_does_not_appear(
    server: SshServer, far: Path, tmp_path: Path
) -> None:
    there, here = RunDir(far / "runs" / "a"), RunDir(run_dir.runs_root() / "a")
    folder = there.checkpoints / checkpoint_dir.folder_name(10)
    folder.mkdir(parents=True)
    weights = folder / "model.safetensors"
    weights.write_bytes(bytes(range(256)) * 1000)
    checkpoint_dir.write_manifest(folder, 10, "regular", None)
    there.config.write_text("data: [/there/x.txt]\n", encoding="utf-8")
    here.path.mkdir(parents=True)
    host, paths = RemoteHost(HOST, str(far), NullReporter()), {"/there/x.txt": "C:/here/x.txt"}
    content = weights.read_bytes()
    weights.write_bytes(bytes(len(content)))
    with pytest.raises(TraindeckError) as failure:
        host.fetch(str(there.path), here, paths)
    assert failure.value.code == "remote.damaged"
    assert checkpoint_dir.list_checkpoints(here.checkpoints) == []
    weights.write_bytes(content)
    with pytest.raises(TraindeckError):
        next(_receive(Mock(), here.path, {"name": "../../x", "start": 0, "size": 1, "changed": 0}))
    part = here.path / ".fetching" / "checkpoints" / folder.name / weights.name
    part.parent.mkdir(parents=True)
    part.write_bytes(content[:1000])
    changed = int(weights.stat().st_mtime)
    os.utime(part, (changed, changed))
    host.fetch(str(there.path), here, paths)
    (fetched,) = checkpoint_dir.list_checkpoints(here.checkpoints)
    assert checkpoint_dir.find_problem(fetched) is None
    assert run_dir.read_yaml(here.config)["data"] == ["C:/here/x.txt"]
    assert not (here.path / ".fetching").exists()


def test_a_checkpoint_that_is_rotated_away_during_its_download_does_not_appear(server: SshServer, far: Path) -> None:
    there, here = RunDir(far / "runs" / "a"), RunDir(run_dir.runs_root() / "a")
    here.path.mkdir(parents=True)
    write_checkpoint(there, 10)
    newest = write_checkpoint(there, 20, megabytes=64)

    class Rotation(NullReporter):
        """Deletes the newest checkpoint while its first file is sent."""

        def progress(self, phase: str, done: float, total: float | None, unit: str) -> None:
            if newest.exists():
                newest.rename(newest.with_name(".removed"))

    RemoteHost(HOST, str(far), Rotation()).fetch(str(there.path), here, {})
    assert fetched_steps(here) == [10]


def test_a_checkpoint_that_was_rotated_away_after_a_stopped_download_does_not_appear(
    server: SshServer, far: Path
) -> None:
    there, here = RunDir(far / "runs" / "a"), RunDir(run_dir.runs_root() / "a")
    here.path.mkdir(parents=True)
    older = write_checkpoint(there, 10, megabytes=1)
    (older / "config.json").write_bytes(bytes(2**20))  # sent last
    checkpoint_dir.write_manifest(older, 10, "regular", None)

    class Stop(NullReporter):
        """Stops in the middle of the last file."""

        def progress(self, phase: str, done: float, total: float | None, unit: str) -> None:
            if total is not None and total - 2**20 < done < total:
                raise StopRequested("stopped")

    with pytest.raises(StopRequested):
        RemoteHost(HOST, str(far), Stop()).fetch(str(there.path), here, {})
    part = here.path / ".fetching" / "checkpoints" / older.name
    assert (part / checkpoint_dir.MANIFEST).is_file()
    assert 0 < (part / "config.json").stat().st_size < 2**20
    shutil.rmtree(older)
    write_checkpoint(there, 20)
    RemoteHost(HOST, str(far), NullReporter()).fetch(str(there.path), here, {})
    assert fetched_steps(here) == [20]


def test_a_damaged_checkpoint_does_not_hold_up_the_others(server: SshServer, far: Path) -> None:
    there, here = RunDir(far / "runs" / "a"), RunDir(run_dir.runs_root() / "a")
    here.path.mkdir(parents=True)
    write_checkpoint(there, 10)
    (write_checkpoint(there, 20) / "model.safetensors").write_bytes(bytes(1000))
    write_checkpoint(there, 30)
    there.log.write_text("log", encoding="utf-8")
    with pytest.raises(TraindeckError) as failure:
        RemoteHost(HOST, str(far), NullReporter()).fetch(str(there.path), here, {})
    assert (failure.value.code, failure.value.params["path"]) == ("remote.damaged", "step-00000020")
    assert fetched_steps(here) == [10, 30]
    assert here.log.read_text(encoding="utf-8") == "log"


def test_a_reward_in_a_downloaded_checkpoint_has_its_schema_here(server: SshServer, far: Path) -> None:
    there, here = RunDir(far / "runs" / "a"), RunDir(run_dir.runs_root() / "a")
    here.path.mkdir(parents=True)
    folder, names = write_checkpoint(there, 10), {"2*json-schema:/far/模式.json": "2*json-schema:模式.json"}
    (folder / "state.json").write_text(json.dumps({"rewards": ["exact", *names]}), encoding="utf-8")
    checkpoint_dir.write_manifest(folder, 10, "regular", None)
    RemoteHost(HOST, str(far), NullReporter()).fetch(str(there.path), here, names)
    assert fetched_steps(here) == [10]
    state = json.loads((here.checkpoints / folder.name / "state.json").read_bytes())
    assert state == {"rewards": ["exact", "2*json-schema:模式.json"]}


def test_a_file_that_grows_within_a_second_is_downloaded_again(server: SshServer, far: Path) -> None:
    there, here = RunDir(far / "runs" / "a"), RunDir(run_dir.runs_root() / "a")
    there.path.mkdir(parents=True)
    here.path.mkdir(parents=True)
    host = RemoteHost(HOST, str(far), NullReporter())
    for text in ("one\n", "one\ntwo\n"):
        there.log.write_text(text, encoding="utf-8")
        os.utime(there.log, (10**9, 10**9))
        host.fetch(str(there.path), here, {})
        assert here.log.read_text(encoding="utf-8") == text


def test_transfers_whose_connection_is_cut_continue(server: SshServer, far: Path, tmp_path: Path) -> None:
    there, here = RunDir(far / "runs" / "a"), RunDir(run_dir.runs_root() / "a")
    folder = there.checkpoints / checkpoint_dir.folder_name(10)
    folder.mkdir(parents=True)
    weights = folder / "model.safetensors"
    weights.write_bytes(random.Random(0).randbytes(64 * 2**20))
    checkpoint_dir.write_manifest(folder, 10, "regular", None)
    here.path.mkdir(parents=True)
    amounts: list[float] = []

    class Cutter(NullReporter):
        """Cuts the connection once, in the middle."""

        def progress(self, phase: str, done: float, total: float | None, unit: str) -> None:
            amounts.append(total or 0)
            if phase in ("uploading", "downloading") and len(set(amounts)) == 1 and done > (total or 0) / 2:
                server.cut()

    host = RemoteHost(HOST, str(far), Cutter())
    host.check()
    context = RunContext(EventDispatcher())
    reconnecting = Reconnecting(context, HOST, context.poll)
    reconnecting.run(lambda: host.fetch(str(there.path), here, {}))
    (fetched,) = checkpoint_dir.list_checkpoints(here.checkpoints)
    assert checkpoint_dir.find_problem(fetched) is None
    assert min(amounts) < 0.6 * max(amounts)
    amounts.clear()
    sent = reconnecting.run(lambda: host.upload(folder, [weights.name]))
    assert Path(sent, weights.name).read_bytes() == weights.read_bytes()
    assert min(amounts) < 0.6 * max(amounts)
