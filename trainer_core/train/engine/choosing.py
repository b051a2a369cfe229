"""What all choices of the engine share: the run they are made for, its time, and what was chosen before."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, TypedDict

import msgspec
import torch

from trainer_core.config import Config
from trainer_core.data.batches import Batch
from trainer_core.protocol import FastPath
from trainer_core.report import Reporter
from trainer_core.train.device import uses_tf32
from trainer_core.train.engine import available, measuring, trials
from trainer_core.train.engine.engine import Engine

FASTER: Final = 1.03  # what a way must gain to be taken: more than such measurements vary by
WORTH_MEASURING_S: Final = 45.0  # runs on a CPU that take less begin at once
_MANY_TO_MEASURE: Final = 100  # micro-batches, of which measuring takes some ten, however long one is
_CPU_RATE: Final = 3e10  # FLOP/s of a core in fp32, roughly: for what need not be measured
_STEP_OVERHEAD_S: Final = 1.5e-3  # of a layer, forward and backward, beside its arithmetic
_KNOBS: Final = (
    "cpu_threads",
    "compile",
    "cuda_graphs",
    "attention",
    "chunked_loss",
    "activation_checkpointing",
    "activation_memory_budget",
    "tf32",
    "deterministic",
    "gradient_accumulation_steps",
)

Words = tuple[str, dict[str, Any]]  # a code of messages.engine.ENGINE, and its params
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Choices(TypedDict, total=False):
    threads: _Count
    attention: str
    chunk: _Count
    compile: bool
    compiled_for: list[int]
    cuda_graphs: bool
    tf32: bool


class _Known(msgspec.Struct):
    """What is remembered of a run's choices."""

    choices: _Choices = {}
    paths: list[FastPath] = []


@dataclass
class Choosing:
    """The choices of one run in the making. Each is made with those before it in place."""

    config: Config
    engine: Engine
    device: torch.device
    session: Reporter
    example: Batch  # on the device
    total_steps: int
    varying: bool
    recorded: dict[str, Any] | None
    thorough: bool
    paths: dict[str, FastPath]
    before: dict[str, Any] = field(default_factory=dict)  # choices that are to be made again
    told: dict[str, FastPath] = field(default_factory=dict)  # what was said when they were made on this machine
    there: list[str] = field(default_factory=list)  # paths that this machine has: another compiler, another choice
    masked: str = ""  # the attention that takes a mask, where another was chosen that takes spans, without being set so
    _eager_s: float = 0.0  # of one micro-batch

    def __post_init__(self) -> None:
        self.there = [name for name, path in self.paths.items() if path.used]

    # --- what was chosen before, and what is said now ---------------------------------------------------

    def recall(self) -> None:
        """From the checkpoint; else what the same command chose on this machine."""
        if self.thorough:
            return
        if self.recorded is not None:
            self.before = self.recorded
            return
        try:
            known = msgspec.convert(measuring.Memory().recall(*self._about()) or {}, _Known)
        except msgspec.ValidationError:
            return  # of another version, or damaged
        self.told = {path.name: path for path in known.paths}
        self.before = dict(known.choices)

    def remember(self) -> None:
        """For the next time that the same is started; not where something failed, which may be put right by then."""
        failed = any(self.paths[name].reason == "path.failed" for name in ("compile", "cuda_graphs"))
        if self.thorough or self.recorded is not None or self.before or failed:
            return
        paths = [msgspec.to_builtins(path) for path in self.paths.values()]
        measuring.Memory().remember({"choices": self.engine.choices, "paths": paths}, *self._about())

    def _about(self) -> tuple[object, ...]:
        """All that choices depend on."""
        knobs = {name: getattr(self.config, name) for name in _KNOBS}
        shape = asdict(self.engine.model.config)
        batch = [*self.example.input_ids.shape, self.example.segments is not None, self.varying]
        machine, precision = measuring.machine(self.device), self.engine.precision.name
        return "choices", machine, self.there, precision, shape, batch, self.total_steps, knobs

    def compiled_for(self) -> list[int]:
        """Rows of a batch, whether its sequences are divided, whether batches differ in width: of the run's first one,
        wherever the run is gone on from, so that the same batches are compiled. Then what that depends on."""
        config = self.config
        about = [config.batch_size, config.max_seq_len, int(config.packing), int(config.attend_across_documents)]
        first = self.before.get("compiled_for", [])
        if first[3:] == about:
            return list(first)
        divided = self.example.segments is not None
        return [self.example.input_ids.shape[0], int(divided), int(self.varying), *about]

    def say(self, name: str, used: bool, words: Words | str, **more: Any) -> None:
        """A path and why. One that a checkpoint asked for says so; figures that were measured before are told
        again."""
        reason, params = (words, {}) if isinstance(words, str) else words
        before = self.told.get(name)
        if before is not None and before.used == used:
            for figure in ("error", "gain"):
                more[figure] = getattr(before, figure) if more.get(figure) is None else more[figure]
        self.paths[name] = FastPath(name=name, used=used, reason=reason, params=params, **more)
        if reason == "path.masked":
            self._leave_spans()

    def _leave_spans(self) -> None:
        """What is compiled takes a mask: attention by spans was chosen, and is not used after all."""
        for name in available.BY_SPANS:
            if self.paths[name].used:
                self.paths[name] = msgspec.structs.replace(self.paths[name], used=False, reason="path.outdone")

    def chosen(self, name: str, otherwise: str) -> Words:
        """The reason of a choice that is made again: as the run began with, or as it was told when it was made."""
        if self.recorded is not None:
            return "path.recorded", {}
        before = self.told.get(name)
        return (before.reason, dict(before.params)) if before is not None else (otherwise, {})

    # --- how long it takes --------------------------------------------------------------------------------

    @property
    def micro_batches(self) -> int:
        """Of the whole run."""
        return self.total_steps * self.config.gradient_accumulation_steps

    def rough_s(self) -> float:
        """Seconds of a micro-batch on this CPU, without measuring: 6 FLOPs a weight and token."""
        model = self.engine.model
        flops = 6 * model.count_parameters() * self.example.input_ids.numel()
        return flops / (_CPU_RATE * torch.get_num_threads()) + _STEP_OVERHEAD_S * model.config.n_layers

    def measured_s(self) -> float:
        """Seconds of an eager micro-batch; inf where it does not fit into the GPU's memory, as a compiled one may."""
        if not self._eager_s:
            once = trials.forward_backward(self.engine.eager_loss, self.example)
            try:
                self._eager_s = self.time({"eager": once}, 1.0, rounds=3)["eager"]
            except torch.OutOfMemoryError:
                self.forget_gradients()
                self._eager_s = math.inf
        return self._eager_s

    @property
    def fits_not(self) -> bool:
        """Whether an eager micro-batch was tried and did not fit."""
        return self._eager_s == math.inf

    def measure_again(self) -> None:
        """Something changed that the time of a micro-batch depends on."""
        self._eager_s = 0.0

    def may_take(self, seconds: float) -> bool:
        """Whether all micro-batches together could take so long; a rough guess, so that short runs start at once."""
        return self.thorough or self.device.type == "cuda" or self.micro_batches * self.rough_s() * 2 > seconds

    def may_measure(self, seconds: float) -> bool:
        """The same, and whether the few micro-batches that measuring takes are few of all."""
        few = self.device.type == "cpu" and not self.thorough and self.micro_batches < _MANY_TO_MEASURE
        return not few and self.may_take(seconds)

    def time(
        self, ways: dict[str, Callable[[], None]], budget_s: float, rounds: int = measuring.ROUNDS
    ) -> dict[str, float]:
        """Seconds of each way, in turns."""
        taken = measuring.seconds(ways, self.device, self.session, budget_s, rounds)
        self.forget_gradients()
        return taken

    def gain(self, slow: trials.LossOf, fast: trials.LossOf, budget_s: float = 2.0) -> float | None:
        """How many times as fast one loss is as the other, forward and backward. None: the slow one does not fit into
        the GPU's memory (the fast one has shown that it does)."""
        try:
            taken = self.time({"slow": self.step(slow), "fast": self.step(fast)}, budget_s)
        except torch.OutOfMemoryError:
            self.forget_gradients()
            return None
        return taken["slow"] / taken["fast"]

    def step(self, loss: trials.LossOf, batch: Batch | None = None) -> Callable[[], None]:
        """A micro-batch that is a step of its own. What a CUDA graph gave before is overwritten by its next run:
        nothing is added to it."""
        once = trials.forward_backward(loss, batch or self.example)

        def alone() -> None:
            self.forget_gradients()
            once()

        return alone

    def forget_gradients(self) -> None:
        for weight in self.engine.model.parameters():
            weight.grad = None

    # --- how exact it must be -----------------------------------------------------------------------------

    @property
    def tolerance(self) -> float:
        """Largest relative difference from the reference that is allowed; see `trials.TOLERANCE`."""
        name = self.engine.precision.name
        return trials.TOLERANCE["tf32" if name == "fp32" and uses_tf32(self.config, self.device) else name]

    def differs(self, error: float) -> Words:
        return "path.differs", {"error": error, "tolerance": self.tolerance}
