"""Fast paths: their availability, those of a run, and trials against the reference (`doctor --fast-paths`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, cast

import msgspec
import torch
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.batch import Batch
from trainer_core.models.attention import BACKENDS
from trainer_core.models.decoder import Decoder, build_decoder
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import ModelConfig
from trainer_core.performance_texts import NON_SPEED_REASONS
from trainer_core.progress import Reporter, StopRequested
from trainer_core.protocol import FastPath
from trainer_core.system.result_cache import MeasurementCache
from trainer_core.train import optimizers
from trainer_core.train.activation_checkpointing import checkpoint_activations
from trainer_core.train.device import Precision, choose_precision, limit_to_vram, native_bf16, uses_tf32
from trainer_core.train.engine import compilation, measuring
from trainer_core.train.engine.compilation import build_example
from trainer_core.train.engine.engine import REFERENCE, VARLEN_PATHS, CompileSwitch, Engine
from trainer_core.train.engine.measuring import MIN_SPEEDUP, TOLERANCE, Reason
from trainer_core.train.loss import batch_loss
from trainer_core.train.model_shape import model_config_of
from trainer_core.train.oom import release_memory

_KNOBS: Final[dict[str, dict[str, Any]]] = {  # model of the trials: common shape, small enough for seconds
    "cpu": {"hidden_dim": 128, "n_layers": 4, "max_seq_len": 128, "batch_size": 8, "vocab_size": 4097},
    "cuda": {"hidden_dim": 768, "n_layers": 4, "max_seq_len": 1024, "batch_size": 4, "vocab_size": 50_257},
}
_HEAD_DIM: Final = 64  # of common models
_BUDGET_S: Final = 1.0  # for the timing of a path

# --- availability -----------------------------------------------------------------------------------------------


def machine_paths(device: torch.device, precision: str) -> dict[str, FastPath]:
    """All fast paths by name: usable here, or why not. Computes nothing."""
    cuda = device.type == "cuda"
    dtype = Precision.from_name(precision, device).dtype or torch.float32
    no_gpu: Reason | None = None if cuda else ("path.no_gpu", {})
    no_compiler = compilation.unavailable_reason(device)
    no_tf32 = no_gpu or (None if native_bf16(device) else ("path.unsupported", {"what": "TF32"}))  # same generation
    paths: dict[str, FastPath] = {}

    def add(name: str, missing: Reason | None = None, choice: str = "", found: str = "path.found") -> None:
        reason, params = missing or (found, {})
        paths[name] = FastPath(name=name, used=missing is None, choice=choice, reason=reason, params=params)

    add("compile", no_compiler)
    add("cuda_graphs", no_gpu or no_compiler)
    add("attention", choice=REFERENCE)
    for name in VARLEN_PATHS:
        backend = backend_of(name, device)
        missing = BACKENDS[backend].unavailable_reason(device, dtype, _HEAD_DIM)
        add(name, missing, choice=backend if backend == "documents" else "")
    add("fused_adamw")
    add("muon", found="path.fewer_steps")
    add("chunked_loss")
    add("tf32", no_tf32)
    add("precision", ("path.not_needed", {}) if precision == "fp32" else None, choice=precision)
    add("transfer", no_gpu)
    add("padded_vocabulary")
    add("activation_checkpointing", found="path.trades")
    if not cuda:
        add("threads", choice=format_threads(torch.get_num_threads()))
    return paths


def backend_of(path: str, device: torch.device) -> str:
    """Backend of a path of `VARLEN_PATHS`. On a CPU, documents are computed one after the other."""
    if path != "varlen_attention":
        return path
    return "documents" if device.type == "cpu" else "varlen"


def format_threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def run_paths(config: Config, model: LanguageModel, device: torch.device, precision: Precision) -> dict[str, FastPath]:
    """Paths of a run according to its settings. The engine adds its selections."""
    paths = machine_paths(device, precision.name)

    def record(name: str, used: bool, reason: str, choice: Any = "") -> None:
        paths[name] = FastPath(name=name, used=used, choice=str(choice) if used else "", reason=f"path.{reason}")

    measured = _load_measured(device, precision.name).get("fused_adamw")
    if measured is not None:  # a run does not compare it, but always uses it
        paths["fused_adamw"] = msgspec.structs.replace(measured, used=True)
    muon, mode = config.optimizer == "muon", config.checkpointing[0]
    record("muon", muon, "set" if muon else "off")
    record("activation_checkpointing", mode != "off", "off" if mode == "off" else "set", mode)
    if paths["tf32"].used:
        tf32, fp32 = uses_tf32(config, device), precision.name == "fp32"
        record("tf32", tf32 and fp32, "not_needed" if not fp32 else "set" if tf32 else "off")
    if paths["transfer"].used and (config.low_memory or not config.pin_memory):
        record("transfer", False, "off")
    padded = model.config.unpadded_vocab_size > 0
    not_padded = "off" if config.vocab_multiple == 1 else "not_needed"
    record("padded_vocabulary", padded, "found" if padded else not_padded, model.config.vocab_size)
    if config.mixed_precision == precision.name:
        record("precision", True, "set", precision.name)
    elif config.mixed_precision == "no":
        record("precision", False, "off")
    return paths


# --- results of `doctor --fast-paths` ---------------------------------------------------------------------------


def cached_paths(device: torch.device, precision: str) -> list[FastPath]:
    """All paths with the results of `measure`, if it was run here. Fast."""
    measured = _load_measured(device, precision)
    current = machine_paths(device, precision)  # a compiler may have been installed or removed since
    return [measured.get(name, path) if _is_measurable(path) else path for name, path in current.items()]


def _is_measurable(path: FastPath) -> bool:
    """Paths that this machine has, and bf16 on any. Rates of TF32 and of copies are measured by `bench`."""
    return path.name == "precision" or (path.used and path.name in (*_TRIALS, "compile", "cuda_graphs"))


def _load_measured(device: torch.device, precision: str) -> dict[str, FastPath]:
    stored = MeasurementCache().get("paths", measuring.machine_key(device), precision) or {}
    try:
        return {path.name: path for path in msgspec.convert(stored.get("paths", []), list[FastPath])}
    except msgspec.ValidationError:
        return {}


def measure(device: torch.device, reporter: Reporter, log: Callable[[str], None]) -> list[FastPath]:
    """Try each path on a small model: error and speedup. About a minute on a CPU, mostly compilation, which is cached.
    `log` receives the name of each path before it is measured. Results are stored for `cached_paths`. Raises
    `StopRequested`.
    """
    limit_to_vram(device)
    precision = choose_precision("auto", device, reporter)
    paths = machine_paths(device, precision.name)
    names = [name for name, path in paths.items() if _is_measurable(path)]
    if "compile" in names:
        log("compile")
        paths |= _try_compile(device, precision, reporter, "cuda_graphs" in names)
    for name in (name for name in _TRIALS if name in names):
        reporter.poll()
        log(name)
        paths[name] = _try_path(paths[name], device, precision, reporter)
    results = msgspec.to_builtins([paths[name] for name in names])
    MeasurementCache().store({"paths": results}, "paths", measuring.machine_key(device), precision.name)
    return list(paths.values())


def _try_compile(
    device: torch.device, precision: Precision, reporter: Reporter, with_graphs: bool
) -> dict[str, FastPath]:
    """Compilation and, on a GPU, CUDA graphs, whose speedup is that over compiled code without them."""
    config, paths = Config(**_KNOBS[device.type]), dict[str, FastPath]()
    for name in ("compile", "cuda_graphs")[: 1 + with_graphs]:
        engine = Engine(_model(device), precision)
        engine.set_attention(REFERENCE)
        key = engine.build_key(config, device, config.batch_size, segments=False, varying=False)
        key = replace(key, graphs=name == "cuda_graphs")
        compilation.forget(key)
        CompileSwitch(engine, key, 0, config, reporter).finish(compilation.example_batch(key))
        paths[name] = engine.fast_paths[name]
    compilation.reset_graphs()  # they hold the memory of a whole step
    release_memory(device)
    compiled, graphs = paths["compile"].speedup, paths.get("cuda_graphs")
    if graphs is not None and graphs.used and graphs.speedup and compiled:
        paths["cuda_graphs"] = judge(graphs, graphs.speedup / compiled, graphs.error, graphs.error or 0.0)
    return paths


def _try_path(path: FastPath, device: torch.device, precision: Precision, reporter: Reporter) -> FastPath:
    try:
        trial, error = _TRIALS[path.name](device, precision), None
        if trial.tolerance is not None:
            error = measuring.relative_error(trial.fast(), trial.reference())
        alternatives = {"reference": trial.reference, "fast": trial.fast}
        seconds = measuring.time_alternatives(alternatives, device, reporter, _BUDGET_S)
    except StopRequested:
        raise
    except Exception as failure:  # noqa: BLE001 - the other paths are still measured
        params: dict[str, Any] = {"reason": compilation.error_summary(failure)}
        return FastPath(name=path.name, used=False, reason="path.failed", params=params)
    path = msgspec.structs.replace(path, choice=trial.choice or path.choice)
    return judge(path, seconds["reference"] / seconds["fast"], error, trial.tolerance or 0.0)


def judge(path: FastPath, speedup: float, error: float | None, tolerance: float) -> FastPath:
    """Decide whether a measured path is worth using. Paths that are off by default may be worth setting."""
    params: dict[str, Any] = {}
    if error is not None and error > tolerance:
        used, reason, params = False, "path.differs", {"error": error, "tolerance": tolerance}
    elif path.reason in NON_SPEED_REASONS:
        used, reason = True, path.reason
    elif speedup < (1 / MIN_SPEEDUP if path.used else MIN_SPEEDUP):
        used, reason = False, "path.slower"
    elif path.used:
        used, reason = True, path.reason if error is None else "path.on"
    else:
        used, reason = True, "path.by_name"
    return msgspec.structs.replace(path, used=used, reason=reason, params=params, error=error, speedup=speedup)


# --- trials -----------------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """The reference and the fast path as functions that return their results."""

    reference: Callable[[], list[Tensor]]
    fast: Callable[[], list[Tensor]]
    tolerance: float | None  # largest error allowed; None: not comparable, e.g. another optimizer
    choice: str = ""  # selected variant


def _model(device: torch.device, **knobs: Any) -> Decoder:
    """The same weights each time."""
    torch.manual_seed(0)
    config = Config(**{**_KNOBS[device.type], **knobs})
    return build_decoder(device, cast(ModelConfig, model_config_of(config, config.vocab_size)))


def _gradients(model: Decoder, precision: Precision, chunks: int = 0) -> list[Tensor]:
    """Gradients of a micro-batch, scaled in fp16, because gradients that underflow cannot be compared."""
    device = model.lm_head.weight.device
    batch = _batch(device)
    scale = torch.tensor(8.0 if precision.needs_scaler else 1.0, device=device)
    with precision.autocast():
        chunk = batch.labels.numel() // chunks if chunks else 0
        loss = batch_loss(model, batch, chunk=chunk, grad_scale=scale)
    return list(torch.autograd.grad(loss, list(model.parameters()), scale))


def _batch(device: torch.device) -> Batch:
    knobs = _KNOBS[device.type]
    return build_example(knobs["batch_size"], knobs["max_seq_len"], False, knobs["vocab_size"], device)


def _chunked_loss(device: torch.device, precision: Precision) -> Trial:
    """The loss in four chunks against all logits at once."""
    whole, chunked = (partial(_gradients, _model(device), precision, chunks) for chunks in (0, 4))
    return Trial(whole, chunked, TOLERANCE[precision.name])


def _checkpointing(device: torch.device, precision: Precision) -> Trial:
    """Full activation recomputation against none."""
    model, recomputing = _model(device), _model(device)
    checkpoint_activations(recomputing, "full")
    reference, fast = (partial(_gradients, one, precision) for one in (model, recomputing))
    return Trial(reference, fast, TOLERANCE[precision.name])


def _padded_vocabulary(device: torch.device, precision: Precision) -> Trial:
    """A vocabulary that 64 does not divide against the padded one. Other weights: only time."""
    plain, padded = (partial(_gradients, _model(device, vocab_multiple=many), precision) for many in (1, 64))
    return Trial(plain, padded, None)


def _fused_adamw(device: torch.device, precision: Precision) -> Trial:
    """One update from the same weights and gradients; time of many."""
    plain, fused = (
        _updates(model := _model(device), torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=fused))
        for fused in (False, True)
    )
    return Trial(plain, fused, TOLERANCE["fp32"])


def _muon(device: torch.device, precision: Precision) -> Trial:
    """Another optimizer with other weights: only the time of an update against AdamW's."""
    adamw, muon = (
        _updates(model := _model(device), optimizers.build_optimizer(model, Config(optimizer=name)))
        for name in ("adamw", "muon")
    )
    return Trial(adamw, muon, None)


def _updates(model: Decoder, optimizer: torch.optim.Optimizer) -> Callable[[], list[Tensor]]:
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)

    def update() -> list[Tensor]:
        optimizer.step()
        return list(model.parameters())

    return update


def _low_precision(device: torch.device, precision: Precision) -> Trial:
    """A large product in the run's precision, or in bf16 if the run computes in fp32, against fp32."""
    dtype = precision.dtype or torch.bfloat16
    size = 512 if device.type == "cpu" else 4096
    left, right = (torch.randn(size, size, device=device) for _ in range(2))
    low_left, low_right = left.to(dtype), right.to(dtype)
    name = "bf16" if dtype is torch.bfloat16 else "fp16"
    return Trial(lambda: [left @ right], lambda: [low_left @ low_right], TOLERANCE[name], name)


def _attention(device: torch.device, precision: Precision) -> Trial:
    """Torch's own attention against the formula, step by step."""
    return _attention_trial("math", REFERENCE, _batch(device), precision)


def _varlen(path: str, device: torch.device, precision: Precision) -> Trial:
    """Documents against torch's attention with a mask."""
    batch = build_example(4, 512 if device.type == "cpu" else 4096, True, _KNOBS[device.type]["vocab_size"], device)
    return _attention_trial(REFERENCE, backend_of(path, device), batch, precision)


def _attention_trial(reference: str, fast: str, batch: Batch, precision: Precision) -> Trial:
    knobs = _KNOBS[batch.input_ids.device.type]
    shape = cast(ModelConfig, model_config_of(Config(**knobs), knobs["vocab_size"]))
    slow, quick = (measuring.attention_pass(name, shape, batch, precision.dtype) for name in (reference, fast))
    return Trial(slow, quick, TOLERANCE[precision.name])


_TRIALS: Final[dict[str, Callable[[torch.device, Precision], Trial]]] = {
    "attention": _attention,
    "chunked_loss": _chunked_loss,
    "fused_adamw": _fused_adamw,
    "muon": _muon,
    "precision": _low_precision,
    "padded_vocabulary": _padded_vocabulary,
    "activation_checkpointing": _checkpointing,
    **{path: partial(_varlen, path) for path in VARLEN_PATHS},
}
