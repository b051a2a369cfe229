"""Flags that commands share: one for every knob of `config.Config`, made from its definition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from trainer_core.config import Knob, knobs


def knob_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add a flag for every knob. Values stay text here: `config.resolve` checks and words them."""
    for knob in reversed(list(knobs().values())):
        if knob.name != "preset":
            command = _flag(knob)(command)
    no_mixed = click.option(
        "--no-mixed-precision", "mixed_precision", flag_value="no", help="The same as --mixed-precision no."
    )
    return no_mixed(command)


def _flag(knob: Knob) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    default = "" if knob.default in ("", []) else f" Default: {str(knob.default).lower()}."
    choices = f" One of: {', '.join(knob.choices)}." if knob.choices else ""
    unit = f" ({knob.unit})" if knob.unit else ""
    text = f"{knob.help}{unit}{choices}{default}"
    if knob.kind == "bool":
        off = knob.flag.replace("--", "--no-", 1)
        return click.option(f"{knob.flag}/{off}", knob.name, default=None, help=text)
    return click.option(knob.flag, knob.name, metavar=knob.kind.upper(), multiple=knob.kind == "list", help=text)


def source_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Flags that say where knobs come from and how to speak."""
    return origin_flags(output_flag(control_flag(command)))


def origin_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Flags that say where knobs come from."""
    file = click.option("--config", "config_file", type=click.Path(path_type=Path), help="A YAML file of knobs.")
    return click.option("--preset", help="Start from a preset; `presets` lists them.")(file(command))


output_flag = click.option(
    "--output",
    type=click.Choice(["auto", "json", "plain"]),
    default="auto",
    help="auto: words on a terminal, JSON lines otherwise.",
)
control_flag = click.option("--control", type=click.Choice(["stdin"]), help="Read commands as JSON lines on stdin.")
