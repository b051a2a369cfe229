"""The plots and their curves. A new plot is one entry in `PLOTS`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from app.core.metrics.metric_store import EVAL_FIELDS, HOST_FIELDS
from app.pages.performance import figures
from app.texts import tr
from app.widgets import formatting

if TYPE_CHECKING:
    from app.core.metrics.metric_store import MarkerKind, MetricStore

LineStyle = Literal["line", "faint", "dashed", "dotted", "area"]

_GIB: Final = 1024**3
_GPU_COLORS: Final = tuple(f"curve_{letter}" for letter in "abcdef")
_OVERLAY_COLORS: Final = tuple(f"curve_{letter}" for letter in "bcdfeghijk")
_FIRST_DASHED_OVERLAY: Final = 5  # eleven colors alone are hard to tell apart
_MAX_OVERLAYS_WITH_RAW: Final = 3  # raw values of more runs would hide the smoothed curves
MAX_OVERLAYS: Final = len(_OVERLAY_COLORS)
OWN_COLOR: Final = "curve_a"
"""Color of the displayed run. Colors are names of fields of `Palette`."""
_NOT_SMOOTHED: Final = frozenset({*EVAL_FIELDS, *HOST_FIELDS, "learning_rate", "power_limit"}) - {"cpu"}
_MEMORY: Final = ("vram_", "torch_", "shared_")  # prefixes of series


@dataclass(frozen=True, slots=True)
class Overlay:
    """Another run on the plots. `store`: its downsampled metrics, 2 MB; `color`: see `overlay_color`."""

    name: str
    store: MetricStore
    color: str

    @property
    def style(self) -> LineStyle:
        return "dashed" if self.color in _OVERLAY_COLORS[_FIRST_DASHED_OVERLAY:] else "line"


def run_key(name: str) -> str:
    """Return the key of the legend entry of a run, which differs from those of series."""
    return f"/{name}"


def overlay_color(index: int) -> str:
    """Return the color of the overlay with this index."""
    return _OVERLAY_COLORS[index]


class CurveKey(NamedTuple):
    """Identifies a curve within its plot."""

    series: str
    color: str
    style: LineStyle


@dataclass(frozen=True, slots=True)
class CurveSpec:
    """A curve of a plot. `label`: its name among the curves of a run; `run`: name of its run if there are several;
    `entry`: the legend entry that shows and hides it, the name of its series unless set."""

    store: MetricStore
    series: str
    color: str = OWN_COLOR
    label: str = ""
    style: LineStyle = "line"
    run: str = ""
    entry: str = ""

    @property
    def smoothed(self) -> bool:
        is_plain = self.series.partition(".")[0] in _NOT_SMOOTHED or self.series.startswith(_MEMORY)
        return self.style != "faint" and not is_plain

    @property
    def entry_key(self) -> str:
        return self.entry or self.series

    @property
    def key(self) -> CurveKey:
        return CurveKey(self.series, self.color, self.style)


class MarkerSpec(NamedTuple):
    """A kind of marker. `text`: key of its name in the legend; `entry`: that of the curve on which it is, if one."""

    kind: MarkerKind
    color: str
    text: str
    entry: str = ""


@dataclass(frozen=True, slots=True)
class PlotSpec:
    """A plot. `curves` takes the store and the name of the plot; None: one curve of `series`. Several runs are compared
    by `series`, or without it by their solid and dotted curves."""

    title: str  # key of the text
    curves: Callable[[MetricStore, str], list[CurveSpec]] | None = None
    series: str = ""  # of a plot without `curves`: only if it differs from the name
    scale: float = 1.0  # factor from the unit of the store to that of the plot
    format_value: Callable[[float], str] = formatting.format_significant  # in at most about seven characters
    markers: tuple[MarkerSpec, ...] = ()
    optional: bool = False  # displayed only if there is data
    in_overview: bool = False
    from_zero: bool = False  # the y axis starts at 0
    minimum_top: float | None = None  # the y axis reaches at least this value


def _format_integer(value: float) -> str:
    return f"{value:,.0f}"


def _format_decimal(value: float) -> str:
    return f"{value:.2f}"


def _format_milliseconds(value: float) -> str:
    """A smoothed series of zeros approaches 0 after a first value, and does not reach it."""
    return formatting.format_significant(value if abs(value) >= 0.005 else 0.0)


def _format_learning_rate(value: float) -> str:
    return f"{value:.2e}".replace("e-0", "e-").replace("e+00", "") if value else "0"


# --- curves ------------------------------------------------------------------------------------------------


def _measured(*curves: CurveSpec) -> list[CurveSpec]:
    return [curve for curve in curves if has_values([curve])]


def _loss_curves(store: MetricStore, _name: str) -> list[CurveSpec]:
    return [
        CurveSpec(store, "train_loss", label=tr("plots.train")),
        CurveSpec(store, "eval_loss", "curve_b", tr("plots.eval")),
    ]


def _neutral_loss_curves(store: MetricStore, _name: str) -> list[CurveSpec]:
    """Return the losses on neutral text beside that of the task; nothing for a run without a base model."""
    if not store.has_values("neutral_loss_en"):
        return []
    return [
        CurveSpec(store, "neutral_loss_en", "curve_a", tr("plots.neutral_en")),
        CurveSpec(store, "neutral_loss_zh", "curve_c", tr("plots.neutral_zh")),
        CurveSpec(store, "eval_loss", "curve_b", tr("plots.eval"), "dashed"),
    ]


def _reward_accuracy_curves(store: MetricStore, _name: str) -> list[CurveSpec]:
    return _measured(
        CurveSpec(store, "reward_accuracy", label=tr("plots.train")),
        CurveSpec(store, "eval_reward_accuracy", "curve_b", tr("plots.eval")),
    )


def _reward_curves(store: MetricStore, _name: str) -> list[CurveSpec]:
    """Return the rewards of answers, and their difference on training and validation data."""
    return _measured(
        CurveSpec(store, "chosen_reward", "curve_a", tr("plots.chosen")),
        CurveSpec(store, "rejected_reward", "curve_d", tr("plots.rejected")),
        CurveSpec(store, "reward_margin", "curve_c", tr("plots.margin")),
        CurveSpec(store, "eval_reward_margin", "curve_b", tr("plots.eval_margin"), "dashed"),
    )


def _reward_and_eval_curves(store: MetricStore, _name: str) -> list[CurveSpec]:
    return _measured(
        CurveSpec(store, "reward", label=tr("plots.train")),
        CurveSpec(store, "eval_reward", "curve_b", tr("plots.eval")),
    )


def _reward_part_curves(store: MetricStore, _name: str) -> list[CurveSpec]:
    """Return the score of each part of the reward if it has several."""
    parts = store.reward_parts()
    if len(parts) < 2:
        return []
    colors = itertools.cycle(_GPU_COLORS)
    return [CurveSpec(store, f"score.{part}", color, part) for part, color in zip(parts, colors, strict=False)]


def _answer_curves(store: MetricStore, _name: str) -> list[CurveSpec]:
    """Return the shares of answers that were cut off and of prompts whose answers have equal rewards."""
    return [
        CurveSpec(store, "no_signal_ratio", "curve_d", tr("plots.no_signal")),
        CurveSpec(store, "truncated_ratio", "curve_b", tr("plots.truncated")),
    ]


def _time_curves(store: MetricStore, _name: str) -> list[CurveSpec]:
    return [
        CurveSpec(store, f"time_{part}", color, figures.part_title(part), "area")
        for part, color in figures.parts_of(store).items()
    ]


def _memory_curves(store: MetricStore, _name: str) -> list[CurveSpec]:
    if not store.gpu_indices():
        return [CurveSpec(store, "rss")]
    return [*_gpu_curves(store, "vram_used"), *_limit_curves(store, "vram_total", tr("plots.total"))]


def _fullest_memory(store: MetricStore) -> CurveSpec:
    """Return the memory of the fullest GPU, or of the process."""
    used = {gpu: store.last_value(f"vram_used.{gpu}") or 0.0 for gpu in store.gpu_indices()}
    return CurveSpec(store, f"vram_used.{max(used, key=lambda gpu: used[gpu])}" if used else "rss")


def _power_curves(store: MetricStore, _name: str) -> list[CurveSpec]:
    return [*_gpu_curves(store, "power"), *_limit_curves(store, "power_limit", tr("plots.limit"))]


def _gpu_curves(store: MetricStore, series: str) -> list[CurveSpec]:
    """Return one curve for each GPU; from the seventh on, they are dotted."""
    curves = []
    for place, gpu in enumerate(store.gpu_indices()):
        color = _GPU_COLORS[place % len(_GPU_COLORS)]
        style: LineStyle = "dotted" if place >= len(_GPU_COLORS) else "line"
        curves.append(CurveSpec(store, f"{series}.{gpu}", color, tr("plots.gpu_index", index=gpu), style))
    return curves


def _limit_curves(store: MetricStore, series: str, label: str) -> list[CurveSpec]:
    """Return limits of the GPUs: one curve for each distinct value, one legend entry for all."""
    values = {gpu: store.last_value(f"{series}.{gpu}") for gpu in store.gpu_indices()}
    first_gpus = {value: gpu for gpu, value in reversed(values.items()) if value is not None}
    return [
        CurveSpec(store, f"{series}.{gpu}", "muted", label, "dashed", entry=series)
        for gpu in sorted(first_gpus.values())
    ]


def _vram_curves(store: MetricStore, name: str) -> list[CurveSpec]:
    """Return used, reserved, allocated, spilled and total memory of one GPU, as far as measured."""
    gpu = name.partition(".")[2]
    return _measured(
        CurveSpec(store, f"vram_used.{gpu}", "curve_a", tr("plots.used")),
        CurveSpec(store, f"torch_reserved.{gpu}", "curve_c", tr("plots.reserved")),
        CurveSpec(store, f"torch_allocated.{gpu}", "curve_b", tr("plots.allocated")),
        CurveSpec(store, f"shared_used.{gpu}", "curve_d", tr("plots.spill")),
        CurveSpec(store, f"vram_total.{gpu}", "muted", tr("plots.total"), "dashed"),
    )


def _ram_curves(store: MetricStore, _name: str) -> list[CurveSpec]:
    return [
        CurveSpec(store, "rss", "curve_a", tr("plots.trainer")),
        CurveSpec(store, "ram_used", "curve_b", tr("plots.all_programs")),
        CurveSpec(store, "ram_total", "muted", tr("plots.total"), "dashed"),
    ]


# --- plots -------------------------------------------------------------------------------------------------

_LOSS_MARKERS: Final = (
    MarkerSpec("best", "curve_b", "plots.best_eval", "eval_loss"),
    MarkerSpec("checkpoint", "curve_c", "plots.checkpoint", "train_loss"),
    MarkerSpec("bad_step", "bad", "plots.bad_step", "train_loss"),
    MarkerSpec("oom_recovery", "curve_d", "plots.oom_recovery", "train_loss"),
    MarkerSpec("resume", "muted", "plots.resumed", "train_loss"),
)
PLOTS: Final = {
    "loss": PlotSpec(
        "plots.loss", _loss_curves, format_value=formatting.format_loss, markers=_LOSS_MARKERS, in_overview=True
    ),
    "speed": PlotSpec(
        "plots.tokens_per_second", series="tokens_per_s", format_value=formatting.format_rate, in_overview=True
    ),
    "memory": PlotSpec(
        "plots.vram_gib", _memory_curves, scale=1 / _GIB, format_value=_format_decimal,
        in_overview=True, from_zero=True,
    ),
    "time": PlotSpec(
        "plots.step_time_ms", _time_curves, "step_time", format_value=_format_milliseconds, from_zero=True,
    ),
    "learning_rate": PlotSpec("plots.learning_rate", format_value=_format_learning_rate, in_overview=True),
    "grad_norm": PlotSpec("plots.gradient_norm", in_overview=True),
    "exact_match": PlotSpec(
        "plots.exact_match", scale=100.0, format_value=_format_integer, optional=True, from_zero=True, minimum_top=100.0
    ),
    "reward_accuracy": PlotSpec(
        "plots.reward_accuracy", _reward_accuracy_curves, scale=100.0, format_value=_format_integer, optional=True,
        from_zero=True, minimum_top=100.0,
    ),
    "rewards": PlotSpec("plots.rewards", _reward_curves, "reward_margin", optional=True),
    "reward": PlotSpec("plots.reward", _reward_and_eval_curves, format_value=_format_decimal, optional=True),
    "reward_parts": PlotSpec(
        "plots.reward_parts", _reward_part_curves, format_value=_format_decimal, optional=True, from_zero=True,
        minimum_top=1.0,
    ),
    "answer_tokens": PlotSpec("plots.answer_tokens", format_value=_format_decimal, optional=True, from_zero=True),
    "no_signal_ratio": PlotSpec(
        "plots.answers", _answer_curves, scale=100.0, format_value=_format_integer, optional=True,
        from_zero=True, minimum_top=100.0,
    ),
    "entropy": PlotSpec("plots.entropy", optional=True, from_zero=True),
    "kl": PlotSpec("plots.kl", optional=True, from_zero=True),
    "neutral_loss": PlotSpec(
        "plots.neutral_loss", _neutral_loss_curves, format_value=formatting.format_loss, optional=True
    ),
    "mfu": PlotSpec("plots.mfu", scale=100.0, optional=True, from_zero=True),
    "gpu_util": PlotSpec(
        "plots.gpu_utilization", _gpu_curves, scale=100.0, format_value=_format_integer, optional=True,
        from_zero=True, minimum_top=100.0,
    ),
    "power": PlotSpec("plots.power_w", _power_curves, format_value=_format_integer, optional=True, from_zero=True),
    "temperature": PlotSpec(
        "plots.temperature_c", _gpu_curves, format_value=_format_integer, optional=True,
        markers=(MarkerSpec("thermal_throttling", "bad", "plots.thermal_throttling"),),
    ),
    "clock": PlotSpec("plots.clock_mhz", _gpu_curves, format_value=_format_integer, optional=True, from_zero=True),
    "vram": PlotSpec(
        "plots.vram_gpu_gib", _vram_curves, "vram_used", scale=1 / _GIB, format_value=_format_decimal, optional=True,
        from_zero=True,
    ),
    "cpu": PlotSpec(
        "plots.cpu_usage", scale=100.0, format_value=_format_integer, optional=True, from_zero=True,
        minimum_top=100.0,
    ),
    "ram": PlotSpec(
        "plots.ram_gib", _ram_curves, "rss", scale=1 / _GIB, format_value=_format_decimal, optional=True,
        from_zero=True,
    ),
}  # fmt: skip
"""By name. There is a plot `vram.INDEX` for each GPU."""

OVERVIEW: Final = tuple(name for name, spec in PLOTS.items() if spec.in_overview)


def overview_plots(store: MetricStore) -> Sequence[str]:
    """Return the plots of the overview. In a run with preferences or rewards, what it improves takes the place of the
    learning rate.
    """
    improved = next((name for name in ("reward", "reward_accuracy") if store.has_values(name)), "learning_rate")
    return [improved if name == "learning_rate" else name for name in OVERVIEW]


def get_spec(name: str) -> PlotSpec:
    return PLOTS[name.partition(".")[0]]


def detail_plots(store: MetricStore | None, overlays: Sequence[Overlay]) -> list[str]:
    """Return the plots of the detail sub-page: those of the training, and hardware values that a run measured."""
    stores = [*([] if store is None else [store]), *(run.store for run in overlays)]
    gpus = sorted({gpu for measured in stores for gpu in measured.gpu_indices()})
    names = []
    for name, spec in PLOTS.items():
        if name == "memory":  # `vram` and `ram` have more
            continue
        for one in [f"vram.{gpu}" for gpu in gpus] if name == "vram" else [name]:
            if not spec.optional or any(has_values(_curves(one, measured)) for measured in stores):
                names.append(one)
    return names


def has_values(curves: Sequence[CurveSpec]) -> bool:
    return any(curve.store.has_values(curve.series) for curve in curves)


def title(name: str, store: MetricStore | None) -> str:
    """Return the title of a plot with its unit."""
    if name == "memory" and not (store is not None and store.gpu_indices()):
        return tr("plots.trainer_memory_gib")
    return tr(get_spec(name).title, index=name.partition(".")[2])


def curve_specs(name: str, store: MetricStore, overlays: Sequence[Overlay], run_name: str | None) -> list[CurveSpec]:
    """Return the curves of a plot, the first in front; raw values, behind, are faint. `run_name`: name of the displayed
    run with overlays; None if it has no data."""
    if overlays:
        own = [] if run_name is None else [Overlay(run_name, store, OWN_COLOR)]
        curves = [curve for run in (*own, *overlays) for curve in _compared_curves(name, run, store)]
        curves.sort(key=lambda curve: curve.style == "dotted")
    else:
        curves = _curves(name, store)
    if len(overlays) > _MAX_OVERLAYS_WITH_RAW:
        return curves
    smoothed_lines = [curve for curve in curves if curve.smoothed and curve.style != "area"]
    return [*curves, *(replace(line, style="faint", entry=line.entry_key) for line in smoothed_lines)]


def _curves(name: str, store: MetricStore) -> list[CurveSpec]:
    """Return the curves of the only run."""
    spec = get_spec(name)
    return [CurveSpec(store, spec.series or name)] if spec.curves is None else spec.curves(store, name)


def _compared_curves(name: str, run: Overlay, displayed: MetricStore) -> list[CurveSpec]:
    """Return the curves of one of several runs, in one color. All but the first are dotted, with one legend entry for
    all runs."""
    if name == "memory" and bool(run.store.gpu_indices()) is not bool(displayed.gpu_indices()):
        return []  # memory of a GPU and of a process
    plot, dot, gpu = name.partition(".")
    if name == "memory":
        curves = [_fullest_memory(run.store)]
    elif PLOTS[plot].series:
        curves = [CurveSpec(run.store, f"{PLOTS[plot].series}{dot}{gpu}")]
    else:
        curves = _curves(name, run.store)
    curves = [curve for curve in curves if curve.style in ("line", "dotted") and has_values([curve])]
    curves = [replace(curve, color=run.color, run=run.name) for curve in curves]
    return [
        *(replace(first, style=run.style, label="", entry=run_key(run.name)) for first in curves[:1]),
        *(replace(other, style="dotted") for other in curves[1:]),
    ]
