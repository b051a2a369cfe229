"""What is known of a run's performance, as titles, figures and lines of context in the current language."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QCoreApplication

from app.views import computing_words, words
from trainer_core import engine_words

if TYPE_CHECKING:
    from app.state.computing import Computing
    from app.state.measurements.metrics import MetricStore
    from trainer_core.protocol import Performance

Row = tuple[str, str]
"""(what, how much)"""

TILES: Final = ("step", "computing", "mfu", "memory", "energy", "noise")
PARTS: Final = {  # from the bottom of the plot upwards: computing first, what keeps it waiting above
    "forward": "curve_e",
    "backward": "curve_a",
    "sync": "text",
    "optimizer": "curve_c",
    "transfer": "curve_f",
    "data": "curve_b",
    "checkpoint": "curve_d",
    "other": "muted",
}
"""Parts of a step's time, and their colour token."""


def tile_title(name: str) -> str:
    return {
        "step": QCoreApplication.translate("Performance", "One step"),
        "computing": QCoreApplication.translate("Performance", "Computing"),
        "mfu": QCoreApplication.translate("Performance", "MFU"),
        "memory": QCoreApplication.translate("Performance", "Peak VRAM"),
        "energy": QCoreApplication.translate("Performance", "Energy"),
        "noise": QCoreApplication.translate("Performance", "Gradient noise"),
    }[name]


def tile(name: str, metrics: MetricStore, computing: Computing) -> tuple[str, str] | None:
    """The figure of a tile and the line below it; None where this run or machine does not tell."""
    told = computing.performance
    if name == "step":
        spent = sum(part or 0.0 for part in parts(metrics).values())
        return (milliseconds(spent), _waiting(metrics, spent)) if spent else None
    if told is None:
        return None
    match name:
        case "computing":
            note = QCoreApplication.translate("Performance", "of a step's time")
            return words.share(told.compute_ratio, 1.0), note
        case "mfu":
            return _mfu(told)
        case "memory":
            return None if told.memory_peak is None else (words.size(told.memory_peak), _reserved(computing))
        case "energy":
            joules = told.energy_per_million_tokens_j
            note = QCoreApplication.translate("Performance", "per million tokens")
            return None if joules is None else (engine_words.energy(joules), note)
        case _:
            return None if told.gradient_noise is None else _noise(told.gradient_noise, computing)


def tile_tooltip(name: str, computing: Computing) -> str:
    """What a figure means, where one line does not say it."""
    told = computing.performance
    if told is None:
        return ""
    if name == "computing":
        return QCoreApplication.translate(
            "Performance", "Forward, backward and optimizer; the rest is data, transfer, saving and the like"
        )
    if name == "energy":
        return QCoreApplication.translate(
            "Performance", "Taken by the GPU, as the driver tells it; with evaluations and saving, without pauses"
        )
    if name == "mfu":
        return _mfu_tooltip(told)
    if name == "noise" and told.gradient_noise is not None:
        text = QCoreApplication.translate("Performance", "Batches beyond about {count} sequences gain little")
        return text.format(count=_about(told.gradient_noise))
    return ""


def _waiting(metrics: MetricStore, spent: float) -> str:
    text = QCoreApplication.translate("Performance", "waits for data {share}")
    return text.format(share=share(parts(metrics)["data"] or 0.0, spent))


def _mfu(told: Performance) -> tuple[str, str] | None:
    if told.mfu is not None and told.peak_flops is not None:
        text = QCoreApplication.translate("Performance", "of {peak}")
        return words.share(told.mfu, 1.0), text.format(peak=engine_words.flops(told.peak_flops, "/s"))
    if told.peak_name:
        return "–", QCoreApplication.translate("Performance", "this GPU's peak is not known")
    return None


def _mfu_tooltip(told: Performance) -> str:
    if told.peak_flops is None:
        text = QCoreApplication.translate(
            "Performance", "Model FLOPs utilisation is not known: no peak is listed for {name}"
        )
        return text.format(name=told.peak_name)
    text = QCoreApplication.translate(
        "Performance",
        "Model FLOPs utilisation: {flops} a token (6 a weight, and causal attention), "
        "against the peak of {name}, {peak}",
    )
    peak = engine_words.flops(told.peak_flops, "/s")
    return text.format(flops=engine_words.flops(told.flops_per_token), name=told.peak_name, peak=peak)


def _reserved(computing: Computing) -> str:
    told = computing.performance
    if told is None or told.memory_reserved is None:
        return ""
    text = QCoreApplication.translate("Performance", "{size} reserved")
    return text.format(size=words.size(told.memory_reserved))


def _noise(noise: float, computing: Computing) -> tuple[str, str]:
    if computing.samples_per_step:
        text = QCoreApplication.translate("Performance", "a step has {count}")
        return f"≈ {_about(noise)}", text.format(count=words.count(computing.samples_per_step))
    return f"≈ {_about(noise)}", QCoreApplication.translate("Performance", "sequences")


def _about(noise: float) -> str:
    return engine_words.significant(max(1.0, noise), 2)


# --- the time of a step -------------------------------------------------------------------------------


def part_title(name: str) -> str:
    return {
        "forward": QCoreApplication.translate("Performance", "Forward"),
        "backward": QCoreApplication.translate("Performance", "Backward"),
        "sync": QCoreApplication.translate("Performance", "Adding up gradients"),
        "optimizer": QCoreApplication.translate("Performance", "Optimizer"),
        "transfer": QCoreApplication.translate("Performance", "Transfer"),
        "data": QCoreApplication.translate("Performance", "Waiting for data"),
        "checkpoint": QCoreApplication.translate("Performance", "Checkpoint"),
        "other": QCoreApplication.translate("Performance", "Other"),
    }[name]


def parts_of(metrics: MetricStore) -> dict[str, str]:
    """The parts that a run has, and their colour token: only several GPUs have gradients to add up."""
    return {name: token for name, token in PARTS.items() if name != "sync" or metrics.last("time_sync")}


def parts(metrics: MetricStore, at: float | None = None) -> dict[str, float | None]:
    """Milliseconds of each part, from the bottom of the plot upwards: the newest, or those of the step at `at`."""
    if at is None:
        return {name: metrics.last(f"time_{name}") for name in PARTS}
    curves = {name: metrics.curve(f"time_{name}") for name in PARTS}
    read = {name: math.nan if curve is None else curve.at("step", at) for name, curve in curves.items()}
    return {name: None if math.isnan(value) else value for name, value in read.items()}


def step_title(step: float) -> str:
    """Which step figures are of."""
    return QCoreApplication.translate("Performance", "Step {step}").format(step=words.count(step))


def share(part: float, whole: float) -> str:
    """Of a step's time: one decimal for all, so that shares under one another can be compared and stand still."""
    percent = 100 * part / whole if whole else 0.0
    return "< 0.1 %" if 0 < percent < 0.05 else f"{percent:.1f} %"


def milliseconds(value: float) -> str:
    """`39.7 ms`, `1.00 s`: three digits, so that figures under one another can be compared."""
    if 0 < value < 0.01:
        return "< 0.01 ms"
    figure, unit = (value / 1000, "s") if value >= 999.5 else (value, "ms")
    return f"{figure:,.{0 if figure >= 99.95 else 1 if figure >= 9.995 else 2}f} {unit}"


# --- the rest -----------------------------------------------------------------------------------------


def rows(computing: Computing) -> list[Row]:
    """What else is known, where it is."""
    return [*_memory(computing), *_arithmetic(computing), *_trouble(computing)]


def _memory(computing: Computing) -> list[Row]:
    told = computing.performance
    if told is None or told.memory_allocated is None:
        return []
    return [(QCoreApplication.translate("Performance", "Held by tensors"), words.size(told.memory_allocated))]


def _arithmetic(computing: Computing) -> list[Row]:
    told = computing.performance
    found = []
    if told is not None:
        name = QCoreApplication.translate("Performance", "Arithmetic per token")
        found.append((name, engine_words.flops(told.flops_per_token)))
    if told is not None and told.loss_scale is not None:
        name = QCoreApplication.translate("Performance", "Loss scale (fp16)")
        text = QCoreApplication.translate("Performance", "{scale}, {count} overflows")
        scale = engine_words.loss_scale(told.loss_scale)
        found.append((name, text.format(scale=scale, count=words.count(told.overflows))))
    return found


def _trouble(computing: Computing) -> list[Row]:
    if not computing.bad_steps:
        return []
    last = computing.bad_steps[-1]
    text = QCoreApplication.translate("Performance", "{count}, the last at step {step}: {action}")
    told = text.format(
        count=words.count(len(computing.bad_steps)),
        step=words.count(last.step),
        action=computing_words.action(last.action),
    )
    return [(QCoreApplication.translate("Performance", "Bad steps"), told)]
