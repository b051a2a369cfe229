"""Message codes for errors of click."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

from trainer_core import run_plan
from trainer_core.command_runner import CommandContext, choose_output
from trainer_core.config import unknown_key_error
from trainer_core.messages import TraindeckError, terminal_language
from trainer_core.texts import get

_GIVEN_PATTERN: Final = re.compile(r"'?(.*?)'? is not .*", re.DOTALL)


def exit_with_usage_error(error: click.ClickException, arguments: Sequence[str]) -> NoReturn:
    """Report a usage error as text, or as an event for programs."""
    output = "auto"
    parts = [part for argument in arguments for part in argument.split("=", 1)]  # also for --output=json
    for flag, value in itertools.pairwise(parts):
        output = value if flag == "--output" else output
    job = CommandContext(choose_output(output))
    with job:
        raise to_traindeck_error(error)
    sys.exit(job.exit_code)


def to_traindeck_error(error: click.ClickException) -> TraindeckError:
    """Return the error with a message code for an error of click."""
    if isinstance(error, click.NoSuchOption):
        return unknown_key_error(run_plan.command_line_label(), error.option_name, _option_names(error.ctx))
    if isinstance(error, click.BadParameter) and error.param is not None:
        given, allowed = _GIVEN_PATTERN.fullmatch(error.message), _allowed_values(error.param.type)
        if given is not None and allowed:
            name = error.param.opts[0]
            shown = f"“{given[1]}”"
            return TraindeckError(
                "config.bad_value", where=run_plan.command_line_label(), name=name, given=shown, allowed=allowed
            )
    return TraindeckError("usage", problem=_format_problem(error))


def _format_problem(error: click.ClickException) -> str:
    """Return what is wrong in the language of the terminal, or click's own text for an error without a type."""
    language = terminal_language()
    match error:
        case click.NoSuchCommand(possibilities=[_, *_]):
            suggestions = ", ".join(error.possibilities or [])
            return get("cli.similar_commands", language, name=error.command_name, suggestions=suggestions)
        case click.NoSuchCommand():
            return get("cli.no_such_command", language, name=error.command_name)
        case click.MissingParameter(param=click.Parameter()):
            return get("cli.missing_parameter", language, name=error.param.opts[0] if error.param else "")
        case click.BadOptionUsage():
            options = [] if error.ctx is None else error.ctx.command.params
            flags = [name for option in options if getattr(option, "is_flag", False) for name in option.opts]
            key = "cli.takes_no_value" if error.option_name in flags else "cli.needs_value"
            return get(key, language, name=error.option_name)
    message = error.format_message()
    head, _, arguments = message.rstrip(").").partition("(")
    return get("cli.extra_arguments", language, arguments=arguments) if "unexpected extra" in head else message


def _allowed_values(kind: click.ParamType[Any]) -> str:
    """Return the allowed values of a flag as `Knob.allowed` does, or an empty string."""
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
