"""Trainer arguments of a configuration, and command lines for shells."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from app.core import command_line
from trainer_core import cli, config, presets, run_plan
from trainer_core.config import ConfigLayer
from trainer_core.messages import TraindeckError


def test_only_values_that_differ_from_the_preset_become_arguments() -> None:
    preset = presets.load("cpu")
    changed = {**preset.knobs, "batch_size": preset.knobs["batch_size"] + 1}
    expected = ["train", "--preset", "cpu", "--batch-size", str(changed["batch_size"])]
    assert command_line.train_arguments(preset, changed) == expected


def test_values_are_compared_after_conversion() -> None:
    default = config.Config().learning_rate
    assert command_line.train_arguments(None, {"learning_rate": f"{default:.2e}"}) == ["train"]
    assert command_line.train_arguments(None, {"learning_rate": "1e-5"}) == ["train", "--learning-rate", "1e-05"]


def test_flags_of_booleans_lists_and_values_that_start_with_a_dash() -> None:
    changed = {"qkv_bias": True, "tie_embeddings": False, "sample_prompts": ["从前 有", "-x"], "mixed_precision": "no"}
    assert command_line.train_arguments(None, changed) == [
        "train",
        "--qkv-bias",
        "--no-tie-embeddings",
        *["--mixed-precision", "no"],
        *["--sample-prompts", "从前 有", "--sample-prompts=-x"],
    ]


def test_data_and_run_folder_have_their_own_flags() -> None:
    found = command_line.train_arguments(
        presets.load("cpu"), {"data": ["ignored"], "preset": "ignored"}, ["a b.txt", "-c.txt"], "runs/x"
    )
    assert found[3:] == ["--data", "a b.txt", "--data=-c.txt", "--run-dir", "runs/x"]
    quickstart = presets.load("quickstart")
    expected = ["train", "--preset", "quickstart"]
    assert command_line.train_arguments(quickstart, {}, quickstart.knobs["data"]) == expected


def test_an_invalid_value_is_rejected() -> None:
    with pytest.raises(TraindeckError, match="batch_size"):
        command_line.train_arguments(None, {"batch_size": 0})


def test_the_trainer_parses_the_arguments_to_the_same_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changed = {"batch_size": 3, "qk_norm": True, "learning_rate": 1 / 3000, "sample_prompts": ["a b", "-c"]}
    data, preset = [str(tmp_path / "数据 集" / "a&b.txt")], presets.load("quickstart")
    arguments = command_line.train_arguments(preset, changed, data)
    seen: list[dict[str, Any]] = []

    def plan(flags: dict[str, Any]) -> NoReturn:
        seen.append(dict(flags))
        raise TraindeckError("internal")

    monkeypatch.setattr(run_plan, "plan_run", plan)
    CliRunner().invoke(cli.commands, arguments)
    assert run_plan.build_config(seen[0]) == config.resolve(
        [preset.layer(), ConfigLayer("form", {**changed, "data": data})]
    )


ODD = ["plain", "with space", "", "C:\\数据\\", "C:\\a b\\", 'say "hi"', 'a\\"b', "a&b|c>d", "100%", "a\tb", "it's"]


def windows_argv(line: str) -> list[str]:
    """Parse as CommandLineToArgvW does, without `""` inside quotes."""
    found: list[str] = []
    current, quoted, started, place = "", False, False, 0
    while place < len(line):
        slashes = len(line[place:]) - len(line[place:].lstrip("\\"))
        place += slashes
        letter = line[place : place + 1]
        place += 1
        current += "\\" * (slashes // 2 if letter == '"' else slashes)
        started = started or slashes > 0
        if letter == '"' and slashes % 2:
            current += '"'
        elif letter == '"':
            quoted, started = not quoted, True
        elif letter in (" ", "\t") and not quoted:
            if started:
                found.append(current)
            current, started = "", False
        else:
            current, started = current + letter, started or bool(letter)
    return [*found, current] if started else found


def powershell_argv(line: str) -> list[str]:
    """Parse words, single-quoted strings, and verbatim arguments after `--%`."""
    found: list[str] = []
    place = 0
    while place < len(line):
        rest = line[place:]
        if rest.startswith("--% "):
            return [*found, *windows_argv(rest[4:])]
        word = re.match(r"(?:'((?:[^'‘’‚‛]|(['‘’‚‛])\2)*)'|([^\s'\"$`(){};,|&<>@#]+))(?:\s+|$)", rest)
        assert word is not None, rest
        found.append(re.sub("([‘’‚‛'])\\1", r"\1", word[1]) if word[3] is None else word[3])
        place += word.end()
    return found


def cmd_argv(line: str) -> list[str]:
    """Remove the carets outside of quotes, and parse the rest."""
    passed, quoted, place = "", False, 0
    while place < len(line):
        letter = line[place]
        if letter == "^" and not quoted:
            place += 1
            letter = line[place]
        elif letter == '"':
            quoted = not quoted
        else:
            assert letter != "%", line
            assert quoted or letter not in "&|<>()", line
        passed += letter
        place += 1
    return windows_argv(passed)


@pytest.mark.parametrize("program", ["python", "D:\\My Tools (1)\\it's\\python.exe"])
def test_shells_parse_a_command_line_to_the_same_arguments(program: str) -> None:
    def line(arguments: list[str], shell: command_line.Shell) -> str:
        return command_line.join_for_shell(arguments, shell, program=[program])

    assert shlex.split(line(ODD, "bash")) == [program, *ODD]
    assert cmd_argv(line(ODD, "cmd")) == [program, *ODD]
    for arguments in (ODD, *([odd] for odd in ODD), ["--learning-rate", "1e-05", "--data=-c.txt", "--batch-size", "8"]):
        found = powershell_argv(line(arguments, "powershell").removeprefix("& "))
        assert found == [program, *arguments], line(arguments, "powershell")


def test_special_characters_of_cmd_are_quoted() -> None:
    for letter in "&|<>^()!;'` \t$*?[]{}~#":
        assert command_line.join_for_shell([f"a{letter}b"], "cmd", program=["p"]).endswith(f'"a{letter}b"')
    assert command_line.join_for_shell(["100%"], "cmd", program=["p"]).endswith('^"100^%^"')


def test_a_terminal_command_has_absolute_paths(tmp_path: Path) -> None:
    arguments = ["train", "--data", "builtin:python", "--data", "a b.txt", "--data=-c.txt", "--tokenizer", "t"]
    line = command_line.terminal_command(arguments, "bash", python=sys.executable, base_folder=tmp_path)
    words = shlex.split(line)
    assert words[:3] == [sys.executable, "-X", "utf8"]
    data = ["--data", "builtin:python", "--data", str(tmp_path / "a b.txt"), f"--data={tmp_path / '-c.txt'}"]
    assert words[5:] == [*data, "--tokenizer", str(tmp_path / "t")]
