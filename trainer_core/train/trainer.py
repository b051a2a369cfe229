"""Training loop. `Trainer.run` reads from top to bottom; `Trainer._step` is one step.

A step is one optimizer update over an accumulation window of `gradient_accumulation_steps` micro-batches (fewer at the
end of an epoch). The position in the data counts samples. The loss of a window is the mean over all its loss tokens,
however they are distributed over micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.loader import Batch, BatchLoader
from trainer_core.data.prepare import PreparedData
from trainer_core.messages import TraindeckError
from trainer_core.models.decoder import ModelConfig, build_decoder
from trainer_core.progress import StopRequested
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import bad_steps, checkpoint, flops, optimizers, run_fingerprint
from trainer_core.train.async_checkpointer import AsyncCheckpointer
from trainer_core.train.bad_steps import BadStepHandler, Rollback
from trainer_core.train.checkpoint import TrainState
from trainer_core.train.device import Precision
from trainer_core.train.device_transfer import AccumulationWindow, WindowLoader
from trainer_core.train.engine.engine import Engine
from trainer_core.train.engine.select import build_engine
from trainer_core.train.evaluate import EvaluationPass, build_event, validation_sample
from trainer_core.train.gc_control import GarbageCollector
from trainer_core.train.numerics import GradientNoise, Plateau
from trainer_core.train.oom import OomRecovery
from trainer_core.train.ranks import ALONE, Ranks, rows_of, share_of
from trainer_core.train.samples import SampleWriter
from trainer_core.train.schedule import Schedule
from trainer_core.train.state_offload import offloaded, persistent_tensors
from trainer_core.train.step_metrics import MetricsRecorder, StepReporter
from trainer_core.train.step_timer import StepClock

_METRICS_INTERVAL: Final = {"cpu": 1, "cuda": 8}  # maximum steps between two checks for bad steps
_NOISE_SAMPLES: Final = 10  # gradient noise measurements per performance event


class Trainer:
    """One run from its first (or resumed) step to its end.

    Raises `StopRequested` after saving when a stop is requested, and `TraindeckError` for known failures. Existing
    checkpoints are never removed on failure. With `telemetry` off, only what training itself needs is measured; it may
    change between steps.
    """

    engine: Engine  # set by `set_up`
    eager_start = True  # train eagerly until compiled code is ready

    def __init__(
        self,
        config: Config,
        prepared: PreparedData,
        run: RunDir,
        session: RunContext,
        device: torch.device,
        precision: Precision,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self.prepared, self.run_dir, self.session = config, prepared, run, session
        self.ranks = ranks
        self._rank_config = share_of(config, prepared.task != "sft")  # with this rank's micro-batches
        self.device, self.precision = device, precision
        self.model = build_decoder(device, ModelConfig.from_config(config, prepared.vocab_size))
        scaler = torch.amp.GradScaler(device.type, enabled=precision.needs_scaler)
        self.state = TrainState(self.model, optimizers.build_optimizer(self.model, config), scaler)
        self.train_data = BatchLoader(prepared, config, "train", device.type)
        self.validation_data = BatchLoader(prepared, config, "validation", device.type)
        self._previous_fingerprint: dict[str, Any] = {}  # of the checkpoint that the run resumed from
        self._compute_total_steps()
        self.state.run_fingerprint = run_fingerprint.build_fingerprint(config, prepared, device, precision)
        self.windows: WindowLoader | None = None  # micro-batches on the device, from the current position on
        self.sample_writer = SampleWriter(self.model, prepared, config, session)
        self.clock, self.garbage = StepClock(device), GarbageCollector()
        self.checkpointer = AsyncCheckpointer(config, run, session, device, self.clock)
        self.bad_steps = BadStepHandler(config, run, session, device, scaler, self.checkpointer.join)
        self.noise, self.plateau = GradientNoise(device, scaler), Plateau(config)
        self.metrics = MetricsRecorder(device, scaler, self.clock, self.bad_steps, self.noise)
        self.oom = OomRecovery(self._rank_config, self.model, device, session, ranks)
        self.reports = StepReporter(config, session, self.model, device, precision, self.bad_steps.watch)
        self.telemetry = True
        self.log_steps, self.sample_steps = config.log_steps, config.sample_steps
        self.perf_steps, self.flops_steps = config.perf_steps, config.flops_steps
        for name in ("log_steps", "sample_steps", "perf_steps", "flops_steps"):
            session.live_settings[name] = partial(self._set_interval, name)
        self._rollback: Rollback | None = None  # pending rollback after a bad step
        self._evaluated: tuple[int, float | None] | None = None  # step and loss of the last evaluation
        self._seconds_before = 0.0  # in steps of earlier processes
        self._finished = False  # resumed from the final checkpoint: nothing left to do
        self._consistent = True  # weights and counters are consistent; false during the optimizer update
        self._generators: dict[str, Tensor] = {}  # torch's RNG states before a step with dropout

    def _set_interval(self, name: str, steps: float) -> None:
        setattr(self, name, int(steps))

    # --- the run -----------------------------------------------------------------------------------

    def resume(self, folder: Path) -> None:
        """Continue from a checkpoint. Raises `data.changed`, `resume.order_changed` or `checkpoint.mismatch`."""
        self._previous_fingerprint = run_fingerprint.require_the_same_run(
            folder, self.model, self.state.run_fingerprint
        )
        self._load(folder)
        run_fingerprint.preserve_eval_sample(self.session, self._previous_fingerprint, self.state.run_fingerprint)
        self._seconds_before = self.state.counters.seconds
        info = checkpoint_dir.read_info(folder)
        self._finished = info is not None and info.kind == "final" and info.step >= self.total_steps

    def _load(self, folder: Path) -> None:
        """Load the state of a checkpoint and everything derived from it."""
        checkpoint.load(folder, self.state)
        counters, numerics = self.state.counters, self.state.numerics
        self._compute_total_steps()
        self.bad_steps.load_state(numerics.get("recovery", {}))
        self.noise.load_state(numerics.get("noise", {}))
        self.plateau.load_state(numerics.get("plateau", {}))
        self.oom.load_state(numerics.get("memory", {}))
        self.metrics.load(counters)
        self.reports.start(counters.tokens, counters.samples)
        info = checkpoint_dir.read_info(folder)
        if info is not None:
            self.checkpointer.saved = (info.step, info.eval_loss)
            self._evaluated = (info.step, info.eval_loss) if info.eval_loss is not None else None

    def _compute_total_steps(self) -> None:
        """Compute length and schedule of the rest of the run. Warmup is kept unless its setting changed."""
        counters, samples = self.state.counters, self.train_data.samples
        changed = self._previous_fingerprint.get("warmup_steps") != self.config.warmup_steps
        self.schedule = Schedule(self.config, samples, None if changed else counters.warmup_samples)
        counters.warmup_samples = self.schedule.warmup_samples
        self.steps_per_epoch = self.schedule.steps_per_epoch
        self.total_steps = self.schedule.total_steps(counters.step, counters.position)

    def set_up(self) -> None:
        """Build the engine and warn about differences to the checkpoint. Raises `StopRequested`."""
        self.windows = self._new_windows()
        self.engine = self.oom.build(self._build)
        self.state.engine = self.engine.choices
        self.state.run_fingerprint |= run_fingerprint.build_engine_fingerprint(self.engine, self.device)
        run_fingerprint.warn_about_changes(self.session, self._previous_fingerprint, self.state.run_fingerprint)

    def _build(self, rows: int) -> Engine:
        """Build the engine for micro-batches of `rows` sequences, with optimizer memory allocated. Rank 0 selects for
        all ranks.
        """
        example = self.oom.retry(lambda: self._prepare_engine(rows))

        def made(choices: dict[str, Any] | None) -> Engine:
            if self.ranks.rank and choices and choices.get("compiled_for"):  # other ranks may compute other row counts
                rows = rows_of(self.config, self.ranks.rank, self.prepared.task != "sft")
                choices = {**choices, "compiled_for": [rows, *choices["compiled_for"][1:]]}
            return build_engine(
                self._rank_config,
                self.model,
                self.device,
                self.precision,
                self.session,
                example,
                self.total_steps,
                choices,
                step=self.state.counters.step,
                varying=self.prepared.task == "sft",
                eager_start=self.eager_start,
                background=self.ranks.rank == 0,
            )

        engine: Engine = self.ranks.same(made, lambda engine: engine.choices, self.state.engine or None)
        return engine

    def _prepare_engine(self, rows: int) -> Batch:
        """Allocate what training keeps between steps and return a micro-batch of `rows` sequences."""
        assert self.windows is not None
        optimizers.allocate(self.state.optimizer)
        self.ranks.reserve(list(self.model.parameters()))
        return self.windows.example().split_rows(rows)[0]

    def run(self) -> protocol.Done:
        """Train to the end and write the final checkpoint."""
        try:
            if not self._finished:
                if self.windows is None:
                    self.set_up()
                with self.garbage.disabled(), self.offloading():
                    self._train()
                    self._finish()
        except StopRequested:
            self.checkpointer.patient = False
            self._process_metrics(wait=True)
            if self._rollback is not None:
                self._roll_back()
            self.save("regular")
            raise
        except TraindeckError as error:
            if error.code == "memory.exhausted":  # after other known failures, a write would only add to the problem
                self._emergency_save()
            raise
        except Exception:
            self._emergency_save()
            raise
        finally:
            if self.windows is not None:
                self.engine.close()
            self.checkpointer.close()
            self.train_data.close()
            self.validation_data.close()
        return self.summary("finished")

    def _train(self) -> None:
        if self.state.counters.last_evaluated_step < self.state.counters.step:
            self._after_step()  # the run was stopped during the evaluation of this step
        self.session.set_phase("training", self.state.counters.step)
        while self.state.counters.step < self.total_steps:
            self.session.poll()
            self.checkpointer.poll()
            self.ranks.tell("step")
            self.step()
            if self._rollback is not None:
                self._roll_back()
            else:
                self._after_step()

    def step(self) -> None:
        """Make one step on all ranks; rank 0 reports it."""
        self.compile_if_due()
        with self.clock.step():
            self._step(self._next_window())
            if self.ranks.rank == 0:
                self._request_metrics()
                self._process_metrics(wait=self._due_now())

    def compile_if_due(self) -> None:
        """Switch to compiled code at the step that was fixed when the run started, on all ranks."""
        switch, step = self.engine.switch, self.state.counters.step
        if switch is None or step < switch.step:
            return
        self.clock.catch_up()
        self.session.set_phase("compiling", step)
        assert self.windows is not None
        example = self.windows.example().split_rows(self.oom.built_for)[0]
        self.ranks.same(lambda choices: switch.finish(example, choices), lambda _: self.engine.choices, None)
        self.state.engine = self.engine.choices
        compile_s = self.engine.compile_s or 0.0
        self.session.emit(protocol.Compiled(step=step, compile_s=compile_s, fast_paths=self.engine.fast_paths))
        self.session.set_phase("training", step)

    def _finish(self) -> None:
        step = self.state.counters.step
        if self._eval_loss() is None:
            self.evaluate()
        self.save("final")
        with self.oom.skip_on_oom("sample-steps", step):
            self.sample_writer.write_samples(step)

    def offloading(self) -> AbstractContextManager[Callable[[], AbstractContextManager[None]]]:
        """Context in which a pause frees device memory; yields what frees it."""
        return offloaded(self.session, self.engine, self._on_device, self.device, self.run_dir.path, self.ranks)

    def _on_device(self) -> Iterator[Tensor]:
        yield from persistent_tensors(self.model, self.state.optimizer)
        yield from self.windows.tensors() if self.windows is not None else ()

    def _emergency_save(self) -> None:
        """Save the last step boundary after an unexpected failure, if it is consistent. Never hides the failure."""
        step = self.state.counters.step
        if self._consistent and step > 0:
            self.checkpointer.patient = False
            try:
                if self._generators:
                    checkpoint.set_rng_states(self.model, self._generators)
                self.save("emergency")
            except Exception as error:  # noqa: BLE001 - a broken GPU can fail in any way
                self.session.warn("checkpoint.not_saved", step=step, reason=str(error).partition("\n")[0])

    def _new_windows(self) -> WindowLoader:
        """Batches from the current position on, one accumulation window at a time."""
        counters, many = self.state.counters, self.config.gradient_accumulation_steps
        deal = partial(self.ranks.share, most=self._rank_config.batch_size)
        return WindowLoader(self.train_data.step_batches(counters.position, many), self.device, deal)

    def _next_window(self) -> AccumulationWindow:
        assert self.windows is not None
        self.windows.load()
        self.clock.mark("data")
        window = self.windows.next_window()
        self.clock.mark("transfer")
        return window

    def _step(self, window: AccumulationWindow) -> None:
        """One optimizer update. Does not synchronize with a GPU, except to sum gradients of several ranks through host
        memory.
        """
        state, counters, whole = self.state, self.state.counters, window.whole
        step, position, tokens = counters.step + 1, counters.position + window.sequences, window.tokens
        learning_rate = self.schedule.learning_rate(step, position, self.plateau.scale)
        several = len(whole) > 1 or self.ranks.size > 1
        noisy = self.telemetry and several and _due(step, -(-self.perf_steps // _NOISE_SAMPLES))
        if self.config.dropout:
            self.ranks.seed(self.config.seed, step)
            self._generators = checkpoint.rng_states(self.model)
        window_loss = self.oom.run_step(lambda: self._gradients(window.share, tokens, noisy), self._undo, step)
        self.ranks.add_up_gradients(self.model.parameters(), window_loss)
        if self.ranks.size > 1:
            self.clock.mark("sync")
        if step < self.total_steps and self.windows is not None:
            self.windows.prefetch()
            self.clock.mark("data")
        self._consistent = False
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate
        state.scaler.unscale_(state.optimizer)
        limit = self.config.grad_clip or math.inf
        grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        bad = self.bad_steps.judge(grad_norm, step, whole, position)
        optimizers.update(state.optimizer, state.scaler, bad)
        state.optimizer.zero_grad(set_to_none=True)
        if noisy:
            self.noise.record_last(grad_norm, tokens)
        counters.step, counters.position = step, position
        counters.tokens += tokens
        counters.samples += sum(batch.samples for batch in whole)
        self.metrics.add(whole, window_loss, tokens, bad, grad_norm, learning_rate)
        self._consistent, self._generators = True, {}
        self.oom.relax(step)
        self.clock.mark("optimizer")

    def _gradients(self, share: list[Batch], tokens: int, noisy: bool) -> Tensor:
        """Forward and backward: gradients of the mean over `tokens`; returns the summed loss (0-dim float64)."""
        window_loss = torch.zeros((), dtype=torch.float64, device=self.device)
        grad_scale = self._grad_scale(tokens)
        for number, batch in enumerate(self.oom.split(share)):
            self.oom.during = "forward"
            loss = self.engine.loss(batch, grad_scale)
            window_loss += loss.detach()
            self.clock.mark("forward")
            self.oom.during = "backward"
            torch.autograd.backward(self.state.scaler.scale(loss / max(1, tokens)))
            if noisy and number == 0:
                self.noise.record_first(self.model.parameters(), batch.loss_tokens)
            self.clock.mark("backward")
        return window_loss

    def _grad_scale(self, tokens: int) -> Tensor | None:
        """Gradient of a micro-batch's summed loss in a step of `tokens` tokens; None unless fp16 loss scaling is on."""
        scaler = self.state.scaler
        if not scaler.is_enabled():
            return None
        return scaler.scale(torch.ones((), device=self.device)) / max(1, tokens)

    def _undo(self) -> None:
        """Reset gradients and RNG states to the beginning of the step."""
        self.state.optimizer.zero_grad(set_to_none=True)
        if self._generators:
            checkpoint.set_rng_states(self.model, self._generators)
        self.clock.mark("other")

    def _request_metrics(self) -> None:
        """Request the metrics of this step if any are due. On a GPU they arrive some steps later."""
        counters = self.state.counters
        step = counters.step
        log = self.telemetry and (_due(step, self.log_steps) or step >= self.total_steps)
        perf = self.telemetry and _due(step, self.perf_steps)
        if log or perf or self._due_now() or _due(step, _METRICS_INTERVAL[self.device.type]):
            self.metrics.request(counters, counters.position / self.train_data.samples, log, perf)

    def _process_metrics(self, wait: bool) -> None:
        """Report metrics that have arrived (with `wait`: all) and detect bad steps."""
        for request, metrics in self.metrics.completed(wait):
            self._rollback = self.bad_steps.handle(metrics.bad)
            if self._rollback is not None:
                return
            self.clock.read(request.interval)
            self.reports.report(request, metrics)

    def _roll_back(self) -> None:
        """Restore the last good checkpoint and continue behind the batch of the bad step. Pending metrics are
        discarded.
        """
        rollback, self._rollback = self._rollback, None
        assert rollback is not None
        self.ranks.tell("back", folder=rollback.folder.name, position=rollback.position)
        self.clock.clear()
        self.continue_from(rollback.folder, rollback.position)
        self.checkpointer.saved = (-1, None)  # no checkpoint holds this state
        self.bad_steps.on_rolled_back(rollback, self.state.counters.step)

    def continue_from(self, folder: Path, position: int) -> None:
        """Continue with the state of a checkpoint at another position in the data."""
        self._load(folder)
        self.state.counters.position = position
        self._compute_total_steps()
        self.windows = self._new_windows()

    def _due_now(self) -> bool:
        """Whether evaluation, saving or sampling is due at this step, which requires all metrics up to it."""
        step, config, requests = self.state.counters.step, self.config, self.session.requests
        intervals = (config.eval_steps, config.save_steps, self.sample_steps, self.flops_steps)
        requested = requests.save or bool(requests.samples)
        return step >= self.total_steps or requested or any(_due(step, interval) for interval in intervals)

    def _after_step(self) -> None:
        """Evaluate, write samples and save, as due at this step."""
        config, step = self.config, self.state.counters.step
        last = step >= self.total_steps
        requests = self.session.requests.pop_all()
        if self.telemetry:
            self.session.progress("training", step, self.total_steps, "steps")
        if _due(step, self.flops_steps) and self.windows is not None:
            self.clock.catch_up()
            with self.oom.skip_on_oom("flops-steps", step):
                self.session.emit(flops.profile(self.model, self.windows.example(), self.precision, step))
        better = _due(step, config.eval_steps) and not last and self._eval_loss() is None and self.evaluate()
        with self.oom.skip_on_oom("sample-steps", step):
            if _due(step, self.sample_steps) and not last:
                self.sample_writer.write_samples(step)
            for request in requests.samples:
                self.sample_writer.write_one(step, request.prompt, request.max_tokens)
        self.state.counters.last_evaluated_step = step
        if requests.save or (_due(step, config.save_steps) and not last):
            self.save("regular", background=True)
        elif better and config.keep_best:
            self.save("best", background=True)
        self.session.set_phase("training", step)
        self.garbage.collect_if_due()

    # --- measuring, saving ---------------------------------------------------------------------------

    def evaluate(self) -> bool:
        """Evaluate on validation data. Returns True if the loss is the best so far."""
        counters = self.state.counters
        self.clock.catch_up()
        if self.validation_data.samples == 0:
            return False
        self.session.set_phase("evaluating", counters.step)
        loss = self.evaluation_pass().run(self.session)
        answers = None
        with self.oom.skip_on_oom("eval-examples", counters.step):
            tokens = self.oom.max_rows * self.config.max_seq_len  # as many as in a training step
            answers = self.sample_writer.answer_held_out(tokens)
        better = loss.mean is not None and (counters.best_loss is None or loss.mean < counters.best_loss)
        if better:
            counters.best_loss = loss.mean
        self.plateau.observe(loss.mean)
        self._evaluated = (counters.step, loss.mean)
        self.garbage.collect()
        self.session.emit(build_event(counters.step, loss, better, answers))
        return better

    def evaluation_pass(self) -> EvaluationPass:
        """One pass over the validation sample, the same sequences each time."""
        sample = validation_sample(self.validation_data.samples, self.state.run_fingerprint["eval_sequences"])
        total = math.ceil(len(sample) / self.config.batch_size)
        batches = self.validation_data.iterate_samples(sample, self.ranks.rank, self.ranks.size)
        way = self.oom.loss_of(self.engine.eager_loss, self.state.counters.step)
        return EvaluationPass(self.model, batches, total, self.device, self.precision, way, self.ranks)

    def save(self, kind: protocol.CheckpointKind, background: bool = False) -> None:
        """Save a checkpoint of this step boundary, verified on disk when this returns, or with `background` in the
        background. Does nothing if the same state is already saved, unless `kind` is final.
        """
        step, eval_loss = self.state.counters.step, self._eval_loss()
        if self.checkpointer.saved != (step, eval_loss) or kind == "final":
            self._gather()
            self.session.set_phase("saving", step)
            content = checkpoint.build_content(self.state, self.sample_writer.companions())
            self.checkpointer.save(content, kind, eval_loss, self.bad_steps.is_rollback_due(step))
            self.garbage.collect()
        if not background:
            self.checkpointer.wait()

    def _gather(self) -> None:
        """Update the state to this step boundary. Raises `train.not_finite`."""
        counters = self.state.counters
        self._update_duration()
        self.metrics.store(counters)
        self.state.numerics = {
            "recovery": self.bad_steps.state(),
            "noise": self.noise.state(),
            "plateau": self.plateau.state(),
            "memory": self.oom.state(),
        }
        bad_steps.require_finite(self.model, counters.loss_sum, counters.step)

    def _eval_loss(self) -> float | None:
        """Validation loss of this step, if it was evaluated."""
        step, loss = self._evaluated or (-1, None)
        return loss if step == self.state.counters.step else None

    def _update_duration(self) -> None:
        self.clock.catch_up()
        self.state.counters.seconds = self._seconds_before + self.clock.seconds

    def summary(self, reason: protocol.DoneReason) -> protocol.Done:
        """The last event of a run."""
        counters = self.state.counters
        self._update_duration()
        model = self.run_dir.checkpoints / checkpoint_dir.folder_name(counters.step)
        return protocol.Done(
            reason=reason,
            steps=counters.step,
            total_steps=self.total_steps,
            best_loss=counters.best_loss,
            final_loss=self._evaluated[1] if self._evaluated else None,
            tokens=counters.tokens,
            seconds=counters.seconds,
            tokens_per_s=counters.tokens / counters.seconds if counters.seconds else 0.0,
            peak_vram=self.reports.peak_reserved(),
            model=str(model) if model.is_dir() else None,
        )


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
