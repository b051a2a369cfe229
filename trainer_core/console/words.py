"""What a terminal shows of an event: one line of at most 80 columns where that is possible, in either language."""

from __future__ import annotations

import math
import re
from datetime import datetime
from pathlib import Path
from typing import Final

from trainer_core import engine_words, protocol
from trainer_core.console import engine as console_engine
from trainer_core.messages import Language, what_and_do
from trainer_core.messages.amounts import size, unit_of

# Whatever a model writes, it must not be able to give the terminal orders: control characters become pictures.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

PHASES: Final[dict[str, dict[Language, str]]] = {
    "preparing": {"en": "preparing data", "zh": "准备数据"},
    "checking": {"en": "checking", "zh": "检查"},
    "compiling": {"en": "finding the fastest way to compute, compiling", "zh": "寻找最快的计算方式，编译模型"},
    "training": {"en": "training", "zh": "训练"},
    "evaluating": {"en": "evaluating", "zh": "评估"},
    "saving": {"en": "saving", "zh": "保存"},
    "paused": {"en": "paused", "zh": "已暂停"},
    "stopping": {"en": "stopping", "zh": "正在停止"},
    "done": {"en": "done", "zh": "完成"},
    "failed": {"en": "failed", "zh": "失败"},
}
PAUSED: Final[dict[str, dict[Language, str]]] = {
    "asked": {"en": "paused", "zh": "已暂停"},
    "schedule": {"en": "paused by schedule", "zh": "按计划暂停"},
    "other_program": {"en": "paused while another program uses the GPU", "zh": "其他程序正在使用 GPU，已暂停"},
    "disk_full": {"en": "paused until the disk has room", "zh": "磁盘已满，已暂停，等待可用空间"},
}
LOADER_REASONS: Final[dict[str, dict[Language, str]]] = {
    "set": {"en": "as set", "zh": "按设置"},
    "low_memory": {"en": "to spare memory", "zh": "节省内存"},
    "cpu": {"en": "the CPU trains", "zh": "由 CPU 训练"},
    "gpu": {"en": "the data stays in memory", "zh": "数据可留在内存中"},
    "disk": {"en": "the data is larger than half of the memory", "zh": "数据超过内存的一半"},
}
_SILENT: Final = ("training", "saving", "done", "failed")  # what follows says it better
_UNITS: Final = {
    "steps": "步", "documents": "篇", "tokens": "词元", "batches": "批", "files": "个文件",
    "trials": "次试算",
}  # fmt: skip


def visible(text: str) -> str:
    """Text that can be written to a terminal: control characters (but tab and newline) as pictures."""
    return _CONTROLS.sub(lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 32 else "\u2421", text)


def line(event: protocol.AnyEvent, language: Language) -> str:
    """What is printed for an event; empty for one that is not."""
    zh = language == "zh"
    match event:
        case protocol.Hello():
            devices = ", ".join(engine_words.device(told, language) for told in event.devices)
            start = f"Traindeck {event.traindeck} · torch {event.torch} · {devices} · {event.precision}"
            resumed = (
                f"从第 {event.resumed_from_step} 步继续" if zh else f"going on from step {event.resumed_from_step}"
            )
            return f"{start}\n{event.run_dir}" + (f"\n{resumed}" if event.resumed_from_step else "")
        case protocol.Ready():
            return _ready(event, zh)
        case protocol.Phase():
            return "" if event.phase in _SILENT else f"[{_phase(event, language)}]"
        case protocol.Step():
            return _step(event, zh)
        case protocol.Performance():
            return console_engine.performance(event, language)
        case protocol.BadStep():
            return console_engine.bad_step(event, language)
        case protocol.MemoryMove():
            return console_engine.memory_move(event, language)
        case protocol.FlopsProfile():
            return console_engine.profile(event, language)
        case protocol.Eval():
            return _eval(event, zh)
        case protocol.Sample():
            return _sample(event, zh)
        case protocol.Checkpoint():
            if zh:
                return f"已保存 {event.path}（{size(event.bytes)}，{event.seconds:.1f} 秒）"
            return f"saved {event.path} ({event.kind}, {size(event.bytes)}, {event.seconds:.1f} s)"
        case protocol.Done():
            return _done(event, zh)
    return ""


def _phase(event: protocol.Phase, language: Language) -> str:
    words = PAUSED[event.reason][language] if event.reason else PHASES[event.phase][language]
    if event.until is None:
        return words
    until = datetime.fromtimestamp(event.until)
    time = until.strftime("%H:%M" if until.date() == datetime.fromtimestamp(event.t).date() else "%Y-%m-%d %H:%M")
    return f"{words}，至 {time}" if language == "zh" else f"{words} until {time}"


def progress(event: protocol.Progress, language: Language) -> str:
    """The figures beside a progress bar."""
    scale, digits, unit = 1, 0, _UNITS.get(event.unit, event.unit) if language == "zh" else event.unit
    if event.unit == "bytes":
        digits, (scale, unit) = 1, unit_of(event.total or event.done)
    total = f"/{event.total / scale:,.{digits}f}" if event.total is not None else ""
    left = ""
    if event.eta_s is not None:
        left = f"  约剩 {_duration(event.eta_s)}" if language == "zh" else f"  about {_duration(event.eta_s)} left"
    return f"{event.done / scale:,.{digits}f}{total} {unit}{left}"


def _source(source: protocol.Source, zh: bool) -> str:
    name = source.path if source.path.startswith("builtin:") else Path(source.path).name
    split = f" ({source.split})" if source.split else ""
    files = "" if source.files == 1 else (f"{source.files} 个文件" if zh else f"{source.files:,} files")
    about = [files, source.format, source.encoding, ", ".join(source.columns), size(source.bytes)]
    return f"{name}{split}: " + " · ".join(filter(None, about))


def _ready(event: protocol.Ready, zh: bool) -> str:
    validation = "验证数据：" if zh else "validation data: "
    lines = [_source(source, zh) for source in event.sources]
    lines += [validation + _source(source, zh) for source in event.validation_sources]
    if zh:
        data = f"{event.train_tokens:,} 个训练词元，留出 {event.validation_tokens:,} 个"
        lines.append(f"{event.parameters:,} 个参数 · {data} · {event.total_steps:,} 步")
    else:
        data = f"{event.train_tokens:,} tokens, {event.validation_tokens:,} held out"
        lines.append(f"{event.parameters:,} parameters · {data} · {event.total_steps:,} steps")
    if event.eval_sequences:
        lines.append(_evaluated(event, zh))
    if event.fill is not None:
        lines.append(_packed(event, zh))
    lines.append(_loading(event, zh))
    computing = console_engine.summary(event, "zh" if zh else "en")
    return "\n".join([*lines, computing] if computing else lines)


def _evaluated(event: protocol.Ready, zh: bool) -> str:
    some, every = f"{event.eval_sequences:,}", f"{event.validation_sequences:,}"
    if zh:
        return f"每次评估使用相同的 {some} 个验证序列（共 {every} 个）"
    return f"each evaluation: the same {some} of {every} held-out sequences"


def _packed(event: protocol.Ready, zh: bool) -> str:
    alone = f"{event.fill_alone or 0:.1%}"
    if zh:
        return f"打包成 {event.samples_per_epoch:,} 个序列，填充率 {event.fill:.1%}（不打包为 {alone}）"
    return f"packed into {event.samples_per_epoch:,} sequences, {event.fill:.1%} full (without packing {alone})"


def _loading(event: protocol.Ready, zh: bool) -> str:
    if event.loader_workers:
        how = (f"{event.loader_workers} processes", f"{event.loader_workers} 个进程")[zh]
    elif event.loader_ahead:
        how = (f"a thread, {event.loader_ahead} ahead", f"一个线程，预备 {event.loader_ahead} 批")[zh]
    else:
        how = ("made when needed", "用时生成")[zh]
    pinned = ("", "，锁页内存" if zh else ", pinned")[event.loader_pinned]
    return (
        ("batches: ", "批次：")[zh] + how + pinned + " · " + LOADER_REASONS[event.loader_reason]["zh" if zh else "en"]
    )


def _step(event: protocol.Step, zh: bool) -> str:
    norm = "" if event.grad_norm is None else f"  {'梯度范数' if zh else 'norm'} {_number(event.grad_norm, zh, 2)}"
    loss, rate = _number(event.loss, zh), f"{event.learning_rate:.2e}"
    if zh:
        return f"第 {event.step:>6} 步  损失 {loss}  学习率 {rate}{norm}  {event.tokens_per_s:,.0f} 词元/秒"
    return (
        f"step {event.step:>6}  epoch {event.epoch:.2f}  loss {loss}  lr {rate}{norm}"
        f"  {event.tokens_per_s:,.0f} tokens/s"
    )


def _eval(event: protocol.Eval, zh: bool) -> str:
    exact = "" if event.exact_match is None else f"  {'完全匹配' if zh else 'exact match'} {event.exact_match:.1%}"
    bleu = "" if event.bleu4 is None else f"  BLEU-4 {event.bleu4:.1f}"
    best = ("  最佳" if zh else "  best") if event.best else ""
    loss, perplexity = _number(event.loss, zh), "?" if event.perplexity is None else f"{event.perplexity:.4g}"
    cut = _cut_answers(event, zh)
    if event.exact_match is None:  # else the line would have more than 80 columns
        loss += f"（{event.tokens:,} 个词元）" if zh else f" ({event.tokens:,} tokens)"
    if zh:
        return f"第 {event.step:>6} 步  评估损失 {loss}  困惑度 {perplexity}{exact}{bleu}{best}{cut}"
    return f"eval {event.step:>6}  loss {loss}  perplexity {perplexity}{exact}{bleu}{best}{cut}"


def _cut_answers(event: protocol.Eval, zh: bool) -> str:
    """A second line, where answers were cut: the first one fills a terminal."""
    if not event.cut_by_limit and not event.cut_by_context:
        return ""
    limit, context, total = event.cut_by_limit, event.cut_by_context, event.examples
    if zh:
        return f"\n  {total} 个回答中被截断的：eval_max_new_tokens {limit} 个，max_seq_len {context} 个"
    return f"\n  answers cut: {limit} by eval_max_new_tokens, {context} by max_seq_len, of {total}"


def _sample(event: protocol.Sample, zh: bool) -> str:
    head = f"--- 第 {event.step} 步" if zh else f"--- step {event.step}"
    expected = "" if event.expected is None else f"\n{'正确答案' if zh else 'expected'}: {event.expected}"
    return visible(f"{head}: {event.prompt.rstrip()} ▸{event.text.rstrip()}{expected}")


def _done(event: protocol.Done, zh: bool) -> str:
    if event.model is None and event.steps:  # a resume that was stopped while its data was prepared
        return f"已停止；运行仍在第 {event.steps} 步" if zh else f"Stopped; the run is at step {event.steps} as before"
    if event.model is None:
        return "已停止；尚未训练，没有可保存的内容" if zh else "Stopped before anything was trained; nothing to save"
    words = {
        "finished": ("Finished", "已完成"),
        "stopped": ("Stopped and saved; --resume goes on", "已停止并保存；用 --resume 继续"),
        "parent_lost": ("The starting program is gone; saved", "启动程序已退出；已保存"),
    }
    comma = "，" if zh else ", "
    peak = f"{comma}{'显存' if zh else 'VRAM'} {size(event.peak_vram)}" if event.peak_vram else ""
    best = ""
    if event.best_loss is not None:
        best = f"，最佳评估损失 {event.best_loss:.4f}" if zh else f", best eval loss {event.best_loss:.4f}"
    steps = f"{event.steps:,}/{event.total_steps:,} {'步' if zh else 'steps'}"
    mean = f"平均 {event.tokens_per_s:,.0f} 词元/秒" if zh else f"{event.tokens_per_s:,.0f} tokens/s on average"
    speed = f"{comma}{mean}" if event.tokens_per_s else ""
    colon = "：" if zh else ": "
    return (
        f"{words[event.reason][zh]}{colon}{steps}{best}{speed}{peak}\n{'模型' if zh else 'Model'}{colon}{event.model}"
    )


def advice(event: protocol.Advice, language: Language) -> str:
    """What is advised, and the flags that would mend it at the next start."""
    zh = language == "zh"
    what, do = what_and_do(event.code, event.params, language)
    if event.over:
        return f"已解除：{what}" if zh else f"No longer so: {what}"
    told = f"{what}{do}" if zh else f"{what} {do}".rstrip()
    if not event.fix:
        return told
    flags = " ".join(_flag(name, value) for name, value in event.fix.items())
    return f"{told}（下次启动：{flags}）" if zh else f"{told} (At the next start: {flags})"


def _flag(name: str, value: object) -> str:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"--{dashed} {value:g}" if isinstance(value, float) else f"--{dashed} {value}"


def _number(value: float | None, zh: bool, digits: int = 4) -> str:
    if value is None or not math.isfinite(value):
        return "不是有限数" if zh else "not finite"
    return f"{value:.{digits}f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
