"""Conversations with a model in the playground."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from trainer_core import protocol
from trainer_core.protocol import Param
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.checkpoint_dir import CheckpointInfo
from trainer_core.runs.run_dir import RunDir

GenerationStatus = Literal["waiting", "end", "length", "interrupted", "failed"]
DeviceReason = Literal["unknown", "gpu", "no_gpu", "run_has_gpu", "other_gpu", "chosen"]
MAX_TURNS: Final = 50  # maximum turns
MAX_SEED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling options. `top_k` 0 and `top_p` 1 do not restrict."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 200
    seed: int = 0

    @classmethod
    def from_mapping(cls, stored: Mapping[str, float]) -> SamplingOptions:
        """Stored options; unknown names are ignored."""
        whole = ("top_k", "max_tokens", "seed")
        known = {name: value for name, value in stored.items() if name in cls.__slots__}
        return cls(**{name: int(value) if name in whole else value for name, value in known.items()})  # type: ignore[arg-type]


@dataclass(eq=False, slots=True)
class Turn:
    """A prompt and the generated text. `chat`: the text answers the prompt; otherwise it continues it."""

    prompt: str
    sampling: SamplingOptions
    chat: bool = False
    step: int | None = None  # of the model's checkpoint; None: not loaded yet
    text: str = ""
    tokens: int = 0
    tokens_per_s: float = 0.0
    prompt_tokens: int = 0
    status: GenerationStatus = "waiting"
    error: tuple[str, dict[str, Param]] | None = None  # error code and parameters


@dataclass(slots=True)
class Conversation:
    """Turns with one model, oldest first."""

    turns: list[Turn] = field(default_factory=list)

    def add_turn(self, prompt: str, sampling: SamplingOptions) -> Turn:
        self.turns.append(Turn(prompt, sampling))
        del self.turns[:-MAX_TURNS]
        return self.turns[-1]

    def generate_command(self, turn: Turn) -> protocol.Generate:
        """Command that generates the text of a turn, including the previous turns of a conversation."""
        command = protocol.Generate(prompt="" if turn.chat else turn.prompt, **asdict(turn.sampling))
        if turn.chat:
            for earlier in self.turns[: self.turns.index(turn)]:
                if earlier.chat and earlier.status not in ("waiting", "failed"):
                    command.turns.append(protocol.Turn(role="user", content=earlier.prompt))
                    command.turns.append(protocol.Turn(role="assistant", content=earlier.text))
            command.turns.append(protocol.Turn(role="user", content=turn.prompt))
        return command


def selectable_runs(runs: Sequence[Path], training_run: Path | None, selected: Path | None) -> list[Path]:
    """`runs`, those with a checkpoint, and the selected one; the active run first."""
    paths = [*runs, selected] if selected is not None and selected not in runs else list(runs)
    return sorted(paths, key=lambda path: path != training_run)


class CheckpointSelection:
    """A run and one of its checkpoints, or its newest."""

    def __init__(self) -> None:
        self.run: Path | None = None
        self.checkpoint: Path | None = None  # None: the newest
        self.checkpoints: list[CheckpointInfo] = []  # of the run, newest first
        self._last_stamp: tuple[Path, int] | None = None

    def select(self, run: Path | None, checkpoint: Path | None = None) -> None:
        self.run, self.checkpoint = run, checkpoint
        self.refresh()

    def refresh(self) -> None:
        """Update from disk. Manifests are read again only if checkpoints were added or removed."""
        folder = RunDir(self.run).checkpoints if self.run is not None else None
        try:
            stamp = (folder, folder.stat().st_mtime_ns) if folder is not None else None
        except OSError:
            stamp = None
        if folder is None or stamp is None:
            self.checkpoints = []
        elif stamp != self._last_stamp:
            self.checkpoints = checkpoint_dir.list_infos(folder)[::-1]
        self._last_stamp = stamp

    @property
    def selected_path(self) -> Path | None:
        """The selected checkpoint; None if there is none."""
        if self.checkpoint is not None:
            return self.checkpoint
        return self.checkpoints[0].path if self.checkpoints else None

    @property
    def is_missing(self) -> bool:
        """Whether the selected checkpoint was deleted from disk."""
        return self.checkpoint is not None and all(info.path != self.checkpoint for info in self.checkpoints)


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Device of a model, and the reason."""

    flag: str
    reason: DeviceReason


def choose_device(requested: str, gpu_count: int | None, training_device: str | None) -> DeviceChoice:
    """Select a device. `requested`: auto, cpu or cuda:N. `gpu_count`: None if not probed yet. `training_device`: device
    setting of the active run; None: no run, or on the CPU.

    A model on the same GPU would take memory and time from training.
    """
    if requested != "auto":
        return DeviceChoice(requested, "chosen")
    if gpu_count is None:
        return DeviceChoice("auto", "unknown")
    if gpu_count == 0:
        return DeviceChoice("auto", "no_gpu")
    if training_device is None:
        return DeviceChoice("auto", "gpu")
    if gpu_count == 1:
        return DeviceChoice("cpu", "run_has_gpu")
    _, _, number = training_device.partition(":")
    return DeviceChoice("cuda:0" if number not in ("", "0") else "cuda:1", "other_gpu")
