"""Measurements of a run as series for plots: appended in constant time, read without copying.

Series are columns of a few tables; the rows of one table come from one kind of event, so they share
their x axes: step, tokens, and time (seconds of the run, without the gaps between its processes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from trainer_core import protocol
from trainer_core.protocol import AnyEvent

Axis = Literal["step", "tokens", "time"]
AXES: Final[tuple[Axis, ...]] = get_args(Axis)
Array = npt.NDArray[np.float64]

TIME_PARTS: Final = ("data", "transfer", "forward", "backward", "optimizer", "checkpoint", "other")
_STEP: Final = ("train_loss", "tokens_per_s", "samples_per_s", "learning_rate", "grad_norm", "mfu", "epoch")
_STEP_COLUMNS: Final = (*_STEP, *(f"time_{part}" for part in TIME_PARTS))
_PERFORMANCE_COLUMNS: Final = ("data_ratio", "compute_ratio", "energy_per_million", "gradient_noise", "memory_peak")
_EVAL_COLUMNS: Final = ("eval_loss", "perplexity", "bleu4", "exact_match")
_HOST_COLUMNS: Final = ("ram_used", "ram_total", "rss", "cpu", "disk_free")
_GPU_COLUMNS: Final = ("gpu_util", "vram_used", "vram_total", "torch_allocated", "power", "temperature")
_FIRST_CAPACITY: Final = 256
_NAN: Final = math.nan


def _number(value: float | None) -> float:
    return _NAN if value is None else float(value)


class _Table:
    """Rows of float64, each column in a buffer of its own that doubles.

    The buffers have unequal sizes, so that no two columns are copied on one append: at a million rows
    copying all at once would stop the window for a tenth of a second.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = {name: place for place, name in enumerate((*AXES, *columns))}
        self._buffers = [np.empty(_FIRST_CAPACITY + 16 * place) for place in self.columns.values()]
        self._room = _FIRST_CAPACITY  # of the smallest buffer
        self.length = 0
        self.version = 0

    def append(self, row: tuple[float, ...]) -> None:
        if self.length == self._room:
            self._grow()
        for buffer, value in zip(self._buffers, row, strict=True):
            buffer[self.length] = value
        self.length += 1
        self.version += 1

    def _grow(self) -> None:
        for place, buffer in enumerate(self._buffers):
            if buffer.size == self.length:
                self._buffers[place] = np.empty(2 * self.length)
                self._buffers[place][: self.length] = buffer
        self._room = min(buffer.size for buffer in self._buffers)

    def column(self, name: str) -> Array:
        return self._buffers[self.columns[name]][: self.length]

    def last(self, name: str) -> float:
        return float(self._buffers[self.columns[name]][self.length - 1]) if self.length else _NAN

    def cut_after(self, step: float) -> None:
        """Forget the rows after `step`. New buffers: views handed out before stay what they were."""
        kept = int(np.searchsorted(self.column("step"), step, side="right"))
        if kept < self.length:
            old, self.length = self._buffers, kept
            self._buffers = [np.empty_like(buffer) for buffer in old]
            for new, buffer in zip(self._buffers, old, strict=True):
                new[:kept] = buffer[:kept]
            self.version += 1


@dataclass(frozen=True, slots=True)
class Marker:
    """A point worth a mark in the plots: a checkpoint, the best evaluation, or a step that went wrong."""

    step: int
    tokens: float
    time: float
    kind: str  # regular, best, final, emergency; best_eval; skipped, rolled_back, stopped
    value: float | None = None  # the eval loss of best_eval, the gradient norm of a bad step
    name: str = ""  # the checkpoint's folder

    def x(self, axis: Axis) -> float:
        return {"step": float(self.step), "tokens": self.tokens, "time": self.time}[axis]


class MetricStore:
    """All series of one run. Give it every event in order; others than measurements are ignored.

    Names: train_loss, eval_loss, perplexity, bleu4, exact_match, tokens_per_s, samples_per_s,
    learning_rate, grad_norm, mfu, epoch, time_data, time_transfer, time_forward, time_backward,
    time_optimizer, time_checkpoint, time_other (ms); data_ratio, compute_ratio, energy_per_million (J),
    gradient_noise (sequences), memory_peak; ram_used, ram_total, rss, cpu, disk_free; and with a GPU's index
    behind a dot: gpu_util.0, vram_used.0, vram_total.0, torch_allocated.0, power.0, temperature.0.
    A value that was not told is NaN.
    """

    def __init__(self) -> None:
        self._versions = 0  # grows over `clear` too, so that no version ever comes twice
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._steps = _Table(_STEP_COLUMNS)
        self._performance = _Table(_PERFORMANCE_COLUMNS)
        self._evals = _Table(_EVAL_COLUMNS)
        self._host = _Table(_HOST_COLUMNS)
        self._gpus: dict[int, _Table] = {}
        self.gpu_names: dict[int, str] = {}
        self._marks: list[Marker] = []
        self._bad: list[protocol.BadStep] = []
        self._best: Marker | None = None
        self._step, self._tokens, self._time = 0.0, 0.0, 0.0
        self._time_origin: float | None = None  # the wall clock time that is 0 on the time axis
        self._versions += 1_000_000_000

    # --- in ---------------------------------------------------------------------------------------

    def add(self, event: AnyEvent) -> None:
        match event:
            case protocol.Step():
                self._add_step(event)
            case protocol.Eval():
                self._add_eval(event)
            case protocol.Hardware():
                self._add_hardware(event)
            case protocol.Checkpoint():
                self._at(event)
                self._marks.append(Marker(event.step, self._tokens, self._time, event.kind, name=event.path))
            case protocol.Performance():
                self._add_performance(event)
            case protocol.BadStep():
                self._bad.append(event)
            case protocol.Hello():
                self._add_hello(event)
            case _:
                pass

    def _at(self, event: protocol.Event) -> float:
        """Let the time axis reach an event."""
        if self._time_origin is None:
            self._time_origin = event.t - self._time
        self._time = max(self._time, event.t - self._time_origin)
        return self._time

    def _add_hello(self, event: protocol.Hello) -> None:
        """A process begins. What it does again is cut off; the time between processes is left out."""
        if event.resumed_from_step is None:
            self.clear()
        else:
            self.cut_after(event.resumed_from_step)
            self._bad = [bad for bad in self._bad if bad.step <= event.resumed_from_step]
        self._time_origin = event.t - self._time

    def _add_step(self, event: protocol.Step) -> None:
        if event.step <= self._step and self._steps.length:  # done again, though no hello said so
            self.cut_after(event.step - 1)
        self._step, self._tokens = float(event.step), float(event.tokens)
        spent = event.time_ms
        self._steps.append(
            (
                self._step,
                self._tokens,
                self._at(event),
                _number(event.loss),
                event.tokens_per_s,
                event.samples_per_s,
                event.learning_rate,
                _number(event.grad_norm),
                _number(event.mfu),
                event.epoch,
                spent.data,
                spent.transfer,
                spent.forward,
                spent.backward,
                spent.optimizer,
                spent.checkpoint,
                spent.other,
            )
        )

    def _add_performance(self, event: protocol.Performance) -> None:
        at = (float(event.step), self._tokens, self._at(event))
        self._performance.cut_after(event.step - 1)  # a run that went back
        told = (event.energy_per_million_tokens_j, event.gradient_noise, event.memory_peak)
        self._performance.append((*at, event.data_ratio, event.compute_ratio, *map(_number, told)))

    def _add_eval(self, event: protocol.Eval) -> None:
        self._step = max(self._step, float(event.step))
        known = (event.loss, event.perplexity, event.bleu4, event.exact_match)
        self._evals.append((float(event.step), self._tokens, self._at(event), *map(_number, known)))
        best = self._best.value if self._best else None
        if event.loss is not None and (best is None or event.loss < best):
            self._best = Marker(event.step, self._tokens, self._time, "best_eval", event.loss)

    def _add_hardware(self, event: protocol.Hardware) -> None:
        at, host = (self._step, self._tokens, self._at(event)), event.host
        self._host.append((*at, host.ram_used, host.ram_total, host.rss, host.cpu, host.disk_free))
        for gpu in event.gpus:
            if gpu.index not in self._gpus:
                self._gpus[gpu.index] = _Table(_GPU_COLUMNS)
            self.gpu_names[gpu.index] = gpu.name
            memory = (gpu.vram_used, gpu.vram_total, gpu.torch_allocated)
            told = (gpu.utilization, *memory, gpu.power_w, gpu.temperature_c)
            self._gpus[gpu.index].append((*at, *map(_number, told)))

    def cut_after(self, step: int) -> None:
        """Forget what came after `step`: those steps are done again. Why a run went back stays known."""
        tables = self._tables()
        for table in tables:
            table.cut_after(step)
        self._marks = [mark for mark in self._marks if mark.step <= step]
        self._step = min(self._step, float(step))
        self._tokens = self._steps.last("tokens") if self._steps.length else 0.0
        self._time = max((table.last("time") for table in tables if table.length), default=0.0)
        self._time_origin = None
        self._best = self._best_of_evals()

    def _best_of_evals(self) -> Marker | None:
        losses = self._evals.column("eval_loss")
        if not np.isfinite(losses).any():
            return None
        row = int(np.nanargmin(losses))
        step, tokens, time = (float(self._evals.column(axis)[row]) for axis in AXES)
        return Marker(int(step), tokens, time, "best_eval", float(losses[row]))

    # --- out ----------------------------------------------------------------------------------------

    def series(self, name: str, axis: Axis = "step") -> tuple[Array, Array]:
        """(x, y) as views of the store's memory: do not write to them. Empty while there is nothing."""
        found = self._find(name)
        if found is None:
            return np.empty(0), np.empty(0)
        table, column = found
        return table.column(axis), table.column(column)

    def version(self, name: str) -> int:
        """Changes whenever the series does; a plot that painted this version is up to date."""
        found = self._find(name)
        return self._versions + (found[0].version if found else 0)

    def last(self, name: str) -> float | None:
        """The newest value that is a number; None if there is none among the newest hundred."""
        y = self.series(name)[1][-100:]
        good = y[np.isfinite(y)]
        return float(good[-1]) if good.size else None

    def gpus(self) -> list[int]:
        """Indices of the GPUs that were measured."""
        return sorted(self._gpus)

    def checkpoints(self) -> list[Marker]:
        """One mark for each checkpoint saved, oldest first."""
        return list(self._marks)

    def best_eval(self) -> Marker | None:
        """The evaluation with the lowest loss."""
        return self._best

    def bad_steps(self) -> list[Marker]:
        """One mark for each step that was left out or made the run go back, where its curves reach that far."""
        steps = self._steps.column("step")
        if not self._bad or not steps.size:
            return []
        reached = [bad for bad in self._bad if bad.step <= steps[-1]]
        at = [bad.step for bad in reached]
        places = zip(*(np.interp(at, steps, self._steps.column(axis)) for axis in ("tokens", "time")), strict=True)
        return [
            Marker(bad.step, float(tokens), float(time), bad.action, bad.grad_norm)
            for bad, (tokens, time) in zip(reached, places, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """Memory that the rows take."""
        return sum(8 * len(table.columns) * table.length for table in self._tables())

    def _tables(self) -> list[_Table]:
        return [self._steps, self._performance, self._evals, self._host, *self._gpus.values()]

    def _find(self, name: str) -> tuple[_Table, str] | None:
        column, dot, index = name.partition(".")
        if dot:
            table = self._gpus.get(int(index)) if index.isdecimal() else None
            return (table, column) if table is not None and column in table.columns else None
        tables = (self._steps, self._performance, self._evals, self._host)
        return next(((table, name) for table in tables if name in table.columns), None)


def ema(y: Array, weight: float) -> Array:
    """Exponential moving average with bias correction, as in Adam (Kingma and Ba, 2015, section 3).

    `weight` in [0, 1) is the share of the past. NaN in `y` is passed over: the average stays what it
    was (NaN before the first number, and in a gap longer than its memory).

    A dozen vectorised passes (Hillis and Steele, 1986): after pass k every sum spans 2**k points, and
    the passes end where the past no longer weighs anything.
    """
    if weight <= 0.0 or y.size == 0:
        return y.astype(np.float64, copy=True)
    known = np.isfinite(y)
    sums = np.where(known, y, 0.0)
    weights = known.astype(np.float64)
    reach, factor = 1, min(weight, 0.999999)
    while reach < y.size and factor > 1e-17:
        sums[reach:] += factor * sums[:-reach]
        weights[reach:] += factor * weights[:-reach]
        reach, factor = 2 * reach, factor * factor
    average: Array = np.full(y.size, _NAN)
    np.divide(sums, weights, out=average, where=weights > 0.0)
    return average
