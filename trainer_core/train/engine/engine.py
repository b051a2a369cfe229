"""Forward pass of a run with its loss, and its switch from eager to compiled code."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from trainer_core import error_codes
from trainer_core.config import Config
from trainer_core.data.loader import Batch
from trainer_core.models.attention import BACKENDS
from trainer_core.models.decoder import Decoder
from trainer_core.progress import Reporter, StopRequested
from trainer_core.protocol import FastPath
from trainer_core.system.result_cache import MeasurementCache
from trainer_core.train.device import Precision
from trainer_core.train.engine import available, compilation, measuring, trials
from trainer_core.train.engine.compilation import BackgroundCompiler, CompiledLoss, CompileFailed, CompileKey
from trainer_core.train.engine.measuring import MIN_SPEEDUP
from trainer_core.train.loss import batch_loss

_WARMUP_RUNS: Final = 3  # of CUDA graphs: warm-up, recording, replay
_BUDGET_S: Final = 3.0  # of the comparison of speed


@dataclass
class Engine:
    """Computes the loss of micro-batches, eagerly or compiled."""

    model: Decoder
    precision: Precision
    choices: dict[str, Any] = field(default_factory=dict)
    """Plain values that determine how the run computes. Checkpoints hold them; a resumed run repeats them."""
    fast_paths: list[FastPath] = field(default_factory=list)
    compile_s: float | None = None
    """Seconds that training waited for the compiler, failures included; None: nothing was compiled."""
    chunk: int = 0  # rows of logits at once; 0: all
    varlen: bool = False  # attention takes cumulative sequence lengths, not a mask
    switch: CompileSwitch | None = None  # pending
    compiled: CompiledLoss | None = None
    compile_key: CompileKey | None = None  # of `compiled`
    eager_only: bool = False  # OOM recovery: a graph has fixed what it keeps
    smaller_chunk: int = 0  # OOM recovery: replaces `chunk`; 0: unchanged

    def loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        """Summed loss in nats of a micro-batch on the model's device, under autocast.

        `grad_scale`: the gradient that the loss gets in `backward`, 0-dim fp32 on the device; None: one. Required to
        keep small gradients in fp16 (see `loss.linear_token_loss`).
        """
        if self.eager_only or self.compiled is None or self.compile_key is None or not self.compile_key.fits(batch):
            return self.eager_loss(batch, grad_scale)
        if grad_scale is None and self.precision.needs_scaler:
            grad_scale = torch.ones((), device=batch.labels.device)  # None would need another graph
        with self.precision.autocast():
            return self.compiled(batch.input_ids, batch.labels, batch.segments, batch.positions, grad_scale)

    def eager_loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        """The same, never compiled."""
        chunk = self.smaller_chunk or self.chunk
        with self.precision.autocast():
            return batch_loss(self.model, batch, chunk=chunk, varlen=self.varlen, grad_scale=grad_scale)

    def set_attention(self, name: str) -> None:
        """Use an attention backend of `models.attention.BACKENDS`."""
        backend = BACKENDS[name]
        self.model.set_attention(backend.attend)
        self.varlen, self.choices["attention"] = backend.uses_cu_seqlens, name

    def set_path(self, path: FastPath) -> None:
        """Replace the record of a fast path."""
        self.fast_paths = [path if path.name == known.name else known for known in self.fast_paths]

    def close(self) -> None:
        """Stop the background compiler."""
        if self.switch is not None:
            self.switch.close()

    def reset_graphs(self) -> None:
        """Drop recorded CUDA graphs, which hold the addresses of weights and the memory of a whole step."""
        if self.compiled is not None and self.compile_key is not None and self.compile_key.graphs:
            self.compiled = None
            compilation.reset_graphs()

    def rerecord_graphs(self) -> None:
        """Record the same graphs again, from the compiler's cache."""
        if self.compiled is None and self.compile_key is not None:
            self.compiled = compilation.compile_whole(self.model, self.compile_key)


class CompileSwitch:
    """Compiles in the background from the start of the run, and takes over before step `step`.

    The step is fixed when the run starts and stored in its checkpoints, so a resumed run switches at the same step.
    Compiled code is used if its loss and gradients equal the eager ones on the run's own batch and, unless `forced`, if
    it is faster. `MeasurementCache` stores the decision (unless `cache_key` is None), so that a run killed before its
    next checkpoint repeats it.
    """

    def __init__(
        self,
        engine: Engine,
        key: CompileKey,
        step: int,
        config: Config,
        session: Reporter,
        cache_key: tuple[object, ...] | None,
        *,
        forced: bool,
        background: bool,
    ) -> None:
        self.step, self._engine, self._key, self._config, self._session = step, engine, key, config, session
        self._cache_key, self._forced = cache_key, forced
        self._device = torch.device(key.device)
        self._eager_attention = str(engine.choices["attention"])
        self._cached, self._since = compilation.is_cached(key), time.perf_counter()
        self._compiler = BackgroundCompiler(key) if background else None

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.close()

    def finish(self, example: Batch, choices: dict[str, Any] | None = None) -> None:
        """Switch if compiled code works and is faster. With CUDA graphs first, where the key has them.

        Args:
            example: A micro-batch on the device.
            choices: Decision of rank 0, which other ranks repeat; None: decide.
        """
        engine, since = self._engine, time.perf_counter()
        engine.switch = None
        if choices is not None and not choices["compile"]:
            self.close()
            self._reject(FastPath(name="compile", used=False, reason="path.recorded"))
            return
        if choices is not None:
            self._forced, self._key = True, replace(self._key, graphs=choices.get("cuda_graphs", False))
        batch = example if self._key.fits(example) else compilation.example_batch(self._key)
        with measuring.preserved_state(engine.model, self._device):
            path = self._try_key(batch)
            if self._key.graphs:
                self._record_graphs(path)
                if not path.used:
                    self._reject(path)
                    compilation.reset_trial_graphs()
                    self._key = replace(self._key, graphs=False)
                    path = self._try_key(batch)
            self._accept(path) if path.used else self._reject(path)
        engine.compile_s = time.perf_counter() - since
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        if path.reason != "path.failed":  # a failure may be different at the next start
            self._store_cost(time.perf_counter() - (since if self._cached else self._since))
            if self._cache_key is not None:
                at_start = {**engine.choices, "attention": self._eager_attention}
                MeasurementCache().store({"choices": at_start}, *self._cache_key)

    def _try_key(self, batch: Batch) -> FastPath:
        """Compile and compare with eager code: results and, unless forced, speed."""
        engine, error, speedup = self._engine, None, None
        try:
            self._wait_for_compiler()
            error = self._compile(batch)
            tolerance = trials.tolerance(self._config, self._device, engine.precision)
            if error > tolerance:
                params: dict[str, Any] = {"error": error, "tolerance": tolerance}
                return FastPath(name="compile", used=False, reason="path.differs", params=params, error=error)
            if not self._forced:
                speedup = self._speedup(batch)
        except StopRequested:
            raise
        except Exception as failure:  # noqa: BLE001 - inductor raises anything; eager code remains
            why = str(failure) if isinstance(failure, CompileFailed) else compilation.error_summary(failure)
            return FastPath(name="compile", used=False, reason="path.failed", params={"reason": why})
        used = speedup is None or speedup >= MIN_SPEEDUP
        accepted = "path.set" if self._config.compile == "on" else "path.on"
        reason = accepted if used else "path.slower"
        return FastPath(name="compile", used=used, reason=reason, error=error, speedup=speedup)

    def _wait_for_compiler(self) -> None:
        """Raises `CompileFailed`, unless the child process ran out of memory: it needs weights, gradients and a CUDA
        context of its own, and this process may still have room."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the child process computes a micro-batch too
        compiler, self._compiler = self._compiler or BackgroundCompiler(self._key), None
        try:
            compiler.wait(self._session)
        except CompileFailed as failure:
            found = error_codes.classify_exception(RuntimeError(str(failure)))
            if found is None or found.code != "memory.out":
                raise

    def _compile(self, batch: Batch) -> float:
        """Compile in this process; returns the error against the eager loss."""
        engine, key = self._engine, self._key
        with self._session.interruptible():
            engine.compiled, engine.compile_key = compilation.compile_whole(engine.model, key), key
            for _ in range(_WARMUP_RUNS if key.graphs else 0):
                trials.clear_gradients(engine.model)
                torch.autograd.backward(self._compiled_loss(batch))
            trials.clear_gradients(engine.model)
            return trials.loss_difference(engine.model, self._compiled_loss, self._eager_loss, batch, engine.precision)

    def _compiled_loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        self._engine.set_attention(self._key.attention)
        return self._engine.loss(batch, grad_scale)

    def _eager_loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        self._engine.set_attention(self._eager_attention)
        return self._engine.eager_loss(batch, grad_scale)

    def _speedup(self, batch: Batch) -> float | None:
        """Of compiled code; None: eager code does not fit into the GPU's memory."""
        model, losses = self._engine.model, (self._eager_loss, self._compiled_loss)
        return trials.speedup(model, *losses, batch, self._device, self._session, _BUDGET_S)

    def _accept(self, path: FastPath) -> None:
        engine = self._engine
        engine.choices["compile"] = True
        engine.set_attention(self._key.attention)
        engine.set_path(path)
        if self._eager_attention != self._key.attention:
            masked = FastPath(name="attention", used=True, choice=self._key.attention, reason="path.masked")
            engine.set_path(masked)
            for other in engine.fast_paths:
                if other.name in available.VARLEN_BACKENDS and other.used:
                    engine.set_path(msgspec.structs.replace(other, used=False, reason="path.outdone"))

    def _reject(self, path: FastPath) -> None:
        engine = self._engine
        engine.compiled = engine.compile_key = None
        engine.choices["compile"] = False
        engine.set_attention(self._eager_attention)
        trials.clear_gradients(engine.model)
        engine.set_path(path)

    def _record_graphs(self, path: FastPath) -> None:
        self._engine.choices["cuda_graphs"] = path.used
        requested = path.used and self._config.cuda_graphs == "on"
        reason = "path.set" if requested else path.reason
        self._engine.set_path(msgspec.structs.replace(path, name="cuda_graphs", reason=reason))

    def _store_cost(self, seconds: float) -> None:
        key = "compile", measuring.machine_key(self._device)
        known = MeasurementCache().get(*key) or {}
        MeasurementCache().store({**known, "again_s" if self._cached else "first_s": seconds}, *key)
