"""Selects how a run computes: threads, attention, loss in chunks, compilation.

Rules decide; nothing is timed before the first step. A resumed run repeats the choices of its checkpoint, and the same
command on the same machine repeats the choices that it made before (`MeasurementCache`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, TypedDict

import msgspec
import torch

from trainer_core.config import Config
from trainer_core.data.loader import Batch
from trainer_core.models.attention import BACKENDS, UnavailableReason
from trainer_core.models.decoder import Decoder
from trainer_core.progress import Reporter
from trainer_core.protocol import FastPath
from trainer_core.system import hardware
from trainer_core.train import activation_checkpointing
from trainer_core.train.device import Precision, uses_tf32
from trainer_core.train.engine import available, compilation, measuring, trials
from trainer_core.train.engine.compilation import CompileKey
from trainer_core.train.engine.compile_switch import CompileSwitch
from trainer_core.train.engine.engine import Engine
from trainer_core.train.engine.measuring import Reason

REFERENCE: Final = "sdpa"
_EXPECTED_SPEEDUP: Final = {"cpu": 1.11, "cuda": 1.5}  # of compilation; docs/performance.md; cuda: an assumption
_COMPILE_S: Final = {"cpu": 45.0, "cuda": 60.0}  # in the background, until measured on this machine
_CACHED_COMPILE_S: Final = 8.0  # from the compiler's cache
_MARGIN: Final = 1.5  # of the step at which compiled code takes over: background compilation competes with training
_FLOPS: Final = {"cpu": 3e10, "cuda": 4e13}  # rough eager FLOP/s, per core on a CPU
_LAYER_OVERHEAD_S: Final = 1.5e-3  # of a layer, forward and backward, beside its arithmetic
_CHUNK_BYTES: Final = {"cpu": 4 * 2**20, "cuda": 256 * 2**20}
"""fp32 logits per chunk of the loss. On a GPU chunks save memory; on a CPU they stay in the cache (2048 tokens x 2048
vocabulary entries: 12 % less time for a micro-batch)."""
_MAX_CHUNKS: Final = 16  # on a GPU: a compiled model unrolls them
_KNOBS: Final = (
    "cpu_threads",
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


@dataclass
class _Selection:
    """Inputs of the rules, and the engine that they configure."""

    config: Config
    engine: Engine
    device: torch.device
    example: Batch  # on the device
    total_steps: int
    varying: bool
    recorded: _Choices  # choices to repeat
    reason: Reason | None  # for repeated choices; None: nothing is repeated

    def record(self, name: str, used: bool, reason: Reason | str, **more: Any) -> None:
        code, params = (reason, {}) if isinstance(reason, str) else reason
        self.engine.set_path(FastPath(name=name, used=used, reason=code, params=params, **more))

    def repeated(self, otherwise: str) -> Reason:
        return self.reason or (otherwise, {})

    def micro_batch_s(self) -> float:
        """Estimated seconds of an eager micro-batch: 6 FLOPs per parameter and token."""
        model = self.engine.model
        flops = 6 * model.count_parameters() * self.example.input_ids.numel()
        rate = _FLOPS[self.device.type] * (torch.get_num_threads() if self.device.type == "cpu" else 1)
        overhead = _LAYER_OVERHEAD_S if self.device.type == "cpu" else 0.0
        return flops / rate + overhead * model.config.n_layers


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
    varying: bool | None = None,
    eager_start: bool = True,
    background: bool = True,
    thorough: bool = False,
) -> Engine:
    """Build the engine of a run.

    Args:
        example: The first micro-batch, on any device.
        recorded: Choices of the checkpoint that the run resumes from.
        step: Steps done.
        varying: Batches differ in width. None: if the example is narrower than the longest sequence.
        eager_start: Train eagerly until compiled code can be ready; False: wait for it before the first step.
        background: Start compiling now; False: in `CompileSwitch.finish`.
        thorough: Compile however short the run is, and neither read nor store choices (`doctor --fast-paths`).

    Random states, weights and gradients are preserved.
    """
    if varying is None:
        varying = example.input_ids.shape[1] != config.max_seq_len
    engine = Engine(model, precision, fast_paths=available.run_paths(config, model, device, precision))
    example = example.to(device)
    shape = [*example.input_ids.shape, example.segments is not None, varying]
    cache_key = _cache_key(config, engine, device, shape, total_steps)
    known = _Choices() if thorough else _known_choices(cache_key)
    reason: Reason | None = ("path.recorded", {}) if recorded else ("path.measured", {}) if known else None
    before = msgspec.convert(recorded, _Choices) if recorded else known
    job = _Selection(config, engine, device, example, total_steps, varying, before, reason)
    with measuring.preserved_state(model, device):
        _select_threads(job)
        _select_attention(job, session)
        _select_chunk(job)
    activation_checkpointing.checkpoint_activations(model, config.activation_checkpointing)
    if device.type == "cuda":
        engine.choices["tf32"] = uses_tf32(config, device)
        if "cuda_graphs" in job.recorded:
            engine.choices["cuda_graphs"] = bool(job.recorded["cuda_graphs"])
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    engine.choices["compile"] = False
    key = _select_compile(job, thorough)
    if key is None:
        return engine
    first = _compile_step(job, key, step, eager_start)
    engine.choices |= {"compile": True, "compile_step": first, "compiled_for": _compiled_for(job)}
    decided = bool(recorded) and (first <= step or known.get("compile_step") == first)
    if decided and first > step and not known["compile"]:  # decided after this checkpoint, by an earlier process
        engine.choices["compile"] = False
        job.record("compile", False, "path.recorded")
        return engine
    waited: Reason = ("path.set", {}) if config.compile == "on" else job.repeated("path.on")
    job.record("compile", True, ("path.from_step", {"step": first + 1}) if first > step else waited)
    if device.type == "cuda":
        job.record("cuda_graphs", False, "path.not_tried")
    forced = decided or bool(known) or config.compile == "on"
    engine.switch = CompileSwitch(
        engine,
        key,
        first if eager_start else step,
        config,
        session,
        cache_key,
        forced=forced,
        background=background,
        thorough=thorough,
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


def _known_choices(cache_key: tuple[object, ...]) -> _Choices:
    """What the same command chose on this machine."""
    stored = measuring.MeasurementCache().get(*cache_key) or {}
    try:
        return msgspec.convert(stored.get("choices", {}), _Choices)
    except msgspec.ValidationError:
        return {}  # of another version, or damaged


# --- threads, attention, loss -----------------------------------------------------------------------------------


def _select_threads(job: _Selection) -> None:
    """On a CPU: as set, as recorded where this machine has as many, or all."""
    if job.device.type != "cpu":
        return
    recorded = job.recorded.get("threads", 0)
    threads = torch.get_num_threads()
    reason: Reason = ("path.all", {})
    if job.config.cpu_threads:
        reason = ("path.set", {})
    elif 0 < recorded <= hardware.usable_threads():
        threads, reason = recorded, job.repeated("path.all")
    torch.set_num_threads(threads)
    job.engine.choices["threads"] = threads
    job.record("threads", True, reason, choice=f"{threads} thread{'s' * (threads != 1)}")


def _select_attention(job: _Selection, session: Reporter) -> None:
    """As set, as recorded, or by rule. A kernel other than the reference must equal it on the run's first batch."""
    wanted: str = job.config.attention
    recorded = job.recorded.get("attention", "")
    reason: Reason = ("path.set", {})
    if wanted == "auto":
        wanted = recorded or _attention_by_rule(job)
        reason = job.repeated("path.on") if recorded else ("path.on", {})
    error, failure = _verify_attention(job, wanted, session)
    job.engine.set_attention(REFERENCE if failure else wanted)
    job.record("attention", failure is None, failure or reason, choice=wanted, error=error)
    for path in available.VARLEN_BACKENDS:
        _record_varlen(job, path, wanted, failure or reason, error)


def _attention_by_rule(job: _Selection) -> str:
    """Variable-length attention for sequences of several documents; otherwise torch's choice."""
    if job.example.segments is None:
        return REFERENCE
    names = (available.backend_of(path, job.device) for path in available.VARLEN_BACKENDS)
    return next((name for name in names if _unavailable_reason(job, name) is None), REFERENCE)


def _unavailable_reason(job: _Selection, name: str) -> UnavailableReason | None:
    if name not in BACKENDS:
        return "path.unsupported", {"what": name}
    dtype = job.engine.precision.dtype or torch.float32
    return BACKENDS[name].unavailable_reason(job.device, dtype, job.engine.model.config.head_dim)


def _verify_attention(job: _Selection, name: str, session: Reporter) -> tuple[float | None, Reason | None]:
    """Error against the reference on the first sequence, and why the backend cannot be used."""
    if name == REFERENCE:
        return None, None
    missing = _unavailable_reason(job, name)
    if missing is not None:
        return None, missing
    shape, precision = job.engine.model.config, job.engine.precision
    result = trials.compare_attention([name], shape, job.example, precision, session, 0.0)[name]
    if result.failed:
        return None, ("path.failed", {"reason": result.failed})
    tolerance = trials.tolerance(job.config, job.device, precision)
    differs = ("path.differs", {"error": result.error, "tolerance": tolerance}) if result.error > tolerance else None
    return result.error, differs


def _record_varlen(job: _Selection, path: str, chosen: str, reason: Reason, error: float | None) -> None:
    known = next(one for one in job.engine.fast_paths if one.name == path)
    if not known.used:
        return
    if available.backend_of(path, job.device) == chosen:
        job.record(path, job.engine.choices["attention"] == chosen, reason, choice=known.choice, error=error)
    else:
        unused = "path.not_needed" if job.example.segments is None else "path.not_tried"
        job.record(path, False, unused, choice=known.choice)


def _select_chunk(job: _Selection) -> None:
    """Compute the loss in chunks where it is set, or where a micro-batch has many logits."""
    wanted, vocabulary = job.config.chunked_loss, job.engine.model.config.vocab_size
    positions = job.example.input_ids.shape[0] * job.config.max_seq_len
    rows = max(64, _CHUNK_BYTES[job.device.type] // (4 * vocabulary))
    large = positions > rows
    if job.device.type == "cuda":
        rows = max(rows, -(-positions // _MAX_CHUNKS))
    recorded = job.recorded.get("chunk")
    reason: Reason
    if wanted != "auto":
        chunk, reason = (rows, ("path.set", {})) if wanted == "on" else (0, ("path.off", {}))
    elif recorded is not None:
        chunk, reason = recorded, job.repeated("path.on") if recorded else ("path.not_needed", {})
    else:
        chunk, reason = (rows, ("path.on", {})) if large else (0, ("path.not_needed", {}))
    job.engine.chunk = job.engine.choices["chunk"] = chunk
    job.record("chunked_loss", chunk > 0, reason)


# --- compilation ------------------------------------------------------------------------------------------------


def _select_compile(job: _Selection, thorough: bool) -> CompileKey | None:
    """What to compile; None: nothing, with the reason recorded."""
    key = _compile_key(job)
    reason = _compile_rejection(job, key, thorough)
    if reason is not None:
        job.record("compile", False, reason)
        if job.device.type == "cuda":
            job.engine.choices["cuda_graphs"] = False
            unsupported = ("path.unsupported", {"what": "torch.compile is not used"})
            job.record("cuda_graphs", False, unsupported if job.config.cuda_graphs != "off" else "path.off")
        return None
    return key


def _compile_rejection(job: _Selection, key: CompileKey, thorough: bool) -> Reason | None:
    if job.config.compile == "off":
        return "path.off", {}
    repeat = job.config.compile == "auto" and "compile" in job.recorded
    if repeat and not job.recorded["compile"]:
        return job.repeated("path.slower")
    missing = compilation.unavailable_reason(job.device)
    if missing is not None or repeat or thorough or job.config.compile == "on":
        return missing
    share = 1 - 1 / _EXPECTED_SPEEDUP[job.device.type]
    saved = job.total_steps * job.config.gradient_accumulation_steps * job.micro_batch_s() * share
    cost = compile_cost(key, job.device)
    return ("path.not_worth", {"cost": round(cost, 1), "saved": round(saved, 1)}) if saved < cost else None


def compile_cost(key: CompileKey, device: torch.device) -> float:
    """Seconds that compilation takes on this machine, as measured before or assumed."""
    cached = compilation.is_cached(key)
    measured = measuring.MeasurementCache().get("compile", measuring.machine_key(device)) or {}
    seconds = measured.get("again_s" if cached else "first_s")
    assumed = _CACHED_COMPILE_S if cached else _COMPILE_S[device.type]
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else assumed


def _compile_step(job: _Selection, key: CompileKey, step: int, eager_start: bool) -> int:
    """The step before which compiled code takes over: as recorded, or when the compiler should have finished."""
    recorded = job.recorded.get("compile_step")
    if recorded is not None:
        return recorded
    if job.config.compile == "on":
        return step
    seconds = job.micro_batch_s() * job.config.gradient_accumulation_steps
    lead = 1.0 if compilation.is_cached(key) or not eager_start else _MARGIN * compile_cost(key, job.device)
    return step + min(math.ceil(lead / seconds), max(1, (job.total_steps - step) // 2))


def _compiled_for(job: _Selection) -> list[int]:
    """Rows, whether sequences are divided, whether widths vary: of the run's first batch, wherever it was resumed, so
    that the same graph is compiled. Then the settings that these follow from."""
    config = job.config
    settings = [config.batch_size, config.max_seq_len, int(config.packing), int(config.attend_across_documents)]
    recorded = job.recorded.get("compiled_for", [])
    if recorded[3:] == settings:
        return list(recorded)
    divided = job.example.segments is not None
    return [job.example.input_ids.shape[0], int(divided), int(job.varying), *settings]


def _compile_key(job: _Selection) -> CompileKey:
    config, engine = job.config, job.engine
    rows, divided, varying, *_ = _compiled_for(job)
    return CompileKey(
        shape=asdict(engine.model.config),
        rows=rows,
        length=config.max_seq_len if varying else job.example.input_ids.shape[1],
        segments=bool(divided),
        varying=bool(varying),
        device=str(job.device),
        precision=engine.precision.name,
        attention=REFERENCE if engine.varlen else engine.choices["attention"],  # a graph takes a mask
        chunk=engine.chunk,
        checkpointing=config.activation_checkpointing,
        memory_budget=config.activation_memory_budget,
        threads=engine.choices.get("threads", 0),
        tf32=uses_tf32(config, job.device),
        deterministic=config.deterministic and job.device.type == "cuda",
    )
