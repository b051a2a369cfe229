"""Commands `remote ...`: training on another machine. `cli` adds them to its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from trainer_core.command_reader import CommandReader
from trainer_core.command_runner import CommandContext, choose_output
from trainer_core.config_flags import control_flag, output_flag, run_flags
from trainer_core.remote import command, keeper
from trainer_core.remote.host import DEFAULT_FOLDER
from trainer_core.runs.run_dir import RunDir
from trainer_core.wire import claim_stdout


@click.group()
def remote() -> None:
    """Train on another machine over ssh."""


_folder_flag = click.option("--folder", default=DEFAULT_FOLDER, show_default=True, help="Of Traindeck there.")


@remote.command()
@click.argument("host")
@_folder_flag
@output_flag
@control_flag
@click.pass_context
def check(ctx: click.Context, /, host: str, folder: str, output: str, control: str | None) -> None:
    """Check Python, GPUs and disk of HOST, as ssh calls it."""
    with CommandContext(choose_output(output), stdin_commands=control == "stdin") as job:
        command.check(host, folder, job)
    ctx.exit(job.exit_code)


@remote.command()
@click.argument("host")
@_folder_flag
@run_flags
@click.pass_context
def train(ctx: click.Context, /, host: str, folder: str, **flags: Any) -> None:
    """Train on HOST: install Traindeck there, send the data, follow the run and bring it here."""
    with CommandContext(choose_output(flags["output"]), stdin_commands=flags["control"] == "stdin") as job:
        command.train(host, folder, flags, job)
    ctx.exit(job.exit_code)


@remote.command()
@click.argument("run", default="latest")
@output_flag
@control_flag
@click.pass_context
def resume(ctx: click.Context, /, run: str, output: str, control: str | None) -> None:
    """Follow a run on another machine again; resume it there if it has ended early."""
    with CommandContext(choose_output(output), stdin_commands=control == "stdin") as job:
        command.resume(run, job)
    ctx.exit(job.exit_code)


@remote.command()
@click.argument("run", default="latest")
@output_flag
@control_flag
@click.pass_context
def fetch(ctx: click.Context, /, run: str, output: str, control: str | None) -> None:
    """Bring the checkpoints of a run on another machine here, also while it trains."""
    with CommandContext(choose_output(output), stdin_commands=control == "stdin") as job:
        command.fetch(run, job)
    ctx.exit(job.exit_code)


# --- on the other machine, called over ssh ---------------------------------------------------------------

_FAR_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_run_argument = click.argument("folder", type=click.Path(path_type=Path))


@remote.command(hidden=True, context_settings=_FAR_SETTINGS)
@_run_argument
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def start(folder: Path, arguments: tuple[str, ...]) -> None:
    """Start `train ARGUMENTS` of the run in FOLDER, and return."""
    keeper.start(RunDir(folder.absolute()), arguments)


@remote.command(hidden=True)
@run_flags
@click.pass_context
def keep(ctx: click.Context, /, **flags: Any) -> None:
    """Supervise training. `start` starts it."""
    ctx.exit(keeper.keep(flags, ctx.obj[1:]))


@remote.command(hidden=True)
@_run_argument
@click.option("--after", type=click.IntRange(0), default=0, help="Bytes of events.jsonl that are known.")
@click.option("--once", is_flag=True, help="Do not wait for the end.")
def follow(folder: Path, after: int, once: bool) -> None:
    """Copy events.jsonl to stdout, forward commands from stdin, and describe the end on stderr."""
    end = keeper.follow(RunDir(folder.absolute()), after, claim_stdout(), None if once else CommandReader())
    if end is not None:
        sys.stderr.write(f"{json.dumps(end)}\n")
