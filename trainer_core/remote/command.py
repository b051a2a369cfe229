"""Trains on another machine as `train` does on this one: the same events, commands and exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from trainer_core import protocol, run_plan, supervisor
from trainer_core.base_model import source
from trainer_core.command_runner import CommandContext
from trainer_core.config import Config, to_dict
from trainer_core.data.tokenizing import tokenizer_files
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.remote import ssh
from trainer_core.remote.host import RemoteHost
from trainer_core.remote.session import Reconnecting, Session
from trainer_core.rewards.setting import schema_file
from trainer_core.run_context import RunContext
from trainer_core.runs import file_locks, run_dir
from trainer_core.runs.run_dir import RemoteRecord, RunDir
from trainer_core.system import files

_LOCK_POLL_S: Final = 0.2
_SIGNAL_OFFSET: Final = 128  # exit code of shells for a signal


def check(name: str, folder: str, job: CommandContext) -> None:
    """Report on another machine. Raises `remote.…`."""
    _connect(name, folder, job)
    job.run_context.set_phase("done")


def train(name: str, folder: str, flags: Mapping[str, Any], job: CommandContext) -> None:
    """Start a run on another machine, follow it to its end and bring it here.

    Raises `remote.…` and what `run_plan.plan_run` raises. A stop before the run has started leaves no run.
    """
    plan = run_plan.plan_run(flags)
    plan.run.create()
    with run_dir.lock(plan.run):
        host = _connect(name, folder, job)
        _install(host, job)
        config, paths = _send_files(plan.config, host, job.run_context)
        reconnecting = Reconnecting(job.run_context, name, job.run_context.poll)
        there = reconnecting.run(lambda: host.create_run(plan.run.path.name))
        record = RemoteRecord(name, folder, there, paths)
        with files.translate_os_errors(plan.run.path):
            files.write_atomic(plan.run.remote, msgspec.json.encode(record))
        plan.run.write_config(plan.config)
        file = f"{there}/keeper/config.yaml"
        text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
        _start(host, there, ["--run-dir", there, "--config", file], {file: text})
        with Session(host, there, plan.run, job) as session:
            end = session.follow()
        _finish(end, session.ending, host, record, plan.run, job)


def resume(reference: str, job: CommandContext) -> None:
    """Follow a run that another machine trains, resume it there if it has ended early, and bring it here.

    Raises `run.not_found`, `remote.not_remote` and `remote.…`.
    """
    run = run_dir.find_run(reference, run_dir.runs_root())
    record = run_dir.read_remote(run)
    if record is None:
        raise TraindeckError("remote.not_remote", path=str(run.path))
    with run_dir.lock(run):
        host = _connect(record.host, record.folder, job)
        with Session(host, record.there, run, job) as session:
            is_running = session.catch_up()["running"]
            finished = None if is_running else _read_finished(run)
            if finished is None:
                if not is_running:
                    _install(host, job)  # not before: the run may be trained by another version
                    _start(host, record.there, ["--resume", record.there])
                end = session.follow()
        if finished is None:
            _finish(end, session.ending, host, record, run, job)
            return
        if session.ending is None:  # it was received earlier, but the files were not
            job.run_context.emit(finished)
        _fetch(host, record, run, job)


def _read_finished(run: RunDir) -> protocol.Done | None:
    """The last event of a run that was trained to its end; None: it was not."""
    ending = supervisor.read_final_event(run.events, 0)
    return ending if isinstance(ending, protocol.Done) and ending.reason in ("finished", "early_stop") else None


def fetch(reference: str, job: CommandContext) -> None:
    """Bring what a run on another machine has written until now. Raises as `resume`."""
    run = run_dir.find_run(reference, run_dir.runs_root())
    record = run_dir.read_remote(run)
    if record is None:
        raise TraindeckError("remote.not_remote", path=str(run.path))
    _fetch(_connect(record.host, record.folder, job), record, run, job)


def _connect(name: str, folder: str, job: CommandContext) -> RemoteHost:
    """Check a machine, and report on it."""
    host = RemoteHost(name, folder, job.run_context)
    job.run_context.set_phase("connecting")
    job.run_context.emit(host.check())
    return host


def _install(host: RemoteHost, job: CommandContext) -> None:
    Reconnecting(job.run_context, host.name, job.run_context.poll).run(host.install)


def _send_files(config: Config, host: RemoteHost, context: RunContext) -> tuple[Config, dict[str, str]]:
    """The configuration with paths of the other machine, and these paths: there → here."""
    sent = dict[str, str]()
    reconnecting = Reconnecting(context, host.name, context.poll)

    def send(setting: str, path: Path, *companions: str) -> str:
        """Send `path`, the value of a setting, and files beside it. Returns the path there."""
        path = Path(os.path.abspath(path))  # noqa: PTH100 - `..` has no name, and a link keeps its own
        folder = reconnecting.run(lambda: host.upload(path.parent, [path.name, *companions]), "uploading")
        there = f"{folder}/{path.name}"
        sent[there] = setting
        return there

    def send_data(path: str) -> str:
        return path if path.startswith("builtin:") else send(path, Path(path).expanduser())

    def send_reward(reward: str) -> str:
        if not (file := schema_file(reward)):
            return reward
        there = reward.strip().removesuffix(file) + send(file, Path(file))
        sent[there] = reward
        return there

    changes: dict[str, Any] = {
        "data": [send_data(path) for path in config.data],
        "validation_data": [send_data(path) for path in config.validation_data],
        "cache_dir": "",
    }
    if config.base_model and source.find_folder(config.base_model) is not None:
        base, _ = source.find_local(config.base_model, context.warn) or (Path(), "")
        changes["base_model"] = send(str(base), base)
    if config.tokenizer:
        file = tokenizer_files.find_tokenizer(config.tokenizer)
        companions = [name for name in tokenizer_files.COMPANION_FILES if (file.parent / name).is_file()]
        changes["tokenizer"] = send(config.tokenizer, file, *companions)
    if config.uses_rewards:
        changes["rewards"] = [send_reward(reward) for reward in config.rewards]
    if config.deepspeed_config:
        file = Path(config.deepspeed_config)
        if not file.is_file():
            raise TraindeckError("deepspeed.bad_file", path=str(file), reason="there is no such file")
        changes["deepspeed_config"] = send(config.deepspeed_config, file)
    return msgspec.structs.replace(config, **changes), sent


def _start(host: RemoteHost, there: str, arguments: list[str], write: dict[str, str] | None = None) -> None:
    with host.trainer("remote", "start", there, *arguments, write=write) as connection:
        for line in ssh.read_lines(connection):
            sys.stderr.write(f"{line}\n")


def _finish(
    end: dict[str, Any],
    ending: protocol.Done | protocol.Error | None,
    host: RemoteHost,
    record: RemoteRecord,
    run: RunDir,
    job: CommandContext,
) -> None:
    """Bring a run here that has ended. `end`: as of `Session.follow`; `ending`: last event of the trainer."""
    for line in end["unrecorded"]:
        job.relay(f"{line}\n".encode())
    sys.stderr.write(end["stderr"])
    code = end["exit_code"]
    if code is None and ending is None:
        raise TraindeckError("remote.killed", host=host.name)
    if code is None:  # the trainer has saved when its keeper was killed
        code = ending.exit_code if isinstance(ending, protocol.Error) else ExitCode.STOPPED
    if not end["unrecorded"]:
        _fetch(host, record, run, job)
    job.exit_code = code if code >= 0 else _SIGNAL_OFFSET - code


def _fetch(host: RemoteHost, record: RemoteRecord, run: RunDir, job: CommandContext) -> None:
    reconnecting = Reconnecting(job.run_context, host.name, job.run_context.poll)
    with _download_lock(run, job.run_context):
        reconnecting.run(lambda: host.fetch(record.there, run, record.paths), "downloading")


@contextlib.contextmanager
def _download_lock(run: RunDir, context: RunContext) -> Iterator[None]:
    """Wait for another download of the run."""
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(file_locks.file_lock(run.path / "download.lock"))
                break
            except file_locks.LockHeldError:
                time.sleep(_LOCK_POLL_S)
                context.poll()
        yield
