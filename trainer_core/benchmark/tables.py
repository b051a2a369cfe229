"""Formats the document of `run.run` as tables for a terminal, in English or Chinese."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from trainer_core import texts
from trainer_core.console.performance import format_fast_path_table
from trainer_core.console.tables import format_table
from trainer_core.messages import Language, format_message
from trainer_core.protocol import FastPath

_GIB: Final = 1024**3
NOISY: Final = 0.2  # load by other programs, or spread of the runs, that warrants a note

_CEILINGS_ZH: Final = {
    "copy RAM": "内存复制", "copy device": "显存复制", "copy host to device": "主机到 GPU",
    "copy host to device, pinned": "主机到 GPU（锁页）", "copy device to host, pinned": "GPU 到主机（锁页）",
}  # fmt: skip


def text(key: str, language: Language, **values: Any) -> str:
    return texts.get(f"bench.{key}", language, **values)


def render(document: dict[str, Any], language: Language) -> str:
    """The whole document."""
    machine, first = document["machine"], document["recipes"][0]
    optimizer = {"adamw": "AdamW", "adamw_8bit": "AdamW (8-bit)", "muon": "Muon"}[first["knobs"]["optimizer"]]
    preset = document["preset"] or "–"
    lines = [
        text("title", language, device=machine["device"], preset=preset, optimizer=optimizer),
        text("machine", language, **{**machine, "ram": machine["ram"] / _GIB}),
        "",
        *_format_ceilings(document["ceilings"], language),
        "",
        *_format_recipes(document, language),
        "",
    ]
    if document["fast_paths"]:
        paths = msgspec.convert(document["fast_paths"], list[FastPath])
        lines += [*format_fast_path_table(paths, language), ""]
    return "\n".join([*lines, *notes(document, language)])


def ceiling_name(name: str, language: Language) -> str:
    if language == "en":
        return name
    return _CEILINGS_ZH.get(name) or name.replace("matmul", "矩阵乘法")


def _format_ceilings(rates: dict[str, float], language: Language) -> list[str]:
    rows = [[ceiling_name(name, language), _format_rate(name, rate)] for name, rate in rates.items()]
    return format_table([text("ceilings", language), text("median", language)], rows)


def _format_rate(name: str, value: float) -> str:
    if name.startswith("copy"):
        return f"{value / 1e9:.1f} GB/s"
    return f"{value / 1e12:.2f} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.1f} GFLOP/s"


def _format_recipes(document: dict[str, Any], language: Language) -> list[str]:
    keys = ["recipe", "batch", "precision", "speed", "range", "step", "compiling"]
    if document["machine"]["kind"] == "cuda":
        keys += ["vram", "busy"]
    rows = [_format_recipe(one, language)[: len(keys)] for one in document["recipes"] if one["tokens_per_s"]]
    return format_table([text(key, language) for key in keys], rows)


def _format_recipe(one: dict[str, Any], language: Language) -> list[str]:
    """All columns, those of a GPU last."""
    speed, knobs = one["tokens_per_s"], one["knobs"]
    return [
        text(one["name"], language),
        f"{knobs['batch_size']} x {knobs['gradient_accumulation_steps']}",
        one["precision"],
        f"{speed['median']:,.0f}",
        f"{speed['min']:,.0f} – {speed['max']:,.0f}",
        f"{one['step_ms']['median']:,.1f}",
        _or_dash(one["compile_s"], "{:.1f}"),
        _or_dash(one["peak_vram"] and one["peak_vram"] / _GIB, "{:.2f}"),
        _or_dash(one["utilization"], "{:.0%}"),
    ]


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def notes(document: dict[str, Any], language: Language) -> list[str]:
    """The comparison, failures, and limits of the results."""
    lines = []
    times = document["times_as_fast"]
    if times:
        lines.append(text("times", language, median=times["median"], low=times["min"], high=times["max"]))
    for one in document["recipes"]:
        if one["error"]:
            why = format_message(one["error"]["code"], one["error"]["params"], language)
            lines.append(text("failed", language, name=text(one["name"], language), why=why))
    return lines + [text(key, language, **values) for key, values in document["notes"].items()]
