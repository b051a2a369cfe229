"""The training loop. `Trainer.run` reads from top to bottom; a step is `Trainer._step`.

One step is one optimizer update over a window of micro-batches (`gradient_accumulation_steps`, fewer at the end of an
epoch). The position in the data counts samples. The loss of a window is the mean over all its tokens that count,
however they are spread over micro-batches.
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
from trainer_core.data.batches import Batch, Loader
from trainer_core.data.prepare import Prepared
from trainer_core.messages import TraindeckError
from trainer_core.model.decoder import ModelConfig, decoder_on
from trainer_core.report import StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.session import Session
from trainer_core.train import checkpoint, exactness, flops, optim, recovery
from trainer_core.train.checkpoint import TrainState
from trainer_core.train.device import Precision
from trainer_core.train.engine.build import build
from trainer_core.train.engine.engine import Engine
from trainer_core.train.evaluate import HeldOut, told, validation_sample
from trainer_core.train.garbage import Garbage
from trainer_core.train.late import Late
from trainer_core.train.numerics import Noise, Plateau
from trainer_core.train.oom import Ladder
from trainer_core.train.pausing import freeing, kept_between_steps
from trainer_core.train.ranks import ALONE, Ranks, rows_of, share_of
from trainer_core.train.recovery import Recovery, Return
from trainer_core.train.reports import Answer, Asked, Reports
from trainer_core.train.samples import Writer
from trainer_core.train.saving import Saver
from trainer_core.train.schedule import Schedule
from trainer_core.train.timing import StepClock
from trainer_core.train.transfer import Window, Windows

_ASK_EVERY: Final = {"cpu": 1, "cuda": 8}  # steps between two looks for bad ones, where nothing is logged sooner
_NOISE_SAMPLES: Final = 10  # measurements of the gradient noise between two performance events


class Trainer:
    """One run from its first (or resumed) step to its end.

    Raises `StopRequested` after saving when asked to stop, and `TraindeckError` for every failure that
    has a name. Whatever happens, checkpoints already on disk stay. `telemetry` off says and measures nothing
    about steps but what training itself needs; it may change between steps.
    """

    engine: Engine  # from `set_up` on

    def __init__(
        self,
        config: Config,
        prepared: Prepared,
        run: RunDir,
        session: Session,
        device: torch.device,
        precision: Precision,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self.prepared, self.run_dir, self.session = config, prepared, run, session
        self.ranks = ranks
        self._own = share_of(config, prepared.task != "sft")  # with the micro-batches that this rank computes
        self.device, self.precision = device, precision
        self.model = decoder_on(device, ModelConfig.of(config, prepared.vocab_size))
        scaler = torch.amp.GradScaler(device.type, enabled=precision.needs_scaler)
        self.state = TrainState(self.model, optim.build_optimizer(self.model, config), scaler)
        self.train_data = Loader(prepared, config, "train", device.type)
        self.held_out = Loader(prepared, config, "validation", device.type)
        self._made_with_before: dict[str, Any] = {}  # as recorded in the checkpoint that was resumed from
        self._plan_steps()
        self.state.made_with = exactness.made_with(config, prepared, device, precision)
        self.windows: Windows | None = None  # micro-batches on the device, from where training is
        self.writer = Writer(self.model, prepared, config, session)
        self.clock, self.garbage = StepClock(device), Garbage()
        self.saver = Saver(config, run, session, device, self.clock)
        self.recovery = Recovery(config, run, session, device, scaler, self.saver.join)
        self.noise, self.plateau = Noise(device, scaler), Plateau(config)
        self.ladder = Ladder(self._own, self.model, device, session, ranks)
        self.reports = Reports(config, session, self.model, device, precision, self.recovery.watch)
        self.telemetry = True
        self.log_steps, self.sample_steps = config.log_steps, config.sample_steps
        self.perf_steps, self.flops_steps = config.perf_steps, config.flops_steps
        for name in ("log_steps", "sample_steps", "perf_steps", "flops_steps"):
            session.settable[name] = _setter(self, name)
        self._late: Late[Asked] = Late(device)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)  # since the last step event, and of
        self._loss_tokens = torch.zeros((), dtype=torch.float64, device=device)  # so many tokens; bad steps left out
        self._grad_norm = torch.zeros((), device=device)
        self._rate = 0.0  # of the newest update
        self._positions = self._attended = 0  # computed since the device was asked last, padding and prompts included
        self._unlogged = False  # there were steps since the last step event
        self._back: Return | None = None  # where to go back to after a bad step
        self._evaluated: tuple[int, float | None] | None = None  # the step of the newest evaluation, and its loss
        self._seconds_before = 0.0  # spent in steps by earlier processes
        self._finished = False  # resumed from the final checkpoint with nothing left to do
        self._whole = True  # weights and counters belong together: false while the optimizer writes
        self._generators: dict[str, Tensor] = {}  # torch's states before a step that draws (dropout)

    # --- the run -----------------------------------------------------------------------------------

    def resume(self, folder: Path) -> None:
        """Continue from a checkpoint. Raises `data.changed`, `resume.order_changed` or `checkpoint.mismatch`."""
        self._made_with_before = exactness.require_the_same_run(folder, self.model, self.state.made_with)
        self._load(folder)
        exactness.keep_eval_sample(self.session, self._made_with_before, self.state.made_with)
        self._seconds_before = self.state.counters.seconds
        info = checkpoint_dir.read_info(folder)
        self._finished = info is not None and info.kind == "final" and info.step >= self.total_steps

    def _load(self, folder: Path) -> None:
        """The state of a checkpoint, and what else says where training is."""
        checkpoint.load(folder, self.state)
        counters, numerics = self.state.counters, self.state.numerics
        self._plan_steps()
        self.recovery.load_state(numerics.get("recovery", {}))
        self.noise.load_state(numerics.get("noise", {}))
        self.plateau.load_state(numerics.get("plateau", {}))
        self.ladder.load_state(numerics.get("memory", {}))
        self._loss_sum.fill_(counters.loss_sum)
        self._loss_tokens.fill_(counters.loss_tokens)
        self._unlogged = counters.loss_tokens > 0
        self._positions = self._attended = 0
        self.reports.begin(counters.tokens, counters.samples)
        info = checkpoint_dir.read_info(folder)
        if info is not None:
            self.saver.saved = (info.step, info.eval_loss)
            self._evaluated = (info.step, info.eval_loss) if info.eval_loss is not None else None

    def _plan_steps(self) -> None:
        """Length and learning rate of what is left of the run. The warmup is as it was unless its setting changed."""
        counters, samples = self.state.counters, self.train_data.samples
        changed = self._made_with_before.get("warmup_steps") != self.config.warmup_steps
        self.schedule = Schedule(self.config, samples, None if changed else counters.warmup_samples)
        counters.warmup_samples = self.schedule.warmup_samples
        self.steps_per_epoch = self.schedule.steps_per_epoch
        self.total_steps = self.schedule.total_steps(counters.step, counters.position)

    def set_up(self) -> None:
        """Choose how this run computes, or as it did before; say what is not as it was. Raises `StopRequested`."""
        self.windows = self._new_windows()
        self.engine = self.ladder.built(self._build)
        self.state.engine = self.engine.choices
        self.state.made_with |= exactness.made_by(self.engine, self.device)
        exactness.say_what_changed(self.session, self._made_with_before, self.state.made_with)

    def _build(self, rows: int) -> Engine:
        """The engine for micro-batches of so many sequences, with the optimizer's memory taken already. Rank 0 chooses
        for all."""
        example = self.ladder.suffices(lambda: self._ready_for(rows))

        def made(choices: dict[str, Any] | None) -> Engine:
            if self.ranks.rank and choices and choices.get("compiled_for"):  # its own part has other rows
                rows = rows_of(self.config, self.ranks.rank, self.prepared.task != "sft")
                choices = {**choices, "compiled_for": [rows, *choices["compiled_for"][1:]]}
            return build(
                self._own,
                self.model,
                self.device,
                self.precision,
                self.session,
                example,
                self.total_steps,
                choices,
                varying=self.prepared.task == "sft",
            )

        engine: Engine = self.ranks.same(made, lambda engine: engine.choices, self.state.engine or None)
        return engine

    def _ready_for(self, rows: int) -> Batch:
        """A micro-batch of so many sequences, once all that training keeps between two steps has its memory."""
        assert self.windows is not None
        optim.allocate(self.state.optimizer)
        self.ranks.reserve(list(self.model.parameters()))
        return self.windows.example().rows(rows)[0]

    def run(self) -> protocol.Done:
        """Train to the end. The result is the last checkpoint, of kind `final`."""
        try:
            if not self._finished:
                if self.windows is None:
                    self.set_up()
                with self.garbage.kept_out(), self.freeing():
                    self._train()
                    self._finish()
        except StopRequested:
            self.saver.patient = False
            self._hear(wait=True)
            if self._back is not None:
                self._go_back()
            self.save("regular")
            raise
        except TraindeckError as error:
            if error.code == "memory.exhausted":  # of other failures the cause is known: a write would only add to it
                self._save_in_emergency()
            raise
        except Exception:
            self._save_in_emergency()
            raise
        finally:
            self.saver.close()
            self.train_data.close()
            self.held_out.close()
        return self.summary("finished")

    def _train(self) -> None:
        if self.state.counters.settled < self.state.counters.step:  # stopped while this step was being evaluated
            self._after_step()
        self.session.enter("training", self.state.counters.step)
        while self.state.counters.step < self.total_steps:
            self.session.poll()
            self.saver.look()
            self.ranks.tell("step")
            self.step()
            if self._back is not None:
                self._go_back()
            else:
                self._after_step()

    def step(self) -> None:
        """One step, which all ranks make at once; rank 0 says what comes of it."""
        with self.clock.step():
            self._step(self._next_window())
            if self.ranks.rank == 0:
                self._ask()
                self._hear(wait=self._due_now())

    def _finish(self) -> None:
        step = self.state.counters.step
        if self._held_out_loss() is None:
            self.evaluate()
        self.save("final")
        with self.ladder.spared("sample-steps", step):
            self.writer.write_samples(step)

    def freeing(self) -> AbstractContextManager[Callable[[], AbstractContextManager[None]]]:
        """While this lasts, a pause gives the device back; gives what does it."""
        return freeing(self.session, self.engine, self._on_device, self.device, self.run_dir.path, self.ranks)

    def _on_device(self) -> Iterator[Tensor]:
        yield from kept_between_steps(self.model, self.state.optimizer)
        yield from self.windows.tensors() if self.windows is not None else ()

    def _save_in_emergency(self) -> None:
        """After an unexpected failure: the last step boundary, if it is whole. Never hides the failure."""
        step = self.state.counters.step
        if self._whole and step > 0:
            self.saver.patient = False
            try:
                if self._generators:
                    checkpoint.set_generators(self.model, self._generators)
                self.save("emergency")
            except Exception as error:  # noqa: BLE001 - a broken GPU can fail in any way
                self.session.warn("checkpoint.not_saved", step=step, reason=str(error).partition("\n")[0])

    def _new_windows(self) -> Windows:
        """What comes next in the order of the run, as much as one step takes at a time."""
        counters, many = self.state.counters, self.config.gradient_accumulation_steps
        deal = partial(self.ranks.share, most=self._own.batch_size)
        return Windows(self.train_data.windows(counters.position, many), self.device, deal)

    def _next_window(self) -> Window:
        assert self.windows is not None
        self.windows.load()
        self.clock.mark("data")
        window = self.windows.take()
        self.clock.mark("transfer")
        return window

    def _step(self, window: Window) -> None:
        """One optimizer update. Nothing here waits for a GPU, but gradients of several that go over system memory."""
        state, counters, whole = self.state, self.state.counters, window.whole
        step, position, tokens = counters.step + 1, counters.position + window.sequences, window.tokens
        self._rate = self.schedule.learning_rate(step, position, self.plateau.scale)
        several = len(whole) > 1 or self.ranks.size > 1
        noisy = self.telemetry and several and _due(step, -(-self.perf_steps // _NOISE_SAMPLES))
        if self.config.dropout:
            self.ranks.seed(self.config.seed, step)
            self._generators = checkpoint.generators(self.model)
        window_loss = self.ladder.attempt(lambda: self._gradients(window.share, tokens, noisy), self._undo, step)
        self.ranks.add_up_gradients(self.model.parameters(), window_loss)
        if self.ranks.size > 1:
            self.clock.mark("sync")
        if step < self.total_steps and self.windows is not None:
            self.windows.prefetch()
            self.clock.mark("data")
        self._whole = False
        for group in state.optimizer.param_groups:
            group["lr"] = self._rate
        state.scaler.unscale_(state.optimizer)
        limit = self.config.grad_clip or math.inf
        self._grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        bad = self.recovery.judge(self._grad_norm, step, whole, position)
        optim.update(state.optimizer, state.scaler, bad)
        state.optimizer.zero_grad(set_to_none=True)
        if noisy:
            self.noise.last(self._grad_norm, tokens)
        counters.step, counters.position = step, position
        counters.tokens += tokens
        counters.samples += sum(batch.samples for batch in whole)
        self._loss_sum += torch.where(bad > 0, 0.0, window_loss)
        self._loss_tokens += tokens * (1 - bad)
        self._positions += sum(batch.input_ids.numel() for batch in whole)
        self._attended += sum(batch.attended for batch in whole)
        self._unlogged, self._whole, self._generators = True, True, {}
        self.ladder.grow(step)
        self.clock.mark("optimizer")

    def _gradients(self, share: list[Batch], tokens: int, noisy: bool) -> Tensor:
        """Forward and backward: gradients of the mean over `tokens`; returns the summed loss (0-dim float64)."""
        window_loss = torch.zeros_like(self._loss_sum)
        grad_scale = self._grad_scale(tokens)
        for number, batch in enumerate(self.ladder.parts(share)):
            self.ladder.during = "forward"
            loss = self.engine.loss(batch, grad_scale)
            window_loss += loss.detach()
            self.clock.mark("forward")
            self.ladder.during = "backward"
            torch.autograd.backward(self.state.scaler.scale(loss / max(1, tokens)))
            if noisy and number == 0:
                self.noise.first(self.model.parameters(), batch.tokens)
            self.clock.mark("backward")
        return window_loss

    def _grad_scale(self, tokens: int) -> Tensor | None:
        """The gradient of each micro-batch's summed loss in a step of so many tokens; None unless fp16 is scaled."""
        scaler = self.state.scaler
        if not scaler.is_enabled():
            return None
        return scaler.scale(torch.ones_like(self._grad_norm)) / max(1, tokens)

    def _undo(self) -> None:
        """The step has done nothing yet."""
        self.state.optimizer.zero_grad(set_to_none=True)
        if self._generators:
            checkpoint.set_generators(self.model, self._generators)
        self.clock.mark("other")

    def _ask(self) -> None:
        """Ask the device what is to be known of this step, if something is; on a GPU it answers some steps later."""
        counters = self.state.counters
        step = counters.step
        log = self.telemetry and self._unlogged and (_due(step, self.log_steps) or step >= self.total_steps)
        perf = self.telemetry and _due(step, self.perf_steps)
        if not (log or perf or self._due_now() or _due(step, _ASK_EVERY[self.device.type])):
            return
        epoch, samples = counters.position / self.train_data.samples, counters.samples
        interval = self.clock.cut()
        done = counters.tokens, samples, self._positions, self._attended
        asked = Asked(step, epoch, *done, self._rate, interval, log, perf)
        scaler = self.state.scaler
        scale = torch.zeros_like(self._grad_norm)  # made there: what is copied from pageable memory is waited for
        if scaler.is_enabled():
            scale = scaler.scale(torch.ones_like(self._grad_norm))
        figures = (self._loss_sum, self._loss_tokens, self.recovery.count, self._grad_norm)
        self._late.ask(asked, (*figures, scale, self.noise.mean))
        self._positions = self._attended = 0
        if log:
            self._loss_sum.zero_()
            self._loss_tokens.zero_()
            self._unlogged = False

    def _hear(self, wait: bool) -> None:
        """Take what the device has answered by now, or all of it: say it, and find out whether a step was bad."""
        for asked, (loss_sum, tokens, bad, norm, scale, *noise) in self._late.answered(wait):
            self._back = self.recovery.answer(bad)
            if self._back is not None:
                return
            self.clock.read(asked.interval)
            steps, trace, gradient_2 = noise
            self.reports.take(asked, Answer(loss_sum, tokens, bad, norm, scale, (steps, trace, gradient_2)))

    def _go_back(self) -> None:
        """To the last good checkpoint, and on behind the batch of the step that was bad. What the device was asked
        since is about steps that are done again."""
        back, self._back = self._back, None
        assert back is not None
        self.ranks.tell("back", folder=back.folder.name, position=back.position)
        self._late.forget()
        self.clock.forget()
        self.go_on_from(back.folder, back.position)
        self.saver.saved = (-1, None)  # no checkpoint says this
        self.recovery.came_back(back, self.state.counters.step)

    def go_on_from(self, folder: Path, position: int) -> None:
        """Continue with the state of a checkpoint at another position in the data."""
        self._load(folder)
        self.state.counters.position = position
        self._plan_steps()
        self.windows = self._new_windows()

    def _due_now(self) -> bool:
        """Whether this boundary is one at which more is done than to go on: then all must be known about its steps."""
        step, config, wishes = self.state.counters.step, self.config, self.session.wishes
        every = (config.eval_steps, config.save_steps, self.sample_steps, self.flops_steps)
        wished = wishes.save or bool(wishes.samples)
        return step >= self.total_steps or wished or any(_due(step, steps) for steps in every)

    def _after_step(self) -> None:
        """What is due at this step: evaluation, samples, then a checkpoint of it all."""
        config, step = self.config, self.state.counters.step
        last = step >= self.total_steps
        wishes = self.session.wishes.take()
        if self.telemetry:
            self.session.progress("training", step, self.total_steps, "steps")
        if _due(step, self.flops_steps) and self.windows is not None:
            self.clock.catch_up()
            with self.ladder.spared("flops-steps", step):
                self.session.emit(flops.profile(self.model, self.windows.example(), self.precision, step))
        better = _due(step, config.eval_steps) and not last and self._held_out_loss() is None and self.evaluate()
        with self.ladder.spared("sample-steps", step):
            if _due(step, self.sample_steps) and not last:
                self.writer.write_samples(step)
            for wish in wishes.samples:
                self.writer.write_one(step, wish.prompt, wish.max_tokens)
        self.state.counters.settled = step
        if wishes.save or (_due(step, config.save_steps) and not last):
            self.save("regular", aside=True)
        elif better and config.keep_best:
            self.save("best", aside=True)
        self.session.enter("training", step)
        self.garbage.collect_if_due()

    # --- measuring, saving ---------------------------------------------------------------------------

    def evaluate(self) -> bool:
        """Loss on held-out data, and answers for prompt/response data. True if it is the best so far."""
        counters = self.state.counters
        self.clock.catch_up()
        if self.held_out.samples == 0:
            return False
        self.session.enter("evaluating", counters.step)
        loss = self.held_out_pass().run(self.session)
        answers = None
        with self.ladder.spared("eval-examples", counters.step):
            answers = self.writer.answer_held_out(self.ladder.rows * self.config.max_seq_len)  # as a step of training
        better = loss.mean is not None and (counters.best_loss is None or loss.mean < counters.best_loss)
        if better:
            counters.best_loss = loss.mean
        self.plateau.observe(loss.mean)
        self._evaluated = (counters.step, loss.mean)
        self.garbage.collect()
        self.session.emit(told(counters.step, loss, better, answers))
        return better

    def held_out_pass(self) -> HeldOut:
        """One pass over the validation sample, the same sequences each time."""
        sample = validation_sample(self.held_out.samples, self.state.made_with["eval_sequences"])
        total = math.ceil(len(sample) / self.config.batch_size)
        batches = self.held_out.batches_of(sample, self.ranks.rank, self.ranks.size)
        way = self.ladder.loss_of(self.engine.eager_loss, self.state.counters.step)
        return HeldOut(self.model, batches, total, self.device, self.precision, way, self.ranks)

    def save(self, kind: protocol.CheckpointKind, aside: bool = False) -> None:
        """A checkpoint of this step boundary, on disk and verified when this returns, or written `aside` while training
        goes on; nothing to do if there is one that says the same (but a final one)."""
        step, eval_loss = self.state.counters.step, self._held_out_loss()
        if self.saver.saved != (step, eval_loss) or kind == "final":
            self._gather()
            self.session.enter("saving", step)
            content = checkpoint.content(self.state, self.writer.companions())
            self.saver.save(content, kind, eval_loss, self.recovery.due_before(step))
            self.garbage.collect()
        if not aside:
            self.saver.wait()

    def _gather(self) -> None:
        """Bring the state up to this step boundary. Raises `train.not_finite`."""
        counters = self.state.counters
        self._count_seconds()
        counters.loss_sum, counters.loss_tokens = float(self._loss_sum), int(self._loss_tokens)
        parts = (
            ("recovery", self.recovery),
            ("noise", self.noise),
            ("plateau", self.plateau),
            ("memory", self.ladder),
        )
        self.state.numerics = {name: part.state() for name, part in parts}
        recovery.refuse_what_is_not_finite(self.model, counters.loss_sum, counters.step)

    def _held_out_loss(self) -> float | None:
        """The held-out loss of this step, if it was measured."""
        step, loss = self._evaluated or (-1, None)
        return loss if step == self.state.counters.step else None

    def _count_seconds(self) -> None:
        self.clock.catch_up()
        self.state.counters.seconds = self._seconds_before + self.clock.seconds

    def summary(self, reason: protocol.DoneReason) -> protocol.Done:
        """The last event of a run."""
        counters = self.state.counters
        self._count_seconds()
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


def _setter(trainer: Trainer, name: str) -> Callable[[float], None]:
    return lambda steps: setattr(trainer, name, int(steps))
