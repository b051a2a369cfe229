"""The check before Start, and the automatic batch: what is measured, remembered, and said.

No torch, no Qt: what is remembered is told at once.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from pathlib import Path
from typing import Final

import msgspec

from trainer_core import __version__, files, protocol
from trainer_core.checking import data, running, search
from trainer_core.checking.data import Data
from trainer_core.checking.outcome import Outcome, Request, verdict
from trainer_core.checking.search import Tried
from trainer_core.config import Config, knobs
from trainer_core.data.prepare import Prepared
from trainer_core.data.sources import cache_root
from trainer_core.machine import hardware
from trainer_core.machine.ram import system_memory
from trainer_core.remembered import Memory
from trainer_core.runs import run_dir
from trainer_core.session import Session

_GROUPS: Final = ("model", "hardware")
_MORE: Final = ("batch_size", "gradient_accumulation_steps", "optimizer", "packing", "attend_across_documents")
_MIB: Final = 2**20


def check(config: Config, session: Session, again: bool = False) -> protocol.CheckReport:
    """Run real steps of a configuration, or of others where it does not fit, and say what that means for a run.

    `again`: also what was measured before. Raises `TraindeckError` and `StopRequested`.
    """
    session.enter("checking")
    since = time.monotonic()
    report = _report(config, data.look(config, session), session, again)
    report.took_s = time.monotonic() - since
    return report


def pick(config: Config, prepared: Prepared, session: Session, new: bool) -> Config:
    """A configuration with the micro-batch that was picked, where it is to be and the run is new; a run that goes on
    has its own. What was measured is said."""
    if not config.auto_batch:
        return config
    plain = msgspec.structs.replace(config, auto_batch=False)
    if not new:
        return plain
    session.enter("checking")
    report = _report(config, data.of_prepared(prepared, config, session), session, again=False)
    session.emit(report)
    sizes = report.chosen.batch_size, report.chosen.gradient_accumulation_steps
    return msgspec.structs.replace(plain, batch_size=sizes[0], gradient_accumulation_steps=sizes[1])


def _report(config: Config, about: Data, session: Session, again: bool) -> protocol.CheckReport:
    ram = system_memory()
    measure = _Measuring(about, session, again)
    if config.auto_batch:
        chosen = search.fastest(msgspec.structs.replace(config, auto_batch=False), measure)
    else:
        chosen = measure(config)
    found = chosen.outcome
    judged = verdict(found)
    offers = search.offers(chosen, measure) if judged != "fits" and not config.auto_batch else []
    if judged == "does_not_fit" and not offers:
        session.warn("check.nothing_fits", needed_mib=found.needed // _MIB, free_mib=found.memory_free // _MIB)
    kept = config.keep_last + config.keep_best
    disk_needed, disk_free = found.checkpoint_bytes * (kept + 1), files.free_bytes(run_dir.runs_root())
    if _same_disk(run_dir.runs_root(), cache_root(config)):
        disk_needed += about.cache_bytes
    if disk_needed > disk_free:
        session.warn("check.disk", needed_mib=disk_needed // _MIB, free_mib=disk_free // _MIB)
    positions = about.total_steps * about.tokens_per_step / about.filled
    return protocol.CheckReport(
        verdict=judged,
        device=found.device,
        chosen=_trial(chosen),
        offers=[_trial(one) for one in offers],
        memory_total=found.memory_total,
        memory_free=found.memory_free,
        ram_total=ram.total,
        ram_free=ram.available,
        total_steps=about.total_steps,
        seconds=positions / found.tokens_per_s if positions and found.tokens_per_s else None,
        compile_s=found.compile_s,
        checkpoint_bytes=found.checkpoint_bytes,
        checkpoints=kept,
        disk_needed=disk_needed,
        disk_free=disk_free,
        parameters=found.parameters,
        tokens_per_step=about.tokens_per_step,
        from_cache=not measure.ran,
    )


def _trial(tried: Tried) -> protocol.Trial:
    config, outcome = tried.config, tried.outcome
    return protocol.Trial(
        batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        activation_checkpointing=config.activation_checkpointing,
        chunked_loss=config.chunked_loss,
        fits=verdict(outcome) != "does_not_fit",
        peak=outcome.peak,
        ram_peak=outcome.ram_peak,
        tokens_per_s=outcome.tokens_per_s,
    )


def _same_disk(one: Path, other: Path) -> bool:
    def disk(path: Path) -> int:
        return next(place for place in (path, *path.parents) if place.exists()).stat().st_dev

    return disk(one) == disk(other)


class _Measuring:
    """Measures configurations of one run, each once: what was measured on this machine is remembered."""

    def __init__(self, about: Data, session: Session, again: bool) -> None:
        self._about, self._session, self._again = about, session, again
        self._memory = Memory(run_dir.home() / "cache" / "checks.json")
        self._machine = _machine()
        self._measured: list[tuple[object, ...]] = []  # just now

    def __call__(self, config: Config) -> Tried:
        about = self._about
        request = Request.of(config, about.vocab_size, about.task, about.steps_to_plan_for)
        key = self._key(config)
        outcome = None if self._again and key not in self._measured else self._recalled(key)
        if outcome is None:
            self._session.progress("checking", len(self._measured), None, "trials")
            self._measured.append(key)
            outcome = running.run(request, self._session)
            self._memory.remember(msgspec.to_builtins(outcome), *key)
            self._session.enter("checking")
        return Tried(config, outcome)

    @property
    def ran(self) -> bool:
        """Whether anything was measured now."""
        return bool(self._measured)

    def _key(self, config: Config) -> tuple[object, ...]:
        """All that memory and speed depend on. How long the run is decides only whether compiling pays."""
        told = {name: getattr(config, name) for name, knob in knobs().items() if knob.group in _GROUPS or name in _MORE}
        return self._machine, self._about.vocab_size, self._about.task, self._about.steps_to_plan_for.bit_length(), told

    def _recalled(self, key: tuple[object, ...]) -> Outcome | None:
        try:
            return as_now(msgspec.convert(self._memory.recall(*key) or {}, Outcome))
        except msgspec.ValidationError:
            return None


def as_now(before: Outcome) -> Outcome | None:
    """What was measured, with the memory that is free now. That it did not fit counts where no more is free."""
    free: int | None = system_memory().available
    if before.uuids:
        told = [room for room in map(hardware.free_vram, before.uuids) if room is not None]
        free = min(told, default=None)
    if not before.fits and (free is None or free > before.memory_free):
        return None
    return before if free is None else msgspec.structs.replace(before, memory_free=free)


def _machine() -> str:
    """What measurements depend on: processor, memory, GPUs, torch, and this program."""
    found = hardware.probe()
    gpus = [(gpu.name, gpu.vram_total) for gpu in found.gpus]
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    torch = importlib.metadata.version("torch")
    cpu = f"{found.cpu_name} x{found.cpu_threads}, {found.ram_total}"
    return f"{cpu}, {gpus}, {seen}, torch {torch}, traindeck {__version__}"
