"""Texts of log entries in the current language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from app.core.log_store import MAX_TEXT_CHARS, LogEntry
from app.pages.performance import execution_texts
from app.texts import tr
from app.widgets import formatting
from trainer_core import performance_texts, protocol
from trainer_core.messages import is_known


def format_entry(entry: LogEntry) -> str:
    """Return the text of an entry, with details on further lines."""
    event = entry.event
    if event is None:
        return entry.text
    if isinstance(event, protocol.OomRecovery):
        return _format_oom_recovery(event, *entry.previous_batch)
    text = _format_message(event) if isinstance(event, protocol.CodedEvent) else _FORMATTERS[type(event)](event)
    return text[:MAX_TEXT_CHARS]


def _join(*parts: str) -> str:
    return tr("common.list_separator").join(filter(None, parts))


def _format_message(event: protocol.CodedEvent) -> str:
    """Unknown codes are returned as they are."""
    if isinstance(event, protocol.Advice) and event.resolved:
        return tr("log.advice_resolved", advice=formatting.format_advice(event.code, event.params)[0])
    text = formatting.localized_message(event.code, event.params)
    return f"{text}\n{event.detail}" if event.detail and is_known(event.code) else text


def _format_hello(event: protocol.Hello) -> str:
    text = tr(
        "log.trainer_started",
        run_dir=event.run_dir,
        pid=event.pid,
        torch=event.torch,
        devices=execution_texts.format_device(", ".join(event.devices)),
    )
    if event.resumed_from_step is None:
        return text
    return _join(text, tr("log.resumed_from_step", step=formatting.format_count(event.resumed_from_step)))


def _format_ready(event: protocol.Ready) -> str:
    lines = [
        tr(
            "log.data_ready",
            train=formatting.format_count(event.train_tokens),
            held_out=formatting.format_count(event.validation_tokens),
            vocabulary=formatting.format_count(event.vocab_size),
            weights=formatting.format_count(event.parameters),
        )
    ]
    if sources := event.validation_sources:
        names = [formatting.format_split(formatting.format_data_source(one.path), one.split) for one in sources]
        lines.append(tr("log.validation_data", names=", ".join(names)))
    if event.eval_sequences:
        some, every = map(formatting.format_count, (event.eval_sequences, event.validation_sequences))
        lines.append(tr("log.eval_sample", some=some, every=every))
    if event.fill is not None and event.fill_unpacked is not None:
        sequences = formatting.format_count(event.samples_per_epoch)
        shares = {"fill": f"{event.fill:.1%}", "alone": f"{event.fill_unpacked:.1%}"}
        lines.append(tr("log.packed", sequences=sequences, **shares))
    lines.append(_format_loader(event))
    lines.append(execution_texts.format_execution(event.fast_paths, None))
    return "\n".join(filter(None, lines))


def _format_loader(event: protocol.Ready) -> str:
    if event.loader_workers:
        text = tr("log.loading_workers", workers=formatting.format_count(event.loader_workers))
    else:
        text = tr("log.loading_on_demand")
    pinned = tr("log.pinned_memory") if event.loader_pinned else ""
    reason = tr(f"console.loader_reason.{event.loader_reason}")
    return f"{_join(text, pinned)} ({reason})"


def _format_compiled(event: protocol.Compiled) -> str:
    return execution_texts.format_execution(event.fast_paths, event.compile_s)


def _format_data_report(event: protocol.DataReport) -> str:
    found = {
        "documents": formatting.format_count(event.train_documents),
        "tokens": formatting.format_count(event.train_tokens),
        "steps": formatting.format_count(event.steps_per_epoch),
    }
    if event.complete:
        return tr("log.data_preview", **found)
    read, size = map(formatting.format_bytes, (event.read_bytes, event.bytes))
    return tr("log.data_preview_estimate", read=read, bytes=size, **found)


def _format_phase(event: protocol.Phase) -> str:
    reason = formatting.format_pause_reason(event.reason or "", event.until)
    return tr("log.phase", phase=_join(formatting.format_phase(event.phase), reason))


def _format_check(event: protocol.CheckReport) -> str:
    return tr(
        "log.check_result",
        verdict=formatting.format_verdict(event.verdict),
        peak=formatting.format_bytes(event.chosen.peak),
        total=formatting.format_bytes(event.memory_total),
        rate=formatting.format_rate(event.chosen.tokens_per_s),
        batch=formatting.format_count(event.chosen.batch_size),
        times=formatting.format_count(event.chosen.gradient_accumulation_steps),
    )


def _format_eval(event: protocol.Eval) -> str:
    truncated = ""
    if event.truncated_by_limit or event.truncated_by_context:
        counts = {"limit": event.truncated_by_limit, "context": event.truncated_by_context, "examples": event.examples}
        truncated = tr("log.answers_truncated", **{name: formatting.format_count(n) for name, n in counts.items()})
    step, loss = formatting.format_count(event.step), formatting.format_loss(event.loss)
    return _join(
        tr("log.eval_loss", step=step, loss=loss),
        tr("log.mean_over_tokens", tokens=formatting.format_count(event.tokens)),
        "" if event.exact_match is None else tr("log.exact_match", share=f"{event.exact_match:.1%}"),
        "" if event.bleu4 is None else f"BLEU-4 {event.bleu4:.1f}",
        tr("log.best") if event.best else "",
        truncated,
    )


def _format_sample(event: protocol.Sample) -> str:
    step = formatting.format_count(event.step)
    return f"{tr('log.sample', step=step, prompt=event.prompt)}\n{event.text}"


def _format_bad_step(event: protocol.BadStep) -> str:
    step = formatting.format_count(event.step)
    if event.kind == "spike":
        norm, usual = map(formatting.format_significant, (event.grad_norm, event.mean_grad_norm))
        text = tr("log.bad_step_spike", step=step, norm=norm, usual=usual)
    else:
        text = tr("log.bad_step_not_finite", step=step)
    text = _join(text, execution_texts.format_bad_step_action(event.action))
    if not event.samples:
        return text
    epoch, samples = formatting.format_count(event.epoch), ", ".join(map(str, event.samples))
    return f"{text}\n{tr('log.bad_step_samples', epoch=epoch, samples=samples)}"


def _format_oom_recovery(event: protocol.OomRecovery, batch: int | None, accumulation: int | None) -> str:
    """Return what changed and, on a second line, the memory of the device, if known. `batch` and `accumulation`: the
    values before, if known."""
    step = formatting.format_count(event.step)
    match event.action:
        case "checkpointing":
            change = tr("log.activation_checkpointing_on")
        case "chunked_loss":
            change = tr("log.chunked_loss_on")
        case _:
            new = _format_change(batch, event.batch_size)
            times = _format_change(accumulation, event.gradient_accumulation_steps)
            change = tr("log.micro_batch", batch=new, times=times)
    if event.action == "grown":
        text = tr("log.oom_reverted", step=step, done=change)
    else:
        stages = {
            "forward": tr("log.forward"),
            "backward": tr("log.backward"),
            "optimizer": tr("log.optimizer"),
            "evaluation": tr("log.evaluation"),
        }
        stage = stages.get(event.during, event.during)
        text = tr("log.oom_recovered", step=step, during=stage, done=change)
    if event.requested is None and event.total is None:
        return text
    requested, free, total = map(formatting.format_bytes, (event.requested, event.free, event.total))
    return f"{text}\n{tr('log.allocation', requested=requested, free=free, total=total)}"


def _format_change(before: int | None, now: int) -> str:
    """`8 → 4`; one number if the value did not change, or the old one is not known."""
    text = formatting.format_count(now)
    return text if before in (None, now) else f"{formatting.format_count(before)} → {text}"


def _format_flops_profile(event: protocol.FlopsProfile) -> str:
    step, tokens = map(formatting.format_count, (event.step, event.tokens))
    total, formula = map(performance_texts.format_flops, (event.total, event.formula))
    text = tr("log.flops", step=step, tokens=tokens, total=total, formula=formula)
    return "\n".join([text, *performance_texts.format_flops_table(event.rows)])


def _format_checkpoint(event: protocol.Checkpoint) -> str:
    step, size = formatting.format_count(event.step), formatting.format_file_size(event.bytes)
    return tr("log.checkpoint_saved", step=step, size=size, seconds=f"{event.seconds:.1f}")


def _format_rejected_command(event: protocol.Ack) -> str:
    return tr("log.command_rejected", command=event.command, reason=event.reason)


def _format_done(event: protocol.Done) -> str:
    text = tr(
        "log.run_summary",
        ended=tr("common.state_finished") if event.reason == "finished" else tr("common.state_stopped"),
        steps=formatting.format_count(event.steps),
        time=formatting.format_duration(event.seconds),
        rate=formatting.format_rate(event.tokens_per_s),
    )
    if event.final_loss is None:  # nothing was evaluated
        return text
    return text + tr("log.eval_loss_suffix", loss=formatting.format_loss(event.final_loss))


_FORMATTERS: Final[dict[type[protocol.Event], Callable[[Any], str]]] = {
    protocol.Hello: _format_hello,
    protocol.Ready: _format_ready,
    protocol.Compiled: _format_compiled,
    protocol.DataReport: _format_data_report,
    protocol.Phase: _format_phase,
    protocol.CheckReport: _format_check,
    protocol.Eval: _format_eval,
    protocol.Sample: _format_sample,
    protocol.BadStep: _format_bad_step,
    protocol.FlopsProfile: _format_flops_profile,
    protocol.Checkpoint: _format_checkpoint,
    protocol.Ack: _format_rejected_command,
    protocol.Done: _format_done,
}
