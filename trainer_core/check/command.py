"""`check` and automatic settings: measures configurations, or reads earlier measurements, and reports.

No torch, no Qt: a cached report takes no time to import them.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from trainer_core import __version__, protocol
from trainer_core.base_model.configure import apply_base_model
from trainer_core.check import data, search
from trainer_core.check.data import DataRequirements
from trainer_core.check.search import TrialRun
from trainer_core.check.trial_process import TrialRequest, TrialResult, run_trial_process
from trainer_core.config import Config, knobs
from trainer_core.data.prepare import PreparedData
from trainer_core.run_context import RunContext
from trainer_core.runs import run_dir
from trainer_core.system import files, hardware
from trainer_core.system.memory import system_memory
from trainer_core.system.result_cache import MeasurementCache

_KEY_GROUPS: Final = ("model", "hardware")
_KEY_KNOBS: Final = (
    "batch_size",
    "gradient_accumulation_steps",
    "optimizer",
    "packing",
    "attend_across_documents",
    "objective",
    "group_size",
    "rollout_max_new_tokens",
    "steps_per_generation",
    "kl_beta",
    "method",
    "freeze",
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "lora_targets",
    "lora_variant",
    "lora_embeddings",
)
_MIB: Final = 2**20


def run_check(config: Config, context: RunContext, again: bool = False) -> protocol.CheckReport:
    """Measure `config`, and alternatives if it does not fit. `again` ignores cached measurements.

    Raises `TraindeckError` and `StopRequested`.
    """
    context.set_phase("checking")
    since = time.monotonic()
    config = apply_base_model(config, context)
    report = _build_report(config, data.inspect_data(config, context), context, again)
    report.duration_s = time.monotonic() - since
    return report


def choose_settings(config: Config, prepared: PreparedData, context: RunContext, new: bool) -> Config:
    """Replace an automatic batch size and automatic activation checkpointing by measured ones, and emit the report.

    A resumed run keeps the batch size in `config`.
    """
    if not new:
        config = msgspec.structs.replace(config, auto_batch=False)
    if not config.needs_measurement:
        return config
    context.set_phase("checking")
    report = _build_report(config, data.from_prepared(prepared, config, context), context, again=False)
    context.emit(report)
    chosen = report.chosen
    return msgspec.structs.replace(
        config,
        auto_batch=False,
        batch_size=chosen.batch_size,
        gradient_accumulation_steps=chosen.gradient_accumulation_steps,
        activation_checkpointing=chosen.activation_checkpointing,
        checkpointed_layers=chosen.checkpointed_layers,
    )


def _build_report(config: Config, needs: DataRequirements, context: RunContext, again: bool) -> protocol.CheckReport:
    ram = system_memory()
    measure = _CachedMeasurement(needs, context, again)
    chosen = search.find_automatic(config, measure)
    searched = chosen.leaves_free or config.auto_batch
    alternatives = [] if searched else search.find_alternatives(chosen, measure)
    result = chosen.outcome
    if result.verdict == "does_not_fit" and not alternatives:
        context.warn("check.nothing_fits", needed_mib=result.needed // _MIB, free_mib=result.memory_free // _MIB)
    checkpoints = config.keep_last + config.keep_best
    disk_needed = result.checkpoint_bytes * (checkpoints + 1) + needs.cache_bytes
    disk_free = files.free_bytes(run_dir.runs_root())
    if disk_needed > disk_free:
        context.warn("check.disk", needed_mib=disk_needed // _MIB, free_mib=disk_free // _MIB)
    positions = needs.total_steps * needs.tokens_per_step / needs.fill
    return protocol.CheckReport(
        verdict=result.verdict,
        device=result.device,
        chosen=_settings(chosen),
        alternatives=[_settings(one) for one in alternatives],
        memory_total=result.memory_total,
        memory_free=result.memory_free,
        ram_total=ram.total,
        ram_free=ram.available,
        total_steps=needs.total_steps,
        seconds=positions / result.tokens_per_s if positions and result.tokens_per_s else None,
        compile_s=result.compile_s,
        checkpoint_bytes=result.checkpoint_bytes,
        checkpoints=checkpoints,
        disk_needed=disk_needed,
        disk_free=disk_free,
        parameters=result.parameters,
        tokens_per_step=needs.tokens_per_step,
        from_cache=not measure.measured,
    )


def _settings(run: TrialRun) -> protocol.MeasuredSettings:
    config, result = run
    return protocol.MeasuredSettings(
        batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        activation_checkpointing=config.checkpointing[0],
        checkpointed_layers=config.checkpointed_layers,
        chunked_loss=config.chunked_loss,
        fits=result.verdict != "does_not_fit",
        peak=result.peak,
        ram_peak=result.ram_peak,
        tokens_per_s=result.tokens_per_s,
    )


class _CachedMeasurement:
    """Measures each configuration once per machine. `again` ignores measurements of earlier processes."""

    def __init__(self, needs: DataRequirements, context: RunContext, again: bool) -> None:
        self._needs, self._context, self._again = needs, context, again
        self._cache = MeasurementCache(run_dir.home() / "cache" / "checks.json")
        self._machine = _machine_key()
        self.measured: list[tuple[object, ...]] = []  # keys, by this process

    def __call__(self, config: Config) -> TrialRun:
        needs = self._needs
        key = (
            self._machine,
            needs.vocab_size,
            needs.task,
            needs.sides,
            needs.planned_steps.bit_length(),
            _config_key(config),
        )
        if not self._again or key in self.measured:
            with contextlib.suppress(msgspec.ValidationError):
                known = with_current_memory(msgspec.convert(self._cache.get(*key) or {}, TrialResult))
                if known is not None:
                    return TrialRun(config, known)
        self._context.progress("checking", len(self.measured), None, "trials")
        self.measured.append(key)
        request = TrialRequest(config, needs.vocab_size, needs.task, needs.planned_steps, sides=needs.sides)
        result = run_trial_process(request, self._context)
        self._cache.store(msgspec.to_builtins(result), *key)
        self._context.set_phase("checking")
        return TrialRun(config, result)


def with_current_memory(result: TrialResult) -> TrialResult | None:
    """Update the free memory of an earlier result. None: it did not fit, but more memory is free now."""
    free: int | None = system_memory().available
    if result.uuids:
        free = min((amount for amount in map(hardware.free_vram, result.uuids) if amount is not None), default=None)
    if not result.fits and (free is None or free > result.memory_free):
        return None
    return result if free is None else msgspec.structs.replace(result, memory_free=free)


def _config_key(config: Config) -> dict[str, Any]:
    """The settings that memory and speed depend on."""
    names = (name for name, knob in knobs().items() if knob.group in _KEY_GROUPS or name in _KEY_KNOBS)
    key = {name: getattr(config, name) for name in names}
    if config.deepspeed_config:
        with contextlib.suppress(OSError):  # the trial names the problem
            key["deepspeed_config"] = Path(config.deepspeed_config).read_bytes().decode("utf-8", "replace")
    return key


def _machine_key() -> str:
    """Hardware and software that measurements depend on."""
    machine = hardware.probe()
    gpus = [(gpu.name, gpu.vram_total) for gpu in machine.gpus]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    torch = importlib.metadata.version("torch")
    cpu = f"{machine.cpu_name} x{machine.cpu_threads}, {machine.ram_total}"
    return f"{cpu}, {gpus}, {visible}, torch {torch}, traindeck {__version__}"
