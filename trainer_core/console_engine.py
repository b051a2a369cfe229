"""What a terminal shows of the engine: fast paths, compile time, performance, bad steps, FLOPs."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len

from trainer_core import engine_words, protocol
from trainer_core.messages import Language

_GIB: Final = 1024**3
_SAMPLES: Final = 8  # numbers of a bad step's samples that are shown

_BAD: Final[dict[str, tuple[str, str]]] = {
    "not_finite": ("gradient not finite", "梯度不是有限数"),
    "spike": ("gradient norm {norm}, usually {usual}", "梯度范数 {norm}，通常为 {usual}"),
}
_DONE: Final[dict[str, tuple[str, str]]] = {
    "skipped": ("left out", "已跳过"),
    "rolled_back": ("went back to the last good checkpoint", "已退回最近完好的检查点"),
    "stopped": ("stopping", "停止训练"),
}


def summary(event: protocol.Ready, language: Language) -> str:
    """One calm line: what this run computes with, and what compiling took. Empty: an older trainer."""
    zh = language == "zh"
    used = [_short(path, language) for path in event.fast_paths if path.used]
    parts = []
    if event.fast_paths:
        none = "仅参考实现" if zh else "the reference alone"
        parts.append(("计算方式：" if zh else "computes with: ") + ((("、" if zh else ", ").join(used)) or none))
    if event.compile_s is not None:
        seconds = f"{event.compile_s:.1f}"
        parts.append(f"编译用时 {seconds} 秒" if zh else f"compiled in {seconds} s")
    return " · ".join(parts)


def _short(path: protocol.FastPath, language: Language) -> str:
    name, choice = engine_words.path_parts(path, language)
    gain = "" if path.gain is None else f" {engine_words.gain(path.gain)}"
    if not choice:
        return f"{name}{gain}"
    return f"{name}（{choice}）{gain.strip()}" if language == "zh" else f"{name} ({choice}){gain}"


def paths(found: list[protocol.FastPath], language: Language) -> list[str]:
    """Every fast path with its reason, one a line, those in use first."""
    ordered = engine_words.in_order(found)
    names = [
        " ".join(filter(None, (engine_words.path_name(path, language), engine_words.path_choice(path, language))))
        for path in ordered
    ]
    width = max(map(cell_len, names), default=0)
    return [
        "  ".join(
            filter(
                None, (f"  {'+' if path.used else '-'} {name}{' ' * (width - cell_len(name))}", _why(path, language))
            )
        )
        for path, name in zip(ordered, names, strict=True)
    ]


def _why(path: protocol.FastPath, language: Language) -> str:
    zh = language == "zh"
    figures = []
    if path.gain is not None:
        figures.append(engine_words.gain(path.gain))
    if path.error is not None:
        figures.append(("误差 " if zh else "error ") + engine_words.error(path.error))
    told = ("，" if zh else ", ").join(figures)
    return "  ".join(filter(None, (told, engine_words.path_reason(path, language))))


def performance(event: protocol.Performance, language: Language, *, explain: bool = True) -> str:
    """One line of what is known; `explain`: whose peak it is, and what the noise means, on lines of their own."""
    zh = language == "zh"
    told = [f"计算 {event.compute_ratio:.0%}" if zh else f"computing {event.compute_ratio:.0%}"]
    told.append(f"等待数据 {event.data_ratio:.1%}" if zh else f"waiting for data {event.data_ratio:.1%}")
    if event.mfu is not None:
        told.append(f"MFU {event.mfu:.1%}")
    if event.memory_peak is not None:
        gib = f"{event.memory_peak / _GIB:.1f} GiB"
        told.append(f"显存峰值 {gib}" if zh else f"peak {gib}")
    if event.energy_per_million_tokens_j is not None:
        energy = engine_words.energy(event.energy_per_million_tokens_j)
        told.append(f"每百万词元 {energy}" if zh else f"{energy} per million tokens")
    if event.loss_scale is not None:
        scale, over = engine_words.significant(event.loss_scale), f"{event.overflows:,}"
        told.append(f"损失缩放 {scale}（溢出 {over} 次）" if zh else f"loss scale {scale} ({over} overflows)")
    if event.gradient_noise is not None and not explain:
        told.append(f"噪声 {_noise(event)} 条序列" if zh else f"noise {_noise(event)} sequences")
    head = f"第 {event.step:>6} 步  " if zh else f"perf {event.step:>6}  "
    notes = _notes(event, language) if explain else []
    return "\n".join([head + "  ".join(told), *(" " * cell_len(head) + note for note in notes)])


def _noise(event: protocol.Performance) -> str:
    return engine_words.significant(max(1.0, event.gradient_noise or 0.0), 2)


def _notes(event: protocol.Performance, language: Language) -> list[str]:
    notes = []
    if event.mfu is not None and event.peak_flops is not None:
        peak = " ".join(filter(None, (engine_words.flops(event.peak_flops, "/s"), f"({event.peak_name})")))
        notes.append(f"MFU 的峰值：{peak}" if language == "zh" else f"MFU is measured against {peak}")
    if event.gradient_noise is not None:
        notes.append(noise_words(event.gradient_noise, language))
    return notes


def noise_words(noise: float, language: Language) -> str:
    """The simple noise scale as advice on the batch."""
    count = engine_words.significant(max(1.0, noise), 2)
    if language == "zh":
        return f"梯度噪声：批大小超过约 {count} 条序列后收益很小"
    return f"gradient noise: batches beyond about {count} sequences gain little"


def bad_step(event: protocol.BadStep, language: Language) -> str:
    """What was wrong with a step, what was done, and with which samples."""
    zh = language == "zh"
    norm = "?" if event.grad_norm is None else engine_words.significant(event.grad_norm)
    usual = "?" if event.usual is None else engine_words.significant(event.usual)
    what = _BAD[event.kind][zh].format(norm=norm, usual=usual)
    head = f"第 {event.step:,} 步异常：{what}；" if zh else f"bad step {event.step:,}: {what}; "
    return f"{head}{_DONE[event.action][zh]}{_samples(event, zh)}"


def _samples(event: protocol.BadStep, zh: bool) -> str:
    if not event.samples:
        return ""
    shown = ", ".join(map(str, event.samples[:_SAMPLES])) + (" …" if len(event.samples) > _SAMPLES else "")
    return f"（轮次 {event.epoch}，样本 {shown}）" if zh else f" (epoch {event.epoch}, samples {shown})"


def profile(event: protocol.FlopsProfile, language: Language) -> str:
    """The arithmetic by part, the layers added up."""
    zh = language == "zh"
    total, formula = engine_words.flops(event.total), engine_words.flops(event.formula)
    if zh:
        head = f"第 {event.step} 步的计算量：{event.tokens:,} 个位置共 {total}（公式为 {formula}）"
    else:
        head = f"FLOPs at step {event.step}: {total} for {event.tokens:,} positions (the formula says {formula})"
    return "\n".join([head, *engine_words.table(event.rows)])
