"""Texts of the results of a check."""

from __future__ import annotations

from app.pages.performance import execution_texts
from app.texts import tr
from app.widgets import formatting
from trainer_core.protocol import CheckReport, MeasuredSettings


def format_measurement(report: CheckReport) -> str:
    """Device, batch size, and when it was measured."""
    batches = tr(
        "setup.batches_of_size_times", size=report.chosen.batch_size, times=report.chosen.gradient_accumulation_steps
    )
    if report.from_cache:
        when = tr("setup.measured_before")
    else:
        when = tr("setup.measured_in_seconds_s", seconds=f"{report.duration_s:.0f}")
    return "  ·  ".join((execution_texts.format_device(report.device), batches, when))


def format_metric_title(name: str, report: CheckReport) -> str:
    on_cpu = report.memory_total == report.ram_total
    ram, vram = tr("setup.peak_ram"), tr("setup.peak_vram")
    return {
        "memory": ram if on_cpu else vram,
        "speed": tr("setup.tokens_per_second"),
        "time": tr("setup.time_to_finish"),
        "disk": tr("setup.disk_needed"),
    }[name]


def format_metric(name: str, report: CheckReport) -> str:
    match name:
        case "memory":
            return _format_memory(report.chosen.peak, available_memory(report))
        case "speed":
            return formatting.format_rate(report.chosen.tokens_per_s)
        case "time":
            return formatting.format_duration(report.seconds)
        case _:
            return _format_needed(report.disk_needed, report.disk_free)


def format_metric_tooltip(name: str, report: CheckReport) -> str:
    count, size = formatting.format_count, formatting.format_bytes
    match name:
        case "memory":
            memory = size(report.memory_free), size(report.memory_total), size(report.chosen.ram_peak)
            return tr("setup.free_total_free_trainers_own", free=memory[0], total=memory[1], ram=memory[2])
        case "speed":
            return tr("setup.count_tokens_in_each_step", count=count(report.tokens_per_step))
        case "time":
            return tr("setup.steps_steps_without_evaluations_checkpoints", steps=count(report.total_steps))
        case _:
            checkpoints, bytes_ = count(report.checkpoints), size(report.checkpoint_bytes)
            return tr("setup.count_checkpoints_size_each_kept", count=checkpoints, size=bytes_)


def _format_memory(peak: int | None, available: int | None) -> str:
    if peak is None:
        return tr("setup.more_than_free", free=formatting.format_bytes(available))
    return formatting.format_bytes(peak) if available is None else _format_needed(peak, available)


def _format_needed(needed: int, free: int) -> str:
    return tr("setup.needed_of_free_free", needed=formatting.format_bytes(needed), free=formatting.format_bytes(free))


def memory_fraction(report: CheckReport) -> float | None:
    """Peak memory as a fraction of the available memory, 0..1; None: not known for this device."""
    available, peak = available_memory(report), report.chosen.peak
    return None if not available else 1.0 if peak is None else min(1.0, peak / available)


def available_memory(report: CheckReport) -> int | None:
    """Bytes that are not used by other processes."""
    return report.memory_total if report.memory_free is None else report.memory_free


def format_trial(trial: MeasuredSettings) -> tuple[str, str]:
    """Peak memory, speed."""
    speed = tr("setup.rate_tokens_s", rate=formatting.format_rate(trial.tokens_per_s))
    return formatting.format_bytes(trial.peak), speed
