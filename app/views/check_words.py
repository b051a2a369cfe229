"""What a check before Start has found, in words and figures of the current language."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from app.views import computing_words, words
from trainer_core.protocol import CheckReport, Trial


def facts(report: CheckReport) -> str:
    """On what it was measured, and when."""
    if report.from_cache:
        when = QCoreApplication.translate("Check", "measured before")
    else:
        when = QCoreApplication.translate("Check", "measured in {seconds} s").format(seconds=f"{report.took_s:.0f}")
    return "  ·  ".join((computing_words.device(report.device), when))


def title(name: str) -> str:
    return {
        "memory": QCoreApplication.translate("Check", "Peak memory"),
        "speed": QCoreApplication.translate("Check", "Tokens per second"),
        "time": QCoreApplication.translate("Check", "Time to finish"),
        "disk": QCoreApplication.translate("Check", "Disk needed"),
    }[name]


def figure(name: str, report: CheckReport) -> str:
    match name:
        case "memory":
            return _memory(report.chosen.peak, report.memory_total)
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
            text = QCoreApplication.translate(
                "Check", "Free before: {free}. The trainer's own memory: {ram} of {ram_free} free."
            )
            free, ram = words.size(report.memory_free), words.size(report.chosen.ram_peak)
            return text.format(free=free, ram=ram, ram_free=words.size(report.ram_free))
        case "speed":
            text = QCoreApplication.translate("Check", "{count} tokens in each step")
            return text.format(count=words.count(report.tokens_per_step))
        case "time":
            text = QCoreApplication.translate("Check", "{steps} steps, without evaluations and checkpoints")
            return text.format(steps=words.count(report.total_steps))
        case _:
            text = QCoreApplication.translate("Check", "{count} checkpoints of {size} each are kept")
            return text.format(count=words.count(report.checkpoints), size=words.size(report.checkpoint_bytes))


def _memory(peak: int | None, total: int | None) -> str:
    if peak is None:
        text = QCoreApplication.translate("Check", "more than {total}")
        return text.format(total=words.size(total))
    if total is None:
        return words.size(peak)
    return QCoreApplication.translate("Check", "{peak} of {total}").format(
        peak=words.size(peak), total=words.size(total)
    )


def offer_figures(trial: Trial) -> tuple[str, str]:
    """Peak of memory, speed."""
    text = QCoreApplication.translate("Check", "{rate} tokens/s")
    return words.size(trial.peak), text.format(rate=words.rate(trial.tokens_per_s))
