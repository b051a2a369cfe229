"""Compiled runs resume exactly on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.core.trainer import TINY, Ended, environment, finish, run, start, text_file
from trainer_core import protocol

STEPS = 8
LAST = f"checkpoints/step-{STEPS:08d}"


def used(ended: Ended) -> tuple[bool, str]:
    """Whether it computed by a compiled model, and why."""
    told = (ended.of(protocol.Compiled) or ended.of(protocol.Ready))[-1]
    (path,) = (path for path in told.fast_paths if path.name == "compile")
    return path.used, path.reason


def run_as_if_compiling_took_no_time(home: Path, *arguments: str) -> Ended:
    """A short run is worth compiling then."""
    program = (
        "import sys, trainer_core.__main__; from trainer_core import cli; from trainer_core.train.engine import select;"
        "select.COMPILE_S['cpu'] = 1e-6; cli.main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, *arguments]
    return finish(subprocess.Popen(command, stdout=-1, stderr=-1, env=environment(home), cwd=home, bufsize=0))


def test_a_compiled_run_resumes_exactly_after_a_stop(compiler: Path, tmp_path: Path) -> None:
    data = text_file(tmp_path)
    arguments = ("train", *TINY, "--compile", "on", "--max-steps", str(STEPS), "--data", str(data), "--run-dir")
    whole = run(tmp_path, *arguments, "whole")
    assert whole.code == 0, whole.stderr
    assert used(whole) == (True, "path.set")
    process = start(tmp_path, *arguments, "stopped", "--control", "stdin", stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    for line in process.stdout:
        if isinstance(protocol.decode_event(line), protocol.Step):
            break
    process.stdin.write(protocol.encode(protocol.Stop(id=1)))
    process.stdin.flush()
    stopped = finish(process)
    assert stopped.code == 3
    (done,) = stopped.of(protocol.Done)
    assert 0 < done.steps < STEPS
    resumed = run(tmp_path, "train", "--resume", "--run-dir", "stopped")
    assert resumed.code == 0, resumed.stderr
    assert used(resumed)[0]
    assert not resumed.of(protocol.Warn)
    assert resumed.losses.items() <= whole.losses.items()
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "stopped" / LAST / file).read_bytes() == (tmp_path / "whole" / LAST / file).read_bytes()


def test_a_run_resumes_exactly_across_the_switch_to_compiled_code(compiler: Path, tmp_path: Path) -> None:
    """A run that is stopped before the switch, and one that is resumed behind it, equal one that was not stopped."""
    data = text_file(tmp_path)
    arguments = (
        "train",
        *TINY,
        "--max-steps",
        str(STEPS),
        "--save-steps",
        "1",
        "--keep-last",
        "9",
        "--data",
        str(data),
    )
    whole = run_as_if_compiling_took_no_time(tmp_path, *arguments, "--run-dir", "whole")
    assert whole.code == 0, whole.stderr
    (switched,) = whole.of(protocol.Compiled)
    assert 0 < switched.step < STEPS - 1
    for step in (switched.step - 1, switched.step, switched.step + 1):
        if step:
            source = tmp_path / "whole" / "checkpoints" / f"step-{step:08d}"
            resumed = run(tmp_path, "train", "--resume", str(source), "--run-dir", f"from-{step}")
            assert resumed.code == 0, resumed.stderr
            assert resumed.losses.items() <= whole.losses.items()
            for file in ("model.safetensors", "optimizer.safetensors"):
                ours = tmp_path / f"from-{step}" / LAST / file
                assert ours.read_bytes() == (tmp_path / "whole" / LAST / file).read_bytes()


def test_a_resumed_run_repeats_its_choices(compiler: Path, tmp_path: Path) -> None:
    """Eager at the first start, as it was short; longer now, it would be worth compiling."""
    data = text_file(tmp_path)
    short = run(tmp_path, "train", *TINY, "--max-steps", "2", "--data", str(data), "--run-dir", "run")
    assert used(short) == (False, "path.not_worth")
    longer = run(tmp_path, "train", "--resume", "--run-dir", "run", "--max-steps", "3")
    assert longer.code == 0, longer.stderr
    assert used(longer) == (False, "path.recorded")
