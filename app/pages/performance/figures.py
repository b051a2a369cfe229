"""Performance figures of a run: tiles, parts of the step time, table rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.pages.plots.tiles import TileContent
from app.texts import current_language, tr
from app.widgets import formatting
from trainer_core import performance_texts
from trainer_core.messages import amounts
from trainer_core.texts import get

if TYPE_CHECKING:
    from app.core.execution_info import ExecutionInfo
    from app.core.metrics.metric_store import MetricStore
    from trainer_core.protocol import Performance

TILES: Final = ("step", "computing", "mfu", "memory", "energy", "noise")
PARTS: Final = {
    "generation": "curve_g",
    "forward": "curve_e",
    "backward": "curve_a",
    "sync": "text",
    "optimizer": "curve_c",
    "transfer": "curve_f",
    "data": "curve_b",
    "checkpoint": "curve_d",
    "other": "muted",
}
"""Parts of the step time with their palette color, from the bottom of the stacked plot upwards."""


def tiles(metrics: MetricStore, execution: ExecutionInfo) -> dict[str, TileContent]:
    """Return the contents of the tiles that the run has figures for."""
    found = {}
    spent = part_times(metrics)
    if total := sum(spent.values()):
        waiting = tr("performance.data_wait_share", share=amounts.format_percentage(spent.get("data", 0.0), total))
        found["step"] = TileContent(tr("performance.step_time"), format_milliseconds(total), waiting)
    report = execution.performance
    if report is None:
        return found
    found["computing"] = TileContent(
        tr("performance.compute_share"),
        amounts.format_percentage(report.compute_ratio, 1.0),
        tr("performance.share_of_step_time"),
        tr("performance.compute_share_note"),
    )
    if report.peak_name:
        found["mfu"] = _mfu_tile(report)
    if report.memory_peak is not None:
        reserved = report.memory_reserved
        caption = "" if reserved is None else tr("performance.reserved", size=formatting.format_bytes(reserved))
        peak = formatting.format_bytes(report.memory_peak)
        found["memory"] = TileContent(tr("performance.peak_vram"), peak, caption)
    if report.energy_per_million_tokens_j is not None:
        found["energy"] = TileContent(
            tr("performance.energy"),
            performance_texts.format_energy(report.energy_per_million_tokens_j),
            tr("performance.per_million_tokens"),
            tr("performance.energy_note"),
        )
    if report.gradient_noise is not None:
        found["noise"] = _noise_tile(report.gradient_noise, execution.samples_per_step)
    return found


def _mfu_tile(report: Performance) -> TileContent:
    title = tr("performance.mfu")
    if report.mfu is None or report.peak_flops is None:
        tooltip = tr("performance.mfu_unknown", name=report.peak_name)
        return TileContent(title, "–", tr("performance.peak_unknown"), tooltip)
    flops = performance_texts.format_flops(report.flops_per_token)
    peak = performance_texts.format_flops(report.peak_flops, "/s")
    tooltip = tr("performance.mfu_note", flops=flops, name=report.peak_name, peak=peak)
    mfu = amounts.format_percentage(report.mfu, 1.0)
    return TileContent(title, mfu, tr("performance.of_peak", peak=peak), tooltip)


def _noise_tile(noise: float, samples_per_step: int) -> TileContent:
    count = performance_texts.format_significant(max(1.0, noise), 2)
    caption = tr("performance.sequences")
    if samples_per_step:
        caption = tr("performance.sequences_per_step", count=formatting.format_count(samples_per_step))
    tooltip = tr("performance.gradient_noise_note", count=count)
    return TileContent(tr("performance.gradient_noise"), f"≈ {count}", caption, tooltip)


# --- step time ----------------------------------------------------------------------------------------


def part_title(name: str) -> str:
    return {
        "generation": tr("performance.generation"),
        "forward": tr("performance.forward"),
        "backward": tr("performance.backward"),
        "sync": tr("performance.gradient_all_reduce"),
        "optimizer": tr("performance.optimizer"),
        "transfer": tr("performance.transfer"),
        "data": tr("performance.waiting_for_data"),
        "checkpoint": tr("performance.checkpoint"),
        "other": tr("performance.other"),
    }[name]


def parts_of(metrics: MetricStore) -> dict[str, str]:
    """Return the parts that a run has, with their colors: some synchronize gradients, some generate answers."""
    optional = ("sync", "generation")
    return {name: color for name, color in PARTS.items() if name not in optional or metrics.last_value(f"time_{name}")}


def part_times(metrics: MetricStore) -> dict[str, float]:
    """Return milliseconds of the last step by part."""
    values = {name: metrics.last_value(f"time_{name}") for name in parts_of(metrics)}
    return {name: value for name, value in values.items() if value is not None}


def format_milliseconds(value: float) -> str:
    """Format a duration with three significant digits: `39.7 ms`, `1.00 s`."""
    if 0 < value < 0.01:
        return "< 0.01 ms"
    amount, unit = (value / 1000, "s") if value >= 999.5 else (value, "ms")
    return f"{amount:,.{0 if amount >= 99.95 else 1 if amount >= 9.995 else 2}f} {unit}"


# --- table --------------------------------------------------------------------------------------------


def rows(execution: ExecutionInfo) -> list[tuple[str, str]]:
    """Return (name, value) of further figures that the run reports."""
    report, found = execution.performance, []
    if report is not None:
        if report.memory_allocated is not None:
            found.append((tr("performance.allocated"), formatting.format_bytes(report.memory_allocated)))
        found.append((tr("performance.flops_per_token"), performance_texts.format_flops(report.flops_per_token)))
        if report.loss_scale is not None:
            scale = performance_texts.format_loss_scale(report.loss_scale)
            text = tr("performance.loss_scale_overflows", scale=scale, count=formatting.format_count(report.overflows))
            found.append((tr("performance.loss_scale_fp16"), text))
    if execution.bad_steps:
        last = execution.bad_steps[-1]
        text = tr(
            "performance.bad_step_count",
            count=formatting.format_count(len(execution.bad_steps)),
            step=formatting.format_count(last.step),
            action=get(f"console.bad_step_action.{last.action}", current_language()),
        )
        found.append((tr("performance.bad_steps"), text))
    return found
