"""Measurements of a run as series for plots.

Series are columns of a few tables. The rows of a table come from one kind of event, so they share their x axes: step,
tokens and time (seconds of the run without the gaps between its processes).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np

from app.core.metrics.curves import Curve
from app.core.metrics.downsampling import MAX_ROWS
from app.core.metrics.table import AXES, Array, Axis, MetricTable, Values
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

__all__ = ["AXES", "Array", "Axis", "Marker", "MetricStore"]

TIME_PARTS: Final = ("data", "transfer", "forward", "backward", "sync", "optimizer", "checkpoint", "other")
# The field of an event that each column holds.
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
GPU_COLUMNS: Final = (*GPU_FIELDS, "hot")  # hot: 1 during thermal throttling, else 0
_THERMAL_REASONS: Final = frozenset({"thermal", "hw_thermal"})
_EVAL_COLUMNS: Final = ("eval_loss", "perplexity", "bleu4", "exact_match")
_step_values = attrgetter(*STEP_FIELDS.values())
_performance_values = attrgetter(*PERFORMANCE_FIELDS.values())
_host_values = attrgetter(*HOST_FIELDS.values())
_gpu_values = attrgetter(*GPU_FIELDS.values())


def gpu_values(gpu: protocol.Gpu) -> tuple[float | None, ...]:
    """Values in the order of `GPU_COLUMNS`."""
    return (*_gpu_values(gpu), 1.0 if is_thermally_throttled(gpu.throttle) else 0.0)


def is_thermally_throttled(throttle: Collection[str]) -> bool:
    """Whether heat reduced the clocks of a GPU."""
    return not _THERMAL_REASONS.isdisjoint(throttle)


@dataclass(frozen=True, slots=True)
class Marker:
    """A marked point of the plots: a checkpoint, the best evaluation, a bad step, an OOM recovery or a resume."""

    step: int
    tokens: float
    time: float
    kind: str  # regular, best, final, emergency; best_eval; skipped, rolled_back, stopped; halved …; resumed
    value: float | None = None  # eval loss of best_eval, gradient norm of a bad step, batch size after an OOM recovery
    name: str = ""  # the checkpoint's folder

    def x(self, axis: Axis) -> float:
        return float(getattr(self, axis))


class MetricStore:
    """All series of one run. `add` takes every event in order and ignores those without measurements.

    Names: train_loss, eval_loss, perplexity, bleu4, exact_match, tokens_per_s, learning_rate, grad_norm, mfu,
    time_data, time_transfer, time_forward, time_backward, time_sync, time_optimizer, time_checkpoint, time_other (ms);
    data_ratio, compute_ratio, energy_per_million (J), gradient_noise (sequences), memory_peak; ram_used, ram_total,
    rss, cpu, disk_free; and with a GPU's index behind a dot: gpu_util.0, vram_used.0, vram_total.0,
    torch_allocated.0, torch_reserved.0, shared_used.0, power.0, power_limit.0 (W), temperature.0 (°C), clock.0 (MHz),
    hot.0 (0 or 1). Missing values are NaN.
    """

    def __init__(self) -> None:
        self._base_version = 0  # grows in `clear` too, so that no version occurs twice
        self.clear()

    def clear(self) -> None:
        """Remove all data."""
        self._steps = MetricTable(STEP_FIELDS)
        self._performance = MetricTable(PERFORMANCE_FIELDS)
        self._evals = MetricTable(_EVAL_COLUMNS)
        self._host = MetricTable(HOST_FIELDS)
        self._gpus: dict[int, MetricTable] = {}
        self.gpu_names: dict[int, str] = {}
        self._checkpoint_markers: list[Marker] = []
        self._bad_step_events: list[protocol.BadStep] = []
        self._oom_recovery_events: list[protocol.OomRecovery] = []
        self._resume_markers: list[Marker] = []
        self._curves: dict[tuple[str, bool], Curve] = {}
        self._best_eval: Marker | None = None
        self._step, self._tokens, self._time = 0.0, 0.0, 0.0
        self._time_origin: float | None = None  # the wall clock time at 0 on the time axis
        self._base_version += 1_000_000_000

    # --- input ---------------------------------------------------------------------------------------

    def add(self, event: AnyEvent) -> None:
        match event:
            case protocol.Step():
                self._add_step(event)
            case protocol.Eval():
                self._add_eval(event)
            case protocol.Hardware():
                self._add_hardware(event)
            case protocol.Checkpoint():
                self._advance_time(event)
                self._checkpoint_markers.append(
                    Marker(event.step, self._tokens, self._time, event.kind, name=event.path)
                )
            case protocol.Performance():
                self._add_performance(event)
            case protocol.BadStep():
                self._bad_step_events.append(event)
            case protocol.OomRecovery():
                self._oom_recovery_events.append(event)
            case protocol.Hello():
                self._add_hello(event)
            case _:
                pass

    def _advance_time(self, event: protocol.Event) -> float:
        """Extend the time axis to an event; returns its position."""
        if self._time_origin is None:
            self._time_origin = event.t - self._time
        self._time = max(self._time, event.t - self._time_origin)
        return self._time

    def _add_hello(self, event: protocol.Hello) -> None:
        """A process starts. Steps that it repeats are removed; the time between processes is not counted."""
        if event.resumed_from_step is None:
            self.clear()
        else:
            self._resume(event.resumed_from_step)
        self._time_origin = event.t - self._time

    def _resume(self, step: int) -> None:
        self.truncate_after(step)
        self._bad_step_events = [bad for bad in self._bad_step_events if bad.step <= step]
        self._oom_recovery_events = [event for event in self._oom_recovery_events if event.step <= step]
        self._resume_markers = [mark for mark in self._resume_markers if mark.step < step]
        if self._steps.length:  # else the run starts from a checkpoint of another run
            self._resume_markers.append(Marker(step, self._tokens, self._time, "resumed"))

    def _add_step(self, event: protocol.Step) -> None:
        if event.step <= self._step and self._steps.length:  # repeated without a hello event
            self.truncate_after(event.step - 1)
        self._step, self._tokens = float(event.step), float(event.tokens)
        self._steps.append((self._step, self._tokens, self._advance_time(event), *_step_values(event)))

    def _add_performance(self, event: protocol.Performance) -> None:
        at = (float(event.step), self._tokens, self._advance_time(event))
        self._performance.truncate_after(event.step - 1)  # after a rollback
        self._performance.append((*at, *_performance_values(event)))

    def _add_eval(self, event: protocol.Eval) -> None:
        self._step = max(self._step, float(event.step))
        known = (event.loss, event.perplexity, event.bleu4, event.exact_match)
        self._evals.append((float(event.step), self._tokens, self._advance_time(event), *known))
        best = self._best_eval.value if self._best_eval else None
        if event.loss is not None and (best is None or event.loss < best):
            self._best_eval = Marker(event.step, self._tokens, self._time, "best_eval", event.loss)

    def _add_hardware(self, event: protocol.Hardware) -> None:
        at = (self._step, self._tokens, self._advance_time(event))
        self._host.append((*at, *_host_values(event)))
        for gpu in event.gpus:
            self.gpu_names[gpu.index] = gpu.name
            if gpu.index not in self._gpus:
                self._gpus[gpu.index] = MetricTable(GPU_COLUMNS)
            self._gpus[gpu.index].append((*at, *gpu_values(gpu)))

    def truncate_after(self, step: int) -> None:
        """Remove the rows after `step`, which are trained again. Bad steps are kept."""
        tables = self._tables()
        for table in tables:
            table.truncate_after(step)
        self._checkpoint_markers = [mark for mark in self._checkpoint_markers if mark.step <= step]
        self._step = min(self._step, float(step))
        self._tokens = self._steps.last("tokens") if self._steps.length else 0.0
        self._time = max((table.last("time") for table in tables if table.length), default=0.0)
        self._time_origin = None
        self._best_eval = self._best_of_evals()

    def _best_of_evals(self) -> Marker | None:
        losses = self._evals.column("eval_loss")
        if not np.isfinite(losses).any():
            return None
        row = int(np.nanargmin(losses))
        step, tokens, time = (float(self._evals.column(axis)[row]) for axis in AXES)
        return Marker(int(step), tokens, time, "best_eval", float(losses[row]))

    # --- output ----------------------------------------------------------------------------------------

    def series(self, name: str, axis: Axis = "step") -> tuple[Array, Values]:
        """(x, y) as read-only views; empty if there is no data."""
        found = self._find_column(name)
        if found is None:
            return np.empty(0), np.empty(0)
        table, column = found
        return table.column(axis), table.column(column)

    def version(self, name: str) -> int:
        """Changes whenever the series does."""
        found = self._find_column(name)
        return self._base_version + (found[0].version if found else 0)

    def last_value(self, name: str) -> float | None:
        """The last finite value of the last hundred rows, or None."""
        y = self.series(name)[1][-100:]
        good = y[np.isfinite(y)]
        return float(good[-1]) if good.size else None

    def has_values(self, name: str) -> bool:
        """Whether there are finite values, judged by the first and last hundred rows."""
        return self.last_value(name) is not None or bool(np.isfinite(self.series(name)[1][:100]).any())

    def gpu_indices(self) -> list[int]:
        """Indices of the GPUs that were measured."""
        return sorted(self._gpus)

    def checkpoints(self) -> list[Marker]:
        """Saved checkpoints, oldest first."""
        return list(self._checkpoint_markers)

    def best_eval(self) -> Marker | None:
        """The evaluation with the lowest loss."""
        return self._best_eval

    def bad_steps(self) -> list[Marker]:
        """Steps that were skipped or caused a rollback, up to the last step of the curves."""
        return self._interpolate_markers([(bad.step, bad.action, bad.grad_norm) for bad in self._bad_step_events])

    def oom_recoveries(self) -> list[Marker]:
        """Steps with an OOM recovery, up to the last step of the curves."""
        return self._interpolate_markers(
            [(event.step, event.action, float(event.batch_size)) for event in self._oom_recovery_events]
        )

    def resumes(self) -> list[Marker]:
        """Checkpoints that the run was resumed from."""
        return list(self._resume_markers)

    def markers_version(self) -> tuple[int, ...]:
        """Changes whenever the markers do."""
        counts = [
            len(self._checkpoint_markers),
            len(self._bad_step_events),
            len(self._oom_recovery_events),
            len(self._resume_markers),
        ]
        return (self._base_version, *counts)

    def _interpolate_markers(self, events: list[tuple[int, str, float | None]]) -> list[Marker]:
        steps = self._steps.column("step")
        if not events or not steps.size:
            return []
        reached = [event for event in events if event[0] <= steps[-1]]
        at = [step for step, _, _ in reached]
        places = zip(*(np.interp(at, steps, self._steps.column(axis)) for axis in ("tokens", "time")), strict=True)
        return [
            Marker(step, float(tokens), float(time), kind, value)
            for (step, kind, value), (tokens, time) in zip(reached, places, strict=True)
        ]

    def curve(self, name: str, weight: float = 0.0) -> Curve | None:
        """A series, smoothed with `weight` (0: raw); None if there is none. The last smoothed curve is cached.

        For downsampled rows the weight applies to each of the original rows.
        """
        found = self._find_column(name)
        if found is None:
            return None
        table, column = found
        key, weight = (name, weight > 0.0), weight**table.rows_per_point
        curve = self._curves.get(key)
        if curve is None or curve.weight != weight or curve.table is not table:
            curve = self._curves[key] = Curve(table, column, weight)
        return curve

    def iter_downsample(self, limit: int = MAX_ROWS) -> Iterator[None]:
        """Reduces the tables to `limit` rows (1 MB in all) that keep the extremes, one table (20 ms) at each `next`."""
        for name in ("_steps", "_performance", "_evals", "_host"):
            setattr(self, name, getattr(self, name).downsampled(limit))
            yield
        for index, table in self._gpus.items():
            self._gpus[index] = table.downsampled(limit)
            yield

    @property
    def nbytes(self) -> int:
        """Memory of the rows in bytes."""
        return sum(table.nbytes for table in self._tables())

    def _tables(self) -> list[MetricTable]:
        return [self._steps, self._performance, self._evals, self._host, *self._gpus.values()]

    def _find_column(self, name: str) -> tuple[MetricTable, str] | None:
        column, dot, index = name.partition(".")
        if dot:
            table = self._gpus.get(int(index)) if index.isdecimal() else None
            return (table, column) if table is not None and column in table.columns else None
        tables = (self._steps, self._performance, self._evals, self._host)
        return next(((table, name) for table in tables if name in table.columns), None)
