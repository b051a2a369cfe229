"""The result of a benchmark as one picture: speeds with their spread, what each fast path gains, ceilings."""

from __future__ import annotations

from typing import Any

from trainer_core import engine_words
from trainer_core.benchmark import svg, words
from trainer_core.messages import Language
from trainer_core.messages.engine import NOT_FOR_SPEED


def draw(document: dict[str, Any], language: Language) -> str:
    """An SVG of the document of result.py."""
    unit = words.text("speed", language)
    speeds = [
        svg.Bar(
            words.text(one["name"], language),
            one["tokens_per_s"]["median"],
            f"{one['tokens_per_s']['median']:,.0f} {unit}",
            one["tokens_per_s"]["min"],
            one["tokens_per_s"]["max"],
        )
        for one in document["recipes"]
        if one["tokens_per_s"]
    ]
    gains = [
        svg.Bar(words.path_name(one, language), one["gain"], engine_words.gain(one["gain"]))
        for one in document["fast_paths"]
        if one["gain"] and one["reason"] not in NOT_FOR_SPEED
    ]
    parts = [svg.bars(words.title(document, language), speeds)]
    if gains:
        parts.append(svg.bars(words.text("gains", language), gains, level=1.0))
    for kind in ("matmul", "copy"):
        found = [one for one in document["ceilings"] if one["name"].startswith(kind)]
        bars = [
            svg.Bar(
                words.ceiling_name(one["name"], language),
                one["median"],
                words.rate(one["name"], one["median"], one["best"]),
            )
            for one in found
        ]
        parts.append(svg.bars(words.text(f"ceilings_{kind}", language), bars))
    return svg.page(parts)
