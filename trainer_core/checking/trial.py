"""Some real steps of one configuration, in a process of its own: `python -m trainer_core.checking.trial FOLDER`.

FOLDER holds `request.json`; `outcome.json` is written beside it, first by arithmetic and then, if the steps end well,
as measured. Events go to stdout, commands come in on stdin. A process of its own has a peak of its own, and one that
takes all memory takes nothing else with it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import torch

import trainer_core.__main__  # noqa: F401 - streams and threads as in training
from trainer_core import files, protocol
from trainer_core.checking import made_up
from trainer_core.checking.estimate import Needs
from trainer_core.checking.outcome import Outcome, Request
from trainer_core.config import Config
from trainer_core.job import Job
from trainer_core.machine import hardware
from trainer_core.machine.ram import system_memory
from trainer_core.runs.run_dir import RunDir
from trainer_core.train.device import choose_device, choose_precision, describe, device_of_rank, set_up_arithmetic
from trainer_core.train.loop import Trainer
from trainer_core.train.ranks import beside, divided, share_of
from trainer_core.train.taken import Taken

_MICRO_BATCHES: Final = 2  # of a step and rank at most: with the second, gradients are there while activations are
_ENOUGH_S: Final = 1.5  # of steps that are measured
_SLOW_S: Final = 4.0  # a step of which one is enough
_MOST_STEPS: Final = 50
_SPARED: Final = 10  # this part of the machine's memory is left free by copies; see `saving.py`


class Rehearsal(Trainer):
    """A run of which only steps are done. Its windows have few micro-batches, as its data have no more."""

    def measure(self) -> float:
        """Seconds of an optimizer update with all its micro-batches, once memory is taken and kernels are chosen."""
        once = self._timed(1)
        if once < _SLOW_S:
            once = min(once, self._timed(1))
        self.clock.forget()
        count = 1 if once > _SLOW_S else max(2, min(_MOST_STEPS, int(_ENOUGH_S / once)))
        window_s = self._timed(count)
        interval = self.clock.cut()
        self.clock.catch_up()
        self.clock.read(interval)
        once_a_step = interval.seconds["optimizer"] + interval.seconds["sync"]
        update_s = window_s * once_a_step / max(interval.wall, 1e-9)
        return update_s + (window_s - update_s) * self.config.gradient_accumulation_steps / micro_batches(self.config)

    def _timed(self, count: int) -> float:
        """Seconds of a step, the mean of so many."""
        since = time.perf_counter()
        for _ in range(count):
            self.session.poll()
            self.ranks.tell("step")
            with self.clock.step():
                self._step(self._next_window())
        self.clock.catch_up()
        return (time.perf_counter() - since) / count


def micro_batches(config: Config) -> int:
    """Of a step that is tried: a few, where each rank computes as many sequences at once of them as in the run."""
    few = min(config.gradient_accumulation_steps, _MICRO_BATCHES * config.ranks)
    shorter = msgspec.structs.replace(config, gradient_accumulation_steps=few)
    same = share_of(shorter).batch_size == share_of(config).batch_size
    return few if same else config.gradient_accumulation_steps


class _Moves:
    """Hears whether memory ended in a step that was then done in another way: then it did not fit as it was."""

    def __init__(self) -> None:
        self._there = False

    def write(self, event: protocol.AnyEvent) -> None:
        self._there = self._there or isinstance(event, protocol.MemoryMove)

    def seen(self) -> bool:
        return self._there

    def close(self) -> None:
        pass


def run(request: Request, folder: Path, job: Job) -> None:
    """Foresee, then measure. Raises what training raises; an outcome is on disk by then."""
    config = divided(Config(**request.config))
    devices = [device_of_rank(choose_device(config.device), rank, config.ranks) for rank in range(config.ranks)]
    device = devices[0]
    set_up_arithmetic(config, device)
    precision = choose_precision(config.mixed_precision, device, job.session)
    outcome = _foreseen(config, Needs(share_of(config, request.task != "sft"), request.vocab_size, precision), devices)
    _write(folder, outcome)
    if outcome.needed > outcome.memory_free:
        return
    _go_first()
    moves = _Moves()
    job.wire.add(moves)
    sequences = config.batch_size * micro_batches(config)
    shape: dict[str, Any] = {"task": request.task, "vocab_size": request.vocab_size, "sequences": sequences}
    prepared = made_up.prepared(folder / "cache-0", config, **shape)
    run_dir = RunDir(folder / "run")
    run_dir.create()
    with beside(config, run_dir, job.session) as join:
        taken = Taken(device)
        ranks = join(config, device, precision.name, {"made_up": str(folder), "shape": shape})
        trainer = Rehearsal(config, prepared, run_dir, job.session, device, precision, ranks)
        trainer.total_steps = request.total_steps  # its epochs are short; the run's length decides what is compiled
        try:
            trainer.set_up()
            if moves.seen():  # it does not fit as it is, which is all that was asked
                return
            job.session.enter("checking")
            update_s = trainer.measure()
            if moves.seen():
                return
            trainer.evaluate()
            ranks.tell("peaks")
            on_gpu, resident = ranks.most(taken.on_gpu(), taken.resident())
        finally:
            trainer.train_data.close()
            trainer.held_out.close()
    if moves.seen():
        return
    ram_peak = resident * config.ranks + _copy(config, outcome.checkpoint_bytes, device)
    tokens = config.effective_batch * config.max_seq_len
    _write(
        folder,
        msgspec.structs.replace(
            outcome,
            fits=True,
            peak=ram_peak if device.type == "cpu" else on_gpu,
            ram_peak=ram_peak,
            tokens_per_s=tokens / update_s,
            compile_s=trainer.engine.compile_s,
        ),
    )


def _foreseen(config: Config, needs: Needs, devices: list[torch.device]) -> Outcome:
    """Several ranks on a CPU share its memory; each GPU has its own, of which the fullest counts."""
    device, times, name = devices[0], 1, describe(devices[0])
    uuids: list[str] = []
    if device.type == "cuda":
        uuids = [str(torch.cuda.get_device_properties(one).uuid) for one in devices]
        free, total = torch.cuda.mem_get_info(device)
        told = map(hardware.free_vram, uuids[1:])  # torch would take memory on each that it asks
        free = min([free, *(room for room in told if room is not None)])
    else:
        total, available = system_memory()
        free = min(total, available + _own())
        times = config.ranks
    return Outcome(
        fits=False,
        device=name if config.ranks == 1 else f"{config.ranks} × {name}",
        uuids=uuids,
        memory_total=total,
        memory_free=free,
        needed=needs.least * times,
        state=needs.state * times,
        parameters=needs.parameters,
        checkpoint_bytes=needs.checkpoint,
    )


def _own() -> int:
    """Bytes of this process that count as used: pages of libraries count as available, for they can be read again."""
    info = psutil.Process().memory_info()
    return int(info.rss - getattr(info, "shared", 0))  # Windows and macOS do not tell them apart


def _write(folder: Path, outcome: Outcome) -> None:
    files.write_atomic(folder / "outcome.json", msgspec.json.encode(outcome))


def _copy(config: Config, size: int, device: torch.device) -> int:
    """Bytes of the copy of weights and moments that a checkpoint is written from while training goes on. It is made
    only where there is room (`saving.Copies`)."""
    total, available = system_memory()
    size *= 2 if device.type == "cuda" and config.pin_memory else 1  # page-locked memory comes in powers of two
    return 0 if config.low_memory or size > available - total // _SPARED else size


def _go_first() -> None:
    """Where the system itself ends a process because memory has run out, it is to be this one."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def main() -> int:
    folder = Path(sys.argv[1])
    request = msgspec.json.decode((folder / "request.json").read_bytes(), type=Request)
    with Job("json", stdin_commands=True) as job:
        run(request, folder, job)
    return job.exit_code


if __name__ == "__main__":
    sys.exit(main())
