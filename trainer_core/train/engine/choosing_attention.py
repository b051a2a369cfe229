"""Which way attention is computed: the fastest that equals the reference; on a CPU torch's own choice, unless
sequences are divided into documents."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from trainer_core.model.attention import BACKENDS, Missing
from trainer_core.protocol import FastPath
from trainer_core.train.engine import available, trials
from trainer_core.train.engine.choosing import FASTER, WORTH_MEASURING_S, Choosing, Words
from trainer_core.train.engine.engine import Engine
from trainer_core.train.engine.trials import Result

REFERENCE = "sdpa"
PLAIN = "math"  # the formula, step by step


def choose_attention(job: Choosing) -> None:
    """As it is set, as it was, or by a short measurement at the run's own shape."""
    wanted = job.config.attention
    before = str(job.before.get("attention", ""))
    tried: dict[str, Result] = {}
    words: Words | str
    if wanted != "auto":
        choice, words, more = _this(job, wanted, "path.set")
    elif before:
        why = job.chosen("attention", "path.fastest" if before != REFERENCE else "path.on")
        choice, words, more = _this(job, before, why)
    elif not _worth_trying(job):
        choice, words, more = REFERENCE, "path.on", {}
    else:
        tried = _try(job)
        choice, words, more = _fastest(job, tried)
    use_attention(job.engine, choice)
    asked_for = before if wanted == "auto" else wanted
    job.say("attention", choice == asked_for or not asked_for, words, choice=asked_for or choice, **more)
    for path in available.BY_SPANS:
        if path in job.there:
            choice = job.paths[path].choice
            job.paths[path] = msgspec.structs.replace(_told_of(job, path, tried), choice=choice)


def use_attention(engine: Engine, name: str) -> None:
    """From now on, and recorded so."""
    backend = BACKENDS[name]
    engine.model.set_attention(backend.attend)
    engine.varlen, engine.choices["attention"] = backend.by_spans, name


def _this(job: Choosing, name: str, reason: Words | str) -> tuple[str, Words | str, dict[str, Any]]:
    """The one that is asked for, if it works here and equals the reference; else torch's own choice."""
    if name == REFERENCE:
        return name, reason, {}
    missing = missing_here(job, name)
    if missing is not None:
        return REFERENCE, missing, {}
    engine = job.engine
    result = trials.attention([name], engine.model.config, job.example, engine.precision, job.session, 0.0)[name]
    if result.failed:
        return REFERENCE, ("path.failed", {"reason": result.failed}), {}
    if result.error > job.tolerance:
        return REFERENCE, job.differs(result.error), {"error": result.error}
    return name, reason, {"error": result.error}


def missing_here(job: Choosing, name: str) -> Missing | None:
    """Why a backend cannot be used for this run."""
    if name not in BACKENDS:
        return "path.unsupported", {"what": name}
    dtype = job.engine.precision.dtype or torch.float32
    return BACKENDS[name].missing(job.device, dtype, job.engine.model.config.head_dim)


def _worth_trying(job: Choosing) -> bool:
    """On a CPU torch has one kernel; documents one after the other are another way."""
    if job.device.type != "cpu" or job.thorough:
        return True
    return job.example.segments is not None and job.may_measure(WORTH_MEASURING_S)


def _try(job: Choosing) -> dict[str, Result]:
    job.session.trying("attention")
    divided, engine = job.example.segments is not None, job.engine
    names = [name for name, one in BACKENDS.items() if divided or not one.by_spans]
    names = [name for name in names if name != PLAIN or job.thorough]  # it is never the fastest: to tell the gain
    names = [name for name in names if missing_here(job, name) is None]
    return trials.attention(names, engine.model.config, job.example, engine.precision, job.session)


def _fastest(job: Choosing, tried: dict[str, Result]) -> tuple[str, Words | str, dict[str, Any]]:
    found = {name: one for name, one in tried.items() if name != PLAIN}
    right = {name: one for name, one in found.items() if not one.failed and one.error <= job.tolerance}
    if REFERENCE not in right:
        return REFERENCE, "path.on", {}

    def taken(name: str) -> float:
        return right[name].seconds * (1.0 if name == REFERENCE else FASTER)

    fastest = min(right, key=taken)
    if BACKENDS[fastest].by_spans:
        job.masked = min((name for name in right if not BACKENDS[name].by_spans), key=taken)
    slow = PLAIN if PLAIN in tried else REFERENCE
    gain = _gain(tried, fastest, slow) if fastest != slow else None
    return fastest, "path.fastest", {"error": right[fastest].error, "gain": gain}


def _gain(tried: dict[str, Result], name: str, slow: str = REFERENCE) -> float | None:
    """Times as fast as the slow one; None where one of them failed."""
    before, now = tried[slow].seconds, tried[name].seconds
    return before / now if before and now else None


def _told_of(job: Choosing, path: str, tried: dict[str, Result]) -> FastPath:
    """What is said of a way that takes documents as spans: as of attention where it is that one."""
    attention, name, before = job.paths["attention"], available.backend_of(path, job.device), job.told.get(path)
    if attention.choice == name:
        return msgspec.structs.replace(attention, name=path)
    if name in tried:
        return _passed_over(job, path, tried[name], _gain(tried, name))
    if before is not None and not before.used:
        return before
    divided = job.example.segments is not None
    return FastPath(name=path, used=False, reason="path.not_tried" if divided else "path.not_needed")


def _passed_over(job: Choosing, path: str, result: Result, gain: float | None) -> FastPath:
    """One that was tried, and is not the fastest."""
    if result.failed:
        return FastPath(name=path, used=False, reason="path.failed", params={"reason": result.failed})
    words: Words = ("path.outdone" if (gain or 0.0) >= FASTER else "path.slower"), {}
    reason, params = words if result.error <= job.tolerance else job.differs(result.error)
    return FastPath(name=path, used=False, reason=reason, params=params, error=result.error, gain=gain)
