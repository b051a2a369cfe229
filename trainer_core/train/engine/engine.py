"""Forward pass of a run with its loss, and its switch from eager to compiled code."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from trainer_core import error_codes
from trainer_core.config import Config
from trainer_core.data.batch import Batch
from trainer_core.models.attention import BACKENDS
from trainer_core.models.language_model import LanguageModel
from trainer_core.progress import Reporter, StopRequested
from trainer_core.protocol import FastPath
from trainer_core.train.device import Precision, uses_tf32
from trainer_core.train.engine import compilation, measuring
from trainer_core.train.engine.compilation import BackgroundCompiler, CompiledLoss, CompileFailed, CompileKey
from trainer_core.train.grpo import PolicyLoss
from trainer_core.train.loss import batch_loss
from trainer_core.train.model_shape import tuning_of
from trainer_core.train.preferences import PreferenceLoss, RewardSums, all_reference_logps

REFERENCE: Final = "sdpa"  # attention backend
VARLEN_PATHS: Final = ("flash3", "flash2", "varlen_attention")  # variable-length attention, preferred first
_WARMUP_RUNS: Final = 3  # of CUDA graphs: warm-up, recording, replay
_BUDGET_S: Final = 3.0  # of the comparison of speed


@dataclass
class Engine:
    """Computes the loss of micro-batches, eagerly or compiled."""

    model: LanguageModel
    precision: Precision
    choices: dict[str, Any] = field(default_factory=dict)
    """Plain values that determine how the run computes. Checkpoints hold them; a resumed run repeats them."""
    fast_paths: dict[str, FastPath] = field(default_factory=dict)
    compile_s: float | None = None
    """Seconds that training waited for the compiler, failures included; None: nothing was compiled."""
    chunk: int = 0  # rows of logits at once; 0: all
    varlen: bool = False  # attention takes cumulative sequence lengths, not a mask
    switch: CompileSwitch | None = None  # pending
    compiled: CompiledLoss | None = None
    compile_key: CompileKey | None = None  # of `compiled`
    eager_only: bool = False  # OOM recovery: a graph has fixed what it keeps
    smaller_chunk: int = 0  # OOM recovery: replaces `chunk`; 0: unchanged
    objective: PreferenceLoss | PolicyLoss | None = None  # replaces the loss of the labels

    @property
    def num_losses(self) -> int:
        """Values of `loss` on validation data."""
        return 1 + len(RewardSums._fields) if isinstance(self.objective, PreferenceLoss) else 1

    def loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        """Summed loss in nats of a micro-batch on the model's device, under autocast: 0-dim, or with an objective the
        loss and sums of its metrics, 1-dim.

        `grad_scale`: the gradient that the loss gets in `backward`, 0-dim fp32 on the device; None: one. Required to
        keep small gradients in fp16 (see `loss.linear_token_loss`).
        """
        adapted = None
        if self.compiled is not None and self.compile_key is not None and not self.eager_only:
            adapted = self.compile_key.adapt(batch)
        if self.compiled is None or adapted is None:
            return self.eager_loss(batch, grad_scale)
        if grad_scale is None and self.precision.needs_scaler:
            grad_scale = torch.ones((), device=batch.labels.device)  # None would need another graph
        with self.precision.autocast():
            return self.compiled(adapted.input_ids, adapted.labels, adapted.segments, adapted.positions, grad_scale)

    def eager_loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        """The same, never compiled."""
        chunk = self.smaller_chunk or self.chunk
        with self.precision.autocast():
            compared = batch.preference is not None or batch.advantages is not None
            if self.objective is not None and compared:  # not of neutral text
                return self.objective(self.model, batch, chunk=chunk, varlen=self.varlen)
            return batch_loss(self.model, batch, chunk=chunk, varlen=self.varlen, grad_scale=grad_scale)

    def reference_logps(self, batch: Batch) -> Tensor:
        """The rows of `ReferenceLogps` for a batch on the model's device, under autocast."""
        with self.precision.autocast():
            return all_reference_logps(self.model, batch, chunk=self.smaller_chunk or self.chunk, varlen=self.varlen)

    def label_logps(self, batch: Batch) -> Tensor:
        """Log-probabilities (B, T) of the labels of generated answers, under autocast."""
        assert isinstance(self.objective, PolicyLoss)
        chunk = self.smaller_chunk or self.chunk
        with self.precision.autocast():
            return self.objective.label_logps(self.model, batch, chunk=chunk, varlen=self.varlen)

    def set_attention(self, name: str) -> None:
        """Use an attention backend of `models.attention.BACKENDS`."""
        self.model.set_attention(BACKENDS[name].attend)
        self.varlen, self.choices["attention"] = BACKENDS[name].uses_cu_seqlens, name

    def record(self, name: str, used: bool, reason: measuring.Reason, **more: Any) -> None:
        """Record whether a fast path is used, and why."""
        code, params = reason
        self.fast_paths[name] = FastPath(name=name, used=used, reason=code, params=params, **more)

    def build_key(self, config: Config, device: torch.device, rows: int, segments: bool, varying: bool) -> CompileKey:
        """Key of the graph for micro-batches of `rows` sequences, with the present attention and chunks."""
        return CompileKey(
            shape=asdict(self.model.config),
            rows=rows,
            length=config.max_seq_len,
            segments=segments,
            varying=varying,
            device=str(device),
            precision=self.precision.name,
            attention=REFERENCE if self.varlen else self.choices["attention"],  # a graph takes a mask
            chunk=self.chunk,
            tuning=tuning_of(config),
            checkpointing=config.checkpointing,
            memory_budget=config.activation_memory_budget,
            threads=torch.get_num_threads() if device.type == "cpu" else 0,
            tf32=uses_tf32(config, device),
            deterministic=config.deterministic and device.type == "cuda",
        )

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
    Compiled code is used if its loss and gradients equal the eager ones on the run's own batch and if it is faster. The
    decision is stored next to the compiled code and repeated wherever the same graph is compiled, without timing, so
    also by a run that is killed after the switch and resumes from a checkpoint before it.

    Args:
        repeated: The run already uses compiled code: speed does not matter.
        background: Start compiling now; False: in `finish`.
    """

    def __init__(
        self,
        engine: Engine,
        key: CompileKey,
        step: int,
        config: Config,
        reporter: Reporter,
        *,
        repeated: bool = False,
        background: bool = True,
    ) -> None:
        self.step, self._engine, self._key, self._config, self._reporter = step, engine, key, config, reporter
        self._repeated = repeated or config.compile == "on"
        self._device = torch.device(key.device)
        self._eager_attention = str(engine.choices["attention"])
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
        if choices is not None:
            self._repeated, self._key = True, replace(self._key, graphs=choices.get("cuda_graphs", False))
            if not choices["compile"]:
                self.close()
                self._reject()
                engine.record("compile", False, ("path.recorded", {}))
                return
        batch = self._key.adapt(example) or compilation.example_batch(self._key)
        with measuring.preserved_state(engine.model, self._device):
            used = self._try_key(self._key, batch)
            if self._key.graphs:
                engine.choices["cuda_graphs"] = used
                path = msgspec.structs.replace(engine.fast_paths["compile"], name="cuda_graphs")
                engine.fast_paths["cuda_graphs"] = path
                if used and self._config.cuda_graphs == "on":
                    path.reason = "path.set"
                if not used:
                    compilation.reset_graphs()
                    self._try_key(replace(self._key, graphs=False), batch)
        engine.compile_s = time.perf_counter() - since
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)

    def _try_key(self, key: CompileKey, batch: Batch) -> bool:
        """Compile, compare, decide and record the decision; returns whether compiled code is used from now on."""
        try:
            earlier = compilation.read_decision(key)
            path = earlier if earlier is not None and not earlier.used and not self._repeated else None
            if path is None:
                path = self._compare(key, batch, earlier)
                if not self._repeated:
                    compilation.store_decision(key, path)
        except StopRequested:
            raise
        except Exception as failure:  # noqa: BLE001 - inductor raises anything; eager code remains
            why = str(failure) if isinstance(failure, CompileFailed) else compilation.error_summary(failure)
            path = FastPath(name="compile", used=False, reason="path.failed", params={"reason": why})
        self._engine.fast_paths["compile"] = path
        self._accept(key) if path.used else self._reject()
        return path.used

    def _compare(self, key: CompileKey, batch: Batch, earlier: FastPath | None) -> FastPath:
        """Compile and compare results with eager code, and speed where that is undecided."""
        engine, speedup = self._engine, earlier.speedup if earlier is not None else None
        self._wait_for_compiler(key)
        with self._reporter.interruptible():
            engine.compiled, engine.compile_key = compilation.compile_whole(engine.model, key), key
            for _ in range(_WARMUP_RUNS if key.graphs else 0):
                measuring.clear_gradients(engine.model)
                torch.autograd.backward(self._compiled_loss(batch))
            measuring.clear_gradients(engine.model)
            losses = self._compiled_loss, self._eager_loss
            error = measuring.loss_difference(engine.model, *losses, batch, engine.precision)
        tolerance = measuring.tolerance(self._config, self._device, engine.precision)
        if error > tolerance:
            params: dict[str, Any] = {"error": error, "tolerance": tolerance}
            return FastPath(name="compile", used=False, reason="path.differs", params=params, error=error)
        if earlier is None and not self._repeated:
            losses = self._eager_loss, self._compiled_loss
            speedup = measuring.speedup(engine.model, *losses, batch, self._reporter, _BUDGET_S)
        used = self._repeated or speedup is None or speedup >= measuring.MIN_SPEEDUP
        reason = "path.slower" if not used else "path.set" if self._config.compile == "on" else "path.on"
        return FastPath(name="compile", used=used, reason=reason, error=error, speedup=speedup)

    def _wait_for_compiler(self, key: CompileKey) -> None:
        """Raises `CompileFailed`, unless the child process ran out of memory: it needs weights, gradients and a CUDA
        context of its own, and this process may still have room."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the child process computes a micro-batch too
        compiler, self._compiler = self._compiler or BackgroundCompiler(key), None
        try:
            compiler.wait(self._reporter)
        except CompileFailed as failure:
            found = error_codes.classify_exception(RuntimeError(str(failure)))
            if found is None or found.code != "memory.out":
                raise

    def _compiled_loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        self._engine.set_attention(self._key.attention)
        return self._engine.loss(batch, grad_scale)

    def _eager_loss(self, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        self._engine.set_attention(self._eager_attention)
        return self._engine.eager_loss(batch, grad_scale)

    def _accept(self, key: CompileKey) -> None:
        engine = self._engine
        engine.choices["compile"] = True
        engine.set_attention(key.attention)
        if self._eager_attention != key.attention:
            engine.record("attention", True, ("path.masked", {}), choice=key.attention)
            for name in VARLEN_PATHS:
                if engine.fast_paths[name].used:
                    outdone = msgspec.structs.replace(engine.fast_paths[name], used=False, reason="path.outdone")
                    engine.fast_paths[name] = outdone

    def _reject(self) -> None:
        engine = self._engine
        engine.compiled = engine.compile_key = None
        engine.choices["compile"] = False
        engine.set_attention(self._eager_attention)
        measuring.clear_gradients(engine.model)
