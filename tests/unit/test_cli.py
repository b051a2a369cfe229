"""The command line: help and usage errors."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from trainer_core import cli, cli_errors
from trainer_core.messages import ExitCode, format_message

ROOT = Path(__file__).resolve().parents[2]


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as exited:
        cli.main(arguments)
    return exited.value.code


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_without_a_command_lists_the_commands(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(flag) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize("output", [["--output", "plain"], ["--output=plain"]])
def test_a_usage_error_has_the_requested_output_format(output: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("train", *output, "--batch-sise", "4") == 2
    captured = capsys.readouterr()
    assert "--batch-size" in captured.err
    assert "{" not in captured.out


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_closed_stdout_is_ignored() -> None:
    command = f"{shlex.quote(sys.executable)} -m trainer_core train --batch-sise 4 >&-"
    result = subprocess.run(["sh", "-c", command], cwd=ROOT, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (2, b"")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["trian"],
        ["presets", "x"],
        ["models", "x"],
        ["runs", "list", "a", "b"],
        ["train", "--batch-size"],
        ["train", "--low-memory=3"],
        ["generate", "--max-tokens", "abc"],
        ["generate", "--top-p", "2"],
        ["runs", "frob"],
        ["train", "--control", "x"],
        ["train", "--batch-sise", "4"],
    ],
    ids=" ".join,
)
def test_usage_errors_are_translated(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINDECK_LANG", "zh")
    with pytest.raises(click.ClickException) as caught:
        cli.commands.main(arguments, standalone_mode=False)
    error = cli_errors.to_traindeck_error(caught.value)
    message = format_message(error.code, error.params, "zh")
    assert error.exit_code == ExitCode.USAGE
    english = [word for word in re.findall(r"[A-Za-z]{4,}", message) if word not in " ".join(arguments)]
    assert set(english) <= {"help", "action", "list", "verify", "stdin", "batch", "size", "train", "rank"}, message


def test_a_value_out_of_range_is_reported_with_the_allowed_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINDECK_LANG", "en")
    with pytest.raises(click.ClickException) as caught:
        cli.commands.main(["generate", "--top-p", "2"], standalone_mode=False)
    assert "“--top-p” was given “2.0”. Allowed: > 0, <= 1." in str(cli_errors.to_traindeck_error(caught.value))
