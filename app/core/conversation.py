"""Prompts and generated texts of the chat page, and the device that generates them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from trainer_core import protocol
from trainer_core.protocol import Param

GenerationStatus = Literal["waiting", "end", "length", "interrupted", "failed"]
Mode = Literal["chat", "continue"]
MAX_SEED: Final = 2**31 - 1


@dataclass(eq=False, slots=True)
class Turn:
    """A prompt and the generated text. `chat`: the text answers the prompt; otherwise it continues it."""

    prompt: str
    sampling: dict[str, Any]  # fields of `protocol.Generate`
    system: str = ""  # system prompt of a chat
    chat: bool = False
    model: str = ""  # name of a model without steps; empty: a checkpoint of a run
    step: int | None = None  # of the checkpoint; None: not loaded yet, or no checkpoint
    text: str = ""
    tokens: int = 0
    tokens_per_s: float = 0.0
    prompt_tokens: int = 0
    status: GenerationStatus = "waiting"
    error: tuple[str, dict[str, Param]] | None = None  # error code and parameters
    generated: str | None = None  # the text before it was corrected; None: not corrected
    correction_id: str = ""  # of its row in the `CorrectionStore`

    @property
    def is_finished(self) -> bool:
        """Whether there is a text that was ended or stopped."""
        return self.status not in ("waiting", "failed")

    @property
    def is_answer(self) -> bool:
        """Whether it is a finished turn of a chat."""
        return self.chat and self.is_finished


def chat_messages(turns: Sequence[Turn], system: str) -> list[protocol.Turn]:
    """Messages of a chat, without failed turns and without continued texts."""
    messages = [protocol.Turn(role="system", content=system)] if system.strip() else []
    for turn in turns:
        if turn.is_answer:
            messages.append(protocol.Turn(role="user", content=turn.prompt))
            messages.append(protocol.Turn(role="assistant", content=turn.text))
    return messages


def question_messages(turns: Sequence[Turn]) -> list[protocol.Turn]:
    """Messages that the last turn answers: system prompt, earlier turns and question."""
    *earlier, last = turns
    return [*chat_messages(earlier, last.system), protocol.Turn(role="user", content=last.prompt)]


def generate_command(turns: Sequence[Turn]) -> protocol.Generate:
    """Command that generates the text of the last turn. A chat model gets the messages before it."""
    last = turns[-1]
    if not last.chat:
        return protocol.Generate(prompt=last.prompt, chat=False, **last.sampling)
    return protocol.Generate(turns=question_messages(turns), chat=True, **last.sampling)


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
        return DeviceChoice("auto", "chat.device_no_gpu")
    if training_device is None:
        return DeviceChoice("auto", "chat.device_gpu")
    if gpu_count == 1:
        return DeviceChoice("cpu", "chat.device_gpu_busy")
    trains_on_first = training_device.partition(":")[2] in ("", "0")
    return DeviceChoice("cuda:1" if trains_on_first else "cuda:0", "chat.device_other_gpu")
