"""What is tried with a model: what was asked and written, with which checkpoint, on which device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from trainer_core import protocol
from trainer_core.protocol import Param
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.checkpoint_dir import CheckpointInfo
from trainer_core.runs.run_dir import RunDir, RunSummary

Ending = Literal["waiting", "end", "length", "interrupted", "failed"]
DeviceWhy = Literal["unknown", "gpu", "no_gpu", "run_has_gpu", "other_gpu", "chosen"]
REMEMBERED: Final = 50  # exchanges of a talk
LARGEST_SEED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next text is drawn. `top_k` 0 and `top_p` 1 do not cut."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 200
    seed: int = 0

    @classmethod
    def of(cls, remembered: Mapping[str, float]) -> Sampling:
        """What was remembered, as far as these are its fields."""
        whole = ("top_k", "max_tokens", "seed")
        known = {name: value for name, value in remembered.items() if name in cls.__slots__}
        return cls(**{name: int(value) if name in whole else value for name, value in known.items()})  # type: ignore[arg-type]


@dataclass(eq=False, slots=True)
class Exchange:
    """A prompt, and what was written after it. `chat`: the text answers the prompt; else it goes on with it."""

    prompt: str
    sampling: Sampling
    chat: bool = False
    step: int | None = None  # of the checkpoint that writes; None: it is not loaded yet
    text: str = ""
    tokens: int = 0
    tokens_per_s: float = 0.0
    prompt_tokens: int = 0
    ending: Ending = "waiting"
    problem: tuple[str, dict[str, Param]] | None = None  # code and parameters of what failed


@dataclass(slots=True)
class Talk:
    """What was asked of one model, oldest first. `version` grows with every change."""

    exchanges: list[Exchange] = field(default_factory=list)
    version: int = 0

    def begin(self, prompt: str, sampling: Sampling) -> Exchange:
        self.exchanges.append(Exchange(prompt, sampling))
        del self.exchanges[:-REMEMBERED]
        self.version += 1
        return self.exchanges[-1]

    def forget_last(self) -> None:
        """The last exchange is to be had again."""
        del self.exchanges[-1:]
        self.version += 1

    def clear(self) -> None:
        self.exchanges.clear()
        self.version += 1

    def command(self, asked: Exchange) -> protocol.Generate:
        """What asks a model for the text of an exchange: in a conversation, with all that was said before."""
        how = asked.sampling
        command = protocol.Generate(
            prompt="" if asked.chat else asked.prompt,
            max_tokens=how.max_tokens,
            temperature=how.temperature,
            top_k=how.top_k,
            top_p=how.top_p,
            seed=how.seed,
        )
        if asked.chat:
            before = self.exchanges[: self.exchanges.index(asked)]
            said = [one for one in before if one.chat and one.ending not in ("waiting", "failed")]
            for one in said:
                command.turns += [_turn("user", one.prompt), _turn("assistant", one.text)]
            command.turns.append(_turn("user", asked.prompt))
        return command


def _turn(role: str, content: str) -> protocol.Turn:
    return protocol.Turn(role=role, content=content)


@dataclass(frozen=True, slots=True)
class RunItem:
    """A run that can be chosen."""

    path: Path
    training: bool = False  # in this window, now


def choosable(runs: Sequence[RunSummary], training: Path | None, chosen: Path | None) -> list[RunItem]:
    """Runs with something to load, newest first; the one in training first of all; the chosen one always."""
    found = [run.path for run in runs if run.checkpoints]
    if chosen is not None and chosen not in found:
        found.append(chosen)
    items = [RunItem(path, path == training) for path in found]
    return sorted(items, key=lambda item: not item.training)


class Choice:
    """A run and one of its checkpoints, or always its newest."""

    def __init__(self) -> None:
        self.run: Path | None = None
        self.checkpoint: Path | None = None  # None: the newest
        self.infos: list[CheckpointInfo] = []  # of the run, newest first
        self._seen: tuple[Path, int] | None = None

    def choose(self, run: Path | None, checkpoint: Path | None = None) -> None:
        self.run, self.checkpoint = run, checkpoint
        self.look()

    def look(self) -> None:
        """See what is on disk. Manifests are read again only where checkpoints have come or gone."""
        folder = RunDir(self.run).checkpoints if self.run is not None else None
        stamp = _stamp(folder)
        if folder is None or stamp is None:
            self._seen, self.infos = None, []
        elif (folder, stamp) != self._seen:
            self._seen, self.infos = (folder, stamp), checkpoint_dir.infos_of(folder)[::-1]

    @property
    def wanted(self) -> Path | None:
        """The checkpoint that is meant; None where there is none."""
        if self.checkpoint is not None:
            return self.checkpoint
        return self.infos[0].path if self.infos else None

    @property
    def gone(self) -> bool:
        """Whether the checkpoint that was chosen is no longer on disk."""
        return self.checkpoint is not None and all(info.path != self.checkpoint for info in self.infos)


def _stamp(folder: Path | None) -> int | None:
    try:
        return folder.stat().st_mtime_ns if folder is not None else None
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Device:
    """Where a model is to write: what the trainer is told, and why."""

    flag: str
    why: DeviceWhy


def choose_device(wanted: str, gpus: int | None, training_on: str | None) -> Device:
    """`wanted`: auto, cpu or cuda:N. `gpus`: None while nobody has looked. `training_on`: the device that this window's
    own run uses, as its setting says; None: there is none, or it trains on the CPU.

    A model beside a training on the same GPU would take memory and time from it.
    """
    if wanted != "auto":
        return Device(wanted, "chosen")
    if gpus is None:
        return Device("auto", "unknown")
    if gpus == 0:
        return Device("auto", "no_gpu")
    if training_on is None:
        return Device("auto", "gpu")
    if gpus == 1:
        return Device("cpu", "run_has_gpu")
    _, _, number = training_on.partition(":")
    return Device("cuda:0" if number not in ("", "0") else "cuda:1", "other_gpu")
