"""Selects how a run computes: threads, attention, loss in chunks, compilation.

Rules decide; nothing is timed before the first step. A resumed run repeats the choices of its checkpoint, and the same
command on the same machine repeats the choices that it made before (`MeasurementCache`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Annotated, Any, Final, TypedDict

import msgspec
import torch

from trainer_core.config import Config
from trainer_core.data.loader import Batch
from trainer_core.models.attention import BACKENDS
from trainer_core.models.decoder import Decoder
from trainer_core.progress import Reporter
from trainer_core.protocol import FastPath
from trainer_core.system import hardware
from trainer_core.system.result_cache import MeasurementCache
from trainer_core.train import activation_checkpointing
from trainer_core.train.device import Precision, uses_tf32
from trainer_core.train.engine import available, compilation, measuring, trials
from trainer_core.train.engine.compilation import CompileKey
from trainer_core.train.engine.engine import CompileSwitch, Engine
from trainer_core.train.engine.measuring import Reason

REFERENCE: Final = "sdpa"
_EXPECTED_SPEEDUP: Final = {"cpu": 1.11, "cuda": 1.5}  # of compilation; docs/performance.md; cuda: an assumption
_COMPILE_S: Final = {"cpu": 45.0, "cuda": 60.0}  # in the background, until measured on this machine
_CACHED_COMPILE_S: Final = 8.0  # from the compiler's cache
_MARGIN: Final = 1.5  # of the step at which compiled code takes over: background compilation competes with training
_FLOPS: Final = {"cpu": 3e10, "cuda": 4e13}  # rough eager FLOP/s, per core on a CPU
_LAYER_OVERHEAD_S: Final = 1.5e-3  # of a layer, forward and backward, in addition to its arithmetic
_GRAPH_S: Final = 0.03  # a step this short may be limited by kernel launches
_CHUNK_BYTES: Final = {"cpu": 4 * 2**20, "cuda": 256 * 2**20}
"""fp32 logits per chunk of the loss. On a GPU chunks save memory; on a CPU they stay in the cache (2048 tokens x 2048
vocabulary entries: 12 % less time for a micro-batch)."""
_MAX_CHUNKS: Final = 16  # on a GPU: a compiled model unrolls them
_KNOBS: Final = (
    "cpu_threads",
    "ranks",
    "compile",
    "cuda_graphs",
    "attention",
    "chunked_loss",
    "activation_checkpointing",
    "activation_memory_budget",
    "tf32",
    "deterministic",
    "gradient_accumulation_steps",
)

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Choices(TypedDict, total=False):
    threads: _Count
    attention: str
    chunk: _Count
    compile: bool
    compile_step: _Count
    compiled_for: list[int]
    cuda_graphs: bool
    tf32: bool


def build_engine(
    config: Config,
    model: Decoder,
    device: torch.device,
    precision: Precision,
    session: Reporter,
    example: Batch,
    total_steps: int,
    recorded: dict[str, Any] | None,
    *,
    step: int = 0,
    varying: bool,
    eager_start: bool = True,
    background: bool = True,
    thorough: bool = False,
) -> Engine:
    """Build the engine of a run.

    Args:
        example: The first micro-batch, on any device.
        recorded: Choices of the checkpoint that the run resumes from.
        step: Steps done.
        varying: Batches differ in width.
        eager_start: Train eagerly until compiled code can be ready; False: wait for it before the first step.
        background: Start compiling now; False: in `CompileSwitch.finish`.
        thorough: Compile however short the run is, and neither read nor store choices (`doctor --fast-paths`).

    Random states, weights and gradients are preserved.
    """
    engine = Engine(model, precision, fast_paths=available.run_paths(config, model, device, precision))
    shape = [*example.input_ids.shape, example.segments is not None, varying]
    cache_key = _cache_key(config, engine, device, shape, total_steps)
    earlier = _Choices() if thorough else _earlier_choices(cache_key)
    selector = _Selector(config, engine, device, example.to(device), total_steps, varying, recorded, earlier)
    with measuring.preserved_state(model, device):
        selector.select_threads()
        selector.select_attention()
        selector.select_chunk()
    activation_checkpointing.checkpoint_activations(model, config.activation_checkpointing)
    if device.type == "cuda":
        engine.choices["tf32"] = uses_tf32(config, device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    key = selector.select_compile(thorough)
    if key is None:
        return engine
    first = selector.compile_step(key, step, eager_start)
    engine.choices |= {"compile": True, "compile_step": first, "compiled_for": selector.compiled_for()}
    decided = bool(recorded) and (first <= step or earlier.get("compile_step") == first)
    if decided and first > step and not earlier["compile"]:  # decided after this checkpoint, by an earlier process
        engine.choices["compile"] = False
        selector.record("compile", False, "path.recorded")
        return engine
    waited: Reason = ("path.set", {}) if config.compile == "on" else selector.repeated("path.on")
    selector.record("compile", True, ("path.from_step", {"step": first + 1}) if first > step else waited)
    engine.switch = CompileSwitch(
        engine,
        key,
        first if eager_start else step,
        config,
        session,
        None if thorough else cache_key,
        forced=decided or bool(earlier) or config.compile == "on",
        background=background,
    )
    return engine


def _cache_key(
    config: Config, engine: Engine, device: torch.device, shape: list[Any], total_steps: int
) -> tuple[object, ...]:
    """Everything that choices depend on."""
    knobs = {name: getattr(config, name) for name in _KNOBS}
    paths = [path.name for path in engine.fast_paths if path.used]
    model, precision = asdict(engine.model.config), engine.precision.name
    return "choices", measuring.machine_key(device), paths, precision, model, shape, total_steps, knobs


def _earlier_choices(cache_key: tuple[object, ...]) -> _Choices:
    """What the same command chose on this machine."""
    stored = MeasurementCache().get(*cache_key) or {}
    try:
        return msgspec.convert(stored.get("choices", {}), _Choices)
    except msgspec.ValidationError:
        return {}  # of another version, or damaged


def compile_cost(key: CompileKey, device: torch.device) -> float:
    """Seconds that compilation takes on this machine, as measured before or assumed."""
    cached = compilation.is_cached(key)
    measured = MeasurementCache().get("compile", measuring.machine_key(device)) or {}
    seconds = measured.get("again_s" if cached else "first_s")
    assumed = _CACHED_COMPILE_S if cached else _COMPILE_S[device.type]
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else assumed


class _Selector:
    """The rules, and the engine that they configure. Choices of a checkpoint or an earlier process are repeated."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        device: torch.device,
        example: Batch,  # on the device
        total_steps: int,
        varying: bool,
        recorded: dict[str, Any] | None,
        earlier: _Choices,
    ) -> None:
        self._config, self._engine, self._device, self._example = config, engine, device, example
        self._total_steps, self._varying = total_steps, varying
        self._recorded = msgspec.convert(recorded, _Choices) if recorded else earlier
        self._reason: Reason | None = ("path.recorded", {}) if recorded else ("path.measured", {}) if earlier else None

    def record(self, name: str, used: bool, reason: Reason | str, **more: Any) -> None:
        code, params = (reason, {}) if isinstance(reason, str) else reason
        self._engine.set_path(FastPath(name=name, used=used, reason=code, params=params, **more))

    def repeated(self, otherwise: str) -> Reason:
        """The reason for a repeated choice."""
        return self._reason or (otherwise, {})

    # --- threads, attention, loss ---------------------------------------------------------------------------

    def select_threads(self) -> None:
        """On a CPU: as set, as recorded where this machine has as many, or all."""
        if self._device.type != "cpu":
            return
        recorded = self._recorded.get("threads", 0)
        threads = torch.get_num_threads()
        reason: Reason = ("path.all", {})
        if self._config.cpu_threads or self._config.ranks > 1:
            reason = ("path.set", {})
        elif 0 < recorded <= hardware.usable_threads():
            threads, reason = recorded, self.repeated("path.all")
        torch.set_num_threads(threads)
        self._engine.choices["threads"] = threads
        self.record("threads", True, reason, choice=available.format_threads(threads))

    def select_attention(self) -> None:
        """As set, as recorded, or by rule. A kernel other than the reference must equal it on the run's first batch."""
        name: str = self._config.attention
        recorded = self._recorded.get("attention", "")
        reason: Reason = ("path.set", {})
        if name == "auto":
            name = recorded or self._attention_by_rule()
            reason = self.repeated("path.on") if recorded else ("path.on", {})
        error, failure = self._verify_attention(name)
        self._engine.set_attention(REFERENCE if failure else name)
        self.record("attention", failure is None, failure or reason, choice=name, error=error)
        for path in self._engine.fast_paths:
            if path.name not in available.VARLEN_BACKENDS or not path.used:
                continue
            if available.backend_of(path.name, self._device) == name:
                self.record(path.name, failure is None, failure or reason, choice=path.choice, error=error)
            else:
                unused = "path.not_needed" if self._example.segments is None else "path.not_tried"
                self.record(path.name, False, unused, choice=path.choice)

    def _attention_by_rule(self) -> str:
        """Variable-length attention for sequences of several documents; otherwise torch's choice."""
        if self._example.segments is None:
            return REFERENCE
        names = (available.backend_of(path, self._device) for path in available.VARLEN_BACKENDS)
        return next((name for name in names if self._unavailable_reason(name) is None), REFERENCE)

    def _unavailable_reason(self, name: str) -> Reason | None:
        if name not in BACKENDS:
            return "path.unsupported", {"what": name}
        dtype = self._engine.precision.dtype or torch.float32
        return BACKENDS[name].unavailable_reason(self._device, dtype, self._engine.model.config.head_dim)

    def _verify_attention(self, name: str) -> tuple[float | None, Reason | None]:
        """Error against the reference, and why the backend cannot be used."""
        missing = None if name == REFERENCE else self._unavailable_reason(name)
        if name == REFERENCE or missing is not None:
            return None, missing
        precision = self._engine.precision
        try:
            error = trials.attention_error(name, self._engine.model.config, self._example, precision)
        except Exception as failure:  # noqa: BLE001 - a kernel can refuse, or fail, in any way
            return None, ("path.failed", {"reason": compilation.error_summary(failure)})
        tolerance = trials.tolerance(self._config, self._device, precision)
        return error, ("path.differs", {"error": error, "tolerance": tolerance}) if error > tolerance else None

    def select_chunk(self) -> None:
        """Compute the loss in chunks where it is set, or where a micro-batch has many logits."""
        mode, vocabulary = self._config.chunked_loss, self._engine.model.config.vocab_size
        positions = self._example.input_ids.shape[0] * self._config.max_seq_len
        rows = max(64, _CHUNK_BYTES[self._device.type] // (4 * vocabulary))
        large = positions > rows
        if self._device.type == "cuda":
            rows = max(rows, -(-positions // _MAX_CHUNKS))
        recorded = self._recorded.get("chunk")
        reason: Reason
        if mode != "auto":
            chunk, reason = (rows, ("path.set", {})) if mode == "on" else (0, ("path.off", {}))
        elif recorded is not None:
            chunk, reason = recorded, self.repeated("path.on") if recorded else ("path.not_needed", {})
        else:
            chunk, reason = (rows, ("path.on", {})) if large else (0, ("path.not_needed", {}))
        self._engine.chunk = self._engine.choices["chunk"] = chunk
        self.record("chunked_loss", chunk > 0, reason)

    # --- compilation ----------------------------------------------------------------------------------------

    def select_compile(self, thorough: bool) -> CompileKey | None:
        """What to compile; None: nothing, with the reason recorded."""
        key = self._compile_key()
        reason = self._compile_rejection(key, thorough)
        self._engine.choices["compile"] = reason is None
        if reason is not None:
            self.record("compile", False, reason)
        if self._device.type == "cuda":
            no_graphs: Reason | None = ("path.unsupported", {"what": "torch.compile is not used"})
            if reason is None or self._config.cuda_graphs == "off":
                no_graphs = self._graphs_rejection()
            self.record("cuda_graphs", False, no_graphs or "path.not_tried")
            self._engine.choices["cuda_graphs"] = no_graphs is None
            key = replace(key, graphs=no_graphs is None)
        return key if reason is None else None

    def _graphs_rejection(self) -> Reason | None:
        """CUDA graphs need static shapes and pay where a micro-batch is short enough to be limited by launches.

        Gradients of a graph are in its own memory, which its next run overwrites: one micro-batch a step. A graph
        draws random numbers in another order: no dropout.
        """
        config = self._config
        obstacles = {
            "gradient accumulation": config.gradient_accumulation_steps > 1,
            "dropout": config.dropout > 0,
            "batches of different widths": bool(self.compiled_for()[2]),
        }
        if config.cuda_graphs == "off":
            return "path.off", {}
        for what, present in obstacles.items():
            if present:
                return "path.unsupported", {"what": what}
        if config.cuda_graphs == "on":
            return None
        if "cuda_graphs" in self._recorded:
            return None if self._recorded["cuda_graphs"] else self.repeated("path.not_needed")
        return None if self._step_s() < _GRAPH_S else ("path.not_needed", {})

    def _compile_rejection(self, key: CompileKey, thorough: bool) -> Reason | None:
        mode = self._config.compile
        if mode == "off":
            return "path.off", {}
        repeat = mode == "auto" and "compile" in self._recorded
        if repeat and not self._recorded["compile"]:
            return self.repeated("path.slower")
        missing = compilation.unavailable_reason(self._device)
        if missing is not None or repeat or thorough or mode == "on":
            return missing
        share = 1 - 1 / _EXPECTED_SPEEDUP[self._device.type]
        saved = self._total_steps * self._step_s() * share
        cost = compile_cost(key, self._device)
        return ("path.not_worth", {"cost": round(cost, 1), "saved": round(saved, 1)}) if saved < cost else None

    def _step_s(self) -> float:
        """Estimated seconds of an eager step: 6 FLOPs per parameter and token."""
        model, cpu = self._engine.model, self._device.type == "cpu"
        flops = 6 * model.count_parameters() * self._example.input_ids.numel()
        rate = _FLOPS[self._device.type] * (torch.get_num_threads() if cpu else 1)
        overhead = _LAYER_OVERHEAD_S * model.config.n_layers if cpu else 0.0
        return (flops / rate + overhead) * self._config.gradient_accumulation_steps

    def compile_step(self, key: CompileKey, step: int, eager_start: bool) -> int:
        """The step before which compiled code takes over: as recorded, or when the compiler should have finished."""
        recorded = self._recorded.get("compile_step")
        if recorded is not None:
            return recorded
        if self._config.compile == "on":
            return step
        background = eager_start and not compilation.is_cached(key)
        lead = _MARGIN * compile_cost(key, self._device) if background else 1.0
        return step + min(math.ceil(lead / self._step_s()), max(1, (self._total_steps - step) // 2))

    def compiled_for(self) -> list[int]:
        """Rows, whether sequences are divided, whether widths vary: of the run's first batch, wherever it was resumed,
        so that the same graph is compiled. Then the settings that these follow from."""
        config = self._config
        settings = [config.batch_size, config.max_seq_len, int(config.packing), int(config.attend_across_documents)]
        recorded = self._recorded.get("compiled_for", [])
        if recorded[3:] == settings:
            return list(recorded)
        divided = self._example.segments is not None
        return [self._example.input_ids.shape[0], int(divided), int(self._varying), *settings]

    def _compile_key(self) -> CompileKey:
        config, engine = self._config, self._engine
        rows, divided, varying, *_ = self.compiled_for()
        return CompileKey(
            shape=asdict(engine.model.config),
            rows=rows,
            length=config.max_seq_len if varying else self._example.input_ids.shape[1],
            segments=bool(divided),
            varying=bool(varying),
            device=str(self._device),
            precision=engine.precision.name,
            attention=REFERENCE if engine.varlen else engine.choices["attention"],  # a graph takes a mask
            chunk=engine.chunk,
            checkpointing=config.activation_checkpointing,
            memory_budget=config.activation_memory_budget,
            threads=engine.choices.get("threads", 0),
            tf32=uses_tf32(config, self._device),
            deterministic=config.deterministic and self._device.type == "cuda",
        )
