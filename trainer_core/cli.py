"""Command line: `python -m trainer_core COMMAND`. Flags without a command: `train`.

Every knob of `config.Config` is a flag of `train` and `prepare`. Modules that need torch are imported inside commands,
so that `--help`, `presets`, `models` and `runs` are fast.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from trainer_core import __version__, cli_inference, cli_remote, presets, rank_info, run_plan, supervisor
from trainer_core.base_model import catalogue
from trainer_core.cli_errors import exit_with_usage_error
from trainer_core.command_runner import CommandContext, choose_output
from trainer_core.config import knobs
from trainer_core.config_flags import common_flags, config_flags, knob_flags, output_flag, run_flags
from trainer_core.console import models, runs
from trainer_core.messages import ExitCode, TraindeckError, format_message, terminal_language
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.supervisor import Supervisor
from trainer_core.system import child_process

_EXIT_CODE_SIGINT = 130  # Ctrl+C in a command that has nothing to save


class CommandGroup(click.Group):
    """A group that treats flags without a command as `train`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h", "--version"):
            args = ["train", *args]
        ctx.obj = args[1:]  # unparsed, for a child process
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Print the errors of commands without events."""
        try:
            return super().invoke(ctx)
        except TraindeckError as error:
            click.secho(format_message(error.code, error.params, terminal_language()), fg="red", err=True)
            ctx.exit(error.exit_code)


def _with_dashes(name: str) -> str:
    """Flags as other trainers spell them: `--batch_size`."""
    return name.replace("_", "-")


@click.group(
    cls=CommandGroup,
    context_settings={
        "help_option_names": ["--help", "-h"],
        "max_content_width": 110,
        "token_normalize_func": _with_dashes,
    },
)
@click.version_option(__version__, prog_name="Traindeck")
def commands() -> None:
    """Train a language model on this machine. Flags without a command mean `train`."""


@commands.command()
@click.option("--supervisor", "supervisor_pid", type=int, hidden=True)
@run_flags
@click.pass_context
def train(ctx: click.Context, /, supervisor_pid: int | None, **flags: Any) -> None:
    """Train, or resume a run with --resume."""
    info = rank_info.from_environment()
    if info is not None and info.rank:
        from trainer_core.train.worker import train_worker

        ctx.exit(train_worker(info))
    if supervisor_pid is None:
        _supervise(flags, ctx.obj)
    else:
        child_process.exit_with_parent(supervisor_pid if info is None else os.getppid(), graceful=True)
    with _command_context(flags) as job:
        plan = run_plan.plan_run(flags)  # report mistakes before torch is loaded
        from trainer_core.check.command import choose_settings
        from trainer_core.train.build import train as start

        start(plan, job, choose_settings)
    # An elastic agent would restart a run that was stopped on request
    ctx.exit(0 if job.exit_code == ExitCode.STOPPED and rank_info.is_elastic() else job.exit_code)


@commands.command()
@common_flags
@click.option("--preview", is_flag=True, help="Only report on a part of the data; about ten seconds.")
@knob_flags
@click.pass_context
def prepare(ctx: click.Context, /, preview: bool, **flags: Any) -> None:
    """Read the data, train its tokenizer, fill the token cache and report on the data.

    Trains no model, except for a base model preset:NAME that does not exist yet.
    """
    with _command_context(flags) as job:
        config = run_plan.build_config(flags)
        from trainer_core.base_model.configure import apply_base_model
        from trainer_core.data.prepare import prepare as work
        from trainer_core.data.report import report as data_report

        job.run_context.set_phase("preparing")
        config = apply_base_model(config, job.run_context)
        if preview:
            report = data_report.preview(config, job.run_context)
        else:
            prepared = work(config, job.run_context)
            click.echo(f"{prepared.folder}", err=True)
            report = data_report.report_prepared_data(prepared, config)
        data_report.warn_about_duplicates(report, job.run_context)
        job.run_context.emit(report)
        job.run_context.set_phase("done")
    ctx.exit(job.exit_code)


@commands.command()
@common_flags
@click.option("--again", is_flag=True, help="Repeat measurements that are cached.")
@knob_flags
@click.pass_context
def check(ctx: click.Context, /, again: bool, **flags: Any) -> None:
    """Run a few training steps to measure memory, speed and disk space. Exit code 5: the memory is too small."""
    with _command_context(flags) as job:
        from trainer_core.check import command as checking

        report = checking.run_check(run_plan.build_config(flags), job.run_context, again)
        job.run_context.emit(report)
        job.run_context.set_phase("done")
        job.exit_code = ExitCode.OUT_OF_MEMORY if report.verdict == "does_not_fit" else ExitCode.FINISHED
    ctx.exit(job.exit_code)


@commands.command(name="presets")
@output_flag
def presets_command(output: str) -> None:
    """List the presets and the hardware that each fits."""
    language = terminal_language()
    for preset in map(presets.load, presets.names()):
        if output == "json":
            fields = ("name", "title", "summary", "fits", "knobs")
            click.echo(json.dumps({field: getattr(preset, field) for field in fields}))
            continue
        click.secho(preset.name, bold=True)
        click.echo(f"  {preset.localized(preset.summary, language)}")
        click.echo(f"  {preset.localized(preset.fits, language)}")


@commands.command(name="models")
@output_flag
def models_command(output: str) -> None:
    """List models to fine-tune, and the GPU memory for each."""
    entries = catalogue.load()
    if output == "json":
        click.echo("\n".join(json.dumps(models.to_document(entry)) for entry in entries))
    else:
        click.echo(models.format_models(entries, terminal_language()))


@commands.command(name="runs")
@click.argument("action", type=click.Choice(["list", "verify"]), default="list")
@click.argument("run", required=False)
@output_flag
@click.pass_context
def runs_command(ctx: click.Context, /, action: str, run: str | None, output: str) -> None:
    """List the runs on this machine, or verify checkpoints: `runs verify RUN`, where RUN is a run's name, its folder,
    or the folder of one checkpoint. Exit code 1: a file is damaged."""
    if action == "verify":
        ctx.exit(_verify(run or "latest", output))
    summaries = run_dir.list_runs(run_dir.runs_root())
    if output != "json":
        click.echo(runs.format_runs(summaries, run_dir.runs_root(), terminal_language()))
        return
    for summary in summaries:
        document = {name: getattr(summary, name) for name in ("name", "resumable", *summary.__slots__)}
        click.echo(json.dumps({**document, "path": str(summary.path)}))


def _verify(reference: str, output: str) -> int:
    """Compare the checkpoints of a run, or one checkpoint, with their manifests. Returns the exit code."""
    folders, damaged = [Path(reference).resolve()], False
    if not (folders[0].is_dir() and checkpoint_dir.is_checkpoint(folders[0])):
        run = run_dir.find_run(reference, run_dir.runs_root())
        if reference == "latest":
            click.echo(run.path, err=True)
        folders = checkpoint_dir.list_checkpoints(run.checkpoints)
    for folder in folders:
        problems = checkpoint_dir.verify_files(folder)
        intact = not any(problems.values())
        damaged = damaged or not intact
        document = {"checkpoint": folder.name, "path": str(folder), "intact": intact, "files": problems}
        as_text = runs.format_verification(folder.name, problems, terminal_language())
        click.echo(json.dumps(document) if output == "json" else as_text)
    return ExitCode.FAILED if damaged else ExitCode.FINISHED


@commands.command()
@output_flag
@click.option(
    "--fast-paths",
    "try_paths",
    is_flag=True,
    help="Compare each fast path with the reference instead. About a minute; results are stored for runs.",
)
@click.pass_context
def doctor(ctx: click.Context, /, output: str, try_paths: bool) -> None:
    """Check Python, torch, driver, GPU, memory and disk, and suggest an action for each finding."""
    from trainer_core.system.doctor.report import diagnose, format_findings

    if try_paths and _torch_loads():
        _measure_fast_paths(output)
        return
    findings = diagnose(run_dir.home())
    if output == "json":
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        click.echo(format_findings(findings, terminal_language()))
    ctx.exit(ExitCode.FAILED if try_paths else ExitCode.FINISHED)  # torch cannot be imported; the findings say why


def _torch_loads() -> bool:
    try:
        importlib.import_module("torch")
    except Exception:  # noqa: BLE001 - a library's import can raise anything
        return False
    return True


def _measure_fast_paths(output: str) -> None:
    """Progress goes to stderr, so that stdout holds only the result. Ctrl+C ends it."""
    from trainer_core.benchmark import run as benchmark
    from trainer_core.benchmark import tables
    from trainer_core.console import performance as console
    from trainer_core.progress import NullReporter
    from trainer_core.train.device import choose_device, describe_device
    from trainer_core.train.engine import fast_paths

    language = terminal_language()
    device = choose_device("auto")
    log = functools.partial(click.echo, err=True)
    log(describe_device(device))
    if (busy := benchmark.cpu_load()) > tables.NOISY:
        log(tables.text("others", language, share=busy))
    found = fast_paths.measure(device, NullReporter(), lambda name: log(console.format_measuring(name, language)))
    if output == "json":
        click.echo(msgspec.json.encode(found).decode())
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        click.echo("\n".join(["", *console.format_fast_path_table(found, language, width)]))


@commands.command()
@config_flags
@output_flag
@click.option("--seconds", type=click.FloatRange(1), help="Approximate duration. Default: 120 on a CPU, 300 on a GPU.")
@knob_flags
def bench(output: str, seconds: float | None, **flags: Any) -> None:
    """Measure this machine: the preset untuned and tuned, fast paths, and the limits of the hardware."""
    flags["preset"] = flags["preset"] or (None if flags["config_file"] else "quickstart")
    config = run_plan.build_config(flags)
    from trainer_core.benchmark import run as benchmark
    from trainer_core.benchmark import tables

    language = terminal_language()
    given = [name for name in knobs() if flags.get(name) not in (None, ())]
    document = benchmark.run(config, language, lambda line: click.echo(line, err=True), seconds, given)
    path = benchmark.save(document)
    if output == "json":
        click.echo(json.dumps({**document, "files": [str(path)]}))
    else:
        click.echo(f"{tables.render(document, language)}\n{tables.text('saved', language, path=path)}")


def _supervise(flags: dict[str, Any], arguments: Sequence[str]) -> None:
    """Train in a supervised child process. Returns if no supervisor is needed."""
    try:
        plan = run_plan.plan_run(flags)
    except TraindeckError:  # the same plan fails again where it is reported
        return
    controlled = flags["control"] is not None  # the controlling program restarts runs itself
    if supervisor.is_enabled(plan) and (not controlled or plan.config.nproc_per_node > 1):
        restarts = 0 if controlled else plan.config.restarts
        output = choose_output(flags["output"])
        supervisor.exit_like_child(Supervisor(plan, arguments, output, restarts=restarts).run())


def _command_context(flags: dict[str, Any]) -> CommandContext:
    return CommandContext(choose_output(flags["output"]), stdin_commands=flags["control"] == "stdin")


commands.add_command(cli_inference.generate)
commands.add_command(cli_inference.serve)
commands.add_command(cli_inference.export)
commands.add_command(cli_inference.push)
commands.add_command(cli_inference.evaluate)
commands.add_command(cli_remote.remote)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0].startswith("--local_rank="):  # from DeepSpeed's launcher, which sets LOCAL_RANK, too
        del given[0]
    try:
        code = commands.main(given, prog_name="traindeck", standalone_mode=False)
    except click.ClickException as error:
        exit_with_usage_error(error, given)
    except click.exceptions.Exit as finished:
        code = finished.exit_code
    except click.Abort:
        code = _EXIT_CODE_SIGINT
    sys.exit(code if isinstance(code, int) else 0)
