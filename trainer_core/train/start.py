"""From a configuration to a running `Trainer`: the run's folder, its lock, its data, its device."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from trainer_core import __version__, files, protocol
from trainer_core.advice import Adviser
from trainer_core.checking.check import pick
from trainer_core.config import Config, to_dict
from trainer_core.data.prepare import Prepared, prepare
from trainer_core.data.tokenizing.tokenizer_files import CONFIG
from trainer_core.holding import by_clock, watch_for_others
from trainer_core.job import Job
from trainer_core.machine.awake import keeping_awake
from trainer_core.machine.sampler import Sampler
from trainer_core.messages import TraindeckError
from trainer_core.plans import Plan
from trainer_core.report import StopRequested
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import exactness, transaction
from trainer_core.train.device import (
    choose_device,
    choose_precision,
    describe,
    device_of_rank,
    set_up_arithmetic,
    warn_of_preset,
)
from trainer_core.train.engine import fast_paths
from trainer_core.train.loop import Trainer
from trainer_core.train.ranks import beside, divided


def train(plan: Plan, job: Job) -> None:
    """Train to the end or to a stop, which is said in a `done` event before `StopRequested` goes on."""
    config, run, session = plan.config, plan.run, job.session
    if plan.checkpoint is not None:
        _require_usable(plan.checkpoint, config)
    run.create()
    with run_dir.lock(run), keeping_awake(session, config.keep_awake):
        transaction.clean(run)
        source, damaged = _checkpoint_to_resume(plan)
        if source is not None:
            exactness.require_steps_left(source, config)
        job.open_run(run)
        for path, reason in damaged:
            session.warn("checkpoint.skipped", path=path.name, reason=reason)
        if source is None and damaged:  # something was saved: starting over would bury it
            raise TraindeckError("run.no_checkpoint", path=str(run.path))
        session.holds.append(by_clock(config.pause_between))
        if config.advice:
            job.wire.listen(Adviser(config).take)
        if not run.exists():  # else it stays as it was until nothing speaks against going on
            run.write_config(config)
        begun = _step_of(source)
        device = device_of_rank(choose_device(config.device), 0, config.ranks)
        set_up_arithmetic(divided(config), device)
        precision = choose_precision(config.mixed_precision, device, session)
        warn_of_preset(config, device, session)
        with beside(config, run, session) as join:
            try:
                _say_hello(job, plan, device, precision.name, begun)
                session.enter("preparing")
                prepared = prepare(config, session)
                config = pick(config, prepared, session, new=source is None)
                ranks = join(divided(config), device, precision.name, {"prepared": prepared.fingerprint}, source)
                trainer = Trainer(divided(config), prepared, run, session, device, precision, ranks)
                if source is not None:
                    trainer.resume(source)
                trainer.set_up()
            except StopRequested as stop:  # nothing trained yet, nothing to save
                session.emit(protocol.Done(reason=stop.reason, steps=begun, total_steps=config.max_steps))
                raise
            run.write_config(config)
            _keep_tokenizer(run, prepared)
            session.emit(_ready(trainer, prepared))
            with _reporting_elsewhere(job, config, run):
                _run(trainer, job)


def _run(trainer: Trainer, job: Job) -> None:
    """To its end, which is the last event: no look at the hardware comes after it."""
    try:
        with _watching(job, trainer):
            done = trainer.run()
    except StopRequested as stop:
        job.session.emit(trainer.summary(stop.reason))
        raise
    job.session.enter("done", done.steps)
    job.session.emit(done)


def _require_usable(checkpoint_path: Path, config: Config) -> None:
    """Raises `checkpoint.damaged`, `resume.past_max_steps` or `resume.past_max_epochs`, before a folder is made."""
    problem = checkpoint_dir.problem(checkpoint_path)
    if problem:
        raise TraindeckError("checkpoint.damaged", path=str(checkpoint_path), reason=problem)
    exactness.require_steps_left(checkpoint_path, config)


def _checkpoint_to_resume(plan: Plan) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The checkpoint to continue from (None: start from the beginning), and newer damaged ones with the reason."""
    if plan.checkpoint is not None:
        return transaction.adopt(plan.run, plan.checkpoint), []
    if not plan.resume:
        return None, []
    return checkpoint_dir.latest_good(plan.run.checkpoints)


def _step_of(source: Path | None) -> int:
    info = checkpoint_dir.read_info(source) if source is not None else None
    return info.step if info is not None else 0


def _say_hello(job: Job, plan: Plan, device: torch.device, precision: str, begun: int) -> None:
    job.session.emit(
        protocol.Hello(
            pid=os.getpid(),
            run_dir=str(plan.run.path),
            traindeck=__version__,
            python=platform.python_version(),
            torch=str(torch.__version__),
            devices=[describe(device_of_rank(device, rank, plan.config.ranks)) for rank in range(plan.config.ranks)],
            precision=precision,
            resumed_from_step=begun if plan.resume else None,
            config=to_dict(plan.config),
            fast_paths=fast_paths.known(device, precision),
        )
    )


def _ready(trainer: Trainer, prepared: Prepared) -> protocol.Ready:
    choice = trainer.train_data.choice
    return protocol.Ready(
        task=prepared.task,
        sources=list(prepared.sources),
        validation_sources=list(prepared.validation_sources),
        train_documents=prepared.train.documents,
        train_tokens=prepared.train.tokens,
        validation_documents=prepared.validation.documents,
        validation_tokens=prepared.validation.tokens,
        validation_sequences=prepared.validation.samples,
        eval_sequences=min(trainer.state.made_with["eval_sequences"], prepared.validation.samples),
        truncated=prepared.truncated,
        dropped=prepared.dropped,
        vocab_size=prepared.vocab_size,
        parameters=trainer.model.count_parameters(),
        steps_per_epoch=trainer.steps_per_epoch,
        total_steps=trainer.total_steps,
        samples_per_epoch=prepared.train.samples,
        fill=prepared.fill,
        fill_alone=prepared.fill_alone,
        loader_workers=choice.num_workers,
        loader_ahead=choice.ahead,
        loader_pinned=choice.pin_memory,
        loader_reason=choice.reason,
        fast_paths=trainer.engine.fast_paths,
        compile_s=trainer.engine.compile_s,
    )


def _keep_tokenizer(run: RunDir, prepared: Prepared) -> None:
    with files.said_plainly(run.path):
        for file in (prepared.tokenizer, prepared.tokenizer.with_name(CONFIG)):
            files.write_atomic(run.path / file.name, file.read_bytes())


def _uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _beside(first: torch.device, size: int) -> list[str]:
    """The UUIDs of the GPUs of all ranks but rank 0, whose device is `first`."""
    if first.type != "cuda":
        return []
    return [_uuid(device_of_rank(first, rank, size)) for rank in range(1, size)]


@contextlib.contextmanager
def _watching(job: Job, trainer: Trainer) -> Iterator[None]:
    """Sample the hardware in the background while training."""
    device = trainer.device

    def torch_memory() -> tuple[str, int, int] | None:
        if device.type != "cuda":
            return None
        return _uuid(device), torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)

    sampler = Sampler(
        job.session.emit,
        trainer.config.hardware_interval_s,
        trainer.run_dir.path,
        torch_memory,
        at_gpu=watch_for_others(job.session) if trainer.config.pause_for_others else None,
        beside=_beside(device, trainer.ranks.size),
    )
    job.session.settable["hardware_interval_s"] = sampler.set_interval
    trainer.reports.energy = sampler.energy_j
    sampler.start()
    try:
        yield
    finally:
        sampler.stop()


@contextlib.contextmanager
def _reporting_elsewhere(job: Job, config: Config, run: RunDir) -> Iterator[None]:
    """Weights & Biases, where it is wanted and works."""
    if config.use_wandb:
        from trainer_core.wandb_log import WandbSink

        try:
            job.wire.add(WandbSink(config, run.path, lambda problem: job.session.warn(problem.code, **problem.params)))
        except TraindeckError as error:
            job.session.warn(error.code, **error.params)
    yield
