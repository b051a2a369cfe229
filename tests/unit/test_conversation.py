"""Chat page: selection of the device, and turns of a conversation."""

from __future__ import annotations

from app.core.conversation import Turn, choose_device, generate_command


def test_generation_does_not_use_the_gpu_of_a_training_run() -> None:
    for gpus, training_on, flag, reason in (
        (None, None, "auto", ""),
        (0, None, "auto", "device_no_gpu"),
        (0, "auto", "auto", "device_no_gpu"),
        (1, None, "auto", "device_gpu"),
        (1, "auto", "cpu", "device_gpu_busy"),
        (2, "auto", "cuda:1", "device_other_gpu"),
        (2, "cuda:0", "cuda:1", "device_other_gpu"),
        (2, "cuda:1", "cuda:0", "device_other_gpu"),
    ):
        assert choose_device(gpus, training_on) == (flag, reason and f"chat.{reason}"), (gpus, training_on)


def test_a_command_contains_the_previous_turns_without_failed_ones() -> None:
    turns = [
        Turn("a", {}, chat=True, text="A", status="end"),
        Turn("b", {}, chat=True, status="failed"),
        Turn("c", {}, chat=True, text="C", status="interrupted"),
        Turn("d", {"seed": 7, "max_tokens": 9}, chat=True),
    ]
    turns[0].system, turns[-1].system = "Be long.", "Be brief."
    command = generate_command(turns)
    assert [(turn.role, turn.content) for turn in command.turns] == [
        ("system", "Be brief."),
        ("user", "a"),
        ("assistant", "A"),
        ("user", "c"),
        ("assistant", "C"),
        ("user", "d"),
    ]
    assert (command.seed, command.max_tokens) == (7, 9)
    turns[-1].chat = False
    assert (generate_command(turns).turns, generate_command(turns).prompt) == ([], "d")
