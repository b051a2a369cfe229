"""Measurements of a run as series for plots: appended in constant time, read without copying.

Series are columns of a few tables; the rows of one table come from one kind of event, so they share
their x axes: step, tokens, and time (seconds of the run, without the gaps between its processes).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

import numpy as np

from app.state.measurements.curves import Curve
from app.state.measurements.table import AXES, Array, Axis, Column, Slices, Table, finished
from app.state.measurements.thinning import ROWS
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

__all__ = ["AXES", "Array", "Axis", "Marker", "MetricStore"]

TIME_PARTS: Final = ("data", "transfer", "forward", "backward", "sync", "optimizer", "checkpoint", "other")
# Which field of an event a column holds. `bulk.py` reads many events by the same tables.
STEP_FIELDS: Final = {
    "train_loss": "loss",
    "tokens_per_s": "tokens_per_s",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "mfu": "mfu",
    **{f"time_{part}": f"time_ms.{part}" for part in TIME_PARTS},
}
PERFORMANCE_FIELDS: Final = {
    "data_ratio": "data_ratio",
    "compute_ratio": "compute_ratio",
    "energy_per_million": "energy_per_million_tokens_j",
    "gradient_noise": "gradient_noise",
    "memory_peak": "memory_peak",
}
HOST_FIELDS: Final = {name: f"host.{name}" for name in ("ram_used", "ram_total", "rss", "cpu", "disk_free")}
GPU_FIELDS: Final = {
    "gpu_util": "utilization",
    "vram_used": "vram_used",
    "vram_total": "vram_total",
    "torch_allocated": "torch_allocated",
    "torch_reserved": "torch_reserved",
    "shared_used": "shared_used",
    "power": "power_w",
    "power_limit": "power_limit_w",
    "temperature": "temperature_c",
    "clock": "clock_mhz",
}
GPU_COLUMNS: Final = (*GPU_FIELDS, "hot")  # hot: 1 where its clocks were held back by heat, 0 where not
_HOT: Final = frozenset({"thermal", "hw_thermal"})
_EVAL_COLUMNS: Final = ("eval_loss", "perplexity", "bleu4", "exact_match")
_step_values = attrgetter(*STEP_FIELDS.values())
_performance_values = attrgetter(*PERFORMANCE_FIELDS.values())
_host_values = attrgetter(*HOST_FIELDS.values())
_gpu_values = attrgetter(*GPU_FIELDS.values())
_NAN: Final = math.nan


def gpu_values(gpu: protocol.Gpu) -> tuple[float | None, ...]:
    """Its values in the order of `GPU_COLUMNS`."""
    return (*_gpu_values(gpu), 1.0 if held_by_heat(gpu.throttle) else 0.0)


def held_by_heat(throttle: Collection[str]) -> bool:
    """Whether the clocks of a GPU were."""
    return not _HOT.isdisjoint(throttle)


@dataclass(slots=True)
class Rows:
    """Many measurements: arrays of shape (2 + fields, events), float64. The first row of each is the event's place
    among all events, the second its time `t`; the fields follow in the order of STEP_FIELDS and its like (a GPU's:
    GPU_COLUMNS), before those of `steps` stand step and tokens, before those of `performance` step."""

    steps: Array
    performance: Array
    host: Array
    gpus: dict[int, Array] = field(default_factory=dict)  # by index; their events are those of `host`

    def tables(self) -> list[Array]:
        return [self.steps, self.performance, self.host, *self.gpus.values()]

    def between(self, begin: float, end: float) -> Rows:
        """Those with a place in [begin, end); views."""

        def part(table: Array) -> Array:
            first, last = np.searchsorted(table[0], (begin, end))
            return table[:, first:last]

        gpus = {index: part(table) for index, table in self.gpus.items()}
        return Rows(part(self.steps), part(self.performance), part(self.host), gpus)


@dataclass(frozen=True, slots=True)
class Marker:
    """A point worth a mark in the plots: a checkpoint, the best evaluation, a step that went wrong or did not fit,
    where the run was gone on with."""

    step: int
    tokens: float
    time: float
    kind: str  # regular, best, final, emergency; best_eval; skipped, rolled_back, stopped; halved …; resumed
    value: float | None = None  # the eval loss of best_eval, the gradient norm of a bad step, a move's batch size
    name: str = ""  # the checkpoint's folder

    def x(self, axis: Axis) -> float:
        return {"step": float(self.step), "tokens": self.tokens, "time": self.time}[axis]


class MetricStore:
    """All series of one run. Give it every event in order; others than measurements are ignored.

    Names: train_loss, eval_loss, perplexity, bleu4, exact_match, tokens_per_s, learning_rate, grad_norm, mfu,
    time_data, time_transfer, time_forward, time_backward, time_sync, time_optimizer, time_checkpoint, time_other (ms);
    data_ratio, compute_ratio, energy_per_million (J), gradient_noise (sequences), memory_peak; ram_used, ram_total,
    rss, cpu, disk_free; and with a GPU's index behind a dot: gpu_util.0, vram_used.0, vram_total.0,
    torch_allocated.0, torch_reserved.0, shared_used.0, power.0, power_limit.0 (W), temperature.0 (°C), clock.0 (MHz),
    hot.0 (0 or 1). A value that was not told is NaN.
    """

    def __init__(self) -> None:
        self._versions = 0  # grows over `clear` too, so that no version ever comes twice
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._steps = Table(STEP_FIELDS)
        self._performance = Table(PERFORMANCE_FIELDS)
        self._evals = Table(_EVAL_COLUMNS)
        self._host = Table(HOST_FIELDS)
        self._gpus: dict[int, Table] = {}
        self.gpu_names: dict[int, str] = {}
        self._marks: list[Marker] = []
        self._bad: list[protocol.BadStep] = []
        self._moves: list[protocol.MemoryMove] = []
        self._restarts: list[Marker] = []
        self._curves: dict[tuple[str, bool], Curve] = {}
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
            case protocol.MemoryMove():
                self._moves.append(event)
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
            self._resume(event.resumed_from_step)
        self._time_origin = event.t - self._time

    def _resume(self, step: int) -> None:
        self.cut_after(step)
        self._bad = [bad for bad in self._bad if bad.step <= step]
        self._moves = [move for move in self._moves if move.step <= step]
        self._restarts = [mark for mark in self._restarts if mark.step < step]
        if self._steps.length:  # else the run begins here, with another one's checkpoint
            self._restarts.append(Marker(step, self._tokens, self._time, "resumed"))

    def _add_step(self, event: protocol.Step) -> None:
        if event.step <= self._step and self._steps.length:  # done again, though no hello said so
            self.cut_after(event.step - 1)
        self._step, self._tokens = float(event.step), float(event.tokens)
        self._steps.append((self._step, self._tokens, self._at(event), *_step_values(event)))

    def _add_performance(self, event: protocol.Performance) -> None:
        at = (float(event.step), self._tokens, self._at(event))
        self._performance.cut_after(event.step - 1)  # a run that went back
        self._performance.append((*at, *_performance_values(event)))

    def _add_eval(self, event: protocol.Eval) -> None:
        self._step = max(self._step, float(event.step))
        known = (event.loss, event.perplexity, event.bleu4, event.exact_match)
        self._evals.append((float(event.step), self._tokens, self._at(event), *known))
        best = self._best.value if self._best else None
        if event.loss is not None and (best is None or event.loss < best):
            self._best = Marker(event.step, self._tokens, self._time, "best_eval", event.loss)

    def _add_hardware(self, event: protocol.Hardware) -> None:
        at = (self._step, self._tokens, self._at(event))
        self._host.append((*at, *_host_values(event)))
        for gpu in event.gpus:
            self.gpu_names[gpu.index] = gpu.name
            self._gpu(gpu.index).append((*at, *gpu_values(gpu)))

    def _gpu(self, index: int) -> Table:
        if index not in self._gpus:
            self._gpus[index] = Table(GPU_COLUMNS)
        return self._gpus[index]

    def add_rows(self, rows: Rows) -> None:
        """Many measurements, as adding their events one by one would: a thousand times as fast."""
        if not any(table.shape[1] for table in rows.tables()):
            return
        numbers = rows.steps[2]
        again = 1 + np.flatnonzero(np.diff(numbers) <= 0)  # steps that are done again, though no hello said so
        if numbers.size and self._steps.length and numbers[0] <= self._step:
            again = np.concatenate(([0], again))
        places = [float(place) for place in rows.steps[0, again]]
        self._add_part(rows.between(-math.inf, places[0] if places else math.inf))
        for step, begin, end in zip(numbers[again], places, (*places, math.inf)[1:], strict=True):
            self.cut_after(int(step) - 1)
            self._add_part(rows.between(begin, end))

    def _add_part(self, rows: Rows) -> None:
        """Rows whose steps only rise."""
        steps, performance, host = rows.steps, rows.performance, rows.host
        times = self._times(rows.tables())
        step, tokens = np.append(self._step, steps[2]), np.append(self._tokens, steps[3])
        self._steps.extend([steps[2], steps[3], times[0], *steps[4:]])
        if performance.shape[1]:
            self._performance.cut_after(performance[2, 0] - 1)
            at = np.searchsorted(steps[0], performance[0])
            self._performance.extend([performance[2], tokens[at], times[1], *performance[3:]])
        at = np.searchsorted(steps[0], host[0])
        self._host.extend([step[at], tokens[at], times[2], *host[2:]])
        for (index, gpu), time in zip(rows.gpus.items(), times[3:], strict=True):
            at = np.searchsorted(steps[0], gpu[0])
            self._gpu(index).extend([step[at], tokens[at], time, *gpu[2:]])
        self._step, self._tokens = float(step[-1]), float(tokens[-1])

    def _times(self, tables: list[Array]) -> list[Array]:
        """What `_at` gives for the events of several tables, in the order of their places."""
        told = np.concatenate([table[1] for table in tables])
        if not told.size:
            return [told for _ in tables]
        order = np.argsort(np.concatenate([table[0] for table in tables]), kind="stable")
        if self._time_origin is None:
            self._time_origin = float(told[order[0]]) - self._time
        reached = np.maximum.accumulate(np.maximum(told[order] - self._time_origin, self._time))
        self._time = float(reached[-1])
        told[order] = reached
        return np.split(told, np.cumsum([table.shape[1] for table in tables])[:-1])

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

    def series(self, name: str, axis: Axis = "step") -> tuple[Array, Column]:
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

    def tells(self, name: str) -> bool:
        """Whether there are numbers at all: a driver that keeps something to itself does so from the beginning."""
        return self.last(name) is not None or bool(np.isfinite(self.series(name)[1][:100]).any())

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
        return self._placed([(bad.step, bad.action, bad.grad_norm) for bad in self._bad])

    def memory_moves(self) -> list[Marker]:
        """One mark for each step that did not fit, or after which there was room again, likewise."""
        return self._placed([(move.step, move.action, float(move.batch_size)) for move in self._moves])

    def restarts(self) -> list[Marker]:
        """One mark for each checkpoint that the run was gone on from."""
        return list(self._restarts)

    def marks_version(self) -> tuple[int, ...]:
        """Changes whenever marks do."""
        counts = [len(self._marks), len(self._bad), len(self._moves), len(self._restarts)]
        return (self._versions, *counts)

    def _placed(self, found: list[tuple[int, str, float | None]]) -> list[Marker]:
        steps = self._steps.column("step")
        if not found or not steps.size:
            return []
        reached = [one for one in found if one[0] <= steps[-1]]
        at = [step for step, _, _ in reached]
        places = zip(*(np.interp(at, steps, self._steps.column(axis)) for axis in ("tokens", "time")), strict=True)
        return [
            Marker(step, float(tokens), float(time), kind, value)
            for (step, kind, value), (tokens, time) in zip(reached, places, strict=True)
        ]

    def curve(self, name: str, weight: float = 0.0) -> Curve | None:
        """A series as it is drawn, `weight` of the past in it (0: as it is); None while nothing of it is known.

        Of each series one smoothed curve is kept. Where rows were thinned, each stands for several.
        """
        found = self._find(name)
        if found is None:
            return None
        table, column = found
        key, weight = (name, weight > 0.0), weight**table.each
        kept = self._curves.get(key)
        if kept is None or kept.weight != weight or kept.table is not table:
            kept = self._curves[key] = Curve(table, column, weight)
        return kept

    def made_of(self, each: int) -> None:
        """Its rows were made of so many each: what is smoothed over them is so much longer."""
        for table in self._tables():
            table.each = each

    def thinned(self, most: int = ROWS) -> MetricStore:
        """The same run in at most so many rows of each kind (1 MB), extremes kept: for the plots of other runs."""
        return finished(self.thinning(most))

    def thinning(self, most: int = ROWS) -> Slices[MetricStore]:
        """The same in slices of some ms: a long run takes a tenth of a second."""
        made = MetricStore()
        made._steps = yield from self._steps.thinning(most)
        made._performance = yield from self._performance.thinning(most)
        made._evals = yield from self._evals.thinning(most)
        made._host = yield from self._host.thinning(most)
        for index, table in self._gpus.items():
            made._gpus[index] = yield from table.thinning(most)
        made.gpu_names, made._marks, made._best = dict(self.gpu_names), list(self._marks), self._best
        return made

    @property
    def nbytes(self) -> int:
        """Memory that the rows take."""
        return sum(table.nbytes for table in self._tables())

    def _tables(self) -> list[Table]:
        return [self._steps, self._performance, self._evals, self._host, *self._gpus.values()]

    def _find(self, name: str) -> tuple[Table, str] | None:
        column, dot, index = name.partition(".")
        if dot:
            table = self._gpus.get(int(index)) if index.isdecimal() else None
            return (table, column) if table is not None and column in table.columns else None
        tables = (self._steps, self._performance, self._evals, self._host)
        return next(((table, name) for table in tables if name in table.columns), None)
