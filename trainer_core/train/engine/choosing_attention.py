"""Which kernel computes attention: torch's own choice on a CPU, the fastest that equals the reference on a GPU."""

from __future__ import annotations

from typing import Any

import torch

from trainer_core.model.attention import BACKENDS, Missing
from trainer_core.train.engine import trials
from trainer_core.train.engine.choosing import FASTER, Choosing, Words
from trainer_core.train.engine.engine import Engine

REFERENCE = "sdpa"


def choose_attention(job: Choosing) -> None:
    """As it is set, as it was, or by a short measurement at the run's own shape."""
    wanted = job.config.attention
    before = str(job.before.get("attention", ""))
    words: Words | str
    if wanted != "auto":
        choice, words, more = _this(job, wanted, "path.set")
    elif before:
        why = job.chosen("attention", "path.fastest" if before != REFERENCE else "path.on")
        choice, words, more = _this(job, before, why)
    elif job.device.type == "cpu" and not job.thorough:
        choice, words, more = REFERENCE, "path.on", {}
    else:
        choice, words, more = _fastest(job)
    use_attention(job.engine, choice)
    asked_for = before if wanted == "auto" else wanted
    job.say("attention", choice == asked_for or not asked_for, words, choice=asked_for or choice, **more)


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


def _fastest(job: Choosing) -> tuple[str, Words | str, dict[str, Any]]:
    job.session.trying("attention")
    divided, engine = job.example.segments is not None, job.engine
    names = [name for name, one in BACKENDS.items() if name != "math" and (divided or not one.by_spans)]
    names = [name for name in names if missing_here(job, name) is None]
    found = trials.attention(names, engine.model.config, job.example, engine.precision, job.session)
    right = {name: one for name, one in found.items() if not one.failed and one.error <= job.tolerance}
    if REFERENCE not in right:
        return REFERENCE, "path.on", {}

    def taken(name: str) -> float:
        return right[name].seconds * (1.0 if name == REFERENCE else FASTER)

    fastest = min(right, key=taken)
    if BACKENDS[fastest].by_spans:
        job.masked = min((name for name in right if not BACKENDS[name].by_spans), key=taken)
    gain = right[REFERENCE].seconds / right[fastest].seconds if fastest != REFERENCE else None
    return fastest, "path.fastest", {"error": right[fastest].error, "gain": gain}
