"""Logging to trackers; their failures do not affect training. `tests/core/test_trackers.py` reads a real run.

A module called `wandb` replaces the package where it must fail.
"""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainer_core import protocol, wire
from trainer_core.config import Config, ConfigLayer, resolve
from trainer_core.docgen.examples import EVENTS
from trainer_core.messages import TraindeckError, format_message
from trainer_core.runs import file_locks
from trainer_core.runs.run_dir import RunDir
from trainer_core.trackers import TITLES
from trainer_core.trackers import __main__ as child
from trainer_core.trackers.sink import TrackerSink, add_trackers

FAKE = """
import json, os, sys, time
from pathlib import Path
class errors:
    class CommError(Exception): pass
class Settings:
    def __init__(self, **options): pass
class Run:
    def __init__(self, path): self.path = path
    def put(self, *entry):
        with self.path.open("a", encoding="utf-8") as file: file.write(json.dumps(entry) + "\\n")
    def define_metric(self, *args, **options): pass
    def log(self, values): self.put("log", values)
    def finish(self, exit_code): self.put("finish", exit_code)
def init(**options):
    print("a stray print")
    BEHAVIOUR
    run = Run(Path(options["dir"]) / "sent.jsonl")
    run.put("init", options.get("mode"))
    return run
"""


@pytest.fixture
def install_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Function that installs a fake `wandb`. Its argument is code that `init` runs first."""

    def install(behaviour: str = "pass") -> None:
        folder = tmp_path / "packages"
        folder.mkdir()
        (folder / "wandb.py").write_text(FAKE.replace("BEHAVIOUR", behaviour), encoding="utf-8")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return install


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    path = tmp_path / "运行 1"
    path.mkdir()
    RunDir(path).write_config(Config())
    RunDir(path).events.touch()
    return path


def start(run_path: Path, name: str = "wandb", errors: list[TraindeckError] | None = None) -> TrackerSink:
    return TrackerSink(name, run_path, 0, [].append if errors is None else errors.append)


def wait_for_problem(tracker: TrackerSink) -> TraindeckError:
    deadline = time.monotonic() + 20
    while tracker.problem is None and time.monotonic() < deadline:
        tracker.write(EVENTS[protocol.Step])
        time.sleep(0.01)
    assert tracker.problem is not None
    return tracker.problem


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("tensorboard", "-m pip install tensorboard"),
        ("wandb", "-m pip install wandb"),
        ("mlflow", "-m pip install mlflow-skinny sqlalchemy alembic"),
    ],
)
def test_a_missing_package_is_a_warning_with_the_command_that_installs_it(
    run_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    warnings: list[str] = []

    def warn(code: str, **params: Any) -> None:
        warnings.append(format_message(code, params, "en"))

    config = Config(**{f"use_{name}": True})
    add_trackers(config, run_path, 0, wire.EventDispatcher(), warn)
    (warning,) = warnings
    assert TITLES[name] in warning
    assert warning.endswith(f'"{sys.executable}" {command}')


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("raise ValueError('api_key not configured (no-tty)')", "api_key not configured"),
        ("os._exit(7)", "exit code 0x7"),
        ("import nothing_of_this_name", "nothing_of_this_name"),
    ],
)
def test_a_failed_start_is_reported_once(install_wandb: Any, run_path: Path, behaviour: str, reason: str) -> None:
    install_wandb(behaviour)
    errors: list[TraindeckError] = []
    tracker = start(run_path, errors=errors)
    problem = wait_for_problem(tracker)
    tracker.close()
    assert errors == [problem]
    assert problem.code == "tracker.problem"
    assert reason in str(problem.params["reason"])


def test_without_the_service_the_run_is_stored_offline(install_wandb: Any, run_path: Path) -> None:
    install_wandb("if options.get('mode') != 'offline': raise errors.CommError('no network')")
    tracker = start(run_path)
    assert "no network" in str(wait_for_problem(tracker).params["reason"])
    tracker.write(EVENTS[protocol.Eval])
    tracker.close()
    sent = [json.loads(line) for line in (run_path / "sent.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sent[0] == ["init", "offline"]
    assert [values for kind, values in sent if kind == "log" and "eval/loss" in values] != []


def test_a_hanging_service_does_not_block_training(
    install_wandb: Any, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_wandb("time.sleep(30)")
    monkeypatch.setattr(wire, "_DRAIN_TIMEOUT_S", 0.2)
    tracker = start(run_path)
    event = EVENTS[protocol.Step]
    begin = time.perf_counter()
    for _ in range(20_000):
        tracker.write(event)
    spent = time.perf_counter() - begin
    tracker.close()
    assert time.perf_counter() - begin < spent + 2.0
    assert spent < 5.0  # 20,000 events
    assert len(tracker._stream._queue) <= wire._QUEUE_LENGTH
    tracker._child.kill()
    tracker._child.wait()


def test_a_hanging_tracker_ends_after_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(child, "_UPLOAD_TIMEOUT_S", 0.1)
    monkeypatch.setattr(child.os, "_exit", ended.append)
    trainer = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watch = threading.Thread(target=child._exit_after, args=(trainer.pid,))
    watch.start()
    watch.join(0.3)
    assert ended == []
    trainer.communicate(b"\n")
    watch.join(5.0)
    assert ended == [1]


def test_an_exception_in_the_error_callback_is_ignored(install_wandb: Any, run_path: Path) -> None:
    install_wandb("raise ValueError('no')")

    def fail(error: TraindeckError) -> None:
        raise RuntimeError("the wire is closed")

    tracker = TrackerSink("wandb", run_path, 0, fail)
    tracker.close()
    assert tracker.problem is not None


def test_the_trainer_imports_no_tracker_and_its_threads_end(install_wandb: Any, run_path: Path) -> None:
    install_wandb()
    start(run_path).close()
    assert "wandb" not in sys.modules
    assert "wandb" not in [thread.name for thread in threading.enumerate()]


# --- secrets -----------------------------------------------------------------------------------------------


def test_keys_and_passwords_in_a_problem_are_masked(
    install_wandb: Any, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "correct-horse")
    install_wandb("raise ValueError('https://me:hunter22@host refused correct-horse')")
    tracker = start(run_path)
    reason = str(wait_for_problem(tracker).params["reason"])
    tracker.close()
    assert "@host refused" in reason
    assert "hunter22" not in reason
    assert "correct-horse" not in reason


@pytest.mark.parametrize("uri", ["https://me:hunter22@host/mlflow", "postgresql://me:hunter22@host/db"])
def test_an_address_with_a_password_is_refused_without_repeating_it(uri: str) -> None:
    with pytest.raises(TraindeckError) as refusal:
        resolve([ConfigLayer("the command line", {"mlflow_tracking_uri": uri})])
    for language in ("en", "zh"):
        sentence = format_message(refusal.value.code, refusal.value.params, language)
        assert "MLFLOW_TRACKING_USERNAME" in sentence
        assert "MLFLOW_TRACKING_PASSWORD" in sentence
        assert "hunter22" not in sentence


@pytest.mark.parametrize("uri", ["", "https://host:5000/mlflow", "sqlite:////home/me@work/mlflow.db", "databricks"])
def test_an_address_without_a_password_is_accepted(uri: str) -> None:
    assert resolve([ConfigLayer("a file", {"mlflow_tracking_uri": uri})]).mlflow_tracking_uri == uri


# --- steps that are repeated -----------------------------------------------------------------------------------


class Memory:
    """A tracker that keeps what it was given."""

    def __init__(self, can_rewind: bool) -> None:
        self.can_rewind = can_rewind
        self.losses: list[tuple[int, float]] = []
        self.texts: list[tuple[int, str]] = []

    def rewind(self, step: int) -> bool:
        if self.can_rewind:
            self.losses = [point for point in self.losses if point[0] < step]
        return self.can_rewind

    def log_metrics(self, step: int, values: Mapping[str, float], time: float) -> None:
        self.losses += [(step, values["train/loss"])] if "train/loss" in values else []

    def log_text(self, step: int, name: str, columns: Mapping[str, str]) -> None:
        self.texts.append((step, name))

    def finish(self, succeeded: bool) -> None:
        pass


def step(number: int, loss: float) -> protocol.Step:
    return msgspec.structs.replace(EVENTS[protocol.Step], step=number, loss=loss)


@pytest.mark.parametrize(("can_rewind", "losses"), [(True, [1.0, 5.0, 6.0]), (False, [1.0, 2.0, 3.0])])
def test_after_a_rollback_steps_are_replaced_or_kept_but_never_doubled(
    tmp_path: Path, can_rewind: bool, losses: list[float]
) -> None:
    tracker = Memory(can_rewind)
    log = child._EventLog(tracker, 0, tmp_path / "steps.json")
    back = msgspec.structs.replace(EVENTS[protocol.BadStep], step=31, action="rolled_back")
    for event in (step(10, 1.0), step(20, 2.0), step(30, 3.0), back, step(20, 5.0), step(30, 6.0)):
        log.add(event)
    assert tracker.losses == list(zip((10, 20, 30), losses, strict=True))


def test_all_samples_of_a_step_are_logged_by_number(tmp_path: Path) -> None:
    tracker, path = Memory(can_rewind=False), tmp_path / "steps.json"
    path.write_text('{"sample": 10}', encoding="ascii")
    log = child._EventLog(tracker, 0, path)
    for number in (10, 20, 20, 30):
        log.add(msgspec.structs.replace(EVENTS[protocol.Sample], step=number))
    assert tracker.texts == [(20, "sample/1"), (20, "sample/2"), (30, "sample/1")]


def test_a_resumed_run_logs_what_its_killed_process_did_not_and_nothing_twice(tmp_path: Path) -> None:
    tracker = Memory(can_rewind=False)
    first = child._EventLog(tracker, 0, tmp_path / "steps.json")
    for number in (1, 2, 3):
        first.add(step(number, 1.0))
    resumed = child._EventLog(tracker, 1, tmp_path / "steps.json")
    for number in (2, 3, 4):
        resumed.add(step(number, 2.0))
    assert tracker.losses == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0)]


def test_the_next_process_of_a_run_waits_for_the_upload_of_the_last_one(install_wandb: Any, run_path: Path) -> None:
    install_wandb()
    tracker = start(run_path)
    with file_locks.file_lock(run_path / "wandb.lock"):
        tracker.write(EVENTS[protocol.Eval])
        time.sleep(1.0)
        assert not (run_path / "sent.jsonl").exists()
    tracker.close()
    assert "eval/loss" in (run_path / "sent.jsonl").read_text(encoding="utf-8")


def test_values_that_are_not_finite_are_left_out_and_units_have_paths(run_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines = io.BytesIO(b"".join(protocol.encode(event) for event in (step(1, 2.0), EVENTS[protocol.Hardware])))
    nothing = protocol.encode(msgspec.structs.replace(EVENTS[protocol.Step], step=2, loss=None))
    problems = io.BytesIO()
    child.main("tensorboard", RunDir(run_path), 0, io.BytesIO(lines.getvalue() + nothing), problems)
    reader = EventAccumulator(str(run_path))
    reader.Reload()
    assert problems.getvalue() == b""
    assert [(entry.step, entry.value) for entry in reader.Scalars("train/loss")] == [(1, 2.0)]
    assert reader.Scalars("gpu/0/power_w")[0].value == pytest.approx(388.2)
    assert reader.Scalars("train/time_ms/forward")[0].value == pytest.approx(11.9)
