"""Texts of log entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from app.core.log_store import LogEntry
from app.pages.performance import execution_texts
from app.texts import tr
from app.widgets import formatting
from trainer_core import performance_texts
from trainer_core.messages import is_known
from trainer_core.protocol import FastPath, Param

T = TypeVar("T")


class _Values:
    """Typed access to the parameters of an entry."""

    def __init__(self, params: dict[str, Param]) -> None:
        self._params = params

    def __contains__(self, name: str) -> bool:
        return self._params.get(name) is not None

    def text(self, name: str) -> str:
        value = self._params.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> float | None:
        value = self._params.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(self, name: str) -> str:
        return formatting.format_count(self.number(name))

    def bytes(self, name: str) -> str:
        return formatting.format_bytes(self.number(name))

    def flag(self, name: str) -> bool:
        return bool(self._params.get(name))

    def decode(self, name: str, type_: type[T]) -> T:
        """Decode a parameter that is JSON. Returns an empty value where it is missing."""
        return msgspec.json.decode(self.text(name), type=type_) if name in self and self.text(name) else type_()


def format_entry(entry: LogEntry) -> str:
    """Return an entry in the current language. Unknown codes are returned as they are."""
    if not entry.code:
        return entry.text
    if entry.code in FORMATTERS:
        line = FORMATTERS[entry.code](_Values(entry.params))
        return f"{line}\n{entry.text}" if entry.text else line
    text = formatting.localized_message(entry.code, entry.params)
    return f"{text}\n{entry.text}" if entry.text and is_known(entry.code) else text


def _join(*parts: str) -> str:
    return tr("common.list_separator").join(filter(None, parts))


def _format_hello(values: _Values) -> str:
    text = tr(
        "log.trainer_started_run_dir_process",
        run_dir=values.text("run_dir"),
        pid=values.text("pid"),
        torch=values.text("torch"),
        devices=execution_texts.format_device(values.text("devices")),
    )
    resumed = "resumed_from_step" in values
    return _join(text, tr("log.resumed_from_step_step", step=values.count("resumed_from_step")) if resumed else "")


def _format_ready(values: _Values) -> str:
    lines = [
        tr(
            "log.data_ready_train_tokens_train",
            train=values.count("train_tokens"),
            held_out=values.count("validation_tokens"),
            vocabulary=values.count("vocab_size"),
            weights=values.count("parameters"),
        )
    ]
    if sources := values.decode("validation_sources", list[tuple[str, str]]):
        names = (formatting.format_split(formatting.format_data_source(path), split) for path, split in sources)
        lines.append(tr("log.validation_data_names", names=", ".join(names)))
    if values.number("eval_sequences"):
        some, every = values.count("eval_sequences"), values.count("validation_sequences")
        lines.append(tr("log.each_evaluation_uses_same_some", some=some, every=every))
    fill, alone = values.number("fill"), values.number("fill_unpacked")
    if fill is not None and alone is not None:
        sequences = values.count("samples_per_epoch")
        shares = {"fill": f"{fill:.1%}", "alone": f"{alone:.1%}"}
        lines.append(tr("log.packed_into_sequences_sequences_fill", sequences=sequences, **shares))
    lines.append(_format_loader(values))
    used = values.decode("fast_paths", list[FastPath])
    lines.append(execution_texts.format_execution(used, None))
    return "\n".join(filter(None, lines))


def _format_compiled(values: _Values) -> str:
    used = values.decode("fast_paths", list[FastPath])
    return execution_texts.format_execution(used, values.number("compile_s"))


def _format_loader(values: _Values) -> str:
    if values.number("loader_workers"):
        text = tr("log.batches_come_from_workers_processes", workers=values.count("loader_workers"))
    elif values.number("loader_prefetch"):
        text = tr("log.thread_keeps_ahead_batches_ready", ahead=values.count("loader_prefetch"))
    else:
        text = tr("log.batches_made_when_they_needed")
    pinned = tr("log.in_page_locked_memory") if values.flag("loader_pinned") else ""
    reason = values.text("loader_reason")
    reasons = {
        "set": tr("log.as_set"),
        "low_memory": tr("log.to_spare_memory"),
        "cpu": tr("log.the_cpu_trains"),
        "gpu": tr("log.data_stays_in_memory"),
        "disk": tr("log.data_larger_than_half_memory"),
    }
    return f"{_join(text, pinned)} ({reasons.get(reason, reason)})"


def _format_bad_step(values: _Values) -> str:
    if values.text("kind") == "spike":
        norm, usual = (formatting.format_significant(values.number(name)) for name in ("grad_norm", "mean_grad_norm"))
        text = tr("log.step_step_went_wrong_gradient", step=values.count("step"), norm=norm, usual=usual)
    else:
        text = tr("log.step_step_went_wrong_gradient_2", step=values.count("step"))
    text = _join(text, execution_texts.format_bad_step_action(values.text("action")))
    samples = values.text("samples")
    if not samples:
        return text
    return f"{text}\n{tr('log.epoch_epoch_samples_samples', epoch=values.count('epoch'), samples=samples)}"


def _format_flops_profile(values: _Values) -> str:
    total, formula = (performance_texts.format_flops(values.number(name) or 0.0) for name in ("total", "formula"))
    step, tokens = values.count("step"), values.count("tokens")
    return tr("log.step_step_total_for_tokens", step=step, tokens=tokens, total=total, formula=formula)


def _format_data_report(values: _Values) -> str:
    found = {
        "documents": values.count("train_documents"),
        "tokens": values.count("train_tokens"),
        "steps": values.count("steps_per_epoch"),
    }
    if values.flag("complete"):
        return tr("log.data_looked_at_documents_documents", **found)
    return tr("log.data_looked_at_read_bytes", read=values.bytes("read_bytes"), bytes=values.bytes("bytes"), **found)


def _format_phase(values: _Values) -> str:
    reason = formatting.format_pause_reason(values.text("reason"), values.number("until"))
    return tr("log.now_phase", phase=_join(formatting.format_phase(values.text("phase")), reason))


def _format_check(values: _Values) -> str:
    return tr(
        "log.checked_verdict_peak_peak_total",
        verdict=formatting.format_verdict(values.text("verdict")),
        peak=values.bytes("peak"),
        total=values.bytes("memory_total"),
        rate=formatting.format_rate(values.number("tokens_per_s")),
        batch=values.count("batch_size"),
        times=values.count("gradient_accumulation_steps"),
    )


def _format_oom_recovery(values: _Values) -> str:
    """What changed, and on a second line the memory of the device, if known."""
    step, change = values.count("step"), _format_oom_action(values)
    if values.text("action") == "grown":
        text = tr("log.memory_again_since_step_step", step=step, done=change)
    else:
        stage = values.text("during")
        stages = {
            "forward": tr("log.forward"),
            "backward": tr("log.backward"),
            "optimizer": tr("log.optimizer"),
            "evaluation": tr("log.evaluation"),
        }
        text = tr("log.out_memory_at_step_step", step=step, during=stages.get(stage, stage), done=change)
    if "requested" not in values and "total" not in values:
        return text
    amounts = {name: values.bytes(name) for name in ("requested", "free", "total")}
    return f"{text}\n{tr('log.requested_were_asked_for_free', **amounts)}"


def _format_oom_action(values: _Values) -> str:
    if values.text("action") == "checkpointing":
        return tr("log.activations_computed_again_instead_kept")
    if values.text("action") == "chunked_loss":
        return tr("log.loss_computed_in_parts")
    return tr(
        "log.micro_batch_batch_accumulation_times",
        batch=_format_change(values, "batch_before", "batch_size"),
        times=_format_change(values, "accumulation_before", "gradient_accumulation_steps"),
    )


def _format_change(values: _Values, before: str, now: str) -> str:
    """`8 → 4`; one number where the value did not change, or the old one is not known."""
    changed = before in values and values.number(before) != values.number(now)
    return f"{values.count(before)} → {values.count(now)}" if changed else values.count(now)


def _format_advice_resolved(values: _Values) -> str:
    params = msgspec.json.decode(values.text("params") or "{}")
    return tr("log.no_longer_so_advice", advice=formatting.format_advice(values.text("code"), params)[0])


def _format_eval(values: _Values) -> str:
    loss, exact, bleu = (values.number(name) for name in ("loss", "exact_match", "bleu4"))
    text = tr("log.step_step_eval_loss_loss", step=values.count("step"), loss=formatting.format_loss(loss))
    truncated = ""
    if values.flag("truncated_by_limit") or values.flag("truncated_by_context"):
        limit, context = values.count("truncated_by_limit"), values.count("truncated_by_context")
        truncated = tr("log.answers_truncated", limit=limit, context=context, examples=values.count("examples"))
    return _join(
        text,
        tr("log.mean_over_tokens_tokens", tokens=values.count("tokens")) if "tokens" in values else "",
        tr("log.exact_match_share", share=f"{exact:.1%}") if exact is not None else "",
        f"BLEU-4 {bleu:.1f}" if bleu is not None else "",
        tr("log.the_best_so_far") if values.flag("best") else "",
        truncated,
    )


def _format_sample(values: _Values) -> str:
    return tr("log.step_step_model_wrote_after", step=values.count("step"), prompt=values.text("prompt"))


def _format_checkpoint(values: _Values) -> str:
    size, seconds = formatting.format_file_size(values.number("bytes") or 0.0), values.number("seconds") or 0.0
    return tr("log.step_step_checkpoint_saved_size", step=values.count("step"), size=size, seconds=f"{seconds:.1f}")


def _format_rejected_command(values: _Values) -> str:
    return tr("log.trainer_did_not_take_command", command=values.text("command"), reason=values.text("reason"))


def _format_done(values: _Values) -> str:
    text = tr(
        "log.ended_after_steps_steps_time",
        ended=tr("common.finished") if values.text("reason") == "finished" else tr("common.stopped"),
        steps=values.count("steps"),
        time=formatting.format_duration(values.number("seconds")),
        rate=formatting.format_rate(values.number("tokens_per_s")),
    )
    if "final_loss" not in values:  # nothing was evaluated
        return text
    return text + tr("log.eval_loss_loss", loss=formatting.format_loss(values.number("final_loss")))


FORMATTERS: Final[dict[str, Callable[[_Values], str]]] = {
    "log.hello": _format_hello,
    "log.ready": _format_ready,
    "log.compiled": _format_compiled,
    "log.data_report": _format_data_report,
    "log.phase": _format_phase,
    "log.check": _format_check,
    "log.oom_recovery": _format_oom_recovery,
    "log.advice_cleared": _format_advice_resolved,
    "log.bad_step": _format_bad_step,
    "log.flops_profile": _format_flops_profile,
    "log.eval": _format_eval,
    "log.sample": _format_sample,
    "log.checkpoint": _format_checkpoint,
    "log.refused": _format_rejected_command,
    "log.done": _format_done,
}
