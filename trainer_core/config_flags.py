"""Flags shared by commands: one for every knob of `config.Config`, generated from its definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from trainer_core import texts
from trainer_core.config import Knob, knobs

_DATA_KNOBS: Final = (
    "data", "data_format", "task", "text_column", "prompt_column", "response_column", "input_column", "system_column",
    "messages_column", "validation_fraction",
)  # fmt: skip


def knob_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add a flag for every knob. Values stay text: `config.resolve` checks them."""
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
    text = f"{texts.get(f'knob.{knob.name}.help', 'en')}{unit}{choices}{default}"
    if knob.kind == "bool":
        off = knob.flag.replace("--", "--no-", 1)
        return click.option(f"{knob.flag}/{off}", knob.name, default=None, help=text)
    return click.option(knob.flag, knob.name, metavar=knob.kind.upper(), multiple=knob.kind == "list", help=text)


def data_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add a flag for each knob that says how data are read."""
    return _flags(_DATA_KNOBS, command)


def hub_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Flags for a mirror of the Hugging Face Hub."""
    return _flags(("hub_endpoint", "hub_send_token"), command)


def _flags(names: Sequence[str], command: Callable[..., Any]) -> Callable[..., Any]:
    for name in reversed(names):
        command = _flag(knobs()[name])(command)
    return command


def common_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Flags for the source of knobs and for output."""
    return config_flags(output_flag(control_flag(command)))


def run_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Flags of every command that trains."""
    command = click.option(
        "--resume", is_flag=False, flag_value="latest", help="Resume a run, a checkpoint, or the latest run."
    )(knob_flags(command))
    run_path = click.Path(path_type=Path)
    return common_flags(
        click.option("--run-dir", type=run_path, help="The run's folder. Default: runs/PRESET-TIME.")(command)
    )


def config_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Flags for the source of knobs."""
    file = click.option("--config", "config_file", type=click.Path(path_type=Path), help="A YAML file of knobs.")
    return click.option("--preset", help="Start from a preset; `presets` lists them.")(file(command))


output_flag = click.option(
    "--output",
    type=click.Choice(["auto", "json", "plain"]),
    default="auto",
    help="auto: words on a terminal, JSON lines otherwise.",
)
control_flag = click.option("--control", type=click.Choice(["stdin"]), help="Read commands as JSON lines on stdin.")
