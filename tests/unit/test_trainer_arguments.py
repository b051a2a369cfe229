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
from app.core.settings import RemoteMachine
from trainer_core import cli, config, presets, run_plan
from trainer_core.config import ConfigLayer
from trainer_core.messages import TraindeckError


def test_only_values_that_differ_from_the_preset_become_arguments() -> None:
    preset = presets.load("cpu")
    changed = {**preset.knobs, "batch_size": preset.knobs["batch_size"] + 1}
    expected = ["train", "--preset", "cpu", "--batch-size", str(changed["batch_size"])]
    assert command_line.train_arguments(preset, changed) == expected


def test_a_run_on_another_machine_has_the_same_arguments_and_is_resumed_there(tmp_path: Path) -> None:
    arguments = command_line.train_arguments(presets.load("cpu"), {"batch_size": 3}, ["a.txt"], "runs/a")
    remote = command_line.remote_arguments(arguments, RemoteMachine("gpu-box", "~/训练"))
    assert remote == ["remote", "train", "gpu-box", "--folder=~/训练", *arguments[1:]]
    assert command_line.remote_arguments(arguments, None) == arguments
    assert command_line.resume_arguments(str(tmp_path)) == ["train", "--resume", str(tmp_path)]
    (tmp_path / "remote.json").write_text('{"host": "gpu-box", "folder": "f", "there": "f/runs/a"}', encoding="utf-8")
    assert command_line.resume_arguments(str(tmp_path)) == ["remote", "resume", str(tmp_path)]


def test_values_are_compared_after_conversion() -> None:
    default = config.Config().learning_rate
    assert command_line.train_arguments(None, {"learning_rate": f"{default:.2e}"}) == ["train"]
    assert command_line.train_arguments(None, {"learning_rate": "1e-5"}) == ["train", "--learning-rate", "1e-05"]


def test_booleans_lists_and_values_with_a_leading_dash_become_flags() -> None:
    changed = {"qkv_bias": True, "tie_embeddings": False, "sample_prompts": ["从前 有", "-x"], "mixed_precision": "no"}
    assert command_line.train_arguments(None, changed) == [
        "train",
        "--qkv-bias",
        "--no-tie-embeddings",
        *["--mixed-precision", "no"],
        *["--sample-prompts", "从前 有", "--sample-prompts=-x"],
    ]


def test_data_and_run_folder_have_their_own_flags() -> None:
    arguments = command_line.train_arguments(
        presets.load("cpu"), {"data": ["ignored"], "preset": "ignored"}, ["a b.txt", "-c.txt"], "runs/x"
    )
    assert arguments[3:] == ["--data", "a b.txt", "--data=-c.txt", "--run-dir", "runs/x"]
    quickstart = presets.load("quickstart")
    expected = ["train", "--preset", "quickstart"]
    assert command_line.train_arguments(quickstart, {}, quickstart.knobs["data"]) == expected


def test_an_invalid_value_is_rejected() -> None:
    with pytest.raises(TraindeckError, match="batch_size"):
        command_line.train_arguments(None, {"batch_size": 0})


@pytest.mark.parametrize("prompts", [["a b", "-c"], []])
def test_the_trainer_parses_the_arguments_to_the_same_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prompts: list[str]
) -> None:
    changed = {"batch_size": 3, "qk_norm": True, "learning_rate": 1 / 3000, "sample_prompts": prompts}
    data, preset = [str(tmp_path / "数据 集" / "a&b.txt")], presets.load("quickstart")
    arguments = command_line.train_arguments(preset, changed, data)
    parsed: list[dict[str, Any]] = []

    def plan(flags: dict[str, Any]) -> NoReturn:
        parsed.append(dict(flags))
        raise TraindeckError("internal")

    monkeypatch.setattr(run_plan, "plan_run", plan)
    CliRunner().invoke(cli.commands, arguments)
    assert run_plan.build_config(parsed[0]) == config.resolve(
        [preset.layer(), ConfigLayer("form", {**changed, "data": data})]
    )


def test_files_of_settings_do_not_depend_on_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "模式.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "a" / "b")
    flags: dict[str, Any] = {
        "preset": None, "config_file": None, "data": [".."], "objective": "grpo",
        "rewards": ["exact", "-0.5 * json-schema:模式.json"],
    }  # fmt: skip
    built = run_plan.build_config(flags)
    assert built.data == [str(tmp_path / "a")]
    assert built.rewards == ["exact", f"-0.5 * json-schema:{tmp_path / 'a' / 'b' / '模式.json'}"]
    flags = {"preset": None, "config_file": None, "deepspeed_config": "ds.json", "parallel": "deepspeed"}
    assert run_plan.build_config(flags).deepspeed_config == str(tmp_path / "a" / "b" / "ds.json")


SPECIAL_ARGUMENTS = [
    "plain",
    "with space",
    "",
    "C:\\数据\\",
    "C:\\a b\\",
    'say "hi"',
    'a\\"b',
    "a&b|c>d",
    "100%",
    "a\tb",
    "it's",
]


def windows_argv(line: str) -> list[str]:
    """Parse as CommandLineToArgvW does, without `""` inside quotes."""
    arguments: list[str] = []
    current, quoted, started, index = "", False, False, 0
    while index < len(line):
        slashes = len(line[index:]) - len(line[index:].lstrip("\\"))
        index += slashes
        character = line[index : index + 1]
        index += 1
        current += "\\" * (slashes // 2 if character == '"' else slashes)
        started = started or slashes > 0
        if character == '"' and slashes % 2:
            current += '"'
        elif character == '"':
            quoted, started = not quoted, True
        elif character in (" ", "\t") and not quoted:
            if started:
                arguments.append(current)
            current, started = "", False
        else:
            current, started = current + character, started or bool(character)
    return [*arguments, current] if started else arguments


def powershell_argv(line: str) -> list[str]:
    """Parse as PowerShell does: words, single-quoted strings, and verbatim arguments after `--%`."""
    arguments: list[str] = []
    index = 0
    while index < len(line):
        rest = line[index:]
        if rest.startswith("--% "):
            return [*arguments, *windows_argv(rest[4:])]
        word = re.match(r"(?:'((?:[^'‘’‚‛]|(['‘’‚‛])\2)*)'|([^\s'\"$`(){};,|&<>@#]+))(?:\s+|$)", rest)
        assert word is not None, rest
        arguments.append(re.sub("([‘’‚‛'])\\1", r"\1", word[1]) if word[3] is None else word[3])
        index += word.end()
    return arguments


def cmd_argv(line: str) -> list[str]:
    """Parse as cmd.exe does: remove carets outside of quotes."""
    unescaped, quoted, index = "", False, 0
    while index < len(line):
        character = line[index]
        if character == "^" and not quoted:
            index += 1
            character = line[index]
        elif character == '"':
            quoted = not quoted
        else:
            assert character != "%", line
            assert quoted or character not in "&|<>()", line
        unescaped += character
        index += 1
    return windows_argv(unescaped)


@pytest.mark.parametrize("program", ["python", "D:\\My Tools (1)\\it's\\python.exe"])
def test_shells_parse_a_command_line_to_the_same_arguments(program: str) -> None:
    def line(arguments: list[str], shell: command_line.Shell) -> str:
        return command_line.join_for_shell(arguments, shell, program=[program])

    assert shlex.split(line(SPECIAL_ARGUMENTS, "bash")) == [program, *SPECIAL_ARGUMENTS]
    assert cmd_argv(line(SPECIAL_ARGUMENTS, "cmd")) == [program, *SPECIAL_ARGUMENTS]
    for arguments in (
        SPECIAL_ARGUMENTS,
        *([argument] for argument in SPECIAL_ARGUMENTS),
        ["--learning-rate", "1e-05", "--data=-c.txt", "--batch-size", "8"],
    ):
        parsed = powershell_argv(line(arguments, "powershell").removeprefix("& "))
        assert parsed == [program, *arguments], line(arguments, "powershell")


def test_special_characters_of_cmd_are_quoted() -> None:
    for character in "&|<>^()!;'` \t$*?[]{}~#":
        assert command_line.join_for_shell([f"a{character}b"], "cmd", program=["p"]).endswith(f'"a{character}b"')
    assert command_line.join_for_shell(["100%"], "cmd", program=["p"]).endswith('^"100^%^"')


def test_a_terminal_command_has_absolute_paths(tmp_path: Path) -> None:
    arguments = ["train", "--data", "builtin:python", "--data", "a b.txt", "--data=-c.txt", "--tokenizer", "t"]
    line = command_line.terminal_command(arguments, "bash", python=sys.executable, base_folder=tmp_path)
    words = shlex.split(line)
    assert words[:3] == [sys.executable, "-X", "utf8"]
    data = ["--data", "builtin:python", "--data", str(tmp_path / "a b.txt"), f"--data={tmp_path / '-c.txt'}"]
    assert words[5:] == [*data, "--tokenizer", str(tmp_path / "t")]


def test_the_name_of_a_base_model_is_not_a_path_in_a_terminal_command(tmp_path: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    for given, expected in (("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"), ("models/mine", str(tmp_path / "models" / "mine"))):
        arguments = ["train", "--base-model", given]
        line = command_line.terminal_command(arguments, "bash", python=sys.executable, base_folder=tmp_path)
        assert shlex.split(line)[-1] == expected
