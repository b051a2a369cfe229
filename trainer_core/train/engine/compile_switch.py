"""Switch of a run from eager to compiled code."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

import msgspec
import torch

from trainer_core import error_codes
from trainer_core.config import Config
from trainer_core.data.loader import Batch
from trainer_core.progress import Reporter, StopRequested
from trainer_core.protocol import FastPath
from trainer_core.train.engine import available, compilation, measuring, trials
from trainer_core.train.engine.compilation import BackgroundCompiler, CompileFailed, CompileKey
from trainer_core.train.engine.engine import Engine
from trainer_core.train.engine.measuring import MIN_SPEEDUP, Reason

_WARMUP_RUNS: Final = 3  # of CUDA graphs: warm-up, recording, replay
_GRAPH_S: Final = 0.03  # a micro-batch this short may be limited by kernel launches
_BUDGET_S: Final = 3.0  # of the comparison of speed


class CompileSwitch:
    """Compiles in the background from the start of the run, and takes over before step `step`.

    The step is fixed when the run starts and stored in its checkpoints, so a resumed run switches at the same step.
    Compiled code is used if its loss and gradients equal the eager ones on the run's own batch and, unless `forced`, if
    it is faster. `MeasurementCache` stores the decision, so that a run killed before its next checkpoint repeats it.
    """

    def __init__(
        self,
        engine: Engine,
        key: CompileKey,
        step: int,
        config: Config,
        session: Reporter,
        cache_key: tuple[object, ...],
        *,
        forced: bool,
        background: bool,
        thorough: bool,
    ) -> None:
        self.step, self._engine, self._key, self._config, self._session = step, engine, key, config, session
        self._cache_key, self._forced, self._thorough = cache_key, forced, thorough
        self._device = torch.device(key.device)
        self._eager_attention = str(engine.choices["attention"])
        self._cached, self._since = compilation.is_cached(key), time.perf_counter()
        self._compiler = BackgroundCompiler(key) if background else None

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.close()

    def finish(self, example: Batch, choices: dict[str, Any] | None = None) -> None:
        """Switch if compiled code works and is faster.

        Args:
            example: A micro-batch on the device.
            choices: Decision of rank 0, which other ranks repeat; None: decide.
        """
        engine, since = self._engine, time.perf_counter()
        engine.switch = None
        if choices is not None and not choices["compile"]:
            self.close()
            self._reject(("path.recorded", {}))
            return
        self._forced |= choices is not None
        with measuring.preserved_state(engine.model, self._device):
            failed = not self._switch(example)
            if not failed and engine.compiled is not None and self._device.type == "cuda":
                self._select_graphs(example, choices)
        engine.compile_s = time.perf_counter() - since
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
        if not failed and not self._thorough:
            at_start = {**engine.choices, "attention": self._eager_attention}
            measuring.MeasurementCache().store({"choices": at_start}, *self._cache_key)

    # --- torch.compile ------------------------------------------------------------------------------------------

    def _switch(self, example: Batch) -> bool:
        """Compile and compare; False: it failed, which may be different at the next start."""
        engine = self._engine
        batch = example if self._key.fits(example) else compilation.example_batch(self._key)
        try:
            if self._device.type == "cuda":
                torch.cuda.empty_cache()  # the child process computes a micro-batch too
            self._wait_for_compiler()
            since = time.perf_counter()
            error = self._compile(self._key, batch)
            tolerance = trials.tolerance(self._config, self._device, engine.precision)
            speedup = None if self._forced or error > tolerance else self._speedup(self._eager_loss, batch)
        except StopRequested:
            raise
        except Exception as failure:  # noqa: BLE001 - inductor raises anything; eager code remains
            reason = str(failure) if isinstance(failure, CompileFailed) else compilation.error_summary(failure)
            self._reject(("path.failed", {"reason": reason}))
            return False
        self._store_cost(time.perf_counter() - (since if self._cached else self._since))
        if error > tolerance:
            self._reject(("path.differs", {"error": error, "tolerance": tolerance}), error=error)
        elif speedup is not None and speedup < MIN_SPEEDUP:
            self._reject(("path.slower", {}), error=error, speedup=speedup)
        else:
            self._accept(error, speedup)
        return True

    def _wait_for_compiler(self) -> None:
        """Raises `CompileFailed`, unless the child process ran out of memory: it needs weights, gradients and a CUDA
        context of its own, and this process may still have room."""
        try:
            self._compiler = self._compiler or BackgroundCompiler(self._key)
            self._compiler.wait(self._session)
        except CompileFailed as failure:
            found = error_codes.classify_exception(RuntimeError(str(failure)))
            if found is None or found.code != "memory.out":
                raise

    def _compile(self, key: CompileKey, batch: Batch) -> float:
        """Compile in this process; returns the error against the eager loss."""
        engine = self._engine
        with self._session.interruptible():
            engine.compiled, engine.compile_key = compilation.compile_whole(engine.model, key), key
            for _ in range(_WARMUP_RUNS if key.graphs else 0):
                trials.clear_gradients(engine.model)
                torch.autograd.backward(self._compiled_loss(batch))
            trials.clear_gradients(engine.model)
            return trials.loss_difference(engine.model, self._compiled_loss, self._eager_loss, batch, engine.precision)

    def _compiled_loss(self, batch: Batch, grad_scale: torch.Tensor | None = None) -> torch.Tensor:
        self._engine.set_attention(self._key.attention)
        return self._engine.loss(batch, grad_scale)

    def _eager_loss(self, batch: Batch, grad_scale: torch.Tensor | None = None) -> torch.Tensor:
        self._engine.set_attention(self._eager_attention)
        return self._engine.eager_loss(batch, grad_scale)

    def _speedup(self, slow: trials.LossOf, batch: Batch) -> float | None:
        """Of compiled code over `slow`; None: `slow` does not fit into the GPU's memory."""
        return trials.speedup(
            self._engine.model, slow, self._compiled_loss, batch, self._device, self._session, _BUDGET_S
        )

    def _accept(self, error: float, speedup: float | None) -> None:
        engine = self._engine
        engine.set_attention(self._key.attention)
        reason = "path.set" if self._config.compile == "on" else "path.on"
        engine.set_path(FastPath(name="compile", used=True, reason=reason, error=error, speedup=speedup))
        if self._eager_attention != self._key.attention:
            masked = FastPath(name="attention", used=True, choice=self._key.attention, reason="path.masked")
            engine.set_path(masked)
            for path in engine.fast_paths:
                if path.name in available.VARLEN_BACKENDS and path.used:
                    engine.set_path(msgspec.structs.replace(path, used=False, reason="path.outdone"))

    def _reject(self, reason: Reason, **figures: float) -> None:
        engine = self._engine
        engine.compiled = engine.compile_key = None
        engine.choices["compile"] = False
        engine.set_attention(self._eager_attention)
        trials.clear_gradients(engine.model)
        code, params = reason
        path = FastPath(name="compile", used=False, reason=code, params=params)
        engine.set_path(msgspec.structs.replace(path, **figures))

    def _store_cost(self, seconds: float) -> None:
        key = "compile", measuring.machine_key(self._device)
        known = measuring.MeasurementCache().get(*key) or {}
        measuring.MeasurementCache().store({**known, "again_s" if self._cached else "first_s": seconds}, *key)

    # --- CUDA graphs --------------------------------------------------------------------------------------------

    def _select_graphs(self, example: Batch, choices: dict[str, Any] | None) -> None:
        """Use CUDA graphs where shapes are static and a micro-batch is short enough to be limited by launches."""
        engine, plain = self._engine, (self._engine.compiled, self._engine.compile_key)
        given = (choices or {}).get("cuda_graphs", engine.choices.get("cuda_graphs"))
        engine.choices["cuda_graphs"] = False
        reason = self._graphs_rejection(example, given)
        error = speedup = None
        if reason is None:
            key = replace(self._key, graphs=True)

            def without_graphs(batch: Batch) -> torch.Tensor:
                now = engine.compiled, engine.compile_key
                engine.compiled, engine.compile_key = plain
                try:
                    return engine.loss(batch)
                finally:
                    engine.compiled, engine.compile_key = now

            try:
                BackgroundCompiler(key).wait(self._session)
                error = self._compile(key, example)
                tolerance = trials.tolerance(self._config, self._device, engine.precision)
                if error > tolerance:
                    reason = "path.differs", {"error": error, "tolerance": tolerance}
                elif not (given or self._config.cuda_graphs == "on"):
                    speedup = self._speedup(without_graphs, example)
                    reason = ("path.slower", {}) if speedup is not None and speedup < MIN_SPEEDUP else None
            except StopRequested:
                raise
            except Exception as failure:  # noqa: BLE001 - see `_switch`
                reason = "path.failed", {"reason": compilation.error_summary(failure)}
            if reason is not None:
                engine.compiled, engine.compile_key = plain
                trials.clear_gradients(engine.model)
                compilation.reset_trial_graphs()
        engine.choices["cuda_graphs"] = reason is None
        code, params = reason or ("path.set" if self._config.cuda_graphs == "on" else "path.on", {})
        used = reason is None
        engine.set_path(
            FastPath(name="cuda_graphs", used=used, reason=code, params=params, error=error, speedup=speedup)
        )

    def _graphs_rejection(self, example: Batch, given: bool | None) -> Reason | None:
        """Gradients of a graph lie in its own memory, which its next run overwrites: one micro-batch a step. A graph
        draws random numbers in another order: no dropout."""
        obstacles = {
            "gradient accumulation": self._config.gradient_accumulation_steps > 1,
            "dropout": self._config.dropout > 0,
            "batches of different widths": self._key.varying,
        }
        if self._config.cuda_graphs == "off":
            return "path.off", {}
        for what, present in obstacles.items():
            if present:
                return "path.unsupported", {"what": what}
        if self._config.cuda_graphs == "on" or self._thorough or given:
            return None
        if given is False:
            return "path.recorded", {}
        ways = {"now": lambda: torch.autograd.backward(self._compiled_loss(example))}
        taken = measuring.time_alternatives(ways, self._device, self._session, 1.0)["now"]
        trials.clear_gradients(self._engine.model)
        return None if taken < _GRAPH_S else ("path.not_needed", {})
