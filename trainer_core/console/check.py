"""Output of the command `check`: the verdict, the measured figures, and alternative settings that fit.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.cells import cell_len

from trainer_core import performance_texts
from trainer_core.config import knobs
from trainer_core.console.tables import format_table
from trainer_core.messages import Language
from trainer_core.messages.amounts import format_bytes
from trainer_core.protocol import CheckReport, MeasuredSettings
from trainer_core.texts import get

_COMPARED_KNOBS: Final = (
    "batch_size", "gradient_accumulation_steps", "activation_checkpointing", "checkpointed_layers", "chunked_loss",
)  # fmt: skip


def format_check_report(report: CheckReport, language: Language) -> list[str]:
    """Return the lines of the report."""
    rows = [(get(f"check.label.{name}", language), value) for name, value in _figures(report, language)]
    width = max(cell_len(name) for name, _ in rows)
    verdict = get(f"check.verdict.{report.verdict}", language)
    lines = [f"{verdict} · {performance_texts.format_device(report.device, language)}"]
    lines += [f"{name}{' ' * (width - cell_len(name))}  {value}" for name, value in rows]
    if report.from_cache:
        lines.append(get("check.from_cache", language))
    if report.alternatives:
        head = [get(f"check.label.{name}", language) for name in (_memory_label(report), "speed", "flags")]
        offers = [_alternative_row(one, report.chosen, language) for one in report.alternatives]
        lines += [get("check.alternatives", language), *format_table(head, offers)]
    return lines


def _figures(report: CheckReport, language: Language) -> Iterator[tuple[str, str]]:
    """Yield label and value of each figure."""
    chosen, free, total = report.chosen, _size(report.memory_free), _size(report.memory_total)
    sizes = {"size": chosen.batch_size, "accumulation": chosen.gradient_accumulation_steps}
    yield "settings", get("check.batch", language, **sizes)
    if chosen.peak is None:
        yield "memory", get("check.exceeded", language, free=free, total=total)
    else:
        yield _memory_label(report), get("check.peak", language, peak=_size(chosen.peak), free=free, total=total)
    if chosen.tokens_per_s is not None:
        speed = get("check.speed", language, speed=chosen.tokens_per_s)
        if report.compile_s is not None:
            speed += " · " + get("check.compiling", language, seconds=report.compile_s)
        yield "speed", speed
    if report.seconds is not None:
        yield "time", get("check.time", language, time=_time(report.seconds, language), steps=report.total_steps)
    needed, free, size = (_size(amount) for amount in (report.disk_needed, report.disk_free, report.checkpoint_bytes))
    yield "disk", get("check.disk", language, needed=needed, free=free, count=report.checkpoints + 1, size=size)


def _memory_label(report: CheckReport) -> str:
    """Return `memory` on a CPU, where the peak is that of the process, else `vram`."""
    return "memory" if report.memory_total == report.ram_total else "vram"


def _alternative_row(offer: MeasuredSettings, chosen: MeasuredSettings, language: Language) -> tuple[str, str, str]:
    changed = [name for name in _COMPARED_KNOBS if getattr(offer, name) != getattr(chosen, name)]
    flags = " ".join(f"{knobs()[name].flag} {getattr(offer, name)}" for name in changed)
    return _size(offer.peak), get("check.speed", language, speed=offer.tokens_per_s or 0), flags


def _size(amount: int | None) -> str:
    return "?" if amount is None else format_bytes(amount)


def _time(seconds: float, language: Language) -> str:
    if seconds < 60:
        return get("check.seconds", language, seconds=max(1, round(seconds)))
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
