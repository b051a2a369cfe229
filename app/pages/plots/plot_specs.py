"""Title, curves and number format of each plot, in the current language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.pages.performance import figures
from app.pages.plots.overlays import Overlay, look
from app.texts import tr
from app.widgets import formatting

if TYPE_CHECKING:
    from app.core.metrics.metric_store import MetricStore
    from app.pages.plots.canvas import Look

_GIB: Final = 1024**3
_TOKENS: Final = tuple(f"curve_{letter}" for letter in "abcdef")
OVERVIEW: Final = ("loss", "speed", "memory", "learning_rate", "grad_norm")
_STEPS: Final = ("loss", "speed", "time", "learning_rate", "grad_norm")
_GPUS: Final = ("mfu", "gpu_util", "power", "temperature", "clock")
_HOST: Final = ("cpu", "ram")
_FROM_ZERO: Final = frozenset({"time", "memory", "gpu_util", "power", "cpu", "ram", "mfu", "clock"})


def begins_at_zero(name: str) -> bool:
    """Whether the y axis of a plot starts at zero."""
    return name in _FROM_ZERO or name.startswith("vram.")


@dataclass(frozen=True, slots=True)
class Line:
    """A curve of a plot. `key`: its name within the plot; `words`: its name in the legend, `short` if space is limited;
    `scale`: factor from the unit of the store to that of the plot."""

    key: str
    store: MetricStore
    series: str
    token: str
    words: str = ""
    short: str = ""
    look: Look = "line"
    scale: float = 1.0
    smoothed: bool = False
    in_legend: bool = True
    run: str = ""  # name of its run if there are several


def detail(store: MetricStore | None, *, comparing: bool) -> list[str]:
    """The plots of the detail sub-page: measured GPU values, CPU and memory."""
    found = list(_STEPS)
    if store is None:
        return found
    if comparing:
        found.insert(2, "memory")
    gpus = store.gpu_indices()
    if gpus:
        series = {name: ["mfu"] if name == "mfu" else [f"{name}.{gpu}" for gpu in gpus] for name in _GPUS}
        series |= {f"vram.{gpu}": [f"vram_used.{gpu}", f"vram_total.{gpu}", f"torch_reserved.{gpu}"] for gpu in gpus}
        found += [name for name, needed in series.items() if any(map(store.has_values, needed))]
    elif store.last_value("mfu") is not None:
        found.append("mfu")
    return [*found, *(_HOST if len(store.series("rss")[0]) else ())]


# --- texts -----------------------------------------------------------------------------------------------


def title(name: str, store: MetricStore | None) -> str:
    """A plot's title with its unit."""
    if name.startswith("vram."):
        index = int(name.partition(".")[2])
        return tr("plots.vram_gpu_index_gib", index=index)
    on_gpu = store is not None and bool(store.gpu_indices())
    return {
        "loss": tr("plots.loss"),
        "speed": tr("plots.tokens_per_second"),
        "memory": tr("plots.vram_gib") if on_gpu else tr("plots.trainers_memory_gib"),
        "learning_rate": tr("plots.learning_rate"),
        "grad_norm": tr("plots.gradient_norm"),
        "time": tr("plots.time_step_ms"),
        "mfu": tr("plots.mfu"),
        "gpu_util": tr("plots.gpu_utilisation"),
        "power": tr("plots.power_w"),
        "temperature": tr("plots.temperature_c"),
        "clock": tr("plots.clock_mhz"),
        "cpu": tr("plots.cpu_use"),
        "ram": tr("plots.memory_this_machine_gib"),
    }[name]


def text(name: str, value: float) -> str:
    """A value of a plot, in at most seven characters or so."""
    if value != value:
        return "–"
    if name == "loss":
        return formatting.format_loss(value)
    if name == "speed":
        return formatting.format_rate(value)
    if name == "learning_rate":
        return f"{value:.2e}".replace("e-0", "e-").replace("e+00", "") if value else "0"
    if name in ("memory", "ram") or name.startswith("vram."):
        return f"{value:.2f}"
    if name in ("power", "temperature", "clock", "cpu", "gpu_util"):
        return f"{value:,.0f}"
    return formatting.format_significant(value)


def widest(name: str) -> str:
    """A text as wide as the widest value of a plot."""
    return {
        "speed": "000,000",
        "learning_rate": "0.00e-0",
        "loss": "00.0000",
        "clock": "0,000",
        "grad_norm": "0.000000",
    }.get(name, "00.00")


# --- curves ------------------------------------------------------------------------------------------------


def this_run() -> str:
    """The name of the run on show before it has one of its own."""
    return tr("plots.this_run")


def lines(name: str, store: MetricStore, runs: Sequence[Overlay], own: str | None) -> list[Line]:
    """The curves of a plot, the first in front. `own`: the name of the run on show beside overlays; None if it has no
    data."""
    made = [] if runs and own is None else _own(name, store, (own or "") if runs else "")
    if name not in OVERVIEW:
        return made
    for run in runs:
        made += _other(name, run, on_gpu=bool(store.gpu_indices()))
    return made


def _own(name: str, store: MetricStore, run: str) -> list[Line]:
    match name:
        case "loss":
            return _loss(store, run)
        case "memory":
            return _memory(store, run)
        case "time":
            return [
                Line(part, store, f"time_{part}", token, figures.part_title(part), _short_part(part), look="area")
                for part, token in figures.parts_of(store).items()
            ]
        case "ram":
            return _ram(store)
        case "gpu_util":
            return _of_gpus(store, "gpu_util", 100.0)
        case "power":
            limit = tr("plots.limit")
            return [*_of_gpus(store, "power", 1.0), *_bounds(store, "power_limit", limit, 1.0)]
        case "temperature" | "clock":
            return _of_gpus(store, name, 1.0)
        case "mfu" | "cpu":
            return [Line(name, store, name, "curve_a", scale=100.0)]
    if name.startswith("vram."):
        return _vram(store, int(name.partition(".")[2]))
    series = "tokens_per_s" if name == "speed" else name
    return [Line(series, store, series, "curve_a", run, run=run)]


def _short_part(part: str) -> str:
    """Short name of a part of the step time."""
    if part == "data":
        return tr("common.data")
    if part == "sync":
        return tr("plots.adding_up")
    return ""


def _loss(store: MetricStore, run: str) -> list[Line]:
    train, evaluated = tr("plots.train"), tr("plots.eval")
    if run:  # one colour for each run
        return [
            Line("train", store, "train_loss", "curve_a", run, smoothed=True, run=run),
            Line(
                "eval", store, "eval_loss", "curve_a", f"{run} ({evaluated})", look="dotted", in_legend=False, run=run
            ),
        ]
    return [
        Line("train", store, "train_loss", "curve_a", train, smoothed=True),
        Line("eval", store, "eval_loss", "curve_b", evaluated),
        Line("raw", store, "train_loss", "curve_a", train, look="faint", in_legend=False),
    ]


def _memory(store: MetricStore, run: str) -> list[Line]:
    if run:
        return [Line("0", store, _memory_series(store), "curve_a", run, scale=1 / _GIB, run=run)]
    if not store.gpu_indices():
        return [Line("0", store, "rss", "curve_a", scale=1 / _GIB)]
    total = tr("plots.total")
    return [*_of_gpus(store, "vram_used", 1 / _GIB), *_bounds(store, "vram_total", total, 1 / _GIB)]


def _other(name: str, run: Overlay, *, on_gpu: bool) -> list[Line]:
    """The curves of an overlay; memory only if both runs used a GPU or neither did."""
    key, store, drawn = run.token, run.store, look(run)
    if name == "loss":
        evaluated = tr("plots.eval")
        both = f"{run.name} ({evaluated})"
        return [
            Line(key, store, "train_loss", run.token, run.name, look=drawn, smoothed=True, run=run.name),
            Line(f"{key} eval", store, "eval_loss", run.token, both, look="dotted", in_legend=False, run=run.name),
        ]
    if name == "memory":
        if bool(store.gpu_indices()) is not on_gpu:
            return []
        return [Line(key, store, _memory_series(store), run.token, run.name, look=drawn, scale=1 / _GIB, run=run.name)]
    series = "tokens_per_s" if name == "speed" else name
    return [Line(key, store, series, run.token, run.name, look=drawn, run=run.name)]


def _memory_series(store: MetricStore) -> str:
    """The series with the memory of the fullest GPU, or of the process."""
    used = {gpu: store.last_value(f"vram_used.{gpu}") or 0.0 for gpu in store.gpu_indices()}
    return f"vram_used.{max(used, key=lambda gpu: used[gpu])}" if used else "rss"


def gpu_style(place: int) -> tuple[str, Look]:
    """Colour token and line style of the GPU at a position."""
    return _TOKENS[place % len(_TOKENS)], "dashed" if place >= len(_TOKENS) else "line"


def gpu_name(store: MetricStore, gpu: int) -> tuple[str, str]:
    """Long and short name of a GPU in the legend."""
    short = tr("plots.gpu_index", index=gpu)
    name = store.gpu_names.get(gpu, "").removeprefix("NVIDIA ").removeprefix("GeForce ")
    return f"{short} {name}".strip(), short


def _of_gpus(store: MetricStore, series: str, scale: float) -> list[Line]:
    made = []
    for place, gpu in enumerate(store.gpu_indices()):
        token, look = gpu_style(place)
        name, short = gpu_name(store, gpu)
        made.append(Line(str(gpu), store, f"{series}.{gpu}", token, name, short, look, scale))
    return made


def _bounds(store: MetricStore, series: str, said: str, scale: float) -> list[Line]:
    """Limits of the GPUs: one line for each distinct value, one legend entry for all."""
    there = {gpu: told for gpu in store.gpu_indices() if (told := store.last_value(f"{series}.{gpu}")) is not None}
    firsts = {told: gpu for gpu, told in reversed(there.items())}
    return [
        Line(f"bound {gpu}", store, f"{series}.{gpu}", "muted", said, look="dashed", scale=scale, in_legend=not place)
        for place, gpu in enumerate(sorted(firsts.values()))
    ]


def _vram(store: MetricStore, gpu: int) -> list[Line]:
    """Used, reserved, allocated, spilled and total memory of a GPU, as far as measured."""
    names = {
        "vram_used": ("curve_a", tr("plots.used")),
        "torch_reserved": ("curve_c", tr("plots.reserved")),
        "torch_allocated": ("curve_b", tr("plots.allocated")),
        "shared_used": ("curve_d", tr("plots.spill")),
        "vram_total": ("muted", tr("plots.total")),
    }
    return [
        _gib(name, store, f"{name}.{gpu}", token, said, "dashed" if name == "vram_total" else "line")
        for name, (token, said) in names.items()
        if store.last_value(f"{name}.{gpu}") is not None
    ]


def _ram(store: MetricStore) -> list[Line]:
    return [
        _gib("rss", store, "rss", "curve_a", tr("plots.trainer")),
        _gib("used", store, "ram_used", "curve_b", tr("plots.all_programs")),
        _gib("total", store, "ram_total", "muted", tr("plots.total"), "dashed"),
    ]


def _gib(key: str, store: MetricStore, series: str, token: str, said: str, look: Look = "line") -> Line:
    return Line(key, store, series, token, said, look=look, scale=1 / _GIB)
