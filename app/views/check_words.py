"""What a check before Start has found, in words and figures of the current language."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from app.views import computing_words, words
from trainer_core.protocol import CheckReport, Trial


def facts(report: CheckReport) -> str:
    """What was measured, on what, and when."""
    text = QCoreApplication.translate("Check", "batches of {size} × {times}")
    batches = text.format(size=report.chosen.batch_size, times=report.chosen.gradient_accumulation_steps)
    if report.from_cache:
        when = QCoreApplication.translate("Check", "measured before")
    else:
        when = QCoreApplication.translate("Check", "measured in {seconds} s").format(seconds=f"{report.took_s:.0f}")
    return "  ·  ".join((computing_words.device(report.device), batches, when))


def title(name: str, report: CheckReport) -> str:
    on_cpu = report.memory_total == report.ram_total
    ram, vram = QCoreApplication.translate("Check", "Peak RAM"), QCoreApplication.translate("Check", "Peak VRAM")
    return {
        "memory": ram if on_cpu else vram,
        "speed": QCoreApplication.translate("Check", "Tokens per second"),
        "time": QCoreApplication.translate("Check", "Time to finish"),
        "disk": QCoreApplication.translate("Check", "Disk needed"),
    }[name]


def figure(name: str, report: CheckReport) -> str:
    match name:
        case "memory":
            return _memory(report.chosen.peak, memory_room(report))
        case "speed":
            return words.rate(report.chosen.tokens_per_s)
        case "time":
            return words.duration(report.seconds)
        case _:
            text = QCoreApplication.translate("Check", "{needed} of {free} free")
            return text.format(needed=words.size(report.disk_needed), free=words.size(report.disk_free))


def tooltip(name: str, report: CheckReport) -> str:
    """What stands behind a figure."""
    match name:
        case "memory":
            text = QCoreApplication.translate("Check", "{free} of {total} are free. The trainer's own RAM: {ram}.")
            free, total = words.size(report.memory_free), words.size(report.memory_total)
            return text.format(free=free, total=total, ram=words.size(report.chosen.ram_peak))
        case "speed":
            text = QCoreApplication.translate("Check", "{count} tokens in each step, prompts counted too")
            return text.format(count=words.count(report.tokens_per_step))
        case "time":
            text = QCoreApplication.translate("Check", "{steps} steps, without evaluations and checkpoints")
            return text.format(steps=words.count(report.total_steps))
        case _:
            text = QCoreApplication.translate("Check", "{count} checkpoints of {size} each are kept")
            return text.format(count=words.count(report.checkpoints), size=words.size(report.checkpoint_bytes))


def _memory(peak: int | None, room: int | None) -> str:
    if peak is None:
        return QCoreApplication.translate("Check", "more than {free}").format(free=words.size(room))
    if room is None:
        return words.size(peak)
    text = QCoreApplication.translate("Check", "{needed} of {free} free")
    return text.format(needed=words.size(peak), free=words.size(room))


def memory_share(report: CheckReport) -> float | None:
    """How much of the memory that is free is taken, 0..1; None: the device does not tell how much there is."""
    room, peak = memory_room(report), report.chosen.peak
    return None if not room else 1.0 if peak is None else min(1.0, peak / room)


def memory_room(report: CheckReport) -> int | None:
    """What other programs leave."""
    return report.memory_total if report.memory_free is None else report.memory_free


def offer_figures(trial: Trial) -> tuple[str, str]:
    """Peak of memory, speed."""
    text = QCoreApplication.translate("Check", "{rate} tokens/s")
    return words.size(trial.peak), text.format(rate=words.rate(trial.tokens_per_s))
