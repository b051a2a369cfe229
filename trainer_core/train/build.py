"""Builds a run from its configuration: run directory, lock, data, device, `Trainer`."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch

from trainer_core import __version__, protocol, rank_info
from trainer_core.base_model.configure import apply_base_model, copy_files, find_copy, without_found_folder
from trainer_core.command_runner import CommandContext
from trainer_core.config import Config, to_dict
from trainer_core.data.prepare import PreparedData, prepare
from trainer_core.data.tokenizing.tokenizer_files import CONFIG_FILE
from trainer_core.messages import TraindeckError
from trainer_core.models.adapters import count_trainable
from trainer_core.progress import StopRequested
from trainer_core.run_context import RunContext
from trainer_core.run_plan import RunPlan
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files
from trainer_core.system.hardware_monitor import HardwareMonitor
from trainer_core.system.keep_awake import prevent_sleep
from trainer_core.system.pause_conditions import monitor_external_usage, scheduled_pause
from trainer_core.trackers import sink
from trainer_core.train import checkpoint_writer, deepspeed_config, reference, run_fingerprint
from trainer_core.train.advice.advisor import Advisor
from trainer_core.train.device import (
    Precision,
    choose_device,
    choose_precision,
    configure_arithmetic,
    describe_device,
    device_of_rank,
    warn_if_preset_unsupported,
)
from trainer_core.train.engine import fast_paths
from trainer_core.train.parallel import resolve_parallel
from trainer_core.train.process_group import ProcessGroup, join
from trainer_core.train.trainer import Trainer

ChooseSettings = Callable[[Config, PreparedData, RunContext, bool], Config]
"""Replaces automatic settings by measured ones; the last argument is False for a resumed run."""
_SHARED_FOLDER_S: Final = 10.0
_POLL_S: Final = 0.1


def train(plan: RunPlan, job: CommandContext, choose_settings: ChooseSettings) -> None:
    """Train to the end or to a stop, which a `done` event reports before `StopRequested` is raised.

    Raises `checkpoint.damaged`, `resume.past_max_steps` or `resume.past_max_epochs` before a folder is created.
    """
    config, run, context = plan.config, plan.run, job.run_context
    if plan.checkpoint is not None:
        if problem := checkpoint_dir.find_problem(plan.checkpoint):
            raise TraindeckError("checkpoint.damaged", path=str(plan.checkpoint), reason=problem)
        run_fingerprint.require_steps_left(plan.checkpoint, config)
    run.create()
    with run_dir.lock(run), prevent_sleep(context, config.keep_awake):
        checkpoint_writer.remove_leftovers(run)
        source, damaged = _checkpoint_to_resume(plan)
        if source is not None:
            run_fingerprint.require_steps_left(source, config)
        job.open_run(run)
        for path, reason in damaged:
            context.warn("checkpoint.skipped", path=path.name, reason=reason)
        if source is None and damaged:  # a valid state may be recoverable: do not start over
            raise TraindeckError("run.no_checkpoint", path=str(run.path))
        context.pause_conditions.append(scheduled_pause(config.pause_between))
        if config.advice:
            job.dispatcher.add_listener(Advisor(config).process)
        if not run.exists():  # an existing file stays until the run is known to continue
            run.write_config(config)
        info = checkpoint_dir.read_info(source) if source is not None else None
        first_step = info.step if info is not None else 0
        device = device_of_rank(choose_device(config.device), 0, config.nproc_per_node)
        configure_arithmetic(config, device)
        precision = choose_precision(config.mixed_precision, device, context)
        warn_if_preset_unsupported(config, device, context)
        with join(rank_info.from_environment(), config.collective_timeout_s, context.warn) as group:
            try:
                context.emit(_hello_event(plan, device, precision.name, first_step))
                chosen: list[tuple[Config, PreparedData]] = []

                def choose() -> dict[str, Any]:
                    chosen.append(_choose(plan, context, device, precision, group, source, choose_settings))
                    return _setup_of_others(run, *chosen[0], source, device, precision)

                group.on_rank_zero(choose)
                config, prepared = chosen[0]
                require_shared_folder(group, run, config, source)
                if config.base_model:
                    context.set_phase("loading")
                trainer = build_trainer(config, prepared, run, context, device, precision, group, source)
            except StopRequested as stop:  # nothing trained yet, nothing to save
                context.emit(protocol.Done(reason=stop.reason, steps=first_step, total_steps=config.max_steps))
                raise
            run.write_config(without_found_folder(config))
            _copy_tokenizer(run, prepared)
            if config.base_model and config.method == "full":
                with files.translate_os_errors(run.path):
                    copy_files(config, run.base_model)
            context.emit(_ready_event(trainer, prepared))
            sink.add_trackers(config, run.path, first_step, job.dispatcher, context.warn)
            try:
                with _monitoring(job, trainer):
                    done = trainer.run()
            except StopRequested as stop:
                context.emit(trainer.summary(stop.reason))
                raise
            context.set_phase("done", done.steps)
            context.emit(done)


def _choose(
    plan: RunPlan,
    context: RunContext,
    device: torch.device,
    precision: Precision,
    group: ProcessGroup,
    source: Path | None,
    choose_settings: ChooseSettings,
) -> tuple[Config, PreparedData]:
    """Prepare settings and data. Raises `ranks.too_many`."""
    context.set_phase("loading" if plan.config.base_model else "preparing")
    config = _apply_base_model(plan.config, context, plan, source)
    if config.parallel == "deepspeed":
        deepspeed_config.read(config, precision.name, group.world_size)  # refuse before data is prepared
    context.set_phase("preparing")
    prepared = prepare(config, context)
    if config.uses_rewards and prepared.task != "sft":
        raise TraindeckError("data.no_prompts")
    config = resolve_parallel(config, prepared.vocab_size, device, precision, group.world_size)
    config = choose_settings(config, prepared, context, source is None)
    if group.world_size > config.effective_batch:
        raise TraindeckError("ranks.too_many", ranks=group.world_size, sequences=config.effective_batch)
    return config, prepared


def _setup_of_others(
    run: RunDir, config: Config, prepared: PreparedData, source: Path | None, device: torch.device, precision: Precision
) -> dict[str, Any]:
    """What ranks other than 0 need to train the same, as plain values, see `worker.py`."""
    return {
        "config": to_dict(config),
        "run": str(run.path),
        "source": str(source) if source else None,
        "device": str(device),
        "precision": precision.name,
        "prepared": prepared.fingerprint,
    }


def require_shared_folder(group: ProcessGroup, run: RunDir, config: Config, source: Path | None) -> None:
    """Refuse ranks of other machines that do not see the run's folder, where they write to it or read checkpoints.

    The folder is shared if it has the lock that rank 0 holds. Collective. Raises `ranks.no_shared_folder`.
    """
    if config.parallel != "fsdp" and config.on_bad_step != "rollback" and source is None:
        return
    held = group.broadcast([str(run.path), run.lock.read_text("utf-8")] if group.rank == 0 else None)
    for rank, is_shared in enumerate(group.gather(_has_content(run.lock, held[1]))):
        if not is_shared:
            raise TraindeckError("ranks.no_shared_folder", number=rank + 1, of=group.world_size, path=held[0])


def _has_content(path: Path, content: str) -> bool:
    """Whether the file has the content. Network file systems may show it some seconds late."""
    end = time.monotonic() + _SHARED_FOLDER_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path.read_text("utf-8") == content:
                return True
        time.sleep(_POLL_S)
    return False


def build_trainer(
    config: Config,
    prepared: PreparedData,
    run: RunDir,
    context: RunContext,
    device: torch.device,
    precision: Precision,
    group: ProcessGroup,
    source: Path | None,
) -> Trainer:
    """Build the trainer of any rank, ready for its first step."""
    trainer = Trainer(config, prepared, run, context, device, precision, group, source)
    if source is not None:
        trainer.resume(source)
    trainer.set_up()
    return trainer


def _apply_base_model(config: Config, context: RunContext, plan: RunPlan, source: Path | None) -> Config:
    """`source`: the checkpoint to resume. With full tuning it has all weights, and the base model may be gone."""
    run = RunDir(plan.checkpoint.parent.parent) if plan.checkpoint else plan.run
    try:
        return apply_base_model(config, context, find_copy(run.base_model) if source else None)
    except TraindeckError as error:
        if source is not None and error.code == "base_model.not_found":
            raise TraindeckError("resume.no_base", error.code, base=config.base_model) from error
        raise


def _checkpoint_to_resume(plan: RunPlan) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The checkpoint to continue from (None: start from the beginning), and newer damaged ones with the reason."""
    if plan.checkpoint is not None:
        if plan.checkpoint.parent != plan.run.checkpoints:
            reference.copy_files(plan.checkpoint.parent.parent, plan.run.path)
        return checkpoint_writer.copy_checkpoint(plan.run, plan.checkpoint), []
    if not plan.resume:
        return None, []
    return checkpoint_dir.latest_valid(plan.run.checkpoints)


def _hello_event(plan: RunPlan, device: torch.device, precision: str, first_step: int) -> protocol.Hello:
    ranks = plan.config.nproc_per_node
    return protocol.Hello(
        pid=os.getpid(),
        run_dir=str(plan.run.path),
        traindeck=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        devices=[describe_device(device_of_rank(device, rank, ranks)) for rank in range(ranks)],
        precision=precision,
        resumed_from_step=first_step if plan.resume else None,
        config=to_dict(plan.config),
        fast_paths=fast_paths.cached_paths(device, precision),
    )


def _ready_event(trainer: Trainer, prepared: PreparedData) -> protocol.Ready:
    loader = trainer.train_data.settings
    packed = prepared.sequences["train"] if prepared.packed else None
    return protocol.Ready(
        task=prepared.task,
        sources=list(prepared.sources),
        validation_sources=list(prepared.validation_sources),
        train_documents=prepared.train.documents,
        train_tokens=prepared.train.tokens,
        validation_documents=prepared.validation.documents,
        validation_tokens=prepared.validation.tokens,
        validation_sequences=prepared.validation.samples,
        eval_sequences=min(trainer.state.run_fingerprint["eval_sequences"], prepared.validation.samples),
        truncated=prepared.truncated,
        dropped=prepared.dropped,
        vocab_size=prepared.vocab_size,
        parameters=trainer.model.count_parameters(),
        trainable_parameters=count_trainable(trainer.model),
        steps_per_epoch=trainer.steps_per_epoch,
        total_steps=trainer.total_steps,
        samples_per_epoch=prepared.train.samples,
        fill=packed.fill_ratio if packed else None,
        fill_unpacked=packed.unpacked_fill_ratio(trainer.config.batch_size) if packed else None,
        loader_workers=loader.num_workers,
        loader_prefetch=loader.num_workers * trainer.config.prefetch_factor,
        loader_pinned=loader.pin_memory,
        loader_reason=loader.reason,
        startup_s=trainer.context.phase_seconds(),
        fast_paths=list(trainer.engine.fast_paths.values()),
    )


def _copy_tokenizer(run: RunDir, prepared: PreparedData) -> None:
    with files.translate_os_errors(run.path):
        for file in (prepared.tokenizer, prepared.tokenizer.with_name(CONFIG_FILE)):
            files.write_atomic(run.path / file.name, file.read_bytes())


@contextlib.contextmanager
def _monitoring(job: CommandContext, trainer: Trainer) -> Iterator[None]:
    """Sample the hardware in the background while training."""
    device, uuids = trainer.device, list[str]()
    if device.type == "cuda":
        ranks = trainer.config.nproc_per_node
        devices = (device_of_rank(device, rank, ranks) for rank in range(ranks))
        uuids = [str(torch.cuda.get_device_properties(one).uuid) for one in devices]

    def torch_memory() -> tuple[str, int, int] | None:
        if not uuids:
            return None
        return uuids[0], torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)

    sampler = HardwareMonitor(
        job.run_context.emit,
        trainer.config.hardware_interval_s,
        trainer.run_dir.path,
        torch_memory,
        gpu_callback=monitor_external_usage(job.run_context) if trainer.config.pause_for_others else None,
        other_gpu_uuids=uuids[1:],
    )
    job.run_context.live_settings["hardware_interval_s"] = sampler.set_interval
    trainer.reports.energy = sampler.energy_j
    sampler.start()
    try:
        yield
    finally:
        sampler.stop()
