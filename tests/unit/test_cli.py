"""The command line itself: help and refusals. What commands do is tested where they do it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainer_core import cli

ROOT = Path(__file__).resolve().parents[2]


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    return ended.value.code


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_without_a_command_lists_the_commands(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(flag) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize("output", [["--output", "plain"], ["--output=plain"]])
def test_a_wrong_flag_is_refused_in_the_output_that_was_asked_for(
    output: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("train", *output, "--batch-sise", "4") == 2
    said = capsys.readouterr()
    assert "--batch-size" in said.err
    assert "{" not in said.out


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes a descriptor")
def test_a_closed_stdout_is_an_output_that_nobody_reads() -> None:
    command = f"{sys.executable} -m trainer_core train --batch-sise 4 >&-"
    ended = subprocess.run(["sh", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (2, b"")
