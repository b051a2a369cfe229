"""What a terminal shows of a check before Start: the verdict, figures, and what to start with instead.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from rich.cells import cell_len

from trainer_core import engine_words
from trainer_core.config import knobs
from trainer_core.console.tables import table
from trainer_core.messages import Language
from trainer_core.messages.amounts import size
from trainer_core.protocol import CheckReport, Trial

Say = Callable[..., str]

_SETTINGS: Final = ("batch_size", "gradient_accumulation_steps", "activation_checkpointing", "chunked_loss")

_WORDS: Final[dict[str, tuple[str, str]]] = {
    "fits": ("Fits", "放得下"),
    "tight": ("Tight: under a tenth of the memory would be left", "勉强：剩余内存将不足十分之一"),
    "does_not_fit": ("Does not fit", "放不下"),
    "settings": ("Settings", "设置"),
    "batch": ("batches of {size} x {times}", "批大小 {size} × {times}"),
    "memory": ("Memory", "内存"),
    "vram": ("GPU memory", "显存"),
    "peak": ("peak {peak} of {free} free, {total} in all", "峰值 {peak}，可用 {free}，共 {total}"),
    "ended": ("more than the {free} that are free, of {total}", "超出可用的 {free}（共 {total}）"),
    "speed": ("Speed", "速度"),
    "per_s": ("{speed} tokens/s", "{speed} 词元/秒"),
    "compiling": ("compiling takes {seconds} s", "编译需 {seconds} 秒"),
    "time": ("Time", "时长"),
    "steps": ("about {time} for {steps} steps", "{steps} 步约需 {time}"),
    "seconds": ("{seconds} s", "{seconds} 秒"),
    "disk": ("Disk", "磁盘"),
    "of": (
        "{needed} of {free} free ({count} checkpoints of {size})",
        "需要 {needed}，剩余 {free}（{count} 个检查点，各 {size}）",
    ),
    "before": ("Measured before; --again measures anew.", "此前已测量过；--again 可重新测量。"),
    "offers": ("These fit, with the same effective batch:", "以下设置放得下，有效批大小不变："),
    "flags": ("Flags", "参数"),
}


def lines(report: CheckReport, language: Language) -> list[str]:
    """The report in words."""
    say = partial(_say, language)
    rows = list(_figures(report, say))
    width = max(cell_len(name) for name, _ in rows)
    told = [f"{say(report.verdict)} · {engine_words.device(report.device, language)}"]
    told += [f"{name}{' ' * (width - cell_len(name))}  {value}" for name, value in rows]
    if report.from_cache:
        told.append(say("before"))
    if report.offers:
        head = (say(_memory(report)), say("speed"), say("flags"))
        told += [say("offers"), *table(head, [_offer(one, report.chosen, say) for one in report.offers])]
    return told


def _say(language: Language, key: str, **values: object) -> str:
    return _WORDS[key][language == "zh"].format(**values)


def _figures(report: CheckReport, say: Say) -> Iterator[tuple[str, str]]:
    chosen, free, total = report.chosen, _size(report.memory_free), _size(report.memory_total)
    yield say("settings"), say("batch", size=chosen.batch_size, times=chosen.gradient_accumulation_steps)
    if chosen.peak is None:
        yield say("memory"), say("ended", free=free, total=total)
    else:
        yield say(_memory(report)), say("peak", peak=_size(chosen.peak), free=free, total=total)
    if chosen.tokens_per_s is not None:
        compiling = "" if report.compile_s is None else " · " + say("compiling", seconds=f"{report.compile_s:.0f}")
        yield say("speed"), say("per_s", speed=f"{chosen.tokens_per_s:,.0f}") + compiling
    if report.seconds is not None:
        yield say("time"), say("steps", time=_time(report.seconds, say), steps=f"{report.total_steps:,}")
    sizes = [_size(amount) for amount in (report.disk_needed, report.disk_free, report.checkpoint_bytes)]
    yield say("disk"), say("of", needed=sizes[0], free=sizes[1], count=report.checkpoints + 1, size=sizes[2])


def _memory(report: CheckReport) -> str:
    """Whose memory a peak is of: where there is no GPU, the device's is the process's."""
    return "memory" if report.memory_total == report.ram_total else "vram"


def _offer(offer: Trial, chosen: Trial, say: Say) -> tuple[str, str, str]:
    changed = [name for name in _SETTINGS if getattr(offer, name) != getattr(chosen, name)]
    flags = " ".join(f"{knobs()[name].flag} {getattr(offer, name)}" for name in changed)
    return _size(offer.peak), say("per_s", speed=f"{offer.tokens_per_s or 0:,.0f}"), flags


def _size(amount: int | None) -> str:
    return "?" if amount is None else size(amount)


def _time(seconds: float, say: Say) -> str:
    if seconds < 60:
        return say("seconds", seconds=max(1, round(seconds)))
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
