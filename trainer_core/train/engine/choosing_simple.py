"""Threads of the CPU, and the loss in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psutil
import torch

from trainer_core.machine import hardware
from trainer_core.report import StopRequested
from trainer_core.train.engine import compiling, trials
from trainer_core.train.engine.choosing import FASTER, WORTH_MEASURING_S, Choosing, Words

_TINY_S: Final = 0.05  # a micro-batch that is over before threads pay
_MANY: Final = 500  # micro-batches in which trying half of the threads on some of them takes about 2 %
_PART_BYTES: Final = {"cpu": 4 * 2**20, "cuda": 256 * 2**20}
"""Logits in fp32 of one part of the loss; where a micro-batch has more, parts pay: on a GPU for its memory, on a CPU
because a part stays in the cache (2048 tokens x 2048 words: 12 % less time of a whole micro-batch)."""
_SAVES_BYTES: Final = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}  # logits from which parts are worth it for memory alone
_COMPARED: Final = 4  # parts that are compared with all at once
_PARTS: Final = 16  # at most on a GPU: a compiled model holds each by itself


def choose_threads(job: Choosing) -> None:
    """As they are set, as they were, or the fastest of 1, half and all."""
    if job.device.type != "cpu":
        return
    before = int(job.before.get("threads", 0))
    reason: Words | str
    if job.config.cpu_threads:
        threads, reason = torch.get_num_threads(), "path.set"
    elif 0 < before <= hardware.usable_threads():
        threads, reason = before, job.chosen("threads", "path.quickest")
    else:
        threads, reason, gain = _fastest_threads(job)
        job.say("threads", True, reason, gain=gain)
    torch.set_num_threads(threads)
    job.engine.choices["threads"] = threads
    job.measure_again()
    choice = f"{threads} thread{'s' * (threads != 1)}"
    job.say("threads", True, reason, choice=choice, gain=job.paths["threads"].gain)


def _fastest_threads(job: Choosing) -> tuple[int, str, float | None]:
    """All, or those of the counts worth trying that are measured, in turns, to be faster."""
    most = torch.get_num_threads()
    counts = _counts(job, most)
    if counts == {most}:
        return most, "path.all", None
    job.session.trying("threads")
    once = trials.forward_backward(job.engine.eager_loss, job.example)

    def using(threads: int) -> Callable[[], None]:
        def run() -> None:
            torch.set_num_threads(threads)
            once()

        return run

    taken = job.time({str(count): using(count) for count in sorted(counts)}, 1.5)
    fastest = min(taken, key=lambda count: taken[count] * (1.0 if int(count) == most else FASTER))
    return int(fastest), "path.quickest", taken[str(most)] / taken[fastest] if int(fastest) != most else None


def _counts(job: Choosing, most: int) -> set[int]:
    """One alone only for micro-batches too small for all to help: else it takes too long to try. Half of them may be
    the real cores, the fast ones, or those nearest to the memory; half of two cores is slower where there is much to
    do."""
    if most == 1 or not job.may_measure(WORTH_MEASURING_S):
        return {most}
    if job.thorough or job.measured_s() <= _TINY_S:
        return {most, most // 2, 1}
    unlike = most > 2 or most > (psutil.cpu_count(logical=False) or most)
    return {most, most // 2} if unlike and job.micro_batches >= _MANY else {most}


def choose_chunk(job: Choosing) -> None:
    """The loss in parts where it is set so, or where a micro-batch has many logits."""
    wanted, vocabulary = job.config.chunked_loss, job.engine.model.config.vocab_size
    positions = _positions(job)
    rows = max(64, _PART_BYTES[job.device.type] // (4 * vocabulary))
    large = positions > rows
    if job.device.type == "cuda":
        rows = max(rows, -(-positions // _PARTS))
    words: Words | str
    if wanted != "auto":
        chunk, words = (rows, "path.set") if wanted == "on" else (0, "path.off")
    elif "chunk" in job.before:
        chunk = int(job.before["chunk"])
        words = job.chosen("chunked_loss", "path.on" if chunk else "path.not_needed")
    else:
        chunk, words = (rows, "path.on") if large or job.thorough else (0, "path.not_needed")
    more: dict[str, Any] = {}
    if chunk:
        free = wanted == "auto" and "chunk" not in job.before
        chunk, words, more = _try_chunk(job, chunk, words, free and _by_gain(job))
    job.engine.choices["chunk"] = chunk
    job.say("chunked_loss", chunk > 0, words, **more)


def _positions(job: Choosing) -> int:
    return job.example.input_ids.shape[0] * job.config.max_seq_len


def _by_gain(job: Choosing) -> bool:
    """On a GPU parts are for memory, whatever time they take; on a CPU for time, which long runs measure."""
    return job.thorough or (job.device.type == "cpu" and job.may_measure(WORTH_MEASURING_S))


def _save_memory(job: Choosing) -> bool:
    return 4 * _positions(job) * job.engine.model.config.vocab_size > _SAVES_BYTES[job.device.type]


def _try_chunk(job: Choosing, chunk: int, words: Words | str, by_gain: bool) -> tuple[int, Words | str, dict[str, Any]]:
    """The chunk, or 0 with the reason why not. `by_gain`: it must be faster, or save much memory."""
    engine = job.engine
    engine.chunk = chunk
    job.session.trying("chunked_loss")
    try:
        error = _difference(job)
        gain = job.gain(engine.reference_loss, engine.eager_loss) if by_gain else None
    except StopRequested:
        raise
    except Exception as failure:  # noqa: BLE001 - whatever it is, the reference is there
        job.forget_gradients()
        engine.chunk = 0
        return 0, ("path.failed", {"reason": compiling.plainly(failure)}), {}
    if error > job.tolerance:
        engine.chunk = 0
        return 0, job.differs(error), {"error": error}
    if gain is not None and gain < FASTER:
        chunk, words = (chunk, "path.saves") if _save_memory(job) else (0, "path.slower")
        engine.chunk = chunk
    return chunk, words, {"error": error, "gain": gain}


def _difference(job: Choosing) -> float:
    """On as many sequences as a few parts have positions: more say nothing more, and take seconds of a large batch. On
    one where even these fit only when compiled: all logits at once would fit even less."""
    engine, precision = job.engine, job.engine.precision
    example = job.example.rows(-(-_COMPARED * engine.chunk // job.example.input_ids.shape[1]))[0]
    try:
        return trials.loss_difference(engine.model, engine.eager_loss, engine.reference_loss, example, precision)
    except torch.OutOfMemoryError:
        job.forget_gradients()
        first = example.rows(1)[0]
        return trials.loss_difference(engine.model, engine.eager_loss, engine.reference_loss, first, precision)
