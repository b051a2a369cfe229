"""A run whose base model is a preset: the base is trained first, as a run of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.core.trainer_process import entered_phase, finish, read_until, run, send, start
from trainer_core import protocol
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir

PRESET = ("--preset", "quickstart_finetune", "--device", "cpu")


def start_controlled(home: Path, *command: str) -> subprocess.Popen[bytes]:
    return start(home, *command, *PRESET, "--control", "stdin", stdin=subprocess.PIPE)


def reached_base_step(step: int) -> Callable[[protocol.AnyEvent], bool]:
    return lambda event: isinstance(event, protocol.Progress) and event.phase == "training_base" and event.done >= step


def runs_of(home: Path, preset: str) -> list[run_dir.RunSummary]:
    return [run for run in run_dir.list_runs(home / "runs") if run.preset == preset]


def phases_of(run: Path) -> list[str]:
    return [event.phase for event in events_of(run) if isinstance(event, protocol.Phase)]


def events_of(run: Path) -> list[protocol.AnyEvent]:
    return [*run_dir.decode_events(RunDir(run).events.read_bytes().splitlines())]


@pytest.mark.timeout(300)
def test_pause_and_stop_reach_the_training_of_the_base_which_the_next_start_resumes(tmp_path: Path) -> None:
    process = start_controlled(tmp_path, "train")
    read_until(process, entered_phase("training_base"))
    read_until(process, reached_base_step(3))
    send(process, protocol.Pause())
    read_until(process, entered_phase("paused"))
    [base] = runs_of(tmp_path, "quickstart_sft")
    assert base.state == "running"
    while "paused" not in phases_of(base.path):  # after its step; the timeout of the test ends the loop
        time.sleep(0.1)
    send(process, protocol.Resume())
    read_until(process, entered_phase("training_base"))
    read_until(process, reached_base_step(5))
    send(process, protocol.Stop())
    stopped = finish(process)
    assert stopped.code == 3, stopped.stderr
    assert isinstance(stopped.events[-1], protocol.Done)
    [base] = runs_of(tmp_path, "quickstart_sft")
    assert (base.state, base.resumable) == ("stopped", True)
    assert base.step >= 5

    process = start_controlled(tmp_path, "train")
    read_until(process, reached_base_step(base.step + 1))
    process.kill()
    process.communicate()
    while (now := runs_of(tmp_path, "quickstart_sft"))[0].state == "running":  # it saves when its input closes
        time.sleep(0.1)
    assert [run.path for run in now] == [base.path]
    assert now[0].resumable
    resumed = [event.resumed_from_step for event in events_of(base.path) if isinstance(event, protocol.Hello)]
    assert resumed == [None, base.step]


@pytest.mark.timeout(300)
def test_check_and_preparation_train_the_base_first_and_generation_names_the_command(tmp_path: Path) -> None:
    step = 0
    for command in (("check",), ("prepare",), ("prepare", "--preview")):
        process = start_controlled(tmp_path, *command)
        read_until(process, reached_base_step(step + 1))
        send(process, protocol.Stop())
        stopped = finish(process)
        assert stopped.code == 3, stopped.stderr
        [base] = runs_of(tmp_path, "quickstart_sft")
        assert base.resumable
        assert base.step > step
        step = base.step
    result = run(tmp_path, "generate", "preset:quickstart_sft", "--prompt", "Sure?")
    assert result.code == 2
    assert "`train --preset NAME` trains the model of a preset." in result.stderr


@pytest.mark.timeout(1500)
def test_the_quick_start_of_fine_tuning_teaches_what_the_base_did_not_know(tmp_path: Path) -> None:
    result = finish(start(tmp_path, "train", *PRESET, "--output", "json"), timeout=1400)
    assert result.code == 0, result.stderr
    evals = result.events_of(protocol.Eval)
    assert evals[0].step == 0
    assert evals[0].exact_match < 0.2
    assert evals[-1].exact_match > 0.9
    [base], [run] = runs_of(tmp_path, "quickstart_sft"), runs_of(tmp_path, "quickstart_finetune")
    assert (base.state, run.state) == ("finished", "finished")
    written = yaml.safe_load((run.path / "config.yaml").read_text(encoding="utf-8"))
    assert Path(written["base_model"]).parent == base.path / "checkpoints"
