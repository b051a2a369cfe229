"""Commands that use a trained model: `generate`, `serve`, `export`, `push`, `evaluate`. `cli` adds them to its own."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Any, Final

import click

from trainer_core import protocol, run_plan, texts
from trainer_core.command_runner import CommandContext, choose_output
from trainer_core.config_flags import control_flag, data_flags, hub_flags, output_flag
from trainer_core.console.events import escape_control_characters
from trainer_core.export.job import Format, Quantization
from trainer_core.messages import ExitCode, Language, TraindeckError, Value, format_message, terminal_language
from trainer_core.progress import Reporter, Unit
from trainer_core.protocol import PhaseName
from trainer_core.runs import run_dir

_LOOPBACK: Final = "127.0.0.1"
_HOSTS: Final = f"{_LOOPBACK}, ::1, 0.0.0.0"


@click.command()
@click.argument("model", default="latest")
@click.option("--prompt", help="Text to continue or to answer. Default: stdin.")
@click.option("--max-tokens", default=200, show_default=True, type=click.IntRange(1))
@click.option("--temperature", default=0.8, show_default=True, type=click.FloatRange(0, 5), help="0: greedy.")
@click.option("--top-k", default=0, show_default=True, type=click.IntRange(0), help="0: no limit.")
@click.option("--top-p", default=1.0, show_default=True, type=click.FloatRange(0, 1, min_open=True))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--device", default="auto", show_default=True)
@click.option("--base", is_flag=True, help="Use the model that the run began with, with the run's chat template.")
@click.option(
    "--control",
    type=click.Choice(["stdin"]),
    help="Keep the model loaded and generate on commands: JSON lines on stdin, answered by JSON lines on stdout.",
)
@output_flag
@click.pass_context
def generate(
    ctx: click.Context,
    /,
    model: str,
    prompt: str | None,
    device: str,
    base: bool,
    control: str | None,
    output: str,
    **flags: Any,
) -> None:
    """Generate text. MODEL is a run, its name, a checkpoint, `latest`, a model folder, or a model of the Hugging Face
    Hub such as Qwen/Qwen3-0.6B."""
    if control is not None or output == "json":
        ctx.exit(_serve(model, prompt, device, base, control is not None, flags))
    from trainer_core.generation import generate as generation
    from trainer_core.generation.model_source import find_model
    from trainer_core.generation.server import translate_oom
    from trainer_core.train.device import choose_device, describe_device

    source, chosen = find_model(model, _Terminal(), base), choose_device(device)
    if model in ("", "latest") and source.checkpoint is not None:  # report which is used, and a newer run without one
        newest = run_dir.find_run("latest", run_dir.runs_root()).path
        if newest != source.checkpoint.parent.parent:
            click.echo(texts.get("console.no_checkpoint", terminal_language(), name=newest.name), err=True)
        click.echo(source.folder, err=True)
    with translate_oom(describe_device(chosen)):
        loaded, codec, chat = generation.load_model(source, chosen, for_generation=True)
    text = _read_prompt() if prompt is None else prompt
    max_tokens = flags.pop("max_tokens")
    sampling = generation.SamplingParams(**flags)
    shown = escape_control_characters if sys.stdout.isatty() else str
    click.echo("" if chat else shown(text), nl=False)  # a text continues the prompt; an answer stands alone
    with translate_oom(describe_device(chosen)):
        for piece in generation.generate_text(loaded, codec, text, max_tokens, sampling, chat):
            click.echo(shown(piece), nl=False)
    click.echo()


def _serve(model: str, prompt: str | None, device: str, base: bool, keep_alive: bool, sampling: dict[str, Any]) -> int:
    """Generate for a program: from `prompt`, then with `keep_alive` on commands. Returns the exit code."""
    from trainer_core.generation import server
    from trainer_core.generation.model_source import find_model

    text = prompt if prompt is not None or keep_alive else _read_prompt()
    job = CommandContext("json", stdin_commands=keep_alive)
    generator = server.GenerationServer(job.run_context)
    with job:
        if text is not None and (reason := generator.handle_command(protocol.Generate(prompt=text, **sampling))):
            raise TraindeckError("usage", problem=reason)
        generator.serve(find_model(model, job.run_context, base), device, keep_alive)
    return job.exit_code


def _read_prompt() -> str:
    if sys.stdin.isatty():
        click.echo(texts.get("console.type_prompt", terminal_language()), err=True)
    return sys.stdin.read()


@click.command()
@click.argument("model")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["hf", "peft", "gguf", "gguf-adapter"]),
    default="hf",
    show_default=True,
    help="hf: folder for transformers. gguf: one file for LM Studio, Ollama and llama.cpp. "
    "peft, gguf-adapter: only the adapter of a LoRA run.",
)
@click.option(
    "--quantization",
    type=click.Choice(["f32", "f16", "bf16", "q8_0", "q4_k_m", "q5_k_m", "q6_k"]),
    help="Of the weights. hf and gguf-adapter: f32, f16 or bf16. Default: that of the checkpoint; gguf: q8_0; "
    "gguf-adapter: f32.",
)
@output_flag
@control_flag
@click.option("--language", type=click.Choice(["en", "zh"]), help="Of the model card. Default: that of the terminal.")
@click.option(
    "--verify/--no-verify", default=True, help="Compare the exported model with the checkpoint. Default: yes."
)
@click.pass_context
def export(
    ctx: click.Context,
    /,
    model: str,
    folder: Path,
    form: Format,
    quantization: Quantization | None,
    output: str,
    control: str | None,
    language: Language | None,
    verify: bool,
) -> None:
    """Write a trained model into FOLDER for other programs. MODEL is a run, its name, a checkpoint folder, or
    `latest`; FOLDER must be empty or new. A LoRA adapter is merged into its base model."""
    with CommandContext(choose_output(output), stdin_commands=control == "stdin") as job:
        from trainer_core.export import command, usage
        from trainer_core.export.verification.verify import emit_result

        checkpoint = run_dir.find_checkpoint(model, run_dir.runs_root(), job.run_context.warn)
        click.echo(f"{checkpoint} → {folder}", err=True)
        job.run_context.set_phase("saving")
        exported = command.export(
            checkpoint, folder, job.run_context, language or terminal_language(), form, quantization, verify
        )
        click.echo(texts.get("console.exported", terminal_language(), path=exported.folder), err=True)
        if verify:
            emit_result(exported.folder, job.run_context)
        for line in usage.usage_lines(exported):
            click.echo(f"  {line}", err=True)
        job.run_context.set_phase("done")
    ctx.exit(job.exit_code)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("repository", default="")
@click.option("--public", is_flag=True, help="Let everyone read the model. Default: private.")
@click.option("--yes", is_flag=True, help="Upload without asking.")
@click.option("--dry-run", is_flag=True, help="Only show what would be uploaded.")
@click.option("--allow-unverified", is_flag=True, help="Also upload an export that is not verified.")
@hub_flags
@output_flag
@control_flag
@click.pass_context
def push(
    ctx: click.Context,
    /,
    folder: Path,
    repository: str,
    public: bool,
    yes: bool,
    dry_run: bool,
    allow_unverified: bool,
    hub_endpoint: str | None,
    hub_send_token: bool | None,
    output: str,
    control: str | None,
) -> None:
    """Upload an export to the Hugging Face Hub, after showing what, and asking. FOLDER is what `export` wrote;
    REPOSITORY is ORG/NAME, or a name for your own account. Log in first: `hf auth login`."""
    form = choose_output(output)
    with CommandContext(form, stdin_commands=control == "stdin") as job:
        from trainer_core.export import push as pushing

        prepared = pushing.prepare(
            folder.absolute(),
            repository,
            public,
            allow_unverified,
            job.run_context,
            hub_endpoint or "",
            bool(hub_send_token),
        )
        job.run_context.emit(prepared.plan)
        if not dry_run:
            if not yes and not (form == "plain" and _confirm("console.confirm_push")):
                raise TraindeckError("push.not_confirmed")
            job.run_context.emit(pushing.upload(prepared, job.run_context))
        job.run_context.set_phase("done")
    if job.exit_code == ExitCode.STOPPED:
        sys.stdout.flush()
        os._exit(job.exit_code)  # an ordinary exit waits for threads that wait for the server
    ctx.exit(job.exit_code)


def _confirm(key: str) -> bool:
    """Ask on the terminal. Without one, or at Ctrl+C: False."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return click.confirm(texts.get(key, terminal_language()), err=True)
    except click.Abort:
        return False
    finally:
        signal.signal(signal.SIGINT, before)


@click.command()
@click.argument("model")
@data_flags
@click.option("--rows", default=500, show_default=True, type=click.IntRange(0), help="Rows to evaluate; 0: all.")
@click.option("--max-new-tokens", default=0, type=click.IntRange(0), help="Of an answer. 0: twice its reference.")
@click.option("--judge", default="", help="What an answer must be: regex:PATTERN or json-schema:FILE.")
@click.option("--results", type=click.Path(path_type=Path), help="File of results. Default: in the folder of the run.")
@click.option("--compare", is_flag=True, help="Also evaluate the base model, without and with examples.")
@click.option("--system", default="", help="With --compare: also evaluate the base model with this system prompt.")
@click.option("--examples", default=3, show_default=True, type=click.IntRange(0), help="With --compare: training rows.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the confidence intervals.")
@click.option("--device", default="auto", show_default=True)
@click.option("--lm-eval", "tasks", help="Run these tasks of lm-eval instead, separated by commas.")
@click.option("--include-path", type=click.Path(path_type=Path), help="Folder with definitions of tasks of lm-eval.")
@output_flag
@control_flag
@click.pass_context
def evaluate(
    ctx: click.Context,
    /,
    model: str,
    tasks: str | None,
    include_path: Path | None,
    output: str,
    control: str | None,
    **flags: Any,
) -> None:
    """Evaluate a model on data, by default on the rows that its run held out. MODEL is a run, its name, a checkpoint
    folder, `latest`, a model folder, a model of a hub, or preset:NAME or a YAML file of knobs for the base model and
    the data of its settings."""
    with CommandContext(choose_output(output), stdin_commands=control == "stdin") as job:
        from trainer_core.evaluation import command

        names = command.Options.__dataclass_fields__
        options = command.Options(**{name: flags.pop(name) for name in names})
        if tasks:
            job.run_context.emit(command.run_tasks(model, tasks, include_path, options, job.run_context))
        else:
            subject = command.find_subject(model, flags, options, job.run_context)
            job.run_context.emit(command.evaluate(subject, options, job.run_context))
        job.run_context.set_phase("done")
    ctx.exit(job.exit_code)


@click.command()
@click.argument("model", default="latest")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free.")
@click.option("--host", default=_LOOPBACK, show_default=True, help="Address to listen on.")
@click.option(
    "--api-key", envvar="TRAINDECK_API_KEY", help="Clients must send it. Default: TRAINDECK_API_KEY, or a random key."
)
@click.option("--device", default="auto", show_default=True)
@click.option("--base", is_flag=True, help="Use the model that the run began with, with the run's chat template.")
@control_flag
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    model: str,
    port: int,
    host: str,
    api_key: str | None,
    device: str,
    base: bool,
    control: str | None,
) -> None:
    """Serve a model to programs that use OpenAI's API, on this computer only. MODEL: see `generate`."""
    with CommandContext("plain", stdin_commands=control == "stdin") as job:
        from trainer_core.generation import generate as generation
        from trainer_core.generation import http_server
        from trainer_core.generation.model_source import find_model
        from trainer_core.generation.server import translate_oom
        from trainer_core.system.child_process import use_idle_processors
        from trainer_core.train.device import choose_device, describe_device

        language, key, chosen = terminal_language(), api_key or secrets.token_urlsafe(24), choose_device(device)
        if chosen.type == "cpu":
            use_idle_processors()
        if not host:  # would mean all addresses
            where = run_plan.command_line_label()
            raise TraindeckError("config.bad_value", where=where, name="--host", given="“”", allowed=_HOSTS)
        source = find_model(model, job.run_context, base)
        with translate_oom(describe_device(chosen)), job.run_context.interruptible():
            loaded = generation.load_model(source, chosen, for_generation=True)

        def announce(url: str) -> None:
            click.echo(texts.get("console.serving", language, model=source.name, url=url))
            if not api_key:
                click.echo(texts.get("console.serving_key", language, api_key=key))

        http_server.serve(loaded, source.name, (host, port), key, job.run_context, announce)
    ctx.exit(job.exit_code)


class _Terminal(Reporter):
    """Prints warnings and the progress of a download beside the generated text."""

    def warn(self, code: str, **params: Value) -> None:
        click.secho(format_message(code, params, terminal_language()), fg="yellow", err=True)

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        if total and sys.stderr.isatty():
            click.echo(f"\r{done / total:.0%}" + "\n" * (done >= total), nl=False, err=True)
