"""One optimizer update, with the engine, the data and the state that it needs.

A step processes an accumulation window of `gradient_accumulation_steps` micro-batches (fewer at the end of an epoch).
The loss of a window is the mean over all its loss tokens, however they are distributed over micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.batch import Batch
from trainer_core.data.loader import BatchLoader
from trainer_core.data.prepare import PreparedData
from trainer_core.models.language_model import LanguageModel
from trainer_core.run_context import RunContext
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import adapter_checkpoint, checkpoint, optimizers, reference, run_fingerprint, starting_model
from trainer_core.train.bad_steps import BadStepHandler
from trainer_core.train.batch_division import divide, rank_config, rows_of, without_labels
from trainer_core.train.checkpoint import TrainState
from trainer_core.train.control import Control
from trainer_core.train.device import Precision
from trainer_core.train.device_transfer import AccumulationWindow, WindowLoader
from trainer_core.train.engine.engine import Engine
from trainer_core.train.engine.select import build_engine
from trainer_core.train.evaluate import EvaluationPass, validation_sample
from trainer_core.train.gc_control import GarbageCollector
from trainer_core.train.numerics import GradientNoise, PlateauSchedule
from trainer_core.train.oom import RESTART_FILE, OomHandler
from trainer_core.train.parallel import Parallel
from trainer_core.train.process_group import SINGLE_PROCESS, ProcessGroup
from trainer_core.train.reference import ReferencePass
from trainer_core.train.rollouts import RolloutGenerator
from trainer_core.train.schedule import Schedule
from trainer_core.train.state_offload import StateOffloader, offloaded_in_pauses, persistent_tensors
from trainer_core.train.step_metrics import MetricsRecorder
from trainer_core.train.step_timer import StepClock

_NOISE_SAMPLES: Final = 10  # gradient noise measurements per performance event


class TrainingStep:
    """One optimizer update at a time. `Trainer` is the loop around it.

    With `telemetry` off, as on all ranks but 0, only what training itself needs is measured.
    """

    eager_start = True  # train eagerly until compiled code is ready
    control: Control  # set before `set_up`
    loads_base_model = True  # False: begin with random weights, which take as much memory and time

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
        """`source`: checkpoint that `resume` will load. With all weights, it replaces the base model."""
        self.config, self.prepared, self.run_dir, self.context = config, prepared, run, context
        self.device, self.precision, self.group = device, precision, group
        # With the micro-batches of one rank
        self._rank_config = rank_config(config, group.world_size, prepared.task == "pretrain")
        self.telemetry = group.rank == 0
        self.clock, self.garbage = StepClock(device), GarbageCollector()
        base, recorded_base = starting_model.find_base(config, source, context) if self.loads_base_model else (None, {})
        built = starting_model.build(config, prepared, base, context, device, precision, group)
        self.model: LanguageModel = built[0]
        self.parallel: Parallel = built[1]
        self._largest_pass = 0  # positions of the largest micro-batch that fitted
        scaler = torch.amp.GradScaler(device.type, enabled=precision.needs_scaler)
        self.train_data = BatchLoader(prepared, config, "train", device.type)
        self.validation_data = BatchLoader(prepared, config, "validation", device.type)
        self.bad_steps = BadStepHandler(config, run, context, device, scaler)
        self.noise, self.plateau = GradientNoise(device, scaler), PlateauSchedule(config)
        self.oom = OomHandler(self._rank_config, self.model, device, context, group, run.path / RESTART_FILE)
        self.metrics = MetricsRecorder(device, scaler, self.clock, self.bad_steps, self.noise)
        optimizer = optimizers.build_optimizer(self.model, config)
        self.parallel.attach(optimizer)
        self.state = TrainState(
            self.model,
            optimizer,
            scaler,
            {"recovery": self.bad_steps, "noise": self.noise, "plateau": self.plateau, "memory": self.oom},
            run_fingerprint=run_fingerprint.build_fingerprint(config, prepared, device, precision, group.world_size),
            base=recorded_base,
            partitioned=self.parallel.partitioned,
        )
        self._previous_fingerprint: dict[str, Any] = {}  # of the checkpoint that the run resumed from
        self._compute_total_steps()
        self.windows = self._new_windows()
        self.rollouts: RolloutGenerator | None = None
        if config.uses_rewards:
            options = (self._rank_config, self.model, prepared, context, precision, group)
            self.rollouts = RolloutGenerator(*options, self._generated_logps)
            self.state.parts["rollouts"] = self.rollouts
        self.engine = Engine(self.model, precision)  # replaced by `set_up`
        self._is_set_up = False
        self._consistent = True  # weights and counters are consistent; false during the optimizer update
        self._rng_states: dict[str, Tensor] = {}  # before a step with dropout

    # --- start ---------------------------------------------------------------------------------------

    def resume(self, folder: Path) -> None:
        """Continue from a checkpoint. Raises `data.changed`, `resume.order_changed`, `checkpoint.other_base` or
        `checkpoint.mismatch`.
        """
        adapter_checkpoint.require_same_base(folder, self.state.base)
        self._previous_fingerprint = run_fingerprint.require_the_same_run(
            folder, self.model, self.state.run_fingerprint
        )
        self.load(folder)
        if run_fingerprint.has_other_goal(self._previous_fingerprint, self.state.run_fingerprint):
            self.state.counters.best_loss = self.state.counters.best_reward = None
        run_fingerprint.preserve_eval_sample(self.context, self._previous_fingerprint, self.state.run_fingerprint)

    def load(self, folder: Path, position: int | None = None) -> None:
        """Load a checkpoint and everything derived from it. `position` replaces its position in the data."""
        checkpoint.load(folder, self.state)
        if position is not None:
            self.state.counters.position = position
        self._compute_total_steps()
        self.windows = self._new_windows()
        self.metrics.load(self.state.counters)

    def _compute_total_steps(self) -> None:
        """Compute length and schedule of the rest of the run. Warmup is kept unless its setting changed."""
        counters, samples = self.state.counters, self.train_data.samples
        changed = self._previous_fingerprint.get("warmup_steps") != self.config.warmup_steps
        self.schedule = Schedule(self.config, samples, None if changed else counters.warmup_samples)
        counters.warmup_samples = self.schedule.warmup_samples
        self.steps_per_epoch = self.schedule.steps_per_epoch
        self.total_steps = self.schedule.total_steps(counters.step, counters.position)

    def _new_windows(self) -> WindowLoader:
        """Batches from the current position on, one accumulation window at a time."""
        batches = self.train_data.step_batches(self.state.counters.position, self.config.gradient_accumulation_steps)
        group, max_rows = self.group, self._rank_config.batch_size
        share = partial(divide, rank=group.rank, world_size=group.world_size, max_rows=max_rows)
        return WindowLoader(batches, self.device, share)

    def set_up(self) -> None:
        """Build the engine and warn about differences to the checkpoint. Raises `StopRequested`."""
        self.oom.run_step(self._allocate, lambda: None, 0)
        self.engine = self.group.choose(self._select_engine, lambda engine: engine.choices, self.state.engine)
        self.oom.attach(self.engine)
        self._is_set_up = True
        self.state.engine = self.engine.choices
        threads = torch.get_num_threads() if self.device.type == "cpu" else 0
        self.state.run_fingerprint |= {**self.engine.choices, "threads": threads}
        run_fingerprint.warn_about_changes(self.context, self._previous_fingerprint, self.state.run_fingerprint)
        if reference.is_needed(self.config):
            self._load_reference()
        self.parallel.warm_up(self._discarded_pass)

    def _load_reference(self) -> None:
        """Add the reference's log-probabilities to all batches."""
        compute, step = self.engine.reference_logps, self.state.counters.step
        reading = ReferencePass(compute, self.device, self.context, self.group, self.parallel, self.oom)
        for split, data in (("train", self.train_data), ("validation", self.validation_data)):
            path = self.run_dir.path / reference.FILE.format(split=split)
            data.reference = reading.load(path, data, self.control.poll, step)
        self.windows = self._new_windows()

    def _discarded_pass(self) -> None:
        """A forward and backward pass without effect."""
        batch = without_labels(self.windows.example())
        states = checkpoint.rng_states(self.model)
        torch.autograd.backward(self.parallel.forward(self.engine.eager_loss, batch).view(-1)[0])
        checkpoint.set_rng_states(self.model, states)
        self.state.optimizer.zero_grad(set_to_none=not self.parallel.keeps_gradients)

    def _allocate(self) -> None:
        """Allocate what training keeps between steps."""
        optimizers.allocate(self.state.optimizer)
        self.validation_data.open_files()
        self.windows.load()

    def _select_engine(self, choices: dict[str, Any]) -> Engine:
        """Repeat `choices`, and select the others. Rank 0 selects for all ranks."""
        prepared, conversations = self.prepared, self.prepared.task != "pretrain"
        several = prepared.packed or prepared.sides > 1
        return build_engine(
            self._rank_config,
            self.model,
            self.device,
            self.precision,
            self.context,
            rows=rows_of(self.config, self.group.rank, self.group.world_size, not conversations),
            width=prepared.sequence_len,
            segments=several if conversations else not prepared.attend_across_documents,
            varying=conversations,
            total_steps=self.total_steps,
            recorded=choices,
            step=self.state.counters.step,
            eager_start=self.eager_start,
            background=self.group.rank == 0,
            sharded=self.parallel.is_sharded,
        )

    def close(self) -> None:
        """Stop the background compiler and the loaders."""
        self.engine.close()
        self.train_data.close()
        self.validation_data.close()

    def offloading(self, control: Control) -> AbstractContextManager[None]:
        """Context in which a pause frees device memory."""
        offloader = StateOffloader(self._device_tensors, self.device, self.run_dir.path, self.group)
        return offloaded_in_pauses(control, self.context, lambda: self.engine, self.parallel, offloader, self.device)

    def _device_tensors(self) -> Iterator[Tensor]:
        if self.parallel.partitioned is not None:  # DeepSpeed's tensors must stay where they are
            return
        yield from persistent_tensors(self.model, self.state.optimizer)
        yield from self.windows.tensors()

    # --- one step ------------------------------------------------------------------------------------

    def compile_if_due(self) -> None:
        """Switch to compiled code at the step that was fixed when the run started, on all ranks."""
        switch, step = self.engine.switch, self.state.counters.step
        if switch is None or step < switch.step:
            return
        self.clock.catch_up()
        self.context.set_phase("compiling", step)
        example = self.windows.example()
        self.group.choose(partial(switch.finish, example), lambda _: self.engine.choices, None)
        self.state.engine = self.engine.choices
        self.state.run_fingerprint |= self.engine.choices
        compile_s, paths = self.engine.compile_s or 0.0, list(self.engine.fast_paths.values())
        self.context.emit(protocol.Compiled(step=step, compile_s=compile_s, fast_paths=paths))
        self.context.set_phase("training", step)

    def _next_window(self) -> AccumulationWindow:
        """What the next step trains on. Raises `StopRequested`."""
        if self.rollouts is None:
            return self._read_window()
        window = self.rollouts.next_window(self._read_window, self.state.counters.step + 1)
        self.clock.mark("generation")
        return window

    def _generated_logps(self, batch: Batch | None) -> Tensor:
        """Log-probabilities (B, T) of generated answers, with OOM recovery. None: this rank has no answers left."""

        def compute() -> Tensor:
            parts = self.oom.split([batch] if batch else [])
            return torch.cat([self.engine.label_logps(part) for part in parts]) if parts else torch.zeros(0, 0)

        self.oom.during = "evaluation"
        return self.oom.run_step(compute, lambda: None, self.state.counters.step)

    def _read_window(self) -> AccumulationWindow:
        self.windows.load()
        self.clock.mark("data")
        window = self.windows.next_window()
        self.clock.mark("transfer")
        return window

    def _step(self, window: AccumulationWindow) -> None:
        """One optimizer update. Does not synchronize with a GPU."""
        state, counters, whole = self.state, self.state.counters, window.whole
        step, position, tokens = counters.step + 1, counters.position + window.sequences, window.tokens
        learning_rate = self.schedule.learning_rate(step, position, self.plateau.scale)
        several = self.rollouts is None and (len(whole) > 1 or self.group.world_size > 1)
        noisy = self.telemetry and several and is_due(step, -(-self.config.perf_steps // _NOISE_SAMPLES))
        if self.config.uses_dropout:
            self.group.seed(self.config.seed, step)
            self._rng_states = checkpoint.rng_states(self.model)
        self.group.doing("training", step)
        if self.engine.objective is not None:
            self.engine.objective.prepare(whole)
        losses = self._gradients(window, step, noisy)
        self.group.sum(losses)
        if step < self.total_steps:
            self.windows.prefetch()
            self.clock.mark("data")
        self._consistent = False
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate
        judge = partial(self.bad_steps.judge, step=step, window=whole, position=position)
        grad_norm, bad = self.parallel.update(state, self.config.grad_clip or math.inf, judge)
        if noisy:
            if self.parallel.local_norms:
                self.noise.record_first(self.parallel.local_norms, sum(one.loss_weight for one in window.share.batches))
            self.noise.record_last(grad_norm, window.loss_weight)
        counters.step, counters.position = step, position
        counters.tokens += tokens
        counters.samples += sum(batch.samples for batch in whole)
        self.metrics.add(whole, losses, window.loss_weight, bad, grad_norm, learning_rate)
        self._consistent, self._rng_states = True, {}
        self.oom.count_good_step(step)
        self.clock.mark("optimizer")

    def _gradients(self, window: AccumulationWindow, step: int, noisy: bool) -> Tensor:
        """Gradients of the mean over the tokens, or pairs, of all ranks. Returns the sums of this rank's losses (1-dim
        float64), see `Engine.loss`.

        Running out of memory is recovered from where no rank waits for another; elsewhere the run restarts.
        """
        weight = window.loss_weight
        if self.group.world_size == 1 and not self.parallel.is_sharded:
            return self.oom.run_step(lambda: self._passes(self._micro_batches(window), weight, noisy), self._undo, step)
        with self.oom.restart_on_oom(step):
            if self.parallel.is_sharded:
                *batches, last = self._micro_batches(window)
                summed = self._passes(batches, weight, noisy=False)
                with self.parallel.summing(lambda: None):
                    return summed + self._passes([last], weight, noisy=False)
            summed, losses = self.oom.run_step(lambda: self._until_last_backward(window), self._undo, step)
            self.parallel.local_norms = [] if noisy else None
            self._backward(losses, weight)
        self.clock.mark("sync")
        self._largest_pass = max(self._largest_pass, self._positions(window))
        return summed + losses.detach()

    def _until_last_backward(self, window: AccumulationWindow) -> tuple[Tensor, Tensor]:
        """All passes but the last backward pass, which sums gradients over ranks: the summed losses of the micro-
        batches before, and the losses of the last one.
        """
        *batches, last = self._micro_batches(window)
        summed = self._passes(batches, window.loss_weight, noisy=False)
        with self.parallel.summing(partial(self.clock.mark, "backward")):
            return summed, self._forward(last, window.loss_weight)

    def _micro_batches(self, window: AccumulationWindow) -> list[Batch]:
        """This rank's micro-batches, as many on every rank: a rank that has fewer computes some without labels.

        The backward pass of the last one sums the gradients of DDP. Where any is larger than all before, the last is
        one without labels, so that memory runs out before it.
        """
        batches = self.oom.split(window.share.batches)
        if self.group.world_size == 1:
            return batches
        count = window.share.passes(self.oom.max_sequences)
        if not self.parallel.is_sharded and self._positions(window) > self._largest_pass:
            count += 1
        if count > len(batches):
            spare = without_labels(batches[0] if batches else window.whole[0].to(self.device))
            batches = [*batches, *[spare] * (count - len(batches))]
        return batches

    def _positions(self, window: AccumulationWindow) -> int:
        """Positions of the largest micro-batch of any rank."""
        rows = max(rows for counts in window.share.rows for rows in counts)
        return min(rows, self.oom.max_sequences) * max(batch.input_ids.shape[1] for batch in window.whole)

    def _passes(self, batches: list[Batch], weight: int, noisy: bool) -> Tensor:
        """Forward and backward; returns the summed losses."""
        summed = torch.zeros(1, dtype=torch.float64, device=self.device)
        for number, batch in enumerate(batches):
            losses = self._forward(batch, weight)
            summed = summed + losses.detach()
            self._backward(losses, weight)
            if noisy and number == 0 and self.group.world_size == 1:
                gradients = (parameter.grad for parameter in self.model.parameters())
                self.noise.record_first([one for one in gradients if one is not None], batch.loss_weight)
            self.clock.mark("backward")
        return summed

    def _forward(self, batch: Batch, weight: int) -> Tensor:
        """The losses (1-dim) of a micro-batch."""
        self.oom.during = "forward"
        losses = self.parallel.forward(self.engine.loss, batch, self._grad_scale(weight))
        self.clock.mark("forward")
        return losses.view(-1)

    def _backward(self, losses: Tensor, weight: int) -> None:
        """Add the gradient of a micro-batch's summed loss in a step of this weight."""
        self.oom.during = "backward"
        self.parallel.backward(self.state.scaler.scale(losses[0] / max(1, weight)))

    def _grad_scale(self, weight: int) -> Tensor | None:
        """Gradient of a micro-batch's summed loss in a step of this weight; None unless fp16 loss scaling is on."""
        scaler = self.state.scaler
        if not scaler.is_enabled():
            return None
        return scaler.scale(torch.ones((), device=self.device)) / max(1, weight)

    def _undo(self) -> None:
        """Reset gradients and RNG states to the beginning of the step."""
        self.parallel.abandon_pass()
        self.state.optimizer.zero_grad(set_to_none=not self.parallel.keeps_gradients)
        if self._rng_states:
            checkpoint.set_rng_states(self.model, self._rng_states)
        self.clock.mark("other")

    def evaluation_pass(self) -> EvaluationPass:
        """One pass over the validation sample, the same sequences each time."""
        sample = validation_sample(self.validation_data.samples, self.state.run_fingerprint["eval_sequences"])
        total = math.ceil(len(sample) / self.config.batch_size)
        batches = self.validation_data.iterate_samples(sample, self.group.rank, self.group.world_size)
        step = self.state.counters.step
        loss_of = self.oom.with_recovery(self.engine.eager_loss, step)
        if self.parallel.is_sharded:
            loss_of = self._sharded_loss
        device, losses = self.device, self.engine.num_losses
        return EvaluationPass(self.model, batches, total, device, self.precision, loss_of, step, self.group, losses)

    def _sharded_loss(self, batch: Batch | None) -> Tensor:
        """Summed losses of a batch of this rank, if it has one. All ranks make the same number of passes."""
        parts = self.oom.split([batch] if batch else [])
        missing = self.group.max(len(parts))[0] - len(parts)
        parts += [without_labels(self.windows.example())] * missing
        with self.oom.restart_on_oom(self.state.counters.step):
            losses = [self.parallel.forward(self.engine.eager_loss, part) for part in parts]
        return torch.stack(losses).sum(0)


def is_due(step: int, every: int) -> bool:
    """Whether `step` is a multiple of `every`; 0: never."""
    return every > 0 and step % every == 0
