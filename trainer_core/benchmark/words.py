"""What a terminal shows of a benchmark: tables in either language. Works on the document of result.py alone."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from trainer_core.console import engine as console_engine
from trainer_core.console.tables import table
from trainer_core.messages import Language, word
from trainer_core.protocol import FastPath

_GIB: Final = 1024**3
NOISY: Final = 0.2  # share of the processors that others take, or spread of the runs, from which it is said

WORDS: Final[dict[str, tuple[str, str]]] = {
    "title": ("Benchmark of {device}, preset {preset}, {optimizer}", "{device} 基准测试，预设 {preset}，{optimizer}"),
    "machine": (
        "{threads} threads, {ram:.0f} GiB, torch {torch}, Python {python}, Traindeck {traindeck}, {date}",
        "{threads} 线程，{ram:.0f} GiB 内存，torch {torch}，Python {python}，Traindeck {traindeck}，{date}",
    ),
    "ceilings": ("Ceilings", "硬件上限"),
    "recipes": ("Training", "训练"),
    "gains": ("Fast paths: times as fast as without", "加速途径：与不用时相比的倍数"),
    "ceilings_matmul": ("Ceilings of arithmetic", "硬件上限：运算"),
    "ceilings_copy": ("Ceilings of copies", "硬件上限：复制"),
    "median": ("median", "中位数"),
    "best": ("best", "最好"),
    "untuned": ("untuned recipe", "未调优方案"),
    "preset": ("the preset", "预设"),
    "tuned": ("tuned", "调优方案"),
    "recipe": ("recipe", "方案"),
    "batch": ("batch", "批大小"),
    "precision": ("precision", "精度"),
    "speed": ("tokens/s", "词元/秒"),
    "range": ("from, to", "范围"),
    "step": ("ms a step", "毫秒/步"),
    "start": ("first start, s", "首次启动（秒）"),
    "compiling": ("compiling, s", "编译（秒）"),
    "vram": ("VRAM, GiB", "显存（GiB）"),
    "busy": ("GPU busy", "GPU 利用率"),
    "mfu": ("MFU", "MFU"),
    "times": (
        "Tuned is {median:.2f} times as fast per token as the untuned recipe ({low:.2f} to {high:.2f}).",
        "调优方案每词元速度是未调优方案的 {median:.2f} 倍（{low:.2f} 至 {high:.2f}）。",
    ),
    "failed": ("{name}: {why}", "{name}：{why}"),
    "in_parts": (
        "{name}: its batch did not fit, and was computed in smaller parts.",
        "{name}：该批次放不下，已分成更小的部分计算。",
    ),
    "accumulation": (
        "{now} micro-batches a step rather than the preset's {own}, to fit into the time.",
        "每步累积 {now} 个微批（预设为 {own}），以控制测试时间。",
    ),
    "others": (
        "Other programs took {share:.0%} of the processors before this began: all figures may be too low.",
        "测试开始前其他程序占用了 {share:.0%} 的处理器：所有数字可能偏低。",
    ),
    "uneven": (
        "The runs of one recipe differ by up to {share:.0%}: the machine was not quiet.",
        "同一方案各次运行相差达 {share:.0%}：测试时机器并不空闲。",
    ),
    "once": ("There was time for one round only: no spread is known.", "时间只够一轮测试，无法给出波动范围。"),
    "same": ("The preset is tuned already: one row stands for both.", "该预设已是调优方案，两者合为一行。"),
    "late": (
        "There was no time left for the fast paths; --seconds gives more.",
        "没有时间测试加速途径，可用 --seconds 增加时间。",
    ),
    "partly": (
        "Fast paths that this machine had not measured before had no time left; --seconds gives more.",
        "本机此前未测试过的加速途径没有时间测试，可用 --seconds 增加时间。",
    ),
    "remembered": (
        "The fast paths are as they were measured before on this machine.",
        "加速途径的数据来自本机此前的测试。",
    ),
    "saved": ("Saved: {path}", "已保存：{path}"),
    # what is done now
    "doing_data": ("preparing a text", "准备文本"),
    "doing_ceiling": ("measuring: {name}", "测量：{name}"),
    "doing_round": ("round {round}: {name}", "第 {round} 轮：{name}"),
}  # fmt: skip

_CEILINGS_ZH: Final = {
    "matmul": "矩阵乘法", "copy RAM": "内存复制", "copy device": "显存复制", "copy host to device": "主机到 GPU",
    "copy host to device, pinned": "主机到 GPU（锁页）", "copy device to host, pinned": "GPU 到主机（锁页）",
}  # fmt: skip


def text(key: str, language: Language, **values: Any) -> str:
    """One of `WORDS`, filled in."""
    return WORDS[key][language == "zh"].format(**values)


def title(document: dict[str, Any], language: Language) -> str:
    """What was measured. All recipes have one optimizer."""
    optimizer = {"adamw": "AdamW", "muon": "Muon"}[document["recipes"][0]["knobs"]["optimizer"]]
    facts = {"device": document["machine"]["device"], "preset": document["preset"] or "–", "optimizer": optimizer}
    return text("title", language, **facts)


def render(document: dict[str, Any], language: Language) -> str:
    """All of it, for a terminal."""
    machine = document["machine"]
    facts = {**machine, "ram": machine["ram"] / _GIB}
    lines = [
        title(document, language),
        text("machine", language, **facts),
        "",
        *_ceilings(document, language),
        "",
        *_recipes(document, language),
        "",
    ]
    if document["fast_paths"]:
        found = msgspec.convert(document["fast_paths"], list[FastPath])
        lines += [*console_engine.path_table(found, language), ""]
    return "\n".join([*lines, *notes(document, language)])


def _ceilings(document: dict[str, Any], language: Language) -> list[str]:
    head = [text("ceilings", language), text("median", language), text("best", language)]
    rows = [
        [ceiling_name(one["name"], language), *(rate(one["name"], one[key], one["best"]) for key in ("median", "best"))]
        for one in document["ceilings"]
    ]
    return table(head, rows)


def ceiling_name(name: str, language: Language) -> str:
    """The name of a ceiling for people."""
    if language == "en":
        return name
    kind, _, rest = name.partition(" ")
    return f"{_CEILINGS_ZH['matmul']} {rest}" if kind == "matmul" else _CEILINGS_ZH[name]


def rate(name: str, value: float, best: float) -> str:
    """A ceiling's value with a unit that suits the best one."""
    if name.startswith("copy"):
        return f"{value / 1e9:.1f} GB/s"
    return f"{value / 1e12:.2f} TFLOP/s" if best >= 1e12 else f"{value / 1e9:.1f} GFLOP/s"


def _recipes(document: dict[str, Any], language: Language) -> list[str]:
    on_gpu = document["machine"]["kind"] == "cuda"
    keys = ["recipe", "batch", "precision", "speed", "range", "step", "start", "compiling"]
    keys += ["vram", "busy", "mfu"] if on_gpu else []
    rows = [_recipe(one, on_gpu, language) for one in document["recipes"] if one["tokens_per_s"]]
    return table([text("recipes" if key == "recipe" else key, language) for key in keys], rows)


def _recipe(one: dict[str, Any], on_gpu: bool, language: Language) -> list[str]:
    speed = one["tokens_per_s"]
    cells = [
        text(one["name"], language),
        f"{one['knobs']['batch_size']} x {one['knobs']['gradient_accumulation_steps']}",
        one["precision"],
        f"{speed['median']:,.0f}",
        f"{speed['min']:,.0f} – {speed['max']:,.0f}",
        f"{one['step_ms']['median']:,.1f}",
        f"{one['start_s']['each'][0]:.1f}",
        _or_dash(one["compile_s"], "{:.1f}"),
    ]
    if on_gpu:
        vram = None if one["peak_vram"] is None else one["peak_vram"] / _GIB
        cells += [_or_dash(vram, "{:.2f}"), _or_dash(one["utilization"], "{:.0%}"), _or_dash(one["mfu"], "{:.1%}")]
    return cells


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def path_name(one: dict[str, Any], language: Language) -> str:
    """The name of a fast path for people, with what was chosen."""
    return console_engine.path_words(msgspec.convert(one, FastPath), language)


def notes(document: dict[str, Any], language: Language) -> list[str]:
    """What must be known to read the figures."""
    lines = []
    times = document["times_as_fast"]
    if times:
        lines.append(text("times", language, median=times["median"], low=times["min"], high=times["max"]))
    for one in document["recipes"]:
        if one["error"]:
            why = word(one["error"]["code"], one["error"]["params"], language)
            lines.append(text("failed", language, name=text(one["name"], language), why=why))
        elif one["in_parts"]:
            lines.append(text("in_parts", language, name=text(one["name"], language)))
    lines += [text(note["key"], language, **note["values"]) for note in document["notes"]]
    return lines
