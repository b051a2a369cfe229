"""Texts that a model of the playground generates, and the device that it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from trainer_core import protocol
from trainer_core.protocol import Param

GenerationStatus = Literal["waiting", "end", "length", "interrupted", "failed"]
MAX_SEED: Final = 2**31 - 1


@dataclass(eq=False, slots=True)
class Turn:
    """A prompt and the generated text. `chat`: the text answers the prompt; otherwise it continues it."""

    prompt: str
    sampling: dict[str, Any]  # fields of `protocol.Generate`
    chat: bool = False
    step: int | None = None  # of the model's checkpoint; None: not loaded yet
    text: str = ""
    tokens: int = 0
    tokens_per_s: float = 0.0
    prompt_tokens: int = 0
    status: GenerationStatus = "waiting"
    error: tuple[str, dict[str, Param]] | None = None  # error code and parameters


def generate_command(turns: Sequence[Turn]) -> protocol.Generate:
    """Command that generates the text of the last turn. A chat model gets the previous turns, without failed ones."""
    *earlier, last = turns
    if not last.chat:
        return protocol.Generate(prompt=last.prompt, **last.sampling)
    command = protocol.Generate(**last.sampling)
    for turn in earlier:
        if turn.chat and turn.status not in ("waiting", "failed"):
            command.turns.append(protocol.Turn(role="user", content=turn.prompt))
            command.turns.append(protocol.Turn(role="assistant", content=turn.text))
    command.turns.append(protocol.Turn(role="user", content=last.prompt))
    return command


class DeviceChoice(NamedTuple):
    """Device of a model, and the key of a text with the reason, or an empty one."""

    flag: str
    reason: str


def choose_device(gpu_count: int | None, training_device: str | None) -> DeviceChoice:
    """Select a device. `gpu_count`: None if not probed yet. `training_device`: device setting of the active run; None:
    no run, or on the CPU.

    A model on the same GPU would take memory and time from training.
    """
    if gpu_count is None:
        return DeviceChoice("auto", "")
    if gpu_count == 0:
        return DeviceChoice("auto", "playground.device_no_gpu")
    if training_device is None:
        return DeviceChoice("auto", "playground.device_gpu")
    if gpu_count == 1:
        return DeviceChoice("cpu", "playground.device_gpu_busy")
    trains_on_first = training_device.partition(":")[2] in ("", "0")
    return DeviceChoice("cuda:1" if trains_on_first else "cuda:0", "playground.device_other_gpu")
