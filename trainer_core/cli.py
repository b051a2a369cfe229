"""The command line: `python -m trainer_core COMMAND`. No command, only flags: `train`.

Every knob of `config.Config` is a flag of `train` and `prepare`, made from its definition. What needs
torch is imported inside the command that needs it, so that `--help`, `presets` and `runs` are quick.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from trainer_core import __version__, children, plans, presets, protocol, supervisor, usage
from trainer_core.config import knobs
from trainer_core.console import runs
from trainer_core.console.words import visible
from trainer_core.flags import control_flag, knob_flags, origin_flags, output_flag, source_flags
from trainer_core.job import Job, Output, choose_output
from trainer_core.messages import ExitCode, Language, TraindeckError, Value, terminal_language, word
from trainer_core.place import Place
from trainer_core.place import given as given_place
from trainer_core.runs import checkpoint_dir, run_dir, verifying

_TYPE_PROMPT: dict[Language, str] = {
    "en": "Type the prompt; end it with Ctrl+D (Ctrl+Z and Enter on Windows).",
    "zh": "请输入提示，以 Ctrl+D 结束（Windows 上为 Ctrl+Z 后回车）。",
}
_EXPORTED: dict[Language, str] = {"en": "Exported to {path}", "zh": "已导出到 {path}"}
_NOT_YET: dict[Language, str] = {
    "en": "{name}, the newest run, has no checkpoint yet.",
    "zh": "最新的运行 {name} 还没有检查点。",
}
_INTERRUPTED = 130  # Ctrl+C in a command that has nothing to save


class Commands(click.Group):
    """A group for which flags alone mean `train`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h", "--version"):
            args = ["train", *args]
        ctx.obj = args[1:]  # as they were given, for a child process
        return super().parse_args(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 110})
@click.version_option(__version__, prog_name="Traindeck")
def commands() -> None:
    """Train a language model on this machine. Flags without a command mean `train`."""


@commands.command()
@source_flags
@click.option("--run-dir", type=click.Path(path_type=Path), help="The run's folder. Default: runs/PRESET-TIME.")
@click.option("--resume", is_flag=False, flag_value="latest", help="Go on with a run, a checkpoint, or the latest run.")
@click.option("--supervisor", "watched_by", type=int, hidden=True)
@knob_flags
@click.pass_context
def train(ctx: click.Context, /, watched_by: int | None, **flags: Any) -> None:
    """Train, or go on with --resume."""
    if (place := _place_to_follow()) is not None:
        from trainer_core.train import following

        ctx.exit(following.of_launcher(place))
    if watched_by is None:
        _supervise(flags, ctx.obj)
    else:
        children.leave_with(watched_by, saving=True)
    with _job(flags) as job:
        plan = plans.plan(flags)  # a mistake is told before torch is loaded
        from trainer_core.train.start import train as start

        start(plan, job)
    ctx.exit(job.exit_code)


@commands.command(name="rank", hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--rank", "number", type=int, required=True)
@click.option("--of", "size", type=int, required=True)
@click.option("--leader", type=int, required=True)
@click.pass_context
def rank_command(ctx: click.Context, /, folder: Path, number: int, size: int, leader: int) -> None:
    """A process beside `train`, which starts it (`--ranks`)."""
    children.leave_with(leader)
    from trainer_core.train import following

    ctx.exit(following.of_folder(folder, Place(number, size), leader))


def _place_to_follow() -> Place | None:
    """Where `torchrun` started us beside the process that is spoken to."""
    with contextlib.suppress(TraindeckError):  # told where it is planned
        place = given_place()
        return place if place is not None and place.rank > 0 else None
    return None


@commands.command()
@source_flags
@click.option(
    "--preview", is_flag=True, help="Only look: what the data holds, from a part of it, in about ten seconds."
)
@knob_flags
@click.pass_context
def prepare(ctx: click.Context, /, preview: bool, **flags: Any) -> None:
    """Read the data, train its tokenizer and fill the token cache, without training a model; tell what is there."""
    with _job(flags) as job:
        config = plans.configuration(flags)
        from trainer_core.data.insight import report as insight
        from trainer_core.data.prepare import prepare as work

        job.session.enter("preparing")
        if preview:
            report = insight.preview(config, job.session)
        else:
            prepared = work(config, job.session)
            click.echo(f"{prepared.folder}", err=True)
            report = insight.of_prepared(prepared, config)
        insight.warn_of_duplicates(report, job.session)
        job.session.emit(report)
        job.session.enter("done")
    ctx.exit(job.exit_code)


@commands.command()
@source_flags
@click.option("--again", is_flag=True, help="Measure also what was measured before on this machine.")
@knob_flags
@click.pass_context
def check(ctx: click.Context, /, again: bool, **flags: Any) -> None:
    """Run some real steps: does it fit, how fast is it, what disk does it need? Exit code 5: it does not fit."""
    with _job(flags) as job:
        from trainer_core.checking import check as checking

        report = checking.check(plans.configuration(flags), job.session, again)
        job.session.emit(report)
        job.session.enter("done")
        job.exit_code = ExitCode.OUT_OF_MEMORY if report.verdict == "does_not_fit" else ExitCode.FINISHED
    ctx.exit(job.exit_code)


@commands.command()
@click.argument("model", default="latest")
@click.option("--prompt", help="What to go on from or to answer. Default: read from stdin.")
@click.option("--max-tokens", default=200, show_default=True, type=click.IntRange(1))
@click.option("--temperature", default=0.8, show_default=True, type=click.FloatRange(0, 5), help="0: the likeliest.")
@click.option("--top-k", default=0, show_default=True, type=click.IntRange(0), help="0: no limit.")
@click.option("--top-p", default=1.0, show_default=True, type=click.FloatRange(0, 1, min_open=True))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--device", default="auto", show_default=True)
@click.option(
    "--control",
    type=click.Choice(["stdin"]),
    help="Keep the model, and write whatever commands (JSON lines on stdin) ask for; answers are JSON lines, too.",
)
@output_flag
@click.pass_context
def generate(
    ctx: click.Context, /, model: str, prompt: str | None, device: str, control: str | None, output: str, **flags: Any
) -> None:
    """Let a trained model write. MODEL is a run, its name, a checkpoint folder, or `latest`."""
    if control is not None or output == "json":
        ctx.exit(_serve(model, prompt, device, control is not None, flags))
    from trainer_core import generate as writing
    from trainer_core.train.device import choose_device

    with _told_plainly():
        checkpoint = run_dir.find_checkpoint(model, run_dir.runs_root(), _warn)
        if model in ("", "latest"):
            _say_latest(checkpoint)
        loaded, codec = writing.load(checkpoint, choose_device(device))
        text = _prompt_of_terminal() if prompt is None else prompt
        max_tokens = flags.pop("max_tokens")
        how, chat = writing.Sampling(**flags), writing.is_chat(checkpoint)
        shown = visible if sys.stdout.isatty() else str
        click.echo("" if chat else shown(text), nl=False)  # a text goes on from its beginning; an answer stands alone
        for piece in writing.write_text(loaded, codec, text, max_tokens, how, chat):
            click.echo(shown(piece), nl=False)
        click.echo()


def _serve(model: str, prompt: str | None, device: str, stay: bool, sampling: dict[str, Any]) -> int:
    """Write for a program: what `prompt` asks for, and if `stay`, what commands do. Returns the exit code."""
    from trainer_core import generating

    text = prompt if prompt is not None or stay else _prompt_of_terminal()
    job = Job("json", stdin_commands=stay)
    writer = generating.Writer(job.session)
    with job:
        if text is not None and (refusal := writer.obey(protocol.Generate(prompt=text, **sampling))):
            raise TraindeckError("usage", problem=refusal)
        checkpoint = run_dir.find_checkpoint(model, run_dir.runs_root(), job.session.warn)
        generating.serve(writer, checkpoint, device, stay)
    return job.exit_code


def _prompt_of_terminal() -> str:
    if sys.stdin.isatty():
        click.echo(_TYPE_PROMPT[terminal_language()], err=True)
    return sys.stdin.read()


@commands.command()
@click.argument("model")
@click.argument("folder", type=click.Path(path_type=Path))
@output_flag
@control_flag
@click.option("--language", type=click.Choice(["en", "zh"]), help="Of the model card. Default: that of the terminal.")
@click.pass_context
def export(
    ctx: click.Context, /, model: str, folder: Path, output: str, control: str | None, language: Language | None
) -> None:
    """Write a trained model into FOLDER for other programs (Hugging Face layout). MODEL is a run, its name, a
    checkpoint folder, or `latest`; FOLDER must be empty or new."""
    with Job(choose_output(output), stdin_commands=control == "stdin") as job:
        from trainer_core import exporting

        checkpoint = run_dir.find_checkpoint(model, run_dir.runs_root(), job.session.warn)
        click.echo(f"{checkpoint} → {folder}", err=True)
        job.session.enter("saving")
        target = exporting.export(checkpoint, folder, job.session, language or terminal_language())
        job.session.enter("done")
        click.echo(_EXPORTED[terminal_language()].format(path=target), err=True)
    ctx.exit(job.exit_code)


def _warn(code: str, **params: Value) -> None:
    """Beside what a model writes."""
    click.secho(word(code, params, terminal_language()), fg="yellow", err=True)


def _say_latest(checkpoint: Path) -> None:
    """Say on stderr which checkpoint was taken, and which run is newer and has none."""
    newest = run_dir.find_run("latest", run_dir.runs_root()).path
    if newest != checkpoint.parent.parent:
        click.echo(_NOT_YET[terminal_language()].format(name=newest.name), err=True)
    click.echo(checkpoint, err=True)


@commands.command(name="presets")
@output_flag
def presets_command(output: str) -> None:
    """List the presets and the hardware that each fits."""
    with _told_plainly():
        found = [presets.load(name) for name in presets.names()]
    if choose_output(output) == "json" and output != "auto":
        for preset in found:
            document = {"name": preset.name, "title": preset.title, "summary": preset.summary, "fits": preset.fits}
            click.echo(json.dumps({**document, "knobs": preset.knobs}))
        return
    language = terminal_language()
    for preset in found:
        click.secho(preset.name, bold=True)
        click.echo(f"  {preset.text(preset.summary, language)}")
        click.echo(f"  {preset.text(preset.fits, language)}")


@commands.command(name="runs")
@click.argument("action", type=click.Choice(["list", "verify"]), default="list")
@click.argument("run", required=False)
@output_flag
@click.pass_context
def runs_command(ctx: click.Context, /, action: str, run: str | None, output: str) -> None:
    """List the runs on this machine, or verify checkpoints: `runs verify RUN`, where RUN is a run's name, its folder,
    or the folder of one checkpoint. Exit code 1: a file is not as it was written."""
    if action == "verify":
        with _told_plainly():
            found = verifying.checkpoints(run or "latest", run_dir.runs_root())
            if run in (None, "latest"):
                click.echo(run_dir.find_run("latest", run_dir.runs_root()).path, err=True)
        ctx.exit(_verify(found, output))
    summaries = run_dir.list_runs(run_dir.runs_root())
    if output != "json":
        click.echo(runs.as_text(summaries, run_dir.runs_root(), terminal_language()))
        return
    for summary in summaries:
        document = {name: getattr(summary, name) for name in ("name", "resumable", *summary.__slots__)}
        click.echo(json.dumps({**document, "path": str(summary.path)}))


def _verify(folders: list[Path], output: str) -> int:
    damaged = False
    for folder in folders:
        problems = checkpoint_dir.check_files(folder)
        damaged = damaged or any(problems.values())
        as_text = verifying.as_text(folder, problems, terminal_language())
        click.echo(verifying.as_json(folder, problems) if output == "json" else as_text)
    return ExitCode.FAILED if damaged else ExitCode.FINISHED


@commands.command()
@output_flag
@click.option(
    "--fast-paths",
    "try_paths",
    is_flag=True,
    help="Instead try each fast way to compute: is it there, equal to the reference, and how much faster? "
    "About a minute; runs remember it.",
)
@click.pass_context
def doctor(ctx: click.Context, /, output: str, try_paths: bool) -> None:
    """Look at Python, torch, driver, GPU, memory and disk, and say what to do about each finding."""
    from trainer_core import doctor as doctoring

    if try_paths and _torch_loads():
        _try_fast_paths(output)
        return
    findings = doctoring.examine(run_dir.home())
    if output == "json":
        click.echo(json.dumps([finding.document() for finding in findings]))
    else:
        click.echo(doctoring.render(findings, terminal_language()))
    ctx.exit(ExitCode.FAILED if try_paths else ExitCode.FINISHED)  # nothing could be tried; the findings say why


def _torch_loads() -> bool:
    try:
        importlib.import_module("torch")
    except Exception:  # noqa: BLE001 - a library's import can raise anything
        return False
    return True


def _try_fast_paths(output: str) -> None:
    """Words on stderr while it goes on, so that stdout holds the result alone. Ctrl+C ends it."""
    with _told_plainly():
        from trainer_core.benchmark import result, words
        from trainer_core.console import engine as console_engine
        from trainer_core.train.device import choose_device, describe
        from trainer_core.train.engine import fast_paths

        language = terminal_language()
        device = choose_device("auto")

        def say(line: str) -> None:
            click.echo(line, err=True)

        say(describe(device))
        if (busy := result.busy()) > words.NOISY:
            say(words.text("others", language, share=busy))
        found = fast_paths.measure(device, console_engine.Trying(say, language))
        if output == "json":
            click.echo(json.dumps([result.path(path) for path in found]))
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
            click.echo("\n".join(["", *console_engine.path_table(found, language, width)]))


@commands.command()
@origin_flags
@output_flag
@click.option(
    "--seconds", type=click.FloatRange(1), help="About how long it may take. Default: 120 on a CPU, 300 on a GPU."
)
@knob_flags
def bench(output: str, seconds: float | None, **flags: Any) -> None:
    """Measure this machine: the preset, the untuned recipe against the tuned one, fast paths, and what the hardware
    reaches at most."""
    with _told_plainly():
        flags["preset"] = flags["preset"] or (None if flags["config_file"] else "quickstart")
        config = plans.configuration(flags)
        from trainer_core.benchmark import run as benchmark
        from trainer_core.benchmark import words

        language = terminal_language()
        given = [name for name in knobs() if flags.get(name) not in (None, ())]
        document = benchmark.Bench(config, language, lambda line: click.echo(line, err=True), seconds, given).run()
        paths = benchmark.save(document, language)
        if output == "json":
            click.echo(json.dumps({**document, "files": list(map(str, paths))}))
        else:
            saved = [words.text("saved", language, path=path) for path in paths]
            click.echo("\n".join([words.render(document, language), *saved]))


def _supervise(flags: dict[str, Any], arguments: Sequence[str]) -> None:
    """Train in a child process that is started again after a failure that passes. Returns where none is wanted."""
    if flags["control"] is not None:  # whoever gives commands restarts by himself
        return
    try:
        plan = plans.plan(flags)
    except TraindeckError:  # the same plan fails again where it is told
        return
    if supervisor.is_wanted(plan):
        supervisor.end_as(supervisor.run(plan, arguments, choose_output(flags["output"])))


# --- failures --------------------------------------------------------------------------------------


def _job(flags: dict[str, Any]) -> Job:
    return Job(choose_output(flags["output"]), stdin_commands=flags["control"] == "stdin")


@contextlib.contextmanager
def _told_plainly() -> Any:
    """For commands without a wire: a failure is one sentence on stderr and its exit code."""
    try:
        yield
    except TraindeckError as error:
        click.secho(word(error.code, error.params, terminal_language()), fg="red", err=True)
        sys.exit(error.exit_code)


def _refuse(error: click.ClickException, arguments: Sequence[str]) -> NoReturn:
    """A usage error in our words: for people, or as an event where a program reads."""
    told = usage.refusal(error)
    wanted = "auto"
    parts = [part for argument in arguments for part in argument.split("=", 1)]  # --output=json too
    for flag, value in itertools.pairwise(parts):
        wanted = value if flag == "--output" else wanted
    output: Output = choose_output(wanted)
    job = Job(output)
    with job:
        raise told
    sys.exit(job.exit_code)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = commands.main(given, prog_name="traindeck", standalone_mode=False)
    except click.ClickException as error:
        _refuse(error, given)
    except click.exceptions.Exit as finished:
        code = finished.exit_code
    except click.Abort:
        code = _INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)
