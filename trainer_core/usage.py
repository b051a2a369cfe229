"""Mistakes on the command line in words: what click says in English, as errors of ours in either language."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from trainer_core import plans
from trainer_core.config import unknown_key
from trainer_core.messages import Language, TraindeckError, terminal_language

_CHINESE: Final[tuple[tuple[str, str], ...]] = (
    (r"No such command '(.*?)'\. \(Did you mean(?: one of:)? (.*)\?\)", "没有命令“{0}”。是否想输入：{1}？"),
    (r"No such command ['\"]?(.*?)['\"]?\.?", "没有命令“{0}”。"),
    (r"Missing command\.?", "缺少命令。"),
    (r"Got unexpected extra arguments? \((.*)\)", "多余的参数：{0}。"),
    (r"Option '(.*)' requires an argument\.?", "“{0}”需要一个值。"),
    (r"Option '(.*)' requires (\d+) arguments\.?", "“{0}”需要 {1} 个值。"),
    (r"Option '(.*)' does not take a value\.?", "“{0}”不带值。"),
    (r"Missing (?:argument|option|parameter)(?: '(.*)')?\..*", "缺少“{0}”。"),
)
"""What click says, and the same in Chinese. Its exceptions carry no codes; what is not known stays as it is."""
_GIVEN: Final = re.compile(r"'?(.*?)'? is not .*", re.DOTALL)


def refusal(error: click.ClickException) -> TraindeckError:
    """The error that is told for one of click's."""
    if isinstance(error, click.NoSuchOption):
        return unknown_key(plans.where(), error.option_name, _option_names(error.ctx))
    if isinstance(error, click.BadParameter) and error.param is not None:
        given, allowed = _GIVEN.fullmatch(error.message), _allowed(error.param.type)
        if given is not None and allowed:
            name = error.param.opts[0]
            shown = f"“{given[1]}”"
            return TraindeckError("config.bad_value", where=plans.where(), name=name, given=shown, allowed=allowed)
    return TraindeckError("usage", problem=problem(error.format_message(), terminal_language()))


def problem(said: str, language: Language) -> str:
    """What click says, in `language`."""
    if language == "zh":
        for pattern, chinese in _CHINESE:
            found = re.fullmatch(pattern, said, re.DOTALL)
            if found is not None:
                return chinese.format(*(group or "" for group in found.groups()))
    return said


def _allowed(kind: click.ParamType[Any]) -> str:
    """The values of a flag's type, as `Knob.allowed` writes them; empty where they cannot be listed."""
    if isinstance(kind, click.Choice):
        return ", ".join(map(str, kind.choices))
    if isinstance(kind, click.IntRange | click.FloatRange):
        low = "" if kind.min is None else f"{'>' if kind.min_open else '>='} {kind.min}"
        high = "" if kind.max is None else f"{'<' if kind.max_open else '<='} {kind.max}"
        return ", ".join(filter(None, (low, high)))
    return ""


def _option_names(ctx: click.Context | None) -> list[str]:
    parameters = ctx.command.params if ctx is not None else []
    return [name for parameter in parameters for name in [*parameter.opts, *parameter.secondary_opts]]
