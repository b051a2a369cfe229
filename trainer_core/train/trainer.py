"""Training loop: `Trainer.run` reads from top to bottom. `training_step.py` has the step itself.

The position in the data counts samples. Evaluation, samples and checkpoints happen between steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import torch
from torch import Tensor

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.prepare import PreparedData
from trainer_core.messages import TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import bad_steps, checkpoint, flops
from trainer_core.train.async_checkpointer import AsyncCheckpointer
from trainer_core.train.bad_steps import Rollback
from trainer_core.train.control import Control
from trainer_core.train.device import Precision
from trainer_core.train.neutral_loss import NeutralText
from trainer_core.train.process_group import SINGLE_PROCESS, ProcessGroup
from trainer_core.train.samples import SampleWriter
from trainer_core.train.step_metrics import StepReporter
from trainer_core.train.training_step import TrainingStep, is_due

T = TypeVar("T")

_METRICS_INTERVAL: Final = {"cpu": 1, "cuda": 8}  # maximum steps between two checks for bad steps
_SAVED_FAILURES: Final = frozenset({"memory.exhausted", "failure.peer_lost", "ranks.lost", "ranks.timeout"})
"""Known failures after which the last step is saved; after others a write would only add to the problem."""
_LIVE_SETTINGS: Final = ("log_steps", "sample_steps", "perf_steps", "flops_steps")


class Trainer(TrainingStep):
    """One run from its first (or resumed) step to its end.

    Raises `StopRequested` after saving when a stop is requested, and `TraindeckError` for known failures. Existing
    checkpoints are never removed on failure.
    """

    def __init__(
        self,
        config: Config,
        prepared: PreparedData,
        run: RunDir,
        context: RunContext,
        device: torch.device,
        precision: Precision,
        group: ProcessGroup = SINGLE_PROCESS,
        source: Path | None = None,
    ) -> None:
        super().__init__(config, prepared, run, context, device, precision, group, source)
        self.checkpointer = AsyncCheckpointer(config, run, context, device, self.clock, group)
        self.control = Control(context, group, _LIVE_SETTINGS, self._change_setting, self.checkpointer.poll)
        poll = self.control.poll if self.parallel.is_sharded else context.poll
        self.sample_writer = SampleWriter(self.model, prepared, config, context, poll)
        self.neutral_text = NeutralText(self.sample_writer.codec, config.max_seq_len) if config.base_model else None
        self.reports = StepReporter(
            config, context, self.model, device, precision, self.bad_steps.monitor, group.world_size
        )
        self._rollback: Rollback | None = None  # pending rollback after a bad step
        # Step, loss and reward of the last evaluation
        self._evaluated: tuple[int, float | None, float | None] | None = None
        self._finished = False  # resumed from the final checkpoint: nothing left to do

    def _change_setting(self, name: str, steps: float) -> None:
        self.config = msgspec.structs.replace(self.config, **{name: int(steps)})

    def resume(self, folder: Path) -> None:
        super().resume(folder)
        self.clock.earlier_s = self.state.counters.seconds
        info = checkpoint_dir.read_info(folder)
        self._finished = info is not None and info.kind == "final" and self._is_complete()

    def load(self, folder: Path, position: int | None = None) -> None:
        super().load(folder, position)
        self.reports.start(self.state.counters.tokens, self.state.counters.samples)
        info = checkpoint_dir.read_info(folder)
        if info is not None:
            self.checkpointer.saved = (info.step, info.eval_loss)
            if info.eval_loss is not None:
                self._evaluated = info.step, info.eval_loss, info.eval_reward
            else:
                self._evaluated = None

    # --- the run -------------------------------------------------------------------------------------

    def run(self) -> protocol.Done:
        """Train to the end and write the final checkpoint."""
        try:
            if not self._finished:
                if not self._is_set_up:
                    self.set_up()
                with self.garbage.disabled(), self.offloading(self.control):
                    self._train()
                    self._finish()
        except StopRequested:
            self.checkpointer.patient = False
            if self.group.rank == 0:
                self._process_metrics(wait=True)
            if self._agree_on_rollback():
                self._roll_back()
            self.save("regular")
            raise
        except Exception as error:
            known = isinstance(error, TraindeckError) and error.code not in _SAVED_FAILURES
            if self.group.rank == 0 and not self.parallel.is_sharded and not known:
                self._emergency_save()
            raise
        finally:
            self.checkpointer.close()
            self.close()
        return self.summary("finished" if self.state.counters.step >= self.total_steps else "early_stop")

    def _train(self) -> None:
        counters = self.state.counters
        if self.config.eval_on_start and counters.step == 0 and self._eval_loss() is None:
            self.evaluate()
        if counters.last_evaluated_step < counters.step:
            self._after_step()  # the run was stopped during the evaluation of this step
        self.context.set_phase("training", counters.step)
        while not self._is_complete():
            self.control.poll()
            self.step()
            if self._agree_on_rollback():
                self._roll_back()
            else:
                self._after_step()

    def _is_complete(self) -> bool:
        return self.state.counters.step >= self.total_steps or self.plateau.ends_run

    def _agree_on_rollback(self) -> bool:
        """Whether all ranks roll back: only rank 0 reads the metrics of steps."""
        if self.config.on_bad_step != "rollback":
            return False
        return bool(self.group.broadcast(True if self._rollback is not None else None))

    def step(self) -> None:
        """Make one step and report it."""
        self.compile_if_due()
        with self.clock.step():
            self._step(self._next_window())
            if self.group.rank == 0:
                self._request_metrics()
                self._process_metrics(wait=self._due_now())

    def _finish(self) -> None:
        step = self.state.counters.step
        if self._eval_loss() is None:
            self.evaluate()
        self.save("final")
        with self.oom.skip_on_oom("sample-steps", step):
            self._with_model(lambda: self.sample_writer.write_samples(step))

    def _with_model(self, work: Callable[[], T]) -> T | None:
        """Use the model outside of steps: on all ranks where each has a part of its weights, otherwise on rank 0.

        None: this rank did not.
        """
        if self.parallel.is_sharded:
            with torch.no_grad(), self.oom.restart_on_oom(self.state.counters.step):
                return self.parallel.forward(work)  # type: ignore[arg-type,return-value]
        found: list[T] = []
        self.group.on_rank_zero(lambda: found.append(work()))
        return found[0] if found else None

    def _request_metrics(self) -> None:
        """Request the metrics of this step if any are due. On a GPU they arrive some steps later."""
        counters, config, step = self.state.counters, self.config, self.state.counters.step
        log = self.telemetry and (is_due(step, config.log_steps) or step >= self.total_steps)
        perf = self.telemetry and is_due(step, config.perf_steps)
        if log or perf or self._due_now() or is_due(step, _METRICS_INTERVAL[self.device.type]):
            self.metrics.request(counters, counters.position / self.train_data.samples, log, perf)

    def _process_metrics(self, wait: bool) -> None:
        """Report metrics that have arrived (with `wait`: all) and detect bad steps."""
        for request, metrics in self.metrics.completed(wait):
            self._rollback = self.bad_steps.handle(metrics.bad, self.checkpointer.join)
            if self._rollback is not None:
                return
            self.clock.read(request.interval)
            self.reports.report(request, metrics)

    def _roll_back(self) -> None:
        """Restore the last good checkpoint and continue behind the batch of the bad step. Pending metrics are
        discarded.
        """
        rollback, self._rollback = self._rollback, None
        target = None if rollback is None else [str(rollback.folder), rollback.position]
        folder, position = self.group.broadcast(target)
        self.clock.clear()
        self.load(Path(folder), position)
        self.checkpointer.saved = (-1, None)  # no checkpoint holds this state
        if rollback is not None:
            self.bad_steps.on_rolled_back(rollback, self.state.counters.step)

    def _due_now(self) -> bool:
        """Whether evaluation, saving or sampling is due at this step, which requires all metrics up to it."""
        step, config = self.state.counters.step, self.config
        intervals = (config.eval_steps, config.save_steps, config.sample_steps, config.flops_steps)
        return (
            step >= self.total_steps
            or bool(self.context.requests)
            or any(is_due(step, interval) for interval in intervals)
        )

    def _after_step(self) -> None:
        """Evaluate, write samples and save, as due at this step."""
        config, step = self.config, self.state.counters.step
        last = step >= self.total_steps
        requests, self.context.requests = self.context.requests, []
        if self.telemetry:
            self.context.progress("training", step, self.total_steps, "steps")
        if is_due(step, config.flops_steps) and not self.parallel.is_sharded:
            self.clock.catch_up()
            with self.oom.skip_on_oom("flops-steps", step):
                self._with_model(self._profile)
        better = is_due(step, config.eval_steps) and not last and self._eval_loss() is None and self.evaluate()
        last = self._is_complete()  # an evaluation can end the run
        with self.oom.skip_on_oom("sample-steps", step):
            if is_due(step, config.sample_steps) and not last:
                self._with_model(lambda: self.sample_writer.write_samples(step))
            for request in requests:
                if isinstance(request, protocol.SampleCommand):
                    self._with_model(partial(self.sample_writer.write_one, step, request.prompt, request.max_tokens))
        self.state.counters.last_evaluated_step = step
        save_requested = any(isinstance(request, protocol.Save) for request in requests)
        if save_requested or (is_due(step, config.save_steps) and not last):
            self.save("regular", background=True)
        elif better and config.keep_best:
            self.save("best", background=True)
        self.context.set_phase("training", step)
        self.garbage.collect_if_due()

    def _profile(self) -> None:
        self.context.emit(flops.profile(self.model, self.windows.example(), self.precision, self.state.counters.step))

    # --- evaluation ----------------------------------------------------------------------------------

    def evaluate(self) -> bool:
        """Evaluate on validation data. Returns True if the reward, or without one the loss, is the best so far."""
        counters = self.state.counters
        self.group.doing("evaluating", counters.step)
        self.clock.catch_up()
        if self.validation_data.samples == 0:
            return False
        self.context.set_phase("evaluating", counters.step)
        event = self.evaluation_pass().run(self.context, self.control.poll)
        answers = None
        with self.oom.skip_on_oom("eval-examples", counters.step):
            tokens = self.oom.max_sequences * self.config.max_seq_len  # as many as in a training step
            answers = self._with_model(lambda: self.sample_writer.answer_held_out(tokens))
        neutral = self._with_model(self._neutral_losses) or {}
        event = msgspec.structs.replace(event, **(asdict(answers) if answers else {}), **neutral)
        reward = self.group.broadcast(event.reward_accuracy if event.reward is None else event.reward)
        event.best = self._is_best(event.loss, reward)
        if event.best:
            counters.best_loss, counters.best_reward = event.loss, reward
        self.plateau.observe(event.best)
        self._evaluated = counters.step, event.loss, reward
        self.garbage.collect()
        self.context.emit(event)
        return event.best

    def _is_best(self, loss: float | None, reward: float | None) -> bool:
        best = self.state.counters
        if loss is None or best.best_loss is None:
            return loss is not None
        return (-(reward or 0.0), loss) < (-(best.best_reward or 0.0), best.best_loss)

    def _neutral_losses(self) -> dict[str, float | None]:
        if self.neutral_text is None:
            return {}
        return self.neutral_text.losses(self.model, self.engine.eager_loss, self.device)

    def _eval_loss(self) -> float | None:
        """Validation loss of this step, if it was evaluated."""
        return self._evaluated[1] if self._evaluated and self._evaluated[0] == self.state.counters.step else None

    # --- saving --------------------------------------------------------------------------------------

    def save(self, kind: protocol.CheckpointKind, background: bool = False) -> None:
        """Save a checkpoint of this step boundary, verified on disk when this returns, or with `background` in the
        background. Does nothing if the same state is already saved, unless `kind` is final. Raises `train.not_finite`.

        Sharded weights are written by all ranks, others by rank 0.
        """
        self.group.doing("saving", self.state.counters.step)
        if self.parallel.is_sharded and self.parallel.partitioned is None:
            self._save(kind, background)
            return
        with self.state.collecting(keep=self.group.rank == 0):
            self.group.on_rank_zero(lambda: self._save(kind, background))

    def _save(self, kind: protocol.CheckpointKind, background: bool) -> None:
        counters, eval_loss = self.state.counters, self._eval_loss()
        if self.checkpointer.saved != (counters.step, eval_loss) or kind == "final":
            self.metrics.store(counters)
            bad_steps.require_finite(self._trained_weights(), counters.loss_sum, counters.step)
            self.context.set_phase("saving", counters.step)
            companions = self.sample_writer.companions()
            reward = self._evaluated[2] if self._evaluated and eval_loss is not None else None
            content = checkpoint.build_content(self.state, companions, kind, eval_loss, reward)
            if self.group.rank:
                content = replace(content, documents={})
            self.checkpointer.save(content, self.bad_steps.rollback_step(counters.step))
            self.garbage.collect()
        if not background:
            self.checkpointer.wait()

    def _trained_weights(self) -> list[Tensor]:
        return [self.state.value(weight) for weight in self.model.parameters() if weight.requires_grad]

    def _emergency_save(self) -> None:
        """Save the last step boundary after an unexpected failure, if it is consistent. Never hides the failure."""
        step = self.state.counters.step
        if self._consistent and step > 0:
            self.checkpointer.patient = False
            try:
                if self._rng_states:
                    checkpoint.set_rng_states(self.model, self._rng_states)
                self._save("emergency", background=False)
            except Exception as error:  # noqa: BLE001 - a broken GPU can fail in any way
                self.context.warn("checkpoint.not_saved", step=step, reason=str(error).partition("\n")[0])

    def summary(self, reason: protocol.DoneReason) -> protocol.Done:
        """The last event of a run."""
        counters = self.state.counters
        self.metrics.store(counters)
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
