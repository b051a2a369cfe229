"""Selects how a run computes: threads, attention, loss in chunks, compilation.

Rules decide; no path is timed before the first step. A resumed run repeats the choices of its checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final, cast

import torch

from trainer_core.config import Config
from trainer_core.models.attention import BACKENDS
from trainer_core.models.decoder import Decoder
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import ModelConfig
from trainer_core.progress import Reporter
from trainer_core.system import hardware
from trainer_core.train.activation_checkpointing import checkpoint_activations
from trainer_core.train.device import Precision, uses_tf32
from trainer_core.train.engine import compilation, fast_paths, measuring
from trainer_core.train.engine.compilation import CompileKey
from trainer_core.train.engine.engine import REFERENCE, VARLEN_PATHS, CompileSwitch, Engine
from trainer_core.train.engine.measuring import Reason
from trainer_core.train.grpo import PolicyLoss
from trainer_core.train.preferences import PreferenceLoss

COMPILE_S: Final = {"cpu": 45.0, "cuda": 60.0}  # of the compiler, typically
_MARGIN: Final = 1.5  # background compilation competes with training
_SAVED_SHARE: Final = {"cpu": 0.1, "cuda": 1 / 3}  # of a step; docs/performance.md; cuda: an assumption
_FLOPS: Final = {"cpu": 3e10, "cuda": 4e13}  # rough eager FLOP/s, per core on a CPU
_LAYER_OVERHEAD_S: Final = 1.5e-3  # of a layer on a CPU, forward and backward, in addition to its arithmetic
_GRAPH_S: Final = 0.03  # a step this short may be limited by kernel launches
_CHUNKED_FROM_BYTES: Final = {"cpu": 4 * 2**20, "cuda": 256 * 2**20}
"""fp32 logits from which on the loss is computed in chunks, which saves memory, and time on a CPU: 2,048 tokens x 4,096
vocabulary entries take 76 % of the time of all logits at once."""
_COMPARED_POSITIONS: Final = 2048
_CHUNK_BYTES: Final = {"cpu": 32 * 2**20, "cuda": 256 * 2**20}  # fp32 logits per chunk
_MIN_CHUNK_ROWS: Final = {"cpu": 256, "cuda": 64}  # 64 instead of 256 rows of 16,000: 1.5 times the time on a CPU
_TRANSFORMERS: Final[Reason] = ("path.unsupported", {"what": "models that transformers computes"})
_MAX_CHUNKS: Final = 16  # on a GPU: a compiled model unrolls them


def build_engine(
    config: Config,
    model: LanguageModel,
    device: torch.device,
    precision: Precision,
    reporter: Reporter,
    *,
    rows: int,
    width: int = 0,
    segments: bool,
    varying: bool,
    total_steps: int,
    recorded: dict[str, Any],
    step: int = 0,
    eager_start: bool = True,
    background: bool = True,
    sharded: bool = False,
) -> Engine:
    """Build the engine of a run. Random states, weights and gradients are preserved.

    Args:
        rows: Sequences of a micro-batch.
        width: Positions of a sequence; 0: `max_seq_len`.
        segments: Sequences are divided into documents.
        varying: Batches differ in width.
        recorded: Choices of the checkpoint that the run resumes from; empty: a new run.
        step: Steps done.
        eager_start: Train eagerly until compiled code can be ready; False: wait for it before the first step.
        background: Start compiling now; False: in `CompileSwitch.finish`.
        sharded: Each rank has a part of each weight: the model is not compiled as a whole.
    """
    engine = Engine(model, precision, fast_paths=fast_paths.run_paths(config, model, device, precision))
    if config.objective != "likelihood":
        engine.objective = (PolicyLoss if config.uses_rewards else PreferenceLoss)(config)
    selector = _Selector(config, engine, device, rows * (width or config.max_seq_len), recorded, sharded)
    with measuring.preserved_state(model, device):
        selector.select_threads()
        selector.select_attention(rows, segments or varying)
        selector.select_chunk()
    checkpoint_activations(model, *config.checkpointing)
    if device.type == "cuda":
        engine.choices["tf32"] = uses_tf32(config, device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    key = selector.select_compile(engine.build_key(config, device, rows, segments, varying), total_steps)
    if key is None:
        return engine
    first = recorded.get("compile_step")
    if first is None:
        first = step + (selector.steps_before_switch(key, total_steps - step) if config.compile == "auto" else 0)
    engine.choices["compile_step"] = first
    reason: Reason = ("path.set" if config.compile == "on" else "path.recorded", {})
    engine.record("compile", True, ("path.from_step", {"step": first + 1}) if first > step else reason)
    engine.switch = CompileSwitch(
        engine,
        key,
        first if eager_start else step,
        config,
        reporter,
        repeated=first < step,  # a checkpoint of step `first` is saved before the switch
        background=background,
    )
    return engine


class _Selector:
    """The rules, and the engine that they configure."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        device: torch.device,
        tokens: int,
        recorded: dict[str, Any],
        sharded: bool,
    ) -> None:
        """`tokens`: positions of a micro-batch."""
        self._sharded = sharded
        self._config, self._engine, self._device, self._recorded = config, engine, device, recorded
        self._tokens = tokens

    # --- threads, attention, loss ---------------------------------------------------------------------------

    def select_threads(self) -> None:
        """On a CPU: as set, as recorded where this machine has as many, or all."""
        if self._device.type != "cpu":
            return
        recorded, reason = self._recorded.get("threads", 0), "path.all"
        if self._config.cpu_threads or self._config.nproc_per_node > 1:
            reason = "path.set"
        elif 0 < recorded <= hardware.usable_threads():
            torch.set_num_threads(recorded)
            reason = "path.recorded"
        threads = self._engine.choices["threads"] = torch.get_num_threads()
        self._engine.record("threads", True, (reason, {}), choice=fast_paths.format_threads(threads))

    def select_chunk(self) -> None:
        """Compute the loss in chunks where it is set, or where a micro-batch has many logits."""
        mode, vocabulary = self._config.chunked_loss, self._engine.model.config.vocab_size
        kind, row_bytes = self._device.type, 4 * vocabulary
        rows = max(_MIN_CHUNK_ROWS[kind], _CHUNK_BYTES[kind] // row_bytes)
        large = self._tokens * row_bytes > _CHUNKED_FROM_BYTES[kind]
        if kind == "cuda":
            rows = max(rows, -(-self._tokens // _MAX_CHUNKS))
        if mode != "auto":
            chunk, reason = (rows, "path.set") if mode == "on" else (0, "path.off")
        elif "chunk" in self._recorded:
            chunk, reason = self._recorded["chunk"], "path.recorded"
        else:
            chunk, reason = (rows, "path.on") if large else (0, "path.not_needed")
        if chunk and not self._engine.model.has_plain_head:
            chunk, reason = 0, "path.plain_head"
        self._engine.chunk = self._engine.choices["chunk"] = chunk
        self._engine.record("chunked_loss", chunk > 0, (reason, {}))

    def select_attention(self, rows: int, segments: bool) -> None:
        """As set, as recorded, or variable-length attention for padded sequences and those of several documents. A
        kernel other than the reference must equal it on a batch of the run's shape."""
        if not isinstance(self._engine.model, Decoder):
            self._engine.set_attention(REFERENCE)
            for path in ("attention", *VARLEN_PATHS):
                self._engine.record(path, False, _TRANSFORMERS)
            return
        name, reason = str(self._config.attention), "path.set"
        if name == "auto":
            name, reason = self._recorded.get("attention", ""), "path.recorded"
        if name not in BACKENDS:
            names = [fast_paths.backend_of(path, self._device) for path in VARLEN_PATHS if segments]
            name = next((one for one in names if self._missing(one) is None), REFERENCE)
            reason = "path.on"
        error, failure = self._verify_attention(name, rows, segments)
        because = failure or (reason, {})
        self._engine.set_attention(REFERENCE if failure else name)
        self._engine.record("attention", failure is None, because, choice=name, error=error)
        for path in VARLEN_PATHS:
            known = self._engine.fast_paths[path]
            if fast_paths.backend_of(path, self._device) == name:
                self._engine.record(path, failure is None, because, choice=known.choice, error=error)
            elif known.used:
                unused = "path.not_tried" if segments else "path.not_needed"
                self._engine.record(path, False, (unused, {}), choice=known.choice)

    def _missing(self, name: str) -> Reason | None:
        dtype = self._engine.precision.dtype or torch.float32
        return BACKENDS[name].unavailable_reason(self._device, dtype, self._shape().attention.head_dim)

    def _shape(self) -> ModelConfig:
        """Of our decoder: no other model has a choice of attention."""
        return cast(ModelConfig, self._engine.model.config)

    def _verify_attention(self, name: str, rows: int, segments: bool) -> tuple[float | None, Reason | None]:
        """Error of a backend against fp32 `math`, and why it cannot be used.

        The reference keeps all scores: a few heads and positions are compared, and all of them computed by the backend.
        """
        missing = None if name == REFERENCE else self._missing(name)
        if name == REFERENCE or missing is not None:
            return None, missing
        precision, shape = self._engine.precision, self._shape()
        batch = compilation.build_example(rows, self._config.max_seq_len, segments, shape.vocab_size, self._device)
        length, groups = min(self._config.max_seq_len, _COMPARED_POSITIONS), min(shape.attention.n_kv_heads, 2)
        heads = shape.attention.n_heads // shape.attention.n_kv_heads * groups
        few = replace(shape, attention=replace(shape.attention, n_heads=heads, n_kv_heads=groups))
        part = compilation.build_example(1, length, segments, shape.vocab_size, self._device)
        try:
            found = measuring.attention_pass(name, few, part, precision.dtype)()
            error = measuring.relative_error(found, measuring.attention_pass("math", few, part, None)())
            measuring.attention_pass(name, shape, batch, precision.dtype)()
        except Exception as failure:  # noqa: BLE001 - a kernel can refuse, or fail, in any way
            return None, ("path.failed", {"reason": compilation.error_summary(failure)})
        tolerance = measuring.tolerance(self._config, self._device, precision)
        return error, ("path.differs", {"error": error, "tolerance": tolerance}) if error > tolerance else None

    # --- compilation ----------------------------------------------------------------------------------------

    def select_compile(self, key: CompileKey, total_steps: int) -> CompileKey | None:
        """What to compile; None: nothing, with the reason recorded."""
        reason = self._compile_rejection(key, total_steps)
        self._engine.choices["compile"] = reason is None
        if reason is not None:
            self._engine.record("compile", False, reason)
        if self._device.type == "cuda":
            graphs = self._graphs_rejection(key.varying)
            if graphs is None and reason is not None:
                graphs = "path.unsupported", {"what": "torch.compile is not used"}
            self._engine.record("cuda_graphs", False, graphs or ("path.not_tried", {}))
            self._engine.choices["cuda_graphs"] = graphs is None
            key = replace(key, graphs=graphs is None)
        return key if reason is None else None

    def _compile_rejection(self, key: CompileKey, total_steps: int) -> Reason | None:
        mode, planned = self._config.compile, self._recorded.get("compile")
        if mode == "off":
            return "path.off", {}
        if not isinstance(self._engine.model, Decoder):
            return _TRANSFORMERS
        if self._engine.objective is not None:
            return "path.unsupported", {"what": "losses that compare answers"}
        if self._sharded:
            by_layer = "FSDP, which compiles layer by layer with --compile on"
            return "path.unsupported", {"what": "DeepSpeed" if self._config.parallel == "deepspeed" else by_layer}
        if key.tuning["method"] == "qlora":  # bitsandbytes reads the state of its weights in Python
            return "path.unsupported", {"what": "QLoRA"}
        if key.tuning.get("lora_variant") == "dora":  # torch 2.13 cannot trace peft's forward pass
            return "path.unsupported", {"what": "DoRA"}
        if mode == "auto" and planned is False:
            return "path.recorded", {}
        missing = compilation.unavailable_reason(self._device)
        if missing is not None or planned or mode == "on":
            return missing
        if key.varying and self._engine.varlen and key.device == "cpu":  # padding costs more than compiling saves
            return "path.padding", {}
        earlier = compilation.read_decision(key)
        if earlier is not None and not earlier.used:
            return earlier.reason, dict(earlier.params)
        cost, saved = COMPILE_S[self._device.type], total_steps * self._step_s() * _SAVED_SHARE[self._device.type]
        return ("path.not_worth", {"cost": cost, "saved": round(saved, 1)}) if saved < cost else None

    def _graphs_rejection(self, varying: bool) -> Reason | None:
        """CUDA graphs need static shapes and pay where a micro-batch is short enough to be limited by launches.

        Gradients of a graph are in its own memory, which its next run overwrites: one micro-batch a step. A graph
        draws random numbers in another order: no dropout.
        """
        config = self._config
        obstacles = {
            "gradient accumulation": config.gradient_accumulation_steps > 1,
            "dropout": config.uses_dropout,
            "several processes": config.nproc_per_node > 1,
            "batches of different widths": varying,
        }
        if config.cuda_graphs == "off":
            return "path.off", {}
        for what, present in obstacles.items():
            if present:
                return "path.unsupported", {"what": what}
        wanted = config.cuda_graphs == "on" or self._recorded.get("cuda_graphs", self._step_s() < _GRAPH_S)
        return None if wanted else ("path.not_needed", {})

    def _step_s(self) -> float:
        """Estimated seconds of an eager step: 6 FLOPs per parameter and token."""
        model, cpu = self._engine.model, self._device.type == "cpu"
        rate = _FLOPS[self._device.type] * (torch.get_num_threads() if cpu else 1)
        overhead = _LAYER_OVERHEAD_S * model.config.n_layers if cpu else 0.0
        seconds = 6 * model.count_parameters() * self._tokens / rate + overhead
        return seconds * self._config.gradient_accumulation_steps

    def steps_before_switch(self, key: CompileKey, steps_left: int) -> int:
        """Steps until the compiler should have finished, at most half of the run.

        Depends on settings alone, so that a run that is killed before its first checkpoint switches at the same step
        again. On a GPU, where such a run is not exact anyway, cached code takes over after a second.
        """
        cached = self._device.type == "cuda" and compilation.is_cached(key)
        lead_s = 1.0 if cached else _MARGIN * COMPILE_S[self._device.type]
        return min(math.ceil(lead_s / self._step_s()), max(1, steps_left // 2))
