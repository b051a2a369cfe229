"""Logging to Weights & Biases; its failures do not affect training.

A module called `wandb` replaces the package.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from trainer_core import protocol, wire
from trainer_core.config import Config
from trainer_core.docgen.examples import EVENTS
from trainer_core.messages import TraindeckError
from trainer_core.runs.run_dir import RunDir
from trainer_core.trackers import wandb
from trainer_core.trackers.wandb import WandbSink

FAKE = """
import json, os, sys, time
from pathlib import Path
class errors:
    class CommError(Exception): pass
class Settings:
    def __init__(self, **options): pass
class Table:
    def __init__(self, columns, data): self.data = data
class Run:
    summary = {}
    def __init__(self, path): self.path = path
    def put(self, *entry):
        line = json.dumps(entry, default=lambda table: table.data)
        with self.path.open("a", encoding="utf-8") as file: file.write(line + "\\n")
    def define_metric(self, *args, **options): pass
    def log(self, values): self.put("log", values)
    def finish(self): self.put("finish", self.summary)
def init(**options):
    print("a stray print")
    BEHAVIOUR
    run = Run(Path(options["dir"]) / "sent.jsonl")
    run.put("init", {"mode": options.get("mode"), **{key: options[key] for key in ("id", "project", "name")}})
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
    RunDir(path).write_config(Config(wandb_project="mine"))
    return path


def ignore(error: TraindeckError) -> None:
    pass


def read_sent(run_path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (run_path / "sent.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_missing_package_is_reported_immediately(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TraindeckError) as caught:
        WandbSink(run_path, ignore)
    assert caught.value.code == "wandb.unavailable"
    assert "wandb" in str(caught.value.params["reason"])


def test_metrics_are_logged_by_path(install_wandb: Any, run_path: Path) -> None:
    install_wandb()
    sink = WandbSink(run_path, ignore)
    for event in EVENTS.values():
        sink.write(event)
    sink.close()
    assert sink.problem is None
    entries = read_sent(run_path)
    assert entries[0][0] == "init"
    assert (entries[0][1]["project"], entries[0][1]["name"]) == ("mine", "运行 1")
    logged: dict[str, Any] = {}
    for kind, values in entries[1:]:
        logged |= values if kind == "log" else {}
    assert (logged["train/loss"], logged["train/time_ms/forward"], logged["eval/loss"]) == (4.213, 11.9, 3.871)
    assert (logged["gpu/0/power_w"], logged["host/cpu"]) == (388.2, 0.22)
    assert logged["sample"][0][1] == "从前有一座山，"
    assert not any(value is None for value in logged.values())
    assert entries[-1][0] == "finish"
    assert entries[-1][1]["done/steps"] == 2100


def test_a_resumed_run_has_the_same_id(install_wandb: Any, run_path: Path) -> None:
    install_wandb()
    for _ in range(2):
        WandbSink(run_path, ignore).close()
    first, second = [values["id"] for kind, values in read_sent(run_path) if kind == "init"]
    assert first == second


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
    sink = WandbSink(run_path, errors.append)
    deadline = time.monotonic() + 20
    while not errors and time.monotonic() < deadline:
        sink.write(EVENTS[protocol.Step])
        time.sleep(0.01)
    sink.close()
    (error,) = errors
    assert error.code == "wandb.unavailable"
    assert reason in str(error.params["reason"])
    assert sink.problem is error


def test_without_the_service_the_run_is_stored_offline(install_wandb: Any, run_path: Path) -> None:
    install_wandb("if options.get('mode') != 'offline': raise errors.CommError('no network')")
    sink = WandbSink(run_path, ignore)
    sink.write(EVENTS[protocol.Eval])
    sink.close()
    assert read_sent(run_path)[0][1]["mode"] == "offline"
    assert "eval/loss" in read_sent(run_path)[1][1]
    assert sink.problem is not None


def test_a_hanging_service_does_not_block_training(
    install_wandb: Any, run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_wandb("time.sleep(30)")
    monkeypatch.setattr(wandb, "_CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(wire, "_DRAIN_TIMEOUT_S", 0.2)
    sink = WandbSink(run_path, ignore)
    event = EVENTS[protocol.Step]
    start = time.perf_counter()
    for _ in range(20_000):
        sink.write(event)
    spent = time.perf_counter() - start
    sink.close()
    assert time.perf_counter() - start < spent + 2.0
    assert spent < 5.0  # 20,000 events
    assert len(sink._stream._queue) <= wire._QUEUE_LENGTH
    sink._child.kill()
    sink._child.wait()


def test_an_exception_in_the_error_callback_is_ignored(install_wandb: Any, run_path: Path) -> None:
    install_wandb("raise ValueError('no')")

    def fail(error: TraindeckError) -> None:
        raise RuntimeError("the wire is closed")

    sink = WandbSink(run_path, fail)
    sink.close()
    assert sink.problem is not None


def test_wandb_is_not_imported_into_the_trainer(install_wandb: Any, run_path: Path) -> None:
    install_wandb()
    WandbSink(run_path, ignore).close()
    assert "wandb" not in sys.modules


def test_threads_end_on_close(install_wandb: Any, run_path: Path) -> None:
    install_wandb()
    WandbSink(run_path, ignore).close()
    assert "wandb" not in [thread.name for thread in threading.enumerate()]
