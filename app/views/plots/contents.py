"""What each plot shows: its title, its curves and how their values are written, in the current language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QCoreApplication

from app.views import words
from app.views.performance import figures
from app.views.plots.overlays import Overlay, look

if TYPE_CHECKING:
    from app.state.measurements.metrics import MetricStore
    from app.views.plots.canvas import Look

_GIB: Final = 1024**3
_TOKENS: Final = tuple(f"curve_{letter}" for letter in "abcdef")
OVERVIEW: Final = ("loss", "speed", "memory", "learning_rate", "grad_norm")
_STEPS: Final = ("loss", "speed", "time", "learning_rate", "grad_norm")
_GPUS: Final = ("mfu", "gpu_util", "power", "temperature", "clock")
_HOST: Final = ("cpu", "ram")
_FROM_ZERO: Final = frozenset({"time", "memory", "gpu_util", "power", "cpu", "ram", "mfu", "clock"})


def begins_at_zero(name: str) -> bool:
    """Whether the share of the whole is what counts in a plot."""
    return name in _FROM_ZERO or name.startswith("vram.")


@dataclass(frozen=True, slots=True)
class Line:
    """A curve of a plot. `key`: its name within the plot; `words`: its name in the legend, `short` where there is
    little room; `scale`: from the store's unit to the plot's."""

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
    run: str = ""  # whose it is, where there are others


def detail(store: MetricStore | None, *, comparing: bool) -> list[str]:
    """The plots of the detail page: of a GPU what it tells, of a machine without one its CPU and memory."""
    found = list(_STEPS)
    if store is None:
        return found
    if comparing:
        found.insert(2, "memory")
    gpus = store.gpus()
    if gpus:
        series = {name: ["mfu"] if name == "mfu" else [f"{name}.{gpu}" for gpu in gpus] for name in _GPUS}
        series |= {f"vram.{gpu}": [f"vram_used.{gpu}", f"vram_total.{gpu}", f"torch_reserved.{gpu}"] for gpu in gpus}
        found += [name for name, needed in series.items() if any(map(store.tells, needed))]
    elif store.last("mfu") is not None:
        found.append("mfu")
    return [*found, *(_HOST if len(store.series("rss")[0]) else ())]


# --- words -----------------------------------------------------------------------------------------------


def title(name: str, store: MetricStore | None) -> str:
    """A plot's title with its unit."""
    if name.startswith("vram."):
        index = int(name.partition(".")[2])
        return QCoreApplication.translate("Plots", "VRAM of GPU {index} (GiB)").format(index=index)
    on_gpu = store is not None and bool(store.gpus())
    return {
        "loss": QCoreApplication.translate("Plots", "Loss"),
        "speed": QCoreApplication.translate("Plots", "Tokens per second"),
        "memory": QCoreApplication.translate("Plots", "VRAM (GiB)")
        if on_gpu
        else QCoreApplication.translate("Plots", "Trainer's memory (GiB)"),
        "learning_rate": QCoreApplication.translate("Plots", "Learning rate"),
        "grad_norm": QCoreApplication.translate("Plots", "Gradient norm"),
        "time": QCoreApplication.translate("Plots", "Time of a step (ms)"),
        "mfu": QCoreApplication.translate("Plots", "MFU (%)"),
        "gpu_util": QCoreApplication.translate("Plots", "GPU utilisation (%)"),
        "power": QCoreApplication.translate("Plots", "Power (W)"),
        "temperature": QCoreApplication.translate("Plots", "Temperature (°C)"),
        "clock": QCoreApplication.translate("Plots", "Clock (MHz)"),
        "cpu": QCoreApplication.translate("Plots", "CPU use (%)"),
        "ram": QCoreApplication.translate("Plots", "Memory of this machine (GiB)"),
    }[name]


def text(name: str, value: float) -> str:
    """A value of a plot, in at most seven characters or so."""
    if value != value:
        return "–"
    if name == "loss":
        return words.loss(value)
    if name == "speed":
        return words.rate(value)
    if name == "learning_rate":
        return f"{value:.2e}".replace("e-0", "e-").replace("e+00", "") if value else "0"
    if name in ("memory", "ram") or name.startswith("vram."):
        return f"{value:.2f}"
    if name in ("power", "temperature", "clock", "cpu", "gpu_util"):
        return f"{value:,.0f}"
    return words.significant(value)


def widest(name: str) -> str:
    """A text as wide as the values of a plot may be."""
    return {
        "speed": "000,000",
        "learning_rate": "0.00e-0",
        "loss": "00.0000",
        "clock": "0,000",
        "grad_norm": "0.000000",
    }.get(name, "00.00")


# --- curves ------------------------------------------------------------------------------------------------


def this_run() -> str:
    """The run on show, while it has no name of its own."""
    return QCoreApplication.translate("Plots", "this run")


def lines(name: str, store: MetricStore, runs: Sequence[Overlay], own: str | None) -> list[Line]:
    """The curves of a plot, the first in front of the others; `own`: what the run on show is called beside others,
    None where there is none."""
    made = [] if runs and own is None else _own(name, store, (own or "") if runs else "")
    if name not in OVERVIEW:
        return made
    for run in runs:
        made += _other(name, run, on_gpu=bool(store.gpus()))
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
            limit = QCoreApplication.translate("Plots", "limit")
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
    """A part of a step's time, where there is little room."""
    if part == "data":
        return QCoreApplication.translate("Plots", "Data")
    if part == "sync":
        return QCoreApplication.translate("Plots", "Adding up")
    return ""


def _loss(store: MetricStore, run: str) -> list[Line]:
    train, evaluated = QCoreApplication.translate("Plots", "train"), QCoreApplication.translate("Plots", "eval")
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
    if not store.gpus():
        return [Line("0", store, "rss", "curve_a", scale=1 / _GIB)]
    total = QCoreApplication.translate("Plots", "total")
    return [*_of_gpus(store, "vram_used", 1 / _GIB), *_bounds(store, "vram_total", total, 1 / _GIB)]


def _other(name: str, run: Overlay, *, on_gpu: bool) -> list[Line]:
    """Another run's curves: of memory only where it is of the same kind."""
    key, store, drawn = run.token, run.store, look(run)
    if name == "loss":
        evaluated = QCoreApplication.translate("Plots", "eval")
        both = f"{run.name} ({evaluated})"
        return [
            Line(key, store, "train_loss", run.token, run.name, look=drawn, smoothed=True, run=run.name),
            Line(f"{key} eval", store, "eval_loss", run.token, both, look="dotted", in_legend=False, run=run.name),
        ]
    if name == "memory":
        if bool(store.gpus()) is not on_gpu:
            return []
        return [Line(key, store, _memory_series(store), run.token, run.name, look=drawn, scale=1 / _GIB, run=run.name)]
    series = "tokens_per_s" if name == "speed" else name
    return [Line(key, store, series, run.token, run.name, look=drawn, run=run.name)]


def _memory_series(store: MetricStore) -> str:
    """One series for a run: the memory of its fullest GPU."""
    used = {gpu: store.last(f"vram_used.{gpu}") or 0.0 for gpu in store.gpus()}
    return f"vram_used.{max(used, key=lambda gpu: used[gpu])}" if used else "rss"


def gpu_style(place: int) -> tuple[str, Look]:
    """Colour and line of the GPU at a place."""
    return _TOKENS[place % len(_TOKENS)], "dashed" if place >= len(_TOKENS) else "line"


def gpu_name(store: MetricStore, gpu: int) -> tuple[str, str]:
    """A GPU in the legend: index and name, and where there is little room."""
    short = QCoreApplication.translate("Plots", "GPU {index}").format(index=gpu)
    name = store.gpu_names.get(gpu, "").removeprefix("NVIDIA ").removeprefix("GeForce ")
    return f"{short} {name}".strip(), short


def _of_gpus(store: MetricStore, series: str, scale: float) -> list[Line]:
    made = []
    for place, gpu in enumerate(store.gpus()):
        token, look = gpu_style(place)
        name, short = gpu_name(store, gpu)
        made.append(Line(str(gpu), store, f"{series}.{gpu}", token, name, short, look, scale))
    return made


def _bounds(store: MetricStore, series: str, said: str, scale: float) -> list[Line]:
    """What the GPUs cannot go beyond: a line for each that differs from those before, and one word for all of them."""
    there = {gpu: told for gpu in store.gpus() if (told := store.last(f"{series}.{gpu}")) is not None}
    firsts = {told: gpu for gpu, told in reversed(there.items())}
    return [
        Line(f"bound {gpu}", store, f"{series}.{gpu}", "muted", said, look="dashed", scale=scale, in_legend=not place)
        for place, gpu in enumerate(sorted(firsts.values()))
    ]


def _vram(store: MetricStore, gpu: int) -> list[Line]:
    """What all programs use, what this run holds of it, and the card's size; what was never told is left out."""
    names = {
        "vram_used": ("curve_a", QCoreApplication.translate("Plots", "used")),
        "torch_reserved": ("curve_c", QCoreApplication.translate("Plots", "reserved")),
        "torch_allocated": ("curve_b", QCoreApplication.translate("Plots", "allocated")),
        "shared_used": ("curve_d", QCoreApplication.translate("Plots", "spill")),
        "vram_total": ("muted", QCoreApplication.translate("Plots", "total")),
    }
    return [
        _gib(name, store, f"{name}.{gpu}", token, said, "dashed" if name == "vram_total" else "line")
        for name, (token, said) in names.items()
        if store.last(f"{name}.{gpu}") is not None
    ]


def _ram(store: MetricStore) -> list[Line]:
    return [
        _gib("rss", store, "rss", "curve_a", QCoreApplication.translate("Plots", "trainer")),
        _gib("used", store, "ram_used", "curve_b", QCoreApplication.translate("Plots", "all programs")),
        _gib("total", store, "ram_total", "muted", QCoreApplication.translate("Plots", "total"), "dashed"),
    ]


def _gib(key: str, store: MetricStore, series: str, token: str, said: str, look: Look = "line") -> Line:
    return Line(key, store, series, token, said, look=look, scale=1 / _GIB)
