"""Whether the model is compiled, and whether its kernels are recorded as a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Final

import torch
from torch import Tensor

from trainer_core import failures
from trainer_core.data.batches import Batch
from trainer_core.report import StopRequested
from trainer_core.train.device import uses_tf32
from trainer_core.train.engine import compiling, measuring, trials
from trainer_core.train.engine.choosing import FASTER, Choosing, Words
from trainer_core.train.engine.choosing_attention import use_attention
from trainer_core.train.engine.compiling import CompileFailed, Recipe

_BEST_GAIN: Final = {"cpu": 1.15, "cuda": 2.0}  # what compiling brings at most: 1.11 in docs/performance.md; a guess
_FIRST_S: Final = {"cpu": 45.0, "cuda": 60.0}  # what it takes where it was never measured
_AGAIN_S: Final = 8.0  # and where the compiled code is on disk
_UNTIL_RECORDED: Final = 3  # runs: one to warm up, one that is recorded, one that is played
_GRAPH_S: Final = 0.03  # a micro-batch short enough that starting kernels one by one may hold the GPU back


def choose_compile(job: Choosing) -> None:
    """As it is set, as it was, or where it works, equals the reference, and pays for itself.

    Raises `MemoryError` where a micro-batch of several sequences fits neither as it is nor compiled: a smaller one may,
    and be compiled.
    """
    job.engine.choices["compile"] = False
    why_not = _why_not_compile(job)
    if why_not is not None:
        job.say("compile", False, why_not)
        return
    set_so = job.config.compile == "on"
    words = "path.set" if set_so else job.chosen("compile", "path.on")
    spans = str(job.engine.choices["attention"]) if job.engine.varlen else ""
    if not spans:
        _try(job, "compile", recipe_of(job), words, set_so)
    else:  # what is compiled takes a mask
        use_attention(job.engine, job.masked)
        _try(job, "compile", recipe_of(job), words, set_so, _with_each(job, spans))
        use_attention(job.engine, job.masked if job.engine.choices["compile"] else spans)
    if spans and job.engine.choices["compile"]:
        job.say("attention", True, "path.masked", choice=job.masked)
    several = job.example.input_ids.shape[0] > 1  # one alone has other ways left, in its first step
    if job.engine.compiled is None and job.fits_not and several and not job.thorough:
        raise MemoryError("neither as it is nor compiled")


def _with_each(job: Choosing, spans: str) -> tuple[trials.LossOf, trials.LossOf]:
    """What compiling with a mask must beat, the eager loss with attention that takes documents as spans; and itself.
    Backward may compute forward again, so the attention stays until the other one's turn."""

    def slow(batch: Batch) -> Tensor:
        use_attention(job.engine, spans)
        return job.engine.eager_loss(batch)

    def fast(batch: Batch) -> Tensor:
        use_attention(job.engine, job.masked)
        return job.engine.loss(batch)

    return slow, fast


def _why_not_compile(job: Choosing) -> Words | None:
    if job.config.compile == "off":
        return "path.off", {}
    again = job.config.compile == "auto" and "compile" in job.before
    if again and not job.before["compile"]:
        return job.chosen("compile", "path.slower")
    if job.engine.varlen and not job.masked:
        return "path.unsupported", {"what": "torch.compile with variable-length attention"}
    missing = compiling.missing(job.device)
    if missing is not None:
        return missing
    return None if again or job.thorough or job.config.compile == "on" else _not_worth(job)


def _not_worth(job: Choosing) -> Words | None:
    """Whether it would cost more than the run can win by it. Runs that are clearly too short are not measured."""
    share = 1 - 1 / _BEST_GAIN[job.device.type]
    cost = _cost(job)
    seconds = job.measured_s() if job.may_take(cost / share) else job.rough_s()
    saved = job.micro_batches * seconds * share
    return ("path.not_worth", {"cost": round(cost, 1), "saved": round(saved, 1)}) if saved < cost else None


def _cost(job: Choosing) -> float:
    """Seconds that compiling takes here, as far as is known."""
    recipe = recipe_of(job)
    if job.engine.varlen:
        recipe = replace(recipe, attention=job.masked)
    name, usual = ("again_s", _AGAIN_S) if compiling.is_kept(recipe) else ("first_s", _FIRST_S[job.device.type])
    known = measuring.Memory().recall("compile", measuring.machine(job.device)) or {}
    found = known.get(name)
    return float(found) if isinstance(found, int | float) else usual


def recipe_of(job: Choosing, graphs: bool = False) -> Recipe:
    """What would be compiled."""
    config, engine = job.config, job.engine
    rows, divided, varying, *_ = job.compiled_for()
    return Recipe(
        shape=asdict(engine.model.config),
        rows=rows,
        length=config.max_seq_len if varying else job.example.input_ids.shape[1],
        segments=bool(divided),
        varying=bool(varying),
        device=str(job.device),
        precision=engine.precision.name,
        attention=engine.choices["attention"],
        chunk=engine.chunk,
        checkpointing=config.activation_checkpointing,
        memory_budget=config.activation_memory_budget,
        graphs=graphs,
        threads=engine.choices.get("threads", 0),
        tf32=uses_tf32(config, job.device),
        deterministic=config.deterministic and job.device.type == "cuda",
    )


def choose_graphs(job: Choosing) -> None:
    """On a GPU, where shapes stand still and a micro-batch is so short that starting its kernels may take longer."""
    if job.device.type == "cuda":
        job.engine.choices["cuda_graphs"] = False
    why_not = _why_no_graphs(job)
    if why_not is not None:
        job.say("cuda_graphs", False, why_not)
        return
    set_so = job.config.cuda_graphs == "on"
    words = "path.set" if set_so else job.chosen("cuda_graphs", "path.on")
    _try(job, "cuda_graphs", recipe_of(job, graphs=True), words, set_so)


def _why_no_graphs(job: Choosing) -> Words | None:
    """The gradients of a graph lie in its own memory, which its next run overwrites: so one micro-batch a step.
    And it would draw the same random numbers in an order of its own: so no dropout."""
    obstacles = {
        "torch.compile is not used": job.engine.compiled is None,
        "gradient accumulation": job.config.gradient_accumulation_steps > 1,
        "dropout": job.config.dropout > 0,
        "batches of different widths": job.varying,
    }
    if job.device.type != "cuda":
        return "path.no_gpu", {}
    if job.config.cuda_graphs == "off":
        return "path.off", {}
    for what, there in obstacles.items():
        if there:
            return "path.unsupported", {"what": what}
    if job.config.cuda_graphs == "on" or job.thorough:
        return None
    if "cuda_graphs" in job.before:
        return None if job.before["cuda_graphs"] else job.chosen("cuda_graphs", "path.not_needed")
    once = trials.forward_backward(job.engine.loss, job.example)
    return None if job.time({"now": once}, 1.0)["now"] < _GRAPH_S else ("path.not_needed", {})


def _try(
    job: Choosing,
    name: str,
    recipe: Recipe,
    words: Words | str,
    set_so: bool,
    compared: tuple[trials.LossOf, trials.LossOf] | None = None,
) -> None:
    """Compile, compare with what there is, and where the choice is free, see whether it is faster."""
    engine, before = job.engine, (job.engine.compiled, job.engine.recipe)
    slow, fast = compared or (_as_before(job), engine.loss)
    job.session.trying(name)
    kept, since = compiling.is_kept(recipe), time.perf_counter()
    try:
        if job.device.type == "cuda":
            torch.cuda.empty_cache()  # the process that compiles computes a micro-batch beside this one
        _fill_cache(recipe, job)
        with job.session.breakable():
            engine.compiled, engine.recipe = compiling.compile_whole(engine.model, recipe), recipe
            batch = job.example if recipe.fits(job.example) else compiling.example(recipe)
            for _ in range(_UNTIL_RECORDED if recipe.graphs else 0):  # else what is compared would be no graph yet
                job.step(engine.loss, batch)()
            job.forget_gradients()
            error = trials.loss_difference(engine.model, engine.loss, engine.eager_loss, batch, engine.precision)
        taken = time.perf_counter() - since
        free = name not in job.before and not job.recorded
        gain = job.gain(slow, fast, budget_s=3.0) if free and error <= job.tolerance else None
    except StopRequested:
        raise
    except Exception as failure:  # noqa: BLE001 - inductor raises anything; eager is there
        reason = str(failure) if isinstance(failure, CompileFailed) else compiling.plainly(failure)
        return _give_up(job, name, before, since, ("path.failed", {"reason": reason}))
    if error > job.tolerance:
        return _give_up(job, name, before, since, job.differs(error), error=error)
    _remember_cost(job, kept, taken)
    if gain is not None and gain < FASTER and not set_so:
        return _give_up(job, name, before, since, ("path.slower", {}), error=error, gain=gain)
    engine.compile_s = (engine.compile_s or 0.0) + taken
    engine.choices |= {name: True, "compiled_for": job.compiled_for()}
    job.say(name, True, words, error=error, gain=gain)
    return None


def _fill_cache(recipe: Recipe, job: Choosing) -> None:
    """In a process of its own, unless memory ends there: beside ours it needs weights, gradients and a context more
    than the run itself, which may still fit."""
    try:
        compiling.fill_cache(recipe, job.session)
    except CompileFailed as failure:
        found = failures.of_exception(RuntimeError(str(failure)))
        if found is None or found.code != "memory.out":
            raise


def _as_before(job: Choosing) -> Callable[[Batch], Tensor]:
    """The loss without what is tried now."""
    engine, compiled, recipe = job.engine, job.engine.compiled, job.engine.recipe

    def loss(batch: Batch) -> Tensor:
        now = engine.compiled, engine.recipe
        engine.compiled, engine.recipe = compiled, recipe
        try:
            return engine.loss(batch)
        finally:
            engine.compiled, engine.recipe = now

    return loss


def _give_up(
    job: Choosing, name: str, before: tuple[object, object], since: float, words: Words, **more: float
) -> None:
    job.engine.compiled, job.engine.recipe = before  # type: ignore[assignment]
    job.engine.compile_s = (job.engine.compile_s or 0.0) + time.perf_counter() - since
    job.forget_gradients()
    if name == "cuda_graphs":
        compiling.forget_tried_graphs()
    job.say(name, False, words, **more)


def _remember_cost(job: Choosing, kept: bool, taken: float) -> None:
    """What compiling takes on this machine, the first time and from the cache."""
    about = "compile", measuring.machine(job.device)
    known = measuring.Memory().recall(*about) or {}
    measuring.Memory().remember({**known, "again_s" if kept else "first_s": taken}, *about)
