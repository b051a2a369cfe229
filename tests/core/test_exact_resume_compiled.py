"""Compiled runs resume exactly on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.trainer_process import (
    TINY,
    TrainerResult,
    environment,
    finish,
    reached_step,
    read_until,
    run,
    send,
    start,
    text_file,
)
from trainer_core import protocol

pytestmark = pytest.mark.timeout(600)  # the compiler runs at lower priority, so beside other programs it takes minutes

STEPS = 8
LAST = f"checkpoints/step-{STEPS:08d}"


def compile_path(result: TrainerResult) -> tuple[bool, str]:
    """Whether the run used a compiled model, and the reason."""
    event = (result.events_of(protocol.Compiled) or result.events_of(protocol.Ready))[-1]
    (path,) = (path for path in event.fast_paths if path.name == "compile")
    return path.used, path.reason


def run_with_free_compilation(home: Path, *arguments: str) -> TrainerResult:
    """Run with an assumed compile time of 1 µs, so that compilation pays off in a short run."""
    program = (
        "import sys, trainer_core.__main__; from trainer_core import cli; from trainer_core.train.engine import select;"
        "select.COMPILE_S['cpu'] = 1e-6; cli.main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, *arguments]
    return finish(subprocess.Popen(command, stdout=-1, stderr=-1, env=environment(home), cwd=home, bufsize=0))


def test_a_compiled_run_resumes_exactly_after_a_stop(compiler: Path, tmp_path: Path) -> None:
    data = text_file(tmp_path)
    arguments = ("train", *TINY, "--compile", "on", "--max-steps", str(STEPS), "--data", str(data), "--run-dir")
    uninterrupted = run(tmp_path, *arguments, "uninterrupted")
    assert uninterrupted.code == 0, uninterrupted.stderr
    assert compile_path(uninterrupted) == (True, "path.set")
    process = start(tmp_path, *arguments, "stopped", "--control", "stdin", stdin=subprocess.PIPE)
    read_until(process, reached_step(1))
    send(process, protocol.Stop(id=1))
    stopped = finish(process)
    assert stopped.code == 3
    (done,) = stopped.events_of(protocol.Done)
    assert 0 < done.steps < STEPS
    resumed = run(tmp_path, "train", "--resume", "--run-dir", "stopped")
    assert resumed.code == 0, resumed.stderr
    assert compile_path(resumed)[0]
    assert not resumed.events_of(protocol.Warn)
    assert resumed.losses.items() <= uninterrupted.losses.items()
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "stopped" / LAST / file).read_bytes() == (
            tmp_path / "uninterrupted" / LAST / file
        ).read_bytes()


def test_a_run_resumes_exactly_across_the_switch_to_compiled_code(compiler: Path, tmp_path: Path) -> None:
    """Runs resumed before, at and after the switch equal the uninterrupted run."""
    data = text_file(tmp_path)
    arguments = (
        "train", *TINY, "--max-steps", str(STEPS), "--save-steps", "1", "--keep-last", "9", "--data", str(data),
    )  # fmt: skip
    uninterrupted = run_with_free_compilation(tmp_path, *arguments, "--run-dir", "uninterrupted")
    assert uninterrupted.code == 0, uninterrupted.stderr
    (switched,) = uninterrupted.events_of(protocol.Compiled)
    assert 0 < switched.step < STEPS - 1
    for step in (switched.step - 1, switched.step, switched.step + 1):
        if step:
            source = tmp_path / "uninterrupted" / "checkpoints" / f"step-{step:08d}"
            resumed = run(tmp_path, "train", "--resume", str(source), "--run-dir", f"from-{step}")
            assert resumed.code == 0, resumed.stderr
            assert resumed.losses.items() <= uninterrupted.losses.items()
            for file in ("model.safetensors", "optimizer.safetensors"):
                actual = tmp_path / f"from-{step}" / LAST / file
                assert actual.read_bytes() == (tmp_path / "uninterrupted" / LAST / file).read_bytes()


def test_a_resumed_run_repeats_its_compile_choice(compiler: Path, tmp_path: Path) -> None:
    """The first start is too short to compile. The resume repeats that choice although the run is longer."""
    data = text_file(tmp_path)
    short = run(tmp_path, "train", *TINY, "--max-steps", "2", "--data", str(data), "--run-dir", "run")
    assert compile_path(short) == (False, "path.not_worth")
    longer = run(tmp_path, "train", "--resume", "--run-dir", "run", "--max-steps", "3")
    assert longer.code == 0, longer.stderr
    assert compile_path(longer) == (False, "path.recorded")
