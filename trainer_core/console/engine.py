"""What a terminal shows of the engine: fast paths, compile time, performance, bad steps, FLOPs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rich.cells import cell_len

from trainer_core import engine_words, protocol
from trainer_core.console.tables import table
from trainer_core.messages import Language
from trainer_core.messages.amounts import size
from trainer_core.protocol import FastPath
from trainer_core.report import Quiet

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
_MOVED: Final[dict[str, tuple[str, str]]] = {
    "checkpointing": ("activations are computed again instead of kept", "激活值改为重新计算，不再保留"),
    "chunked_loss": ("the loss is computed in parts", "损失改为分块计算"),
}
_DURING: Final[dict[str, str]] = {
    "forward": "前向",
    "backward": "反向",
    "optimizer": "优化器",
    "evaluation": "评估",
}
_SETTINGS: Final[dict[str, str]] = {  # those that ask for a fast path by name, and which
    "compile": "compile",
    "cuda_graphs": "cuda_graphs",
    "attention": "attention",
    "chunked_loss": "chunked_loss",
    "activation_memory_budget": "compile",  # it is the compiler that keeps to it
}
_NOT_ASKED: Final = (None, "auto", "off", 1.0)


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
        parts.append(f"编译用时 {seconds} 秒" if zh else f"compiling took {seconds} s")
    return " · ".join(parts)


def _short(path: FastPath, language: Language) -> str:
    gain = "" if path.gain is None else engine_words.gain(path.gain)
    name = path_words(path, language)
    return name + gain if name.endswith("）") else f"{name} {gain}".rstrip()


def path_words(path: FastPath, language: Language) -> str:
    """Its name with what was chosen: `Attention (flash)`, `2 threads`."""
    name, choice = engine_words.path_parts(path, language)
    if not choice:
        return name
    return f"{name}（{choice}）" if language == "zh" else f"{name} ({choice})"


def paths(found: list[FastPath], language: Language) -> list[str]:
    """Fast paths with their reasons: one a line those in use and those that were tried, then the others by reason."""
    tried = [path for path in found if path.used or path.gain is not None or path.error is not None]
    told = [(("+" if path.used else "-"), path_words(path, language), _why(path, language)) for path in tried]
    others: dict[str, list[str]] = {}
    for path in found:
        if path not in tried:
            others.setdefault(engine_words.path_reason(path, language), []).append(path_words(path, language))
    comma = "、" if language == "zh" else ", "
    told = [*sorted(told, key=lambda row: row[0]), *(("-", comma.join(names), why) for why, names in others.items())]
    width = max((cell_len(name) for _, name, _ in told[: len(tried)]), default=0)
    return [f"  {mark} {name}{' ' * max(0, width - cell_len(name))}  {why}".rstrip() for mark, name, why in told]


def refused(settings: Mapping[str, object], found: Sequence[FastPath], language: Language) -> list[str]:
    """Settings (a run's, by knob) that ask for a fast path which is not used, each with the reason."""
    unused = {path.name: path for path in found if not path.used}
    told = []
    for knob, name in _SETTINGS.items():
        value, path = settings.get(knob), unused.get(name)
        if path is not None and value not in _NOT_ASKED:
            why = engine_words.path_reason(path, language)
            flag = f"--{knob.replace('_', '-')} {value}"
            told.append(f"未采用 {flag}：{why}" if language == "zh" else f"{flag} is not used: {why}")
    return told


def _why(path: FastPath, language: Language) -> str:
    zh = language == "zh"
    figures = []
    if path.gain is not None:
        figures.append(engine_words.gain(path.gain))
    if path.error is not None:
        figures.append(("误差 " if zh else "error ") + engine_words.error(path.error))
    told = ("，" if zh else ", ").join(figures)
    return "  ".join(filter(None, (told, engine_words.path_reason(path, language))))


_HEAD: Final = {
    "en": ("Fast path", "fits", "which", "gain", "error", "why"),
    "zh": ("加速途径", "适用", "选用", "加速比", "误差", "原因"),
}
_GAINS: Final = {
    "en": ("Gain: times as fast as without, for the part of a step that it is about.", "Error: against the reference."),
    "zh": ("加速比：与不用该途径相比，仅就其涉及的那部分计算而言。", "误差：相对于参考实现。"),
}


def path_table(found: Sequence[FastPath], language: Language, width: int | None = None) -> list[str]:
    """All fast paths of a machine as a table, those that it has first, and what its figures are.

    `width`: columns of the terminal; None: lines may be of any length.
    """
    yes, no = ("是", "否") if language == "zh" else ("yes", "no")
    rows = [
        [
            engine_words.path_name(path, language),
            yes if path.used else no,
            engine_words.path_choice(path, language),
            "-" if path.gain is None else engine_words.gain(path.gain),
            "-" if path.error is None else engine_words.error(path.error),
            engine_words.path_reason(path, language),
        ]
        for path in engine_words.in_order(found)
    ]
    lines = table(_HEAD[language], rows, width)
    return [*lines, "", *_GAINS[language]] if any(path.gain is not None for path in found) else lines


class Trying(Quiet):
    """A reporter that says which fast path is tried now."""

    def __init__(self, say: Callable[[str], None], language: Language) -> None:
        self._say, self._language = say, language

    def trying(self, path: str) -> None:
        name = engine_words.path_name(FastPath(name=path, used=False), self._language)
        if path == "compile":
            name += "（可能需要约一分钟）" if self._language == "zh" else " (may take a minute)"
        self._say(f"正在尝试：{name}" if self._language == "zh" else f"trying: {name}")


def performance(event: protocol.Performance, language: Language, *, explain: bool = True) -> str:
    """One line of what is known; `explain`: whose peak it is, and what the noise means, on lines of their own."""
    zh = language == "zh"
    told = [f"计算占 {event.compute_ratio:.1%}" if zh else f"computing {event.compute_ratio:.1%}"]
    told.append(f"等待数据占 {event.data_ratio:.1%}" if zh else f"waiting for data {event.data_ratio:.1%}")
    if event.mfu is not None:
        told.append(f"MFU {event.mfu:.1%}")
    if event.memory_peak is not None:
        peak = size(event.memory_peak)
        told.append(f"显存峰值 {peak}" if zh else f"peak {peak}")
    if event.energy_per_million_tokens_j is not None:
        energy = engine_words.energy(event.energy_per_million_tokens_j)
        told.append(f"每百万词元 {energy}" if zh else f"{energy} per million tokens")
    if event.loss_scale is not None:
        scale, over = engine_words.loss_scale(event.loss_scale), f"{event.overflows:,}"
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
    if event.peak_name:
        notes.append(_peak(event, language))
    if event.gradient_noise is not None:
        notes.append(noise_words(event.gradient_noise, language))
    return notes


def _peak(event: protocol.Performance, language: Language) -> str:
    """What MFU is a share of, and how it is counted; or why there is none."""
    zh = language == "zh"
    if event.peak_flops is None:
        return (
            f"MFU 未知：没有 {event.peak_name} 的峰值数据"
            if zh
            else f"no MFU: the peak of {event.peak_name} is not known"
        )
    peak = f"{engine_words.flops(event.peak_flops, '/s')} ({event.peak_name})"
    if zh:
        return f"MFU 的峰值：{peak}；每权重每词元计 6 FLOP，另加因果注意力"
    return f"MFU is measured against {peak}; counted: 6 FLOP a weight and token, causal attention"


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


def memory_move(event: protocol.MemoryMove, language: Language) -> str:
    """What was changed because memory ended, or was there again; and what was asked for in vain."""
    zh = language == "zh"
    batch, times = f"{event.batch_size:,}", f"{event.gradient_accumulation_steps:,}"
    sizes = f"微批 {batch}，累积 {times}" if zh else f"micro-batch {batch}, accumulation {times}"
    done = _MOVED[event.action][zh] if event.action in _MOVED else sizes
    if event.action == "grown":
        return (
            f"自第 {event.step:,} 步起内存恢复充足：{done}" if zh else f"memory again since step {event.step:,}: {done}"
        )
    lack = ""
    if event.requested is not None and event.free is not None:
        asked, free = size(event.requested), size(event.free)
        lack = f"，申请 {asked}，可用 {free}" if zh else f", {asked} asked for, {free} free"
    if zh:
        where = _DURING.get(event.during, event.during)
        return f"第 {event.step:,} 步内存不足（{where}{lack}）：{done}；没有丢失任何内容"
    return f"out of memory at step {event.step:,} ({event.during}{lack}): {done}; nothing was lost"


def profile(event: protocol.FlopsProfile, language: Language) -> str:
    """The arithmetic by part, the layers added up."""
    zh = language == "zh"
    total, formula = engine_words.flops(event.total), engine_words.flops(event.formula)
    if zh:
        head = f"第 {event.step} 步的计算量：{event.tokens:,} 个位置共 {total}（公式为 {formula}）"
    else:
        head = f"FLOPs at step {event.step}: {total} for {event.tokens:,} positions (the formula says {formula})"
    return "\n".join([head, *engine_words.table(event.rows)])
