"""Playground: selectable runs and checkpoints, device, turns of a conversation."""

from __future__ import annotations

from pathlib import Path

from app.core.conversation import (
    MAX_TURNS,
    CheckpointSelection,
    Conversation,
    SamplingOptions,
    choose_device,
    selectable_runs,
)
from trainer_core.runs import checkpoint_dir


def test_a_model_does_not_use_the_gpu_that_trains() -> None:
    for requested, gpus, training_on, flag, reason in (
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
    ):
        device = choose_device(requested, gpus, training_on)
        assert (device.flag, device.reason) == (flag, reason), (requested, gpus, training_on)


def test_the_active_run_is_listed_first_and_the_selected_one_always(tmp_path: Path) -> None:
    new, empty, old = (tmp_path / name for name in ("new", "empty", "old"))
    assert selectable_runs([new, old], old, None) == [old, new]
    assert selectable_runs([new, old], None, empty) == [new, old, empty]


def save(run: Path, step: int) -> Path:
    folder = run / "checkpoints" / checkpoint_dir.folder_name(step)
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"w")
    checkpoint_dir.write_manifest(folder, step, "regular", 2.5)
    return folder


def test_the_newest_checkpoint_is_selected_until_one_is_chosen(tmp_path: Path) -> None:
    selection = CheckpointSelection()
    assert selection.selected_path is None
    first = save(tmp_path, 1)
    selection.select(tmp_path)
    assert selection.selected_path == first
    second = save(tmp_path, 2)
    selection.refresh()
    assert selection.selected_path == second
    selection.select(tmp_path, first)
    assert (selection.selected_path, selection.is_missing) == (first, False)
    first.rename(tmp_path / "elsewhere")
    selection.refresh()
    assert (selection.selected_path, selection.is_missing) == (first, True)


def test_a_command_contains_the_previous_turns_without_failed_ones() -> None:
    conversation = Conversation()
    for prompt, text, status in (("a", "A", "end"), ("b", "", "failed"), ("c", "C", "interrupted")):
        turn = conversation.add_turn(prompt, SamplingOptions())
        turn.chat, turn.text, turn.status = True, text, status  # type: ignore[assignment]
    turn = conversation.add_turn("d", SamplingOptions(seed=7, max_tokens=9))
    turn.chat = True
    command = conversation.generate_command(turn)
    assert [(one.role, one.content) for one in command.turns] == [
        ("user", "a"),
        ("assistant", "A"),
        ("user", "c"),
        ("assistant", "C"),
        ("user", "d"),
    ]
    assert (command.seed, command.max_tokens) == (7, 9)
    turn.chat = False
    assert conversation.generate_command(turn).turns == []


def test_the_number_of_turns_is_limited() -> None:
    conversation = Conversation()
    for number in range(MAX_TURNS + 3):
        conversation.add_turn(str(number), SamplingOptions())
    assert len(conversation.turns) == MAX_TURNS
    assert conversation.turns[0].prompt == "3"
