"""From the form to the trainer's arguments, and to a line that a shell reads back as the same."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from app.state import command_line
from trainer_core import cli, config, plans, presets
from trainer_core.messages import TraindeckError


def test_only_what_differs_from_the_preset_is_said() -> None:
    preset = presets.load("cpu")
    changed = {**preset.knobs, "batch_size": preset.knobs["batch_size"] + 1}
    expected = ["train", "--preset", "cpu", "--batch-size", str(changed["batch_size"])]
    assert command_line.train("cpu", changed) == expected
    assert command_line.train("cpu", {}, loaded=preset) == ["train", "--preset", "cpu"]


def test_values_from_a_form_are_compared_as_what_they_mean() -> None:
    default = config.Config().learning_rate
    assert command_line.train("", {"learning_rate": f"{default:.2e}"}) == ["train"]
    assert command_line.train("", {"learning_rate": "1e-5"}) == ["train", "--learning-rate", "1e-05"]


def test_switches_lists_and_values_like_flags_get_their_own_forms() -> None:
    changed = {"qkv_bias": True, "tie_embeddings": False, "sample_prompts": ["从前 有", "-x"], "mixed_precision": "no"}
    assert command_line.train("", changed) == [
        "train",
        "--qkv-bias",
        "--no-tie-embeddings",
        *["--mixed-precision", "no"],
        *["--sample-prompts", "从前 有", "--sample-prompts=-x"],
    ]


def test_data_and_run_folder_are_said_in_their_own_flags() -> None:
    found = command_line.train("cpu", {"data": ["ignored"], "preset": "ignored"}, ["a b.txt", "-c.txt"], "runs/x")
    assert found[3:] == ["--data", "a b.txt", "--data=-c.txt", "--run-dir", "runs/x"]
    builtin = presets.load("quickstart").knobs["data"]
    assert command_line.train("quickstart", {}, builtin) == ["train", "--preset", "quickstart"]


def test_a_value_that_no_run_takes_is_refused_before_anything_starts() -> None:
    with pytest.raises(TraindeckError, match="batch_size"):
        command_line.train("cpu", {"batch_size": 0})


def test_the_trainer_reads_the_arguments_as_the_same_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changed = {"batch_size": 3, "qk_norm": True, "learning_rate": 1 / 3000, "sample_prompts": ["a b", "-c"]}
    data = [str(tmp_path / "数据 集" / "a&b.txt")]
    arguments = command_line.train("quickstart", changed, data)
    seen: list[dict[str, Any]] = []

    def plan(flags: dict[str, Any]) -> NoReturn:
        seen.append(dict(flags))
        raise TraindeckError("internal")

    monkeypatch.setattr(plans, "plan", plan)
    CliRunner().invoke(cli.commands, arguments)
    assert plans.configuration(seen[0]) == command_line.resolved("quickstart", changed, data)


def test_resuming_names_only_the_run() -> None:
    assert command_line.resume("runs/a b") == ["train", "--resume", "runs/a b"]


ODD = ["plain", "with space", "", "C:\\数据\\", "C:\\a b\\", 'say "hi"', 'a\\"b', "a&b|c>d", "100%", "a\tb", "it's"]


def windows_argv(line: str) -> list[str]:
    """The rules of CommandLineToArgvW for arguments, without its rare `""` inside quotes."""
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


def test_the_line_to_copy_is_read_back_as_the_same_arguments() -> None:
    expected = ["python", "-m", "trainer_core", *ODD]
    assert shlex.split(command_line.shell_line(ODD, windows=False)) == expected
    assert windows_argv(command_line.shell_line(ODD, windows=True)) == expected


def test_the_line_to_copy_can_name_another_program() -> None:
    line = command_line.shell_line(["train"], windows=True, program=["train_gpu.bat"])
    assert line == "train_gpu.bat train"


def test_nothing_with_a_meaning_to_cmd_stays_unquoted() -> None:
    for letter in "&|<>^()!;'` \t%$*?[]{}~#":
        assert command_line.shell_line([f"a{letter}b"], windows=True).endswith(f'"a{letter}b"')


def test_a_preview_has_the_configuration_of_the_run_it_is_for() -> None:
    changed = {"batch_size": 3, "packing": True}
    train = command_line.train("cpu", changed, ["a b.txt"])
    assert command_line.preview("cpu", changed, ["a b.txt"]) == ["prepare", "--preview", *train[1:]]
