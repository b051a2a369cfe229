"""Events as lines for a terminal, at most 80 columns where possible, and for the log of the window."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from trainer_core import performance_texts, protocol, texts, verification_texts
from trainer_core.console import evaluation, performance
from trainer_core.messages import Language, format_message, format_message_parts
from trainer_core.messages.amounts import byte_unit, format_bytes
from trainer_core.texts import get

_CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNPRINTED_PHASES: Final = ("training", "saving", "done", "failed")  # the next event shows them


def escape_control_characters(text: str) -> str:
    """Replace control characters except tab and newline by pictures: text of a model must not control the terminal."""
    return _CONTROL_CHARACTERS.sub(lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 32 else "\u2421", text)


def format_event(event: protocol.AnyEvent, language: Language) -> str:
    """Return the lines for an event; empty for an event that is not printed."""
    match event:
        case protocol.Hello():
            return _hello(event, language)
        case protocol.Ready():
            return _ready(event, language)
        case protocol.Compiled():
            return performance.format_execution(event.fast_paths, event.compile_s, language)
        case protocol.Phase():
            return "" if event.phase in _UNPRINTED_PHASES else f"[{_phase(event, language)}]"
        case protocol.Step():
            return _step(event, language)
        case protocol.Performance():
            return performance.format_performance(event, language)
        case protocol.BadStep():
            return performance.format_bad_step(event, language)
        case protocol.OomRecovery():
            return performance.format_oom_recovery(event, language)
        case protocol.FlopsProfile():
            return performance.format_flops_profile(event, language)
        case protocol.Eval():
            return _eval(event, language)
        case protocol.Evaluation():
            return evaluation.format_evaluation(event, language)
        case protocol.TaskScores():
            return evaluation.format_task_scores(event, language)
        case protocol.Sample():
            return _sample(event, language)
        case protocol.Rollouts():
            return _rollouts(event, language)
        case protocol.Checkpoint(path=path, seconds=seconds):
            kind, size = get(f"console.checkpoint_kind.{event.kind}", language), format_bytes(event.bytes)
            return get("console.checkpoint", language, path=path, kind=kind, size=size, seconds=seconds)
        case protocol.RemoteCheck():
            return _remote_check(event, language)
        case protocol.Verification():
            return verification_texts.format_verification(event, language)
        case protocol.HubUpload():
            return format_upload(event, language)
        case protocol.Done():
            return _done(event, language)
        case protocol.Advice():
            return _advice(event, language)
        case protocol.Warn() | protocol.Error():
            return format_message(event.code, event.params, language)
    return ""


def phase_name(phase: str, language: Language) -> str:
    """Return the name of a phase of a run."""
    return get(f"console.phase.{phase}", language)


def format_upload(event: protocol.HubUpload, language: Language) -> str:
    """Return what will be uploaded and to where, or its address once it is."""
    if event.url:
        return get("console.pushed", language, url=event.url)
    visibility = get("console.repository_private" if event.private else "console.repository_public", language)
    state = get("console.repository_exists" if event.exists else "console.repository_new", language)
    total = format_bytes(sum(file.bytes for file in event.files))
    return "\n".join(
        [
            get("console.push_account", language, account=event.account, endpoint=event.endpoint),
            get("console.push_repository", language, name=event.repository, visibility=visibility, state=state),
            *(f"{format_bytes(file.bytes):>12}  {escape_control_characters(file.name)}" for file in event.files),
            get("console.push_total", language, size=total, count=len(event.files)),
        ]
    )


def _hello(event: protocol.Hello, language: Language) -> str:
    devices = ", ".join(performance_texts.format_device(device, language) for device in event.devices)
    lines = [f"Traindeck {event.traindeck} · torch {event.torch} · {devices} · {event.precision}", event.run_dir]
    if event.resumed_from_step:
        lines.append(get("console.resumed", language, step=event.resumed_from_step))
    return "\n".join(lines)


def _remote_check(event: protocol.RemoteCheck, language: Language) -> str:
    installed = "console.remote_installed" if event.installed else "console.remote_not_installed"
    return get(
        "console.remote_check",
        language,
        host=event.host,
        folder=event.folder,
        python=event.python,
        free=format_bytes(event.free),
        gpus="; ".join(event.gpus) or get("console.remote_no_gpu", language),
        installed=get(installed, language),
    )


def _phase(event: protocol.Phase, language: Language) -> str:
    name = get(f"console.pause.{event.reason}", language) if event.reason else phase_name(event.phase, language)
    if event.until is None:
        return name
    until = datetime.fromtimestamp(event.until)
    time = until.strftime("%H:%M" if until.date() == datetime.fromtimestamp(event.t).date() else "%Y-%m-%d %H:%M")
    return get("console.until", language, phase=name, time=time)


def format_progress(event: protocol.Progress, language: Language) -> str:
    """Return the figures beside a progress bar."""
    scale, digits, unit = 1, 0, texts.catalogue(language).get(f"console.unit.{event.unit}", event.unit)
    if event.unit == "bytes":
        digits, (scale, unit) = 1, byte_unit(event.total or event.done)
    total = f"/{event.total / scale:,.{digits}f}" if event.total is not None else ""
    left = "" if event.eta_s is None else get("console.time_left", language, time=_format_duration(event.eta_s))
    return f"{event.done / scale:,.{digits}f}{total} {unit}{left}"


def _source(source: protocol.Source, language: Language) -> str:
    name = source.path if source.path.startswith("builtin:") else Path(source.path).name
    split = f" ({source.split})" if source.split else ""
    files = "" if source.files == 1 else get("console.files", language, count=source.files)
    facts = [files, source.format, source.encoding, ", ".join(source.columns), format_bytes(source.bytes)]
    return f"{name}{split}: " + " · ".join(filter(None, facts))


def _ready(event: protocol.Ready, language: Language) -> str:
    lines = [_source(source, language) for source in event.sources]
    for source in event.validation_sources:
        lines.append(get("console.validation_source", language, source=_source(source, language)))
    tokens, held_out, steps = event.train_tokens, event.validation_tokens, event.total_steps
    lines.append(
        get("console.ready", language, parameters=event.parameters, train=tokens, held_out=held_out, steps=steps)
    )
    if event.trainable_parameters not in (None, event.parameters):
        share = event.trainable_parameters / event.parameters
        lines.append(get("console.trainable", language, trained=event.trainable_parameters, share=share))
    if event.eval_sequences:
        counts = {"count": event.eval_sequences, "total": event.validation_sequences}
        lines.append(get("console.eval_sequences", language, **counts))
    if event.fill is not None:
        fills = {"fill": event.fill, "unpacked": event.fill_unpacked or 0}
        lines.append(get("console.packed", language, sequences=event.samples_per_epoch, **fills))
    lines += [_loading(event, language), performance.format_execution(event.fast_paths, None, language)]
    lines.append(_startup(event.startup_s, language))
    return "\n".join(filter(None, lines))


def _loading(event: protocol.Ready, language: Language) -> str:
    if event.loader_workers:
        mode = get("console.loader.workers", language, count=event.loader_workers)
    else:
        mode = get("console.loader.on_demand", language)
    pinned = get("console.loader.pinned", language) if event.loader_pinned else ""
    reason = get(f"console.loader_reason.{event.loader_reason}", language)
    return get("console.loading", language, mode=mode + pinned, reason=reason)


def _startup(seconds: Mapping[str, float], language: Language) -> str:
    times = (f"{phase_name(phase, language)} {time:.1f}" for phase, time in seconds.items())
    phases = get("console.comma", language).join(times)
    return get("console.startup", language, seconds=sum(seconds.values()), phases=phases) if seconds else ""


def _step(event: protocol.Step, language: Language) -> str:
    norm = ""
    if event.grad_norm is not None:
        norm = get("console.grad_norm", language, norm=_format_number(event.grad_norm, language, 2))
    loss, rate, speed = _format_number(event.loss, language), event.learning_rate, event.tokens_per_s
    step, epoch, norm = event.step, event.epoch, norm + _rewards(event, language)
    return get("console.step", language, step=step, epoch=epoch, loss=loss, rate=rate, norm=norm, speed=speed)


def _rewards(event: protocol.Step | protocol.Eval, language: Language) -> str:
    if event.reward_accuracy is None:
        return ""
    return get("console.rewards", language, accuracy=event.reward_accuracy, margin=event.reward_margin)


def _eval(event: protocol.Eval, language: Language) -> str:
    loss, extra = _format_number(event.loss, language), _rewards(event, language)
    if event.reward is not None:
        extra += get("console.reward", language, reward=event.reward)
    elif not extra:
        perplexity = "?" if event.perplexity is None else f"{event.perplexity:.4g}"
        extra += get("console.perplexity", language, perplexity=perplexity)
    if event.exact_match is None:  # with it, the line would have more than 80 columns
        loss = get("console.loss_of_tokens", language, loss=loss, tokens=event.tokens)
    else:
        extra += get("console.exact_match", language, share=event.exact_match)
    if event.bleu4 is not None:
        extra += f"  BLEU-4 {event.bleu4:.1f}"
    if event.best:
        extra += get("console.best", language)
    if event.truncated_by_limit or event.truncated_by_context:
        counts = {"limit": event.truncated_by_limit, "context": event.truncated_by_context, "total": event.examples}
        extra += "\n" + get("console.truncated", language, **counts)
    if event.neutral_loss_en is not None or event.neutral_loss_zh is not None:
        english, chinese = (_format_number(one, language) for one in (event.neutral_loss_en, event.neutral_loss_zh))
        extra += "\n" + get("console.neutral_loss", language, english=english, chinese=chinese)
    return get("console.eval", language, step=event.step, loss=loss) + extra


def _sample(event: protocol.Sample, language: Language) -> str:
    text = get("console.sample", language, step=event.step, prompt=event.prompt.rstrip(), text=event.text.rstrip())
    if event.expected is not None:
        text += "\n" + get("console.expected", language, answer=event.expected)
    return escape_control_characters(text)


def _rollouts(event: protocol.Rollouts, language: Language) -> str:
    scores = "".join(f"  {name} {score:.3f}" for name, score in event.scores.items()) if len(event.scores) > 1 else ""
    return get(
        "console.rollouts",
        language,
        step=event.step,
        reward=event.reward,
        scores=escape_control_characters(scores),
        tokens=event.answer_tokens,
        equal=event.no_signal_ratio,
    )


def _done(event: protocol.Done, language: Language) -> str:
    if event.model is None and event.steps:  # stopped while the data of a resumed run was prepared
        return get("console.done.unchanged", language, step=event.steps)
    if event.model is None:
        return get("console.done.untrained", language)
    facts = [get("console.done.steps", language, steps=event.steps, total=event.total_steps)]
    if event.best_loss is not None:
        facts.append(get("console.done.best_loss", language, loss=event.best_loss))
    if event.tokens_per_s:
        facts.append(get("console.done.speed", language, speed=event.tokens_per_s))
    if event.peak_vram:
        facts.append(get("console.done.vram", language, peak=format_bytes(event.peak_vram)))
    reason, comma = get(f"console.done.{event.reason}", language), get("console.comma", language)
    return get("console.done.summary", language, reason=reason, facts=comma.join(facts), model=event.model)


def _advice(event: protocol.Advice, language: Language) -> str:
    """Return the advice and the flags that apply it."""
    if event.resolved:
        what, _ = format_message_parts(event.code, event.params, language)
        return get("console.resolved", language, advice=what)
    advice = format_message(event.code, event.params, language)
    if not event.suggested_settings:
        return advice
    flags = " ".join(_flag(name, value) for name, value in event.suggested_settings.items())
    return get("console.suggested_flags", language, advice=advice, flags=flags)


def _flag(name: str, value: object) -> str:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return f"--{dashed} {value:g}" if isinstance(value, float) else f"--{dashed} {value}"


def _format_number(value: float | None, language: Language, digits: int = 4) -> str:
    if value is None or not math.isfinite(value):
        return get("console.not_finite", language)
    return f"{value:.{digits}f}"


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
