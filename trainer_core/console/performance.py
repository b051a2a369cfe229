"""Performance events as lines for a terminal: fast paths, compile time, MFU, bad steps, OOM recovery, FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trainer_core import performance_texts, protocol
from trainer_core.console.tables import format_table
from trainer_core.messages import Language
from trainer_core.messages.amounts import format_bytes
from trainer_core.protocol import FastPath
from trainer_core.texts import get

_MAX_SAMPLES: Final = 8  # sample numbers shown of a bad step
_FAST_PATH_KNOBS: Final[dict[str, str]] = {  # knob: the fast path that it requests
    "compile": "compile",
    "cuda_graphs": "cuda_graphs",
    "attention": "attention",
    "chunked_loss": "chunked_loss",
    "activation_memory_budget": "compile",  # implemented by the compiler
}
_NOT_REQUESTED: Final = (None, "auto", "off", 1.0)


def format_execution(found: Sequence[FastPath], compile_s: float | None, language: Language) -> str:
    """Return the fast paths in use and the compile time on one line; empty if neither is known."""
    parts = []
    if found:
        used = [_format_fast_path(path, language) for path in found if path.used]
        paths = get("console.list_separator", language).join(used) or get("console.reference_only", language)
        parts.append(get("console.fast_paths", language, paths=paths))
    if compile_s is not None:
        parts.append(get("console.compiled", language, seconds=compile_s))
    return " · ".join(parts)


def _format_fast_path(path: FastPath, language: Language) -> str:
    """Return name, choice and speedup: `Attention (flash) ×1.31`, `2 threads`."""
    name, choice = performance_texts.fast_path_parts(path, language)
    if choice:
        name = get("console.name_and_choice", language, name=name, choice=choice)
    if path.speedup is None:
        return name
    return f"{name}{'' if name.endswith('）') else ' '}{performance_texts.format_speedup(path.speedup)}"


def format_unused_fast_paths(
    settings: Mapping[str, object], found: Sequence[FastPath], language: Language
) -> list[str]:
    """Return a line for each setting that requests a fast path that is not used, with the reason."""
    unused = {path.name: path for path in found if not path.used}
    lines = []
    for knob, name in _FAST_PATH_KNOBS.items():
        value, path = settings.get(knob), unused.get(name)
        if path is not None and value not in _NOT_REQUESTED:
            flag = f"--{knob.replace('_', '-')} {value}"
            reason = performance_texts.fast_path_reason(path, language)
            lines.append(get("console.flag_not_used", language, flag=flag, reason=reason))
    return lines


def format_fast_path_table(found: Sequence[FastPath], language: Language, width: int | None = None) -> list[str]:
    """Return a table of all fast paths, those in use first, and notes on its columns.

    `width`: columns of the terminal; None: lines may be of any length.
    """
    columns = ("name", "used", "choice", "speedup", "error", "reason")
    rows = [
        [
            performance_texts.fast_path_label(path, language),
            get("console.yes" if path.used else "console.no", language),
            performance_texts.fast_path_choice(path, language),
            "-" if path.speedup is None else performance_texts.format_speedup(path.speedup),
            "-" if path.error is None else performance_texts.format_error(path.error),
            performance_texts.fast_path_reason(path, language),
        ]
        for path in performance_texts.sort_fast_paths(found)
    ]
    lines = format_table([get(f"console.fast_path_table.{name}", language) for name in columns], rows, width)
    if all(path.speedup is None for path in found):
        return lines
    return [*lines, "", get("console.speedup_note", language), get("console.error_note", language)]


def format_measuring(name: str, language: Language) -> str:
    """Return that a fast path is being measured."""
    label = performance_texts.fast_path_label(FastPath(name=name, used=False), language)
    key = "console.measuring_compile" if name == "compile" else "console.measuring"
    return get(key, language, name=label)


def format_performance(event: protocol.Performance, language: Language) -> str:
    """Return one line of figures."""
    figures = [
        get("console.computing", language, share=event.compute_ratio),
        get("console.waiting_for_data", language, share=event.data_ratio),
    ]
    if event.mfu is not None:
        figures.append(f"MFU {event.mfu:.1%}")
    if event.memory_peak is not None:
        figures.append(get("console.memory_peak", language, peak=format_bytes(event.memory_peak)))
    if event.energy_per_million_tokens_j is not None:
        energy = performance_texts.format_energy(event.energy_per_million_tokens_j)
        figures.append(get("console.energy", language, energy=energy))
    if event.loss_scale is not None:
        scale = performance_texts.format_loss_scale(event.loss_scale)
        figures.append(get("console.loss_scale", language, scale=scale, overflows=event.overflows))
    if event.gradient_noise is not None:
        noise = performance_texts.format_significant(max(1.0, event.gradient_noise), 2)
        figures.append(get("console.noise", language, count=noise))
    return get("console.performance", language, step=event.step) + "  ".join(figures)


def format_bad_step(event: protocol.BadStep, language: Language) -> str:
    """Return what was wrong with a step, what was done, and its samples."""
    norm = "?" if event.grad_norm is None else performance_texts.format_significant(event.grad_norm)
    usual = "?" if event.mean_grad_norm is None else performance_texts.format_significant(event.mean_grad_norm)
    if event.kind == "not_finite":
        problem = get("console.bad_step.not_finite", language)
    else:
        problem = get("console.bad_step.spike", language, norm=norm, usual=usual)
    samples = ""
    if event.samples:
        shown = ", ".join(map(str, event.samples[:_MAX_SAMPLES]))
        shown += " …" if len(event.samples) > _MAX_SAMPLES else ""
        samples = get("console.bad_step.samples", language, epoch=event.epoch, samples=shown)
    action = get(f"console.bad_step_action.{event.action}", language)
    return get("console.bad_step.summary", language, step=event.step, problem=problem, action=action) + samples


def format_oom_recovery(event: protocol.OomRecovery, language: Language) -> str:
    """Return what OOM recovery changed, and the allocation that failed."""
    if event.action in ("checkpointing", "chunked_loss"):
        change = get(f"console.oom.{event.action}", language)
    else:
        sizes = {"batch": event.batch_size, "accumulation": event.gradient_accumulation_steps}
        change = get("console.oom.batch", language, **sizes)
    if event.action == "grown":
        return get("console.oom.grown", language, step=event.step, change=change)
    where = get(f"console.oom_during.{event.during}", language)
    if event.requested is not None and event.free is not None:
        sizes_text = {"requested": format_bytes(event.requested), "free": format_bytes(event.free)}
        where += get("console.oom.allocation", language, **sizes_text)
    return get("console.oom.recovered", language, step=event.step, where=where, change=change)


def format_flops_profile(event: protocol.FlopsProfile, language: Language) -> str:
    """Return the FLOPs of each module, with layers added up."""
    total, formula = performance_texts.format_flops(event.total), performance_texts.format_flops(event.formula)
    counts = {"step": event.step, "tokens": event.tokens}
    head = get("console.flops", language, total=total, formula=formula, **counts)
    return "\n".join([head, *performance_texts.format_flops_table(event.rows)])
