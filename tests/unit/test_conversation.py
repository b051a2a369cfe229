"""What is tried: which runs and checkpoints there are to choose, where a model writes, what a conversation holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.conversation import (
    MAX_TURNS,
    CheckpointSelection,
    Conversation,
    SamplingOptions,
    choose_device,
    run_options,
)
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunSummary


@pytest.mark.parametrize(
    ("wanted", "gpus", "training_on", "flag", "why"),
    [
        ("auto", None, None, "auto", "unknown"),
        ("auto", 0, None, "auto", "no_gpu"),
        ("auto", 0, "auto", "auto", "no_gpu"),
        ("auto", 1, None, "auto", "gpu"),
        ("auto", 1, "auto", "cpu", "run_has_gpu"),
        ("auto", 2, "auto", "cuda:1", "other_gpu"),
        ("auto", 2, "cuda:0", "cuda:1", "other_gpu"),
        ("auto", 2, "cuda:1", "cuda:0", "other_gpu"),
        ("cpu", 2, None, "cpu", "chosen"),
        ("cuda:0", 1, "auto", "cuda:0", "chosen"),
    ],
)
def test_a_model_does_not_write_on_the_gpu_that_trains(
    wanted: str, gpus: int | None, training_on: str | None, flag: str, why: str
) -> None:
    device = choose_device(wanted, gpus, training_on)
    assert (device.flag, device.reason) == (flag, why)


def summary(path: Path, checkpoints: int) -> RunSummary:
    return RunSummary(path=path, state="finished", started=0.0, checkpoints=checkpoints)


def test_runs_with_checkpoints_can_be_chosen_the_one_in_training_first(tmp_path: Path) -> None:
    new, empty, old = (tmp_path / name for name in ("new", "empty", "old"))
    runs = [summary(new, 2), summary(empty, 0), summary(old, 1)]
    items = run_options(runs, training_run=old, selected=None)
    assert [(item.path, item.is_training) for item in items] == [(old, True), (new, False)]
    assert [item.path for item in run_options(runs, None, empty)] == [new, old, empty]


def save(run: Path, step: int) -> Path:
    folder = run / "checkpoints" / checkpoint_dir.folder_name(step)
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"w")
    checkpoint_dir.write_manifest(folder, step, "regular", 2.5)
    return folder


def test_the_newest_is_meant_until_one_is_chosen(tmp_path: Path) -> None:
    choice = CheckpointSelection()
    assert choice.selected_path is None
    first = save(tmp_path, 1)
    choice.select(tmp_path)
    assert choice.selected_path == first
    second = save(tmp_path, 2)
    choice.refresh()
    assert choice.selected_path == second
    choice.select(tmp_path, first)
    assert (choice.selected_path, choice.is_missing) == (first, False)
    first.rename(tmp_path / "elsewhere")
    choice.refresh()
    assert (choice.selected_path, choice.is_missing) == (first, True)


def test_a_conversation_is_asked_with_what_was_said_before_and_without_what_failed() -> None:
    talk = Conversation()
    for prompt, text, ending in (("a", "A", "end"), ("b", "", "failed"), ("c", "C", "interrupted")):
        exchange = talk.add_turn(prompt, SamplingOptions())
        exchange.chat, exchange.text, exchange.status = True, text, ending  # type: ignore[assignment]
    asked = talk.add_turn("d", SamplingOptions(seed=7, max_tokens=9))
    asked.chat = True
    command = talk.generate_command(asked)
    assert [(turn.role, turn.content) for turn in command.turns] == [
        ("user", "a"),
        ("assistant", "A"),
        ("user", "c"),
        ("assistant", "C"),
        ("user", "d"),
    ]
    assert (command.seed, command.max_tokens) == (7, 9)
    asked.chat = False
    assert talk.generate_command(asked).turns == []


def test_a_talk_forgets_its_oldest_exchanges() -> None:
    talk = Conversation()
    for number in range(MAX_TURNS + 3):
        talk.add_turn(str(number), SamplingOptions())
    assert len(talk.turns) == MAX_TURNS
    assert talk.turns[0].prompt == "3"
