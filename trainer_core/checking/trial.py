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
from typing import Final

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
from trainer_core.runs.run_dir import RunDir
from trainer_core.train.device import choose_device, choose_precision, describe, set_up_arithmetic
from trainer_core.train.loop import Trainer

_MICRO_BATCHES: Final = 2  # of a step at most: with the second, gradients are there while activations are
_ENOUGH_S: Final = 1.5  # of steps that are measured
_SLOW_S: Final = 4.0  # a step of which one is enough
_MOST_STEPS: Final = 50
_SPARED: Final = 10  # this part of the machine's memory is left free by copies; see `saving.py`


class Rehearsal(Trainer):
    """A run of which only steps are done. Its windows have at most `_MICRO_BATCHES`, as its data have no more."""

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
        micro_batches = min(self.config.gradient_accumulation_steps, _MICRO_BATCHES)
        update_s = window_s * interval.seconds["optimizer"] / max(interval.wall, 1e-9)
        return update_s + (window_s - update_s) * self.config.gradient_accumulation_steps / micro_batches

    def _timed(self, count: int) -> float:
        """Seconds of a step, the mean of so many."""
        since = time.perf_counter()
        for _ in range(count):
            self.session.poll()
            with self.clock.step():
                self._step(self._next_window())
        self.clock.catch_up()
        return (time.perf_counter() - since) / count


class _Moves:
    """Hears whether memory ended in a step that was then done in another way: then it did not fit as it was."""

    there = False

    def write(self, event: protocol.AnyEvent) -> None:
        self.there = self.there or isinstance(event, protocol.MemoryMove)

    def close(self) -> None:
        pass


def run(request: Request, folder: Path, job: Job) -> None:
    """Foresee, then measure. Raises what training raises; an outcome is on disk by then."""
    config = Config(**request.config)
    device = choose_device(config.device)
    set_up_arithmetic(config, device)
    precision = choose_precision(config.mixed_precision, device, job.session)
    outcome = _foreseen(config, request, Needs(config, request.vocab_size, precision), device)
    _write(folder, outcome)
    if outcome.needed > outcome.memory_free:
        return
    _go_first()
    moves = _Moves()
    job.wire.add(moves)
    sequences = config.batch_size * min(config.gradient_accumulation_steps, _MICRO_BATCHES)
    prepared = made_up.prepared(folder / "cache", config, request.task, request.vocab_size, sequences)
    trainer = Rehearsal(config, prepared, RunDir(folder / "run"), job.session, device, precision)
    try:
        trainer.set_up()
        job.session.enter("checking")
        update_s = trainer.measure()
        trainer.evaluate()
    finally:
        trainer.train_data.close()
        trainer.held_out.close()
    if moves.there:
        return
    ram_peak = _peak_resident() + _copy(config, outcome.checkpoint_bytes)
    tokens = config.effective_batch * config.max_seq_len
    _write(
        folder,
        msgspec.structs.replace(
            outcome,
            fits=True,
            peak=ram_peak if device.type == "cpu" else _peak_on_gpu(device, outcome.memory_free),
            ram_peak=ram_peak,
            tokens_per_s=tokens / update_s,
            compile_s=trainer.engine.compile_s,
        ),
    )


def _foreseen(config: Config, request: Request, needs: Needs, device: torch.device) -> Outcome:
    uuid = ""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        uuid = str(torch.cuda.get_device_properties(device).uuid)
    else:
        memory = psutil.virtual_memory()
        free, total = memory.available + psutil.Process().memory_info().rss, memory.total
    return Outcome(
        fits=False,
        device=describe(device),
        uuid=uuid,
        memory_total=total,
        memory_free=free,
        needed=needs.least,
        state=needs.state,
        parameters=needs.parameters,
        checkpoint_bytes=needs.checkpoint,
    )


def _write(folder: Path, outcome: Outcome) -> None:
    files.write_atomic(folder / "outcome.json", msgspec.json.encode(outcome))


def _peak_on_gpu(device: torch.device, free_before: int) -> int:
    """What torch held at most, and what was taken beside it since: kernels that were loaded, libraries' own memory."""
    free, _ = torch.cuda.mem_get_info(device)
    beside = free_before - free - torch.cuda.memory_reserved(device)
    return torch.cuda.max_memory_reserved(device) + max(0, beside)


def _copy(config: Config, size: int) -> int:
    """Bytes of the copy of weights and moments that a checkpoint is written from while training goes on. It is made
    only where there is room."""
    memory = psutil.virtual_memory()
    return 0 if config.low_memory or size > memory.available - memory.total // _SPARED else size


def _peak_resident() -> int:
    """The most memory that this process ever held, bytes."""
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    info = psutil.Process().memory_info()
    return int(getattr(info, "peak_wset", info.rss))


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
