"""Log entries in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from PySide6.QtCore import QCoreApplication

from app.state.log_store import LogEntry
from app.views import computing_words, words
from trainer_core import engine_words
from trainer_core.messages import CATALOGUE
from trainer_core.protocol import FastPath, Param

_Params = dict[str, Param]


def sentence(entry: LogEntry) -> str:
    """One entry in the current language. Unknown codes are shown as they are."""
    if not entry.code:
        return entry.text
    if entry.code in WORDERS:
        line = WORDERS[entry.code](entry.params)
        return f"{line}\n{entry.text}" if entry.text else line
    text = words.message(entry.code, entry.params)
    return f"{text}\n{entry.text}" if entry.text and entry.code in CATALOGUE else text


def _number(params: _Params, name: str) -> float | None:
    value = params.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _hello(params: _Params) -> str:
    said = QCoreApplication.translate("Log", "Trainer started: {run_dir}, process {pid}, torch {torch}, {devices}")
    told = {name: params.get(name, "") for name in ("run_dir", "pid", "torch")}
    text = said.format(**told, devices=computing_words.device(str(params.get("devices", ""))))
    resumed = _number(params, "resumed_from_step")
    if resumed is not None:
        text += _comma() + QCoreApplication.translate("Log", "resumed from step {step}").format(
            step=words.count(resumed)
        )
    return text


def _ready(params: _Params) -> str:
    text = QCoreApplication.translate(
        "Log", "Data ready: {train} tokens to train on, {held_out} held out; vocabulary {vocabulary}; {weights} weights"
    )
    text = text.format(
        train=words.count(_number(params, "train_tokens")),
        held_out=words.count(_number(params, "validation_tokens")),
        vocabulary=words.count(_number(params, "vocab_size")),
        weights=words.count(_number(params, "parameters")),
    )
    return "\n".join(
        [text, *_validation(params), *_evaluated(params), *_packed(params), _loading(params), *_computing(params)]
    )


def _validation(params: _Params) -> list[str]:
    sources = msgspec.json.decode(str(params.get("validation_sources") or "[]"), type=list[tuple[str, str]])
    if not sources:
        return []
    text = QCoreApplication.translate("Log", "Validation data: {names}")
    return [text.format(names=", ".join(words.of_split(words.data_name(path), split) for path, split in sources))]


def _evaluated(params: _Params) -> list[str]:
    some, every = _number(params, "eval_sequences"), _number(params, "validation_sequences")
    if not some:
        return []
    text = QCoreApplication.translate("Log", "Each evaluation uses the same {some} of {every} held-out sequences")
    return [text.format(some=words.count(some), every=words.count(every))]


def _packed(params: _Params) -> list[str]:
    fill, alone = _number(params, "fill"), _number(params, "fill_alone")
    if fill is None or alone is None:
        return []
    text = QCoreApplication.translate(
        "Log", "Packed into {sequences} sequences, {fill} full; without packing it would be {alone}"
    )
    sequences = words.count(_number(params, "samples_per_epoch"))
    return [text.format(sequences=sequences, fill=f"{fill:.1%}", alone=f"{alone:.1%}")]


def _loading(params: _Params) -> str:
    workers, ahead = _number(params, "loader_workers"), _number(params, "loader_ahead")
    if workers:
        text = QCoreApplication.translate("Log", "Batches come from {workers} processes")
    elif ahead:
        text = QCoreApplication.translate("Log", "A thread keeps {ahead} batches ready")
    else:
        text = QCoreApplication.translate("Log", "Batches are made when they are needed")
    text = text.format(workers=words.count(workers), ahead=words.count(ahead))
    if params.get("loader_pinned"):
        text += _comma() + QCoreApplication.translate("Log", "in page-locked memory")
    return f"{text} ({_loading_reason(str(params.get('loader_reason', '')))})"


def _loading_reason(code: str) -> str:
    return {
        "set": QCoreApplication.translate("Log", "as set"),
        "low_memory": QCoreApplication.translate("Log", "to spare memory"),
        "cpu": QCoreApplication.translate("Log", "the CPU trains"),
        "gpu": QCoreApplication.translate("Log", "the data stays in memory"),
        "disk": QCoreApplication.translate("Log", "the data is larger than half of the memory"),
    }.get(code, code)


def _computing(params: _Params) -> list[str]:
    used = msgspec.json.decode(str(params.get("fast_paths") or "[]"), type=list[FastPath])
    return list(filter(None, [computing_words.summary(used, _number(params, "compile_s"))]))


def _bad_step(params: _Params) -> str:
    if params.get("kind") == "spike":
        text = QCoreApplication.translate("Log", "Step {step} went wrong: gradient norm {norm}, usually {usual}")
    else:
        text = QCoreApplication.translate("Log", "Step {step} went wrong: its gradient was not finite")
    text = text.format(
        step=words.count(_number(params, "step")),
        norm=words.significant(_number(params, "grad_norm")),
        usual=words.significant(_number(params, "usual")),
    )
    done = computing_words.action(str(params.get("action", "")))
    samples = str(params.get("samples") or "")
    if not samples:
        return f"{text}{_comma()}{done}"
    of = QCoreApplication.translate("Log", "epoch {epoch}, samples {samples}")
    return f"{text}{_comma()}{done}\n{of.format(epoch=words.count(_number(params, 'epoch')), samples=samples)}"


def _flops_profile(params: _Params) -> str:
    text = QCoreApplication.translate(
        "Log", "Step {step}: {total} for {tokens} positions of a micro-batch; the formula says {formula}"
    )
    total, formula = (engine_words.flops(_number(params, name) or 0.0) for name in ("total", "formula"))
    step, tokens = (words.count(_number(params, name)) for name in ("step", "tokens"))
    return text.format(step=step, tokens=tokens, total=total, formula=formula)


def _data_report(params: _Params) -> str:
    if params.get("complete"):
        text = QCoreApplication.translate(
            "Log", "Data looked at: {documents} documents, {tokens} tokens to train on, {steps} steps per epoch"
        )
    else:
        text = QCoreApplication.translate(
            "Log",
            "Data looked at, {read} of {bytes}: about {documents} documents, {tokens} tokens to train on, "
            "{steps} steps per epoch",
        )
    return text.format(
        read=words.size(_number(params, "read_bytes")),
        bytes=words.size(_number(params, "bytes")),
        documents=words.count(_number(params, "train_documents")),
        tokens=words.count(_number(params, "train_tokens")),
        steps=words.count(_number(params, "steps_per_epoch")),
    )


def _comma() -> str:
    return QCoreApplication.translate("Log", ", ")


def _phase(params: _Params) -> str:
    phase = words.phase(str(params.get("phase", "")))
    why = words.pause(str(params.get("reason") or ""), _number(params, "until"))
    return QCoreApplication.translate("Log", "Now: {phase}").format(phase=_comma().join(filter(None, (phase, why))))


def _check(params: _Params) -> str:
    text = QCoreApplication.translate(
        "Log", "Checked: {verdict}; peak {peak} of {total}, {rate} tokens/s with a micro-batch of {batch}, {times} each"
    )
    return text.format(
        verdict=words.verdict(str(params.get("verdict", ""))),
        peak=words.size(_number(params, "peak")),
        total=words.size(_number(params, "memory_total")),
        rate=words.rate(_number(params, "tokens_per_s")),
        batch=words.count(_number(params, "batch_size")),
        times=words.count(_number(params, "gradient_accumulation_steps")),
    )


def _memory_move(params: _Params) -> str:
    """A sentence, and below it what the device had."""
    if params.get("action") == "grown":
        text = QCoreApplication.translate("Log", "Memory again since step {step}: {done}")
    else:
        text = QCoreApplication.translate("Log", "Out of memory at step {step} ({during}): {done}; nothing was lost")
    during = _during(str(params.get("during", "")))
    told = text.format(step=words.count(_number(params, "step")), during=during, done=_moved(params))
    if params.get("requested") is None and params.get("total") is None:
        return told
    figures = QCoreApplication.translate("Log", "{requested} were asked for; {free} of {total} were free")
    amounts = {name: words.size(_number(params, name)) for name in ("requested", "free", "total")}
    return f"{told}\n{figures.format(**amounts)}"


def _moved(params: _Params) -> str:
    """What changed. What it was before is not always known."""
    if params.get("action") == "checkpointing":
        return QCoreApplication.translate("Log", "activations are computed again instead of kept")
    if params.get("action") == "chunked_loss":
        return QCoreApplication.translate("Log", "the loss is computed in parts")
    text = QCoreApplication.translate("Log", "micro-batch {batch}, accumulation {times}")
    return text.format(
        batch=_change(_number(params, "batch_before"), _number(params, "batch_size")),
        times=_change(_number(params, "accumulation_before"), _number(params, "gradient_accumulation_steps")),
    )


def _change(before: float | None, now: float | None) -> str:
    return words.count(now) if before is None or before == now else f"{words.count(before)} → {words.count(now)}"


def _during(name: str) -> str:
    return {
        "forward": QCoreApplication.translate("Log", "forward"),
        "backward": QCoreApplication.translate("Log", "backward"),
        "optimizer": QCoreApplication.translate("Log", "optimizer"),
        "evaluation": QCoreApplication.translate("Log", "evaluation"),
    }.get(name, name)


def _over(params: _Params) -> str:
    told = msgspec.json.decode(str(params.get("params") or "{}"))
    text = QCoreApplication.translate("Log", "No longer so: {advice}")
    return text.format(advice=words.advice(str(params.get("code", "")), told)[0])


def _eval(params: _Params) -> str:
    text = QCoreApplication.translate("Log", "Step {step}: eval loss {loss}").format(
        step=words.count(_number(params, "step")), loss=words.loss(_number(params, "loss"))
    )
    tokens, exact, bleu = (_number(params, name) for name in ("tokens", "exact_match", "bleu4"))
    if tokens is not None:
        text += _comma() + QCoreApplication.translate("Log", "mean over {tokens} tokens").format(
            tokens=words.count(tokens)
        )
    if exact is not None:
        text += _comma() + QCoreApplication.translate("Log", "exact match {share}").format(share=f"{exact:.1%}")
    if bleu is not None:
        text += f"{_comma()}BLEU-4 {bleu:.1f}"
    if params.get("best"):
        text += _comma() + QCoreApplication.translate("Log", "the best so far")
    if params.get("cut_by_limit") or params.get("cut_by_context"):
        text += _comma() + QCoreApplication.translate(
            "Log", "answers cut: {limit} of {examples} by the answer limit, {context} by the sequence length"
        ).format(
            limit=words.count(_number(params, "cut_by_limit")),
            context=words.count(_number(params, "cut_by_context")),
            examples=words.count(_number(params, "examples")),
        )
    return text


def _sample(params: _Params) -> str:
    text = QCoreApplication.translate("Log", "Step {step}: the model wrote, after “{prompt}”:")
    return text.format(step=words.count(_number(params, "step")), prompt=params.get("prompt", ""))


def _checkpoint(params: _Params) -> str:
    text = QCoreApplication.translate("Log", "Step {step}: checkpoint saved ({size} in {seconds} s)")
    seconds = _number(params, "seconds") or 0.0
    size = words.small_size(_number(params, "bytes") or 0.0)
    return text.format(step=words.count(_number(params, "step")), size=size, seconds=f"{seconds:.1f}")


def _refused(params: _Params) -> str:
    text = QCoreApplication.translate("Log", "The trainer did not take “{command}”: {reason}")
    return text.format(command=params.get("command", ""), reason=params.get("reason", ""))


def _done(params: _Params) -> str:
    finished = params.get("reason") == "finished"
    ended = QCoreApplication.translate("Log", "Finished") if finished else QCoreApplication.translate("Log", "Stopped")
    text = QCoreApplication.translate(
        "Log", "{ended} after {steps} steps: {time} spent training, {rate} tokens/s on average"
    )
    told = text.format(
        ended=ended,
        steps=words.count(_number(params, "steps")),
        time=words.duration(_number(params, "seconds")),
        rate=words.rate(_number(params, "tokens_per_s")),
    )
    loss = _number(params, "final_loss")
    if loss is None:  # nothing was evaluated
        return told
    return told + QCoreApplication.translate("Log", ", eval loss {loss}").format(loss=words.loss(loss))


WORDERS: Final[dict[str, Callable[[_Params], str]]] = {
    "log.hello": _hello,
    "log.ready": _ready,
    "log.data_report": _data_report,
    "log.phase": _phase,
    "log.check": _check,
    "log.memory_move": _memory_move,
    "log.over": _over,
    "log.bad_step": _bad_step,
    "log.flops_profile": _flops_profile,
    "log.eval": _eval,
    "log.sample": _sample,
    "log.checkpoint": _checkpoint,
    "log.refused": _refused,
    "log.done": _done,
}
