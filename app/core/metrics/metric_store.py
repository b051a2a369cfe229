"""Measurements of a run as series for plots.

Series are columns of a few tables. The rows of a table come from one kind of event, so they share their x axes: step,
tokens and time (seconds of the run without the gaps between its processes).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final, Literal

import numpy as np

from app.core.metrics.metric_table import Array, MetricTable, XAxis
from app.core.metrics.smoothing import ExponentialAverage
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

MarkerKind = Literal["best", "checkpoint", "bad_step", "oom_recovery", "resume", "thermal_throttling"]
TIME_PARTS: Final = (
    "data", "transfer", "generation", "forward", "backward", "sync", "optimizer", "checkpoint", "other",
)  # fmt: skip
# Column -> attribute path in the event.
STEP_FIELDS: Final = {
    "train_loss": "loss",
    "tokens_per_s": "tokens_per_s",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "mfu": "mfu",
    "step_time": "time_ms.total",
    **{f"time_{part}": f"time_ms.{part}" for part in TIME_PARTS},
}
REWARD_FIELDS: Final = {name: name for name in ("reward_accuracy", "reward_margin", "chosen_reward", "rejected_reward")}
"""Of the same event, in a run that learns from preferences."""
POLICY_FIELDS: Final = {name: name for name in ("entropy", "kl", "clip_ratio")}
"""Of the same event, in a run that learns from rewards."""
EVAL_FIELDS: Final = {
    "eval_loss": "loss",
    "eval_reward": "reward",
    "eval_reward_accuracy": "reward_accuracy",
    "eval_reward_margin": "reward_margin",
    **{name: name for name in ("perplexity", "bleu4", "exact_match", "neutral_loss_en", "neutral_loss_zh")},
}
ROLLOUT_FIELDS: Final = {name: name for name in ("reward", "answer_tokens", "truncated_ratio", "no_signal_ratio")}
HOST_FIELDS: Final = {name: f"host.{name}" for name in ("ram_used", "ram_total", "rss", "cpu")}
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
GPU_COLUMNS: Final = (*GPU_FIELDS, "thermal_throttling")  # the last: 1 or 0
MAX_OVERLAY_ROWS: Final = 16_384
"""Of a run plotted over another. 8,192 buckets of two points: twice the pixels of the widest screen, for zooming."""
_THERMAL_REASONS: Final = frozenset({"thermal", "hw_thermal"})
_MARKED_EVENTS: Final[dict[type[protocol.Event], MarkerKind]] = {
    protocol.Checkpoint: "checkpoint",
    protocol.BadStep: "bad_step",
    protocol.OomRecovery: "oom_recovery",
}
_step_values = attrgetter(*STEP_FIELDS.values())
_reward_values = attrgetter(*REWARD_FIELDS.values())
_policy_values = attrgetter(*POLICY_FIELDS.values())
_eval_values = attrgetter(*EVAL_FIELDS.values())
_rollout_values = attrgetter(*ROLLOUT_FIELDS.values())
_host_values = attrgetter(*HOST_FIELDS.values())
_gpu_values = attrgetter(*GPU_FIELDS.values())
_COLUMNS: Final[dict[str, Sequence[str]]] = {
    "steps": (*STEP_FIELDS,),
    "rewards": (*REWARD_FIELDS,),
    "policy": (*POLICY_FIELDS,),
    "evals": (*EVAL_FIELDS,),
    "rollouts": (*ROLLOUT_FIELDS,),
    "score": ("score",),
    "host": (*HOST_FIELDS,),
    "gpu": GPU_COLUMNS,
}
"""By table. There is a table `gpu.INDEX` for each GPU, and `score.NAME` for each part of a reward."""
_TABLES: Final = {column: table for table, columns in _COLUMNS.items() for column in columns}


class MetricStore:
    """All series of one run. `add` takes every event in order and ignores those without measurements.

    Names: the keys of `STEP_FIELDS` and the other tables of fields, those in `GPU_COLUMNS` with a GPU's index behind a
    dot: vram_used.0, and score with a part of the reward behind it: score.exact. Missing values are NaN.
    """

    def __init__(self) -> None:
        self._tables = {
            name: MetricTable(columns) for name, columns in _COLUMNS.items() if name not in ("gpu", "score")
        }
        self._marked_steps: dict[MarkerKind, list[int]] = defaultdict(list)
        self._markers_version = 0
        self._averages: dict[str, ExponentialAverage] = {}  # by series, for the last smoothing weight only
        self._step, self._tokens, self._time = 0.0, 0.0, 0.0
        self._time_origin: float | None = None  # the wall clock time at 0 on the time axis

    # --- input ---------------------------------------------------------------------------------------

    def add(self, event: AnyEvent) -> None:
        """Store the measurements and markers of the next event."""
        match event:
            case protocol.Step():
                self._add_step(event)
            case protocol.Eval():
                self._step = max(self._step, float(event.step))
                at = (float(event.step), self._tokens, self._advance_time(event))
                self._tables["evals"].append((*at, *_eval_values(event)))
            case protocol.Rollouts():
                at = (float(event.step), self._tokens, self._advance_time(event))
                self._tables["rollouts"].append((*at, *_rollout_values(event)))
                for part, score in event.scores.items():
                    self._indexed_table("score", part).append((*at, score))
            case protocol.Hardware():
                self._add_hardware(event)
            case protocol.Checkpoint() | protocol.BadStep() | protocol.OomRecovery():
                self._marked_steps[_MARKED_EVENTS[type(event)]].append(event.step)
                self._markers_version += 1
            case protocol.Hello():
                self._add_hello(event)

    def _advance_time(self, event: protocol.Event) -> float:
        """Extend the time axis to an event and return its time on it."""
        if self._time_origin is None:
            self._time_origin = event.t - self._time
        self._time = max(self._time, event.t - self._time_origin)
        return self._time

    def _add_hello(self, event: protocol.Hello) -> None:
        """A process starts. Remove the steps that it repeats, with their markers, which it reports again; a rollback
        keeps them, because its bad steps are not repeated. The time between processes is not counted.
        """
        step = -1 if event.resumed_from_step is None else event.resumed_from_step
        self.truncate_after(step)
        for kind, steps in self._marked_steps.items():
            self._marked_steps[kind] = [marked for marked in steps if marked <= step]
        if self._tables["steps"].length:  # else the run starts from a checkpoint of another run
            self._marked_steps["resume"].append(step)
        self._markers_version += 1
        self._time_origin = event.t - self._time

    def _add_step(self, event: protocol.Step) -> None:
        if event.step <= self._step and self._tables["steps"].length:  # rollback: repeated without a hello event
            self.truncate_after(event.step - 1)
        self._step, self._tokens = float(event.step), float(event.tokens)
        at = (self._step, self._tokens, self._advance_time(event))
        self._tables["steps"].append((*at, *_step_values(event)))
        if event.reward_accuracy is not None:
            self._tables["rewards"].append((*at, *_reward_values(event)))
        if event.entropy is not None:
            self._tables["policy"].append((*at, *_policy_values(event)))

    def _add_hardware(self, event: protocol.Hardware) -> None:
        at = (self._step, self._tokens, self._advance_time(event))
        self._tables["host"].append((*at, *_host_values(event)))
        for gpu in event.gpus:
            is_throttled = not _THERMAL_REASONS.isdisjoint(gpu.throttle)
            self._indexed_table("gpu", gpu.index).append((*at, *_gpu_values(gpu), float(is_throttled)))

    def _indexed_table(self, kind: str, index: int | str) -> MetricTable:
        """The table of a GPU or of a part of a reward."""
        name = f"{kind}.{index}"
        if name not in self._tables:
            self._tables[name] = MetricTable(_COLUMNS[kind])
        return self._tables[name]

    def truncate_after(self, step: int) -> None:
        """Remove the rows after `step`, which are trained again, and continue the axes from the last row left."""
        tables = self._tables.values()
        for table in tables:
            table.truncate_after(step)
        self._averages.clear()
        self._step = min(self._step, float(step))
        self._tokens = float(max(self._tables["steps"].column("tokens")[-1:], default=0.0))
        self._time = float(max((table.column("time")[-1] for table in tables if table.length), default=0.0))
        self._time_origin = None

    # --- output ----------------------------------------------------------------------------------------

    def series(self, name: str, axis: XAxis = "step", smoothing: float = 0.0) -> tuple[Array, Array]:
        """Return (x, y); empty if there is no data. Do not modify the arrays.

        `smoothing`: decay of the exponential average per row of the run, before downsampling; 0 (off) to 1.
        """
        found = self._find_column(name)
        if found is None:
            return np.empty(0), np.empty(0)
        table, column = found
        y = table.column(column)
        if smoothing:
            weight, average = smoothing**table.rows_per_point, self._averages.get(name)
            if average is None or average.weight != weight:
                average = self._averages[name] = ExponentialAverage(weight)
            average.extend(y)
            y = average.values
        return table.column(axis), y

    def version(self, name: str) -> int:
        """Changes whenever the series does."""
        found = self._find_column(name)
        return found[0].version if found else 0

    def last_value(self, name: str, smoothing: float = 0.0) -> float | None:
        """The last finite value of the last hundred rows, or None."""
        y = self.series(name, smoothing=smoothing)[1][-100:]
        finite = y[np.isfinite(y)]
        return float(finite[-1]) if finite.size else None

    def value_at(self, name: str, axis: XAxis, position: float, smoothing: float = 0.0) -> float | None:
        """The value of the row nearest to a position on the axis; None outside of the curve and if not measured."""
        x, y = self.series(name, axis, smoothing)
        if not x.size or not x[0] <= position <= x[-1]:
            return None
        row = int(np.searchsorted(x, position))
        if row and position - x[row - 1] < x[row] - position:
            row -= 1
        return None if math.isnan(y[row]) else float(y[row])

    def has_values(self, name: str) -> bool:
        """Whether there are finite values, judged by the first and last hundred rows."""
        return self.last_value(name) is not None or bool(np.isfinite(self.series(name)[1][:100]).any())

    def gpu_indices(self) -> list[int]:
        """Indices of the GPUs that were measured."""
        return sorted(int(index) for index in self._indices("gpu"))

    def reward_parts(self) -> list[str]:
        """Parts of the reward that were measured, in the order of the settings."""
        return self._indices("score")

    def _indices(self, kind: str) -> list[str]:
        tables = (table.partition(".") for table in self._tables)
        return [index for table, _, index in tables if index and table == kind]

    def best_eval(self, axis: XAxis = "step") -> tuple[float, float] | None:
        """Return the x value and the loss of the best evaluation: by its reward if there is one, then by loss."""
        x, losses = self.series("eval_loss", axis)
        if not np.isfinite(losses).any():
            return None
        measured = (self.series(name, axis)[1] for name in ("eval_reward", "eval_reward_accuracy"))
        rewards = sum(map(np.nan_to_num, measured))  # a run has one of them
        row = int(np.lexsort((losses, -np.where(np.isfinite(losses), rewards, -np.inf)))[0])  # NaN is sorted last
        return float(x[row]), float(losses[row])

    def markers_version(self) -> int:
        """Changes whenever markers do."""
        return self._markers_version

    def marker_points(self, kind: MarkerKind, axis: XAxis, smoothing: float = 0.0) -> tuple[Array, Array]:
        """(x, y) of the markers of a kind: those of marked steps are on the loss, up to its last step."""
        if kind == "best":
            best = self.best_eval(axis)
            return (np.array(best[:1]), np.array(best[1:])) if best else (np.empty(0), np.empty(0))
        if kind == "thermal_throttling":
            points = [np.empty((2, 0))]
            for gpu in self.gpu_indices():
                is_throttled = self.series(f"thermal_throttling.{gpu}")[1] > 0.0
                points.append(np.stack(self.series(f"temperature.{gpu}", axis))[:, is_throttled])
            x, y = np.concatenate(points, axis=1)
            return x, y
        steps, loss = self.series("train_loss", smoothing=smoothing)
        marked = np.array([step for step in self._marked_steps[kind] if steps.size and step <= steps[-1]])
        known = np.isfinite(loss)
        if not marked.size or not known.any():
            return np.empty(0), np.empty(0)
        x = np.interp(marked, steps, self._tables["steps"].column(axis))
        return x, np.interp(marked, steps[known], loss[known])

    def downsample_in_slices(self, limit: int = MAX_OVERLAY_ROWS) -> Iterator[None]:
        """Reduce the tables to `limit` rows (each at most 1.2 MB) that keep the extremes, one table at each `next`."""
        for name, table in list(self._tables.items()):
            self._tables[name] = table.downsampled(limit)
            yield

    @property
    def nbytes(self) -> int:
        """Memory of the rows in bytes."""
        return sum(table.nbytes for table in self._tables.values())

    def _find_column(self, name: str) -> tuple[MetricTable, str] | None:
        column, dot, index = name.partition(".")
        table = self._tables.get(f"{_TABLES.get(column)}{dot}{index}")
        return None if table is None else (table, column)
