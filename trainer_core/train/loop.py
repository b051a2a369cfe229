"""The training loop. `Trainer.run` reads from top to bottom; a step is `Trainer._step`.

Counts that make a resume exact: one step is one optimizer update over a window of micro-batches
(`gradient_accumulation_steps`, fewer at the end of an epoch). The loss of a window is the mean over
all its tokens that count, however they are spread over micro-batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer_core import checkpoint_dir, protocol
from trainer_core.config import Config
from trainer_core.data.batches import Batch, Loader
from trainer_core.data.prepare import Prepared
from trainer_core.messages import TraindeckError
from trainer_core.model.decoder import Decoder, ModelConfig
from trainer_core.report import StopRequested
from trainer_core.run_dir import RunDir
from trainer_core.session import Session
from trainer_core.train import checkpoint, flops, optim
from trainer_core.train.checkpoint import Counters, TrainState
from trainer_core.train.device import Precision, describe
from trainer_core.train.evaluate import batch_loss, held_out_loss
from trainer_core.train.samples import Writer
from trainer_core.train.timing import StepClock


class Trainer:
    """One run from its first (or resumed) step to its end.

    Raises `StopRequested` after saving when asked to stop, and `TraindeckError` for every failure that
    has a name. Whatever happens, checkpoints already on disk stay.
    """

    def __init__(
        self,
        config: Config,
        prepared: Prepared,
        run: RunDir,
        session: Session,
        device: torch.device,
        precision: Precision,
    ) -> None:
        self.config, self.prepared, self.run_dir, self.session = config, prepared, run, session
        self.device, self.precision = device, precision
        self.model = Decoder(ModelConfig.of(config, prepared.vocab_size)).to(device)
        scaler = torch.amp.GradScaler(device.type, enabled=precision.needs_scaler)
        self.state = TrainState(self.model, optim.build_optimizer(self.model, config), scaler)
        self.train_data = Loader(prepared, config, "train", device.type)
        self.held_out = Loader(prepared, config, "validation", device.type)
        self.steps_per_epoch = math.ceil(self.train_data.batches_per_epoch / config.gradient_accumulation_steps)
        self.total_steps = config.max_steps or config.max_epochs * self.steps_per_epoch
        self.state.made_with = _made_with(config, prepared, device, precision)
        self.writer = Writer(self.model, prepared, config, session)
        self.clock = StepClock(device)
        self.log_steps, self.sample_steps = config.log_steps, config.sample_steps
        session.settable["log_steps"] = lambda steps: setattr(self, "log_steps", max(1, int(steps)))
        session.settable["sample_steps"] = lambda steps: setattr(self, "sample_steps", int(steps))
        self._flops = flops.flops_per_token(self.model, config.max_seq_len)
        self._peak = flops.peak_flops(describe(device), precision.name)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)  # since the last step event
        self._grad_norm: Tensor | None = None
        self._positions = 0  # computed since the last step event, padding and prompts included
        self._logged = Counters()
        self._evaluated: tuple[int, float] | None = None  # the step of the newest evaluation, and its loss
        self._saved: tuple[int, float | None] = (-1, None)  # the newest checkpoint's step and held-out loss
        self._seconds_before = 0.0  # spent in steps by earlier processes
        self._finished = False  # resumed from the final checkpoint with nothing left to do
        self._whole = True  # weights and counters belong together: false while the optimizer writes
        self._generators: dict[str, Tensor] = {}  # torch's states before a step that draws (dropout)

    # --- the run -----------------------------------------------------------------------------------

    def resume(self, folder: Path) -> None:
        """Go on from a checkpoint, saying what is not as it was. Raises `data.changed` or
        `checkpoint.mismatch`."""
        before = checkpoint.read_made_with(folder)
        if before.get("data") != self.state.made_with["data"]:
            raise TraindeckError("data.changed", what=f"{before.get('data')} → {self.state.made_with['data']}")
        self._refuse_another_shape(folder)
        checkpoint.load(folder, self.state)
        for what, now in self.state.made_with.items():
            if before.get(what) != now:
                self.session.warn("resume.not_exact", what=what, before=str(before.get(what)), after=str(now))
        self._loss_sum.fill_(self.state.counters.loss_sum)
        self._logged = Counters(tokens=self.state.counters.tokens, samples=self.state.counters.samples)
        self._seconds_before = self.state.counters.seconds
        info = checkpoint_dir.read_info(folder)
        if info is not None:
            self._saved = (info.step, info.eval_loss)
            self._evaluated = (info.step, info.eval_loss) if info.eval_loss is not None else None
            self._finished = info.kind == "final" and info.step >= self.total_steps

    def _refuse_another_shape(self, folder: Path) -> None:
        """Heads or positions that count otherwise fit weights of the same sizes, and make another model."""
        now, before = asdict(self.model.config), asdict(checkpoint.read_shape(folder))
        now.pop("dropout"), now.pop("max_seq_len")  # no part of the weights: a change of these is allowed
        changed = [f"{name} {before[name]} → {value}" for name, value in now.items() if before[name] != value]
        if changed:
            raise TraindeckError("checkpoint.mismatch", path=str(folder), what=", ".join(changed))

    def run(self) -> protocol.Done:
        """Train to the end. The result is the last checkpoint, of kind `final`."""
        try:
            if not self._finished:
                self._train()
                self._finish()
        except StopRequested:
            self.save("regular")
            raise
        except TraindeckError:
            raise  # its cause is known: another write would only add to it
        except Exception:
            self._save_in_emergency()
            raise
        finally:
            self.train_data.close()
            self.held_out.close()
        return self.summary("finished")

    def _train(self) -> None:
        counters = self.state.counters
        if counters.settled < counters.step:  # stopped while this step was being evaluated
            self._after_step()
        self.session.enter("training", counters.step)
        windows = self._windows()
        while counters.step < self.total_steps:
            self.session.poll()
            with self.clock.step():
                with self.clock.section("data"):
                    window = next(windows)
                self._step(window)
            self._after_step()

    def _finish(self) -> None:
        step = self.state.counters.step
        if self._held_out_loss() is None:
            self.evaluate()
        self.save("final")
        self.writer.write_samples(step)

    def _save_in_emergency(self) -> None:
        """After an unexpected failure: the last step boundary, if it is whole. Never hides the failure."""
        step = self.state.counters.step
        if self._whole and step > 0:
            try:
                if self._generators:
                    checkpoint.set_generators(self.model, self._generators)
                self.save("emergency")
            except Exception as error:  # noqa: BLE001 - a broken GPU can fail in any way
                self.session.warn("checkpoint.not_saved", step=step, reason=str(error).partition("\n")[0])

    def _windows(self) -> Iterator[list[Batch]]:
        """Micro-batches in the order of the run, as many as one step takes; a window ends with its epoch."""
        per_epoch, taken = self.train_data.batches_per_epoch, self.state.counters.batches
        for epoch in itertools.count(taken // per_epoch):
            batches = self.train_data.iterate(epoch, taken % per_epoch)
            while window := list(itertools.islice(batches, self.config.gradient_accumulation_steps)):
                yield window
            taken = 0

    def _step(self, window: list[Batch]) -> None:
        """One optimizer update. Nothing here waits for a GPU."""
        state, counters = self.state, self.state.counters
        rate = optim.learning_rate(counters.step + 1, self.total_steps, self.config)
        tokens = sum(batch.tokens for batch in window)
        window_loss = torch.zeros_like(self._loss_sum)
        self._generators = checkpoint.generators(self.model) if self.config.dropout else {}
        for batch in window:
            with self.clock.section("transfer"):
                there = batch.to(self.device)
            with self.clock.section("forward"), self.precision.autocast():
                loss = batch_loss(self.model, there)
                window_loss += loss.detach()
            with self.clock.section("backward"):
                torch.autograd.backward(state.scaler.scale(loss / max(1, tokens)))
        self._whole = False
        with self.clock.section("optimizer"):
            for group in state.optimizer.param_groups:
                group["lr"] = rate
            state.scaler.unscale_(state.optimizer)
            limit = self.config.grad_clip or math.inf
            self._grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
            state.scaler.step(state.optimizer)
            state.scaler.update()
            state.optimizer.zero_grad(set_to_none=True)
        counters.step += 1
        counters.batches += len(window)
        counters.tokens += tokens
        counters.loss_tokens += tokens
        counters.samples += sum(batch.samples for batch in window)
        self._loss_sum += window_loss
        self._positions += sum(batch.input_ids.numel() for batch in window)
        self._whole, self._generators = True, {}

    def _after_step(self) -> None:
        """What is due at this step: a step event, evaluation, samples, then a checkpoint of it all."""
        config, counters = self.config, self.state.counters
        step, last = counters.step, counters.step >= self.total_steps
        wishes = self.session.wishes.take()
        if (_due(step, self.log_steps) or last) and counters.loss_tokens:
            self.log()
        self.session.progress("training", step, self.total_steps, "steps")
        better = _due(step, config.eval_steps) and not last and self._held_out_loss() is None and self.evaluate()
        if _due(step, self.sample_steps) and not last:
            self.writer.write_samples(step)
        for wish in wishes.samples:
            self.writer.write_one(step, wish.prompt, wish.max_tokens)
        counters.settled = step
        if wishes.save or (_due(step, config.save_steps) and not last):
            self.save("regular")
        elif better and config.keep_best:
            self.save("best")
        self.session.enter("training", step)

    # --- saying, measuring, saving -------------------------------------------------------------------

    def log(self) -> None:
        """A step event: the loss is read here, the only place where the loop waits for the GPU."""
        counters = self.state.counters
        time_ms, seconds = self.clock.read()
        loss = float(self._loss_sum) / max(1, counters.loss_tokens)
        norm = float(self._grad_norm) if self._grad_norm is not None else None
        self._count_seconds()
        speed = (counters.tokens - self._logged.tokens) / seconds if seconds else 0.0
        self.session.emit(
            protocol.Step(
                step=counters.step,
                epoch=counters.step / self.steps_per_epoch,
                tokens=counters.tokens,
                samples=counters.samples,
                loss=loss,
                learning_rate=optim.learning_rate(counters.step, self.total_steps, self.config),
                grad_norm=norm,
                tokens_per_s=speed,
                samples_per_s=(counters.samples - self._logged.samples) / seconds if seconds else 0.0,
                mfu=self._positions * self._flops / seconds / self._peak if self._peak and seconds else None,
                time_ms=time_ms,
            )
        )
        self._logged = Counters(tokens=counters.tokens, samples=counters.samples)
        self._loss_sum.zero_()
        self._positions = 0
        counters.loss_tokens = 0
        if not math.isfinite(loss):
            raise TraindeckError("train.not_finite", value=str(loss), step=counters.step)

    def evaluate(self) -> bool:
        """Loss on held-out data, and answers for prompt/response data. True if it is the best so far."""
        counters = self.state.counters
        self._count_seconds()
        total = self.held_out.batches_per_epoch
        if total == 0:
            return False
        self.session.enter("evaluating", counters.step)
        if self.config.eval_batches:
            total = min(total, self.config.eval_batches)
        batches = self.held_out.iterate(0)
        loss = held_out_loss(self.model, batches, total, self.device, self.precision, self.session)
        answers = self.writer.answer_held_out()
        better = counters.best_loss is None or loss.mean < counters.best_loss
        if better:
            counters.best_loss = loss.mean
        self._evaluated = (counters.step, loss.mean)
        self.session.emit(
            protocol.Eval(
                step=counters.step,
                loss=loss.mean,
                perplexity=loss.perplexity,
                tokens=loss.tokens,
                seconds=loss.seconds,
                best=better,
                bleu4=answers.bleu4 if answers else None,
                exact_match=answers.exact_match if answers else None,
                examples=answers.examples if answers else 0,
            )
        )
        return better

    def save(self, kind: protocol.CheckpointKind) -> None:
        """A checkpoint of this step boundary; nothing to do if there is one that says the same (but a final one)."""
        counters, eval_loss = self.state.counters, self._held_out_loss()
        if self._saved == (counters.step, eval_loss) and kind != "final":
            return
        self._count_seconds()
        counters.loss_sum = float(self._loss_sum)
        self._refuse_what_is_not_finite()
        self.session.enter("saving", counters.step)
        event = checkpoint.save(
            self.run_dir,
            self.state,
            kind,
            self.writer.companions(),
            eval_loss=eval_loss,
            keep_last=self.config.keep_last,
            keep_best=self.config.keep_best,
        )
        self._saved = (counters.step, eval_loss)
        self.session.emit(event)

    def _refuse_what_is_not_finite(self) -> None:
        """The losses since the last step event tell about every update but the newest; its gradient does.

        A scaler leaves out an update whose gradient is not finite, so there it says nothing.
        """
        values = [self.state.counters.loss_sum]
        if self._grad_norm is not None and not self.precision.needs_scaler:
            values.append(float(self._grad_norm))
        for value in values:
            if not math.isfinite(value):
                raise TraindeckError("train.not_finite", value=str(value), step=self.state.counters.step)

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
        peak = torch.cuda.max_memory_reserved(self.device) if self.device.type == "cuda" else None
        return protocol.Done(
            reason=reason,
            steps=counters.step,
            total_steps=self.total_steps,
            best_loss=counters.best_loss,
            final_loss=self._evaluated[1] if self._evaluated else None,
            tokens=counters.tokens,
            seconds=counters.seconds,
            tokens_per_s=counters.tokens / counters.seconds if counters.seconds else 0.0,
            peak_vram=peak,
            model=str(model) if model.is_dir() else None,
        )


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _made_with(config: Config, prepared: Prepared, device: torch.device, precision: Precision) -> dict[str, Any]:
    """What an exact resume depends on. A difference is said; different data is refused."""
    return {
        "data": prepared.fingerprint,
        "batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "max_seq_len": config.max_seq_len,
        "packing": prepared.packed,
        "attend_across_documents": prepared.attend_across_documents,
        "seed": config.seed,
        "device": device.type,
        "precision": precision.name,
        "threads": torch.get_num_threads() if device.type == "cpu" else 0,
        "torch": torch.__version__.split("+")[0],
    }
